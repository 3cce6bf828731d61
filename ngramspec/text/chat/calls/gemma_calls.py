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
    members,
    several,
)
from ngramspec.text.chat.calls.loose_value import Quote, loose_value
from ngramspec.text.chat.calls.typed_value import (
    STRING,
    add_string_parameter,
    parameters_of,
    spent_types_of,
)
from ngramspec.text.chat.text import Read, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.gbnf import Rules, literal
from ngramspec.text.structured.until import until

OPEN, CALL, CLOSE, QUOTE = "<|tool_call>", "call:", "<tool_call|>", '<|"|>'
QUOTES = (Quote(QUOTE, escapes=False), Quote('"'))
MOST_NAME = 256  # characters
NAME = re.compile(r"[^\s{}<>]*")
SCALARS = ("integer", "number", "boolean", "null")


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(CallFormat):
    """Objects with bare keys, and strings between marks of their own."""

    marks: Sequence[Mark] = (Mark(OPEN),)
    special: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read one call."""
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

    def rule(self, rules: Rules, tools: Tools) -> str:
        """Return the grammar of calls whose values have the types of their parameters."""
        string = rules.add("text", f"{literal(QUOTE)} {until(rules, QUOTE)}")
        number, boolean, null = map(rules.primitive, ("number", "boolean", "null"))
        value = rules.reserve("any")
        key = rules.add("key", "[a-zA-Z0-9_] [a-zA-Z0-9_.-]*")
        inside = f'{key} ":" {value}'
        items = {
            "object": rules.add("dict", f'"{{" ({inside} ("," {inside})*)? "}}"'),
            "array": rules.add("list", f'"[" ({value} ("," {value})*)? "]"'),
            "string": string,
            **dict(zip(SCALARS, (rules.primitive("integer"), number, boolean, null), strict=True)),
        }
        rules.set(value, " | ".join(dict.fromkeys(items.values())))
        call = rules.add(
            "call", " | ".join(_call(rules, tool, items, value) for tool in tools.tools)
        )
        return several(call, call, tools)


def _call(rules: Rules, tool: Tool, items: dict[str, str], value: str) -> str:
    name, parts = tool.name[:80], list[tuple[str, bool]]()
    for key, schema, needed in parameters_of(tool):
        types = spent_types_of(rules, schema, tool.parameters)
        kinds = [items[kind] for kind in sorted(types) if kind in items]
        written = " | ".join(kinds) or value
        if types == STRING and (text := add_string_parameter(rules, schema, key, tool, QUOTE)):
            written = f"{literal(QUOTE)} {text} {literal(QUOTE)}"
        parts.append((rules.add(f"{name}-{key}", f"{literal(f'{key}:')} ({written})"), needed))
    head, tail = literal(f"{OPEN}{CALL}{tool.name}{{"), literal(f"}}{CLOSE}")
    return rules.add(f"call-{name}", f"{head} {members(rules, parts, name)} {tail}")
