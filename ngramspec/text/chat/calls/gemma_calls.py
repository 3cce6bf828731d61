"""Gemma 4's calls: <|tool_call>call:name{parameter:<|"|>value<|"|>,other:1}<tool_call|>."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
)
from ngramspec.text.chat.calls.loose_value import Quote, loose_value
from ngramspec.text.chat.calls.typed_value import STRING, parameters_of, spent_types_of, text_part
from ngramspec.text.chat.text import Read, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import (
    Part,
    Rules,
    either,
    in_order,
    many,
    optional,
    regex,
    row,
)

OPEN, CALL, CLOSE, QUOTE = "<|tool_call>", "call:", "<tool_call|>", '<|"|>'
QUOTES = (Quote(QUOTE, escapes=False), Quote('"'))
MOST_NAME = 256  # characters
NAME = re.compile(r"[^\s{}<>]*")
COMMA = regex(", ?")
_INTEGER = "-?(?:0|[1-9][0-9]{0,15})"
SCALARS: dict[str, Part] = {
    "integer": regex(_INTEGER),
    "number": regex(rf"{_INTEGER}(?:\.[0-9]{{1,15}})?(?:[eE][-+]?[0-9]{{1,3}})?"),
    "boolean": regex("true|false"),
    "null": "null",
}


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(CallFormat):
    """Objects with bare keys, and strings between marks of their own."""

    marks: Sequence[Mark] = (Mark(OPEN),)
    special: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        yield from text.space()
        if not (yield from text.passes(CALL)):
            raise NotACallError
        name = yield from text.match(NAME, MOST_NAME)
        if not name or not (yield from text.starts("{")):
            raise NotACallError
        sink.begin(name)
        if (yield from loose_value(text, sink.arguments, QUOTES)):
            sink.end()
            yield from closing(text, CLOSE)

    def rule(self, rules: Rules, tools: Tools) -> Part:
        value = rules.reserve("any")
        member = row(regex("[a-zA-Z0-9_][a-zA-Z0-9_.-]*"), ":", value)
        items: dict[str, Part] = {
            "object": row("{", optional(row(member, many(row(",", member)))), "}"),
            "array": row("[", optional(row(value, many(row(",", value)))), "]"),
            "string": row(QUOTE, rules.until(QUOTE)),
            **SCALARS,
        }
        items = {kind: rules.add(kind, part) for kind, part in items.items()}
        rules.set(value, either(*items.values()))
        call = rules.add("call", either(*(_call(rules, one, items, value) for one in tools.tools)))
        return several(call, call, tools)


def _call(rules: Rules, tool: Tool, items: dict[str, Part], value: Part) -> Part:
    parts = list[tuple[Part, bool]]()
    for key, schema, needed in parameters_of(tool):
        types = spent_types_of(rules, schema, tool.parameters)
        if types == STRING:
            written = row(QUOTE, text_part(rules, schema, tool, QUOTE))
        else:
            written = (
                either(*(items[kind] for kind in sorted(types) if kind in items))
                if types & items.keys()
                else value
            )
        parts.append((rules.add("value", row(f"{key}:", written)), needed))
    head, tail = f"{OPEN}{CALL}{tool.name}{{", f"}}{CLOSE}"
    return rules.add("call", row(head, in_order(rules, parts, COMMA), tail))
