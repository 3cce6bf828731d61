"""Calls that are tags: a name, and a pair of tags around each parameter's value."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
    tags,
)
from ngramspec.text.chat.calls.json_value import escaped
from ngramspec.text.chat.calls.typed_value import (
    STRING,
    parameters_of,
    properties_of,
    spent_types_of,
    text_part,
    typed,
    types_of,
    value_part,
)
from ngramspec.text.chat.text import Read, Sink, Stops, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, optional, row

MOST_NAME = 256  # characters
NAME = re.compile(r"[^\n<>{}\"]*")
KEY = re.compile(r"[^\n<>\"]*")
CDATA, DATA_END = "<![CDATA[", Stops(("]]>",))
NO_STRING = frozenset(("object", "array", "number", "integer", "boolean", "null"))


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(CallFormat):
    """Calls like `open` NAME `opened`, parameters, `close`; all of them between `start` and `end`.

    A parameter is `key` NAME `value` VALUE `value_end`. The texts have the whitespace that the
    model writes; more or less of it is read as well.

    each: `start` and `end` are around each call.
    lines: A value stands on lines of its own.
    data: A value may stand in a CDATA section.
    by_name: Only the name of a tool makes it a call: its mark alone is not a clear sign.
    """

    start: str = ""
    open: str
    opened: str = ""
    key: str
    value: str
    value_end: str
    close: str
    end: str = ""
    between: str = ""
    each: bool = False
    lines: bool = False
    data: bool = False
    by_name: bool = False

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        if mark.text != self.open and not (yield from tags(text, self.open)):
            raise NotACallError
        while (yield from self._read_call(text, sink)):
            yield from text.space()
            if not (yield from text.passes(self.open)):
                text.give_back()
                yield from closing(text, *self.end.split("\n"))
                return

    def rule(self, rules: Rules, tools: Tools) -> Part:
        return self._row(rules, tools, bare=False)

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls; what is around them may be missing."""
        return self._row(rules, tools, bare=bool(self.start))

    def _row(self, rules: Rules, tools: Tools, bare: bool) -> Part:
        """Return the grammar of calls; `bare`: `start` and `end` may be missing."""
        call = rules.add("call", either(*(self._call(rules, one) for one in tools.tools)))

        def wrapped(inner: Part) -> Part:
            whole = row(self.start, inner, self.end)
            return either(whole, inner) if bare else whole

        if self.each:
            call = rules.add("call", wrapped(call))
        calls = several(call, row(self.between, call), tools)
        return calls if self.each else wrapped(rules.add("calls", calls))

    def read_opened(self, text: Text) -> Read[bool]:
        """Read the mark that follows a name; return whether it is there."""
        return (yield from tags(text, self.opened))

    def read_value_start(self, text: Text) -> Read[frozenset[str] | None]:
        """Read what stands between a parameter's name and its value.

        Returns:
            The types that it tells, none if it tells none. None: it is not there.
        """
        return frozenset() if (yield from tags(text, self.value)) else None

    def value_start(self, types: frozenset[str]) -> str:
        """Return what stands between a parameter's name and a value of one of the types."""
        return self.value

    def _read_call(self, text: Text, sink: AnswerSink) -> Read[bool]:
        """Read a call after `open`; return False if the text ends within it."""
        name = (yield from text.match(NAME, MOST_NAME)).strip()
        tool = sink.tools.named(name)
        if not name or (self.by_name and tool is None):
            raise NotACallError
        if not (yield from self.read_opened(text)):
            raise NotACallError
        yield from text.space()
        if self.by_name and not (yield from self._continues(text)):
            raise NotACallError
        sink.begin(name)
        sink.arguments("{")
        if not (yield from self._read_parameters(text, sink, tool)):
            return False
        sink.arguments("}")
        sink.end()
        return True

    def _continues(self, text: Text) -> Read[bool]:
        for token in (self.key, self.close.strip()):
            if (yield from text.starts(token)) or text.is_cut(token):
                return True
        return False

    def _read_parameters(self, text: Text, sink: AnswerSink, tool: Tool | None) -> Read[bool]:
        """Read parameters and the end of a call; return False if a value or that end is missing."""
        before = ""
        while True:
            yield from text.space()
            if not (yield from text.passes(self.key)):
                break
            key = (yield from text.match(KEY, MOST_NAME)).strip()
            types = yield from self.read_value_start(text)
            if types is None:
                return False
            sink.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            types = types or types_of(properties_of(tool).get(key), tool.parameters if tool else {})
            if not (yield from self._read_value(text, sink.arguments, types)):
                return False
        close = self.close.strip()
        return (yield from text.passes(close)) or not any(map(text.is_cut, (close, self.key)))

    def _read_value(self, text: Text, sink: Sink, types: frozenset[str]) -> Read[bool]:
        """Read a value and what ends it; return False if the text ends before that."""
        if self.lines:
            yield from text.passes("\n")
        pieces: list[str] = []
        value = _String(sink, self.lines) if types == STRING else None
        if value is not None:
            sink('"')
        take = pieces.append if value is None else value.take
        end = self.value_end.strip()
        if self.data and (yield from text.passes(CDATA)):
            whole = bool((yield from text.until(DATA_END, take))) and (yield from tags(text, end))
        else:
            whole = bool((yield from text.until(_stops(end), take)))
        if whole:
            sink('"' if value is not None else typed("".join(pieces), types, self.lines))
        return whole

    def _call(self, rules: Rules, tool: Tool) -> Part:
        parts = list[Part]()
        for key, schema, needed in parameters_of(tool):
            types = spent_types_of(rules, schema, tool.parameters)
            if types and "string" not in types:
                value = row(value_part(rules, schema, tool), self.value_end)
            else:
                value = text_part(rules, schema if types == STRING else True, tool, self.value_end)
            one = rules.add("value", row(f"{self.key}{key}{self.value_start(types)}", value))
            parts.append(one if needed else optional(one))
        head = f"{self.open}{tool.name}{self.opened}"
        return rules.add("call", row(head, *parts, self.close))


@dataclass(frozen=True, kw_only=True)
class DeepSeekTags(TaggedCalls):
    """DeepSeek V3.2: a parameter's tag tells whether its value is a string."""

    open: str = '<｜DSML｜invoke name="'
    opened: str = '">\n'
    key: str = '<｜DSML｜parameter name="'
    value: str = ""
    value_end: str = "</｜DSML｜parameter>\n"
    close: str = "</｜DSML｜invoke>\n"
    special: bool = True
    ends_reasoning: bool = True

    def read_value_start(self, text: Text) -> Read[frozenset[str] | None]:
        if not (yield from tags(text, '" string="')):
            return None
        word = yield from text.match(KEY, MOST_NAME)
        if not (yield from tags(text, '">')):
            return None
        return STRING if word == "true" else NO_STRING

    def value_start(self, types: frozenset[str]) -> str:
        return f'" string="{json.dumps(not types or "string" in types)}">'


@dataclass(frozen=True, kw_only=True)
class KimiTags(TaggedCalls):
    """Kimi K3: tags have attributes, a call's number and a value's type."""

    marks: Sequence[Mark] = (Mark("<|open|>tools<|sep|>"), Mark('<|open|>call tool="'))
    start: str = "<|open|>tools<|sep|>"
    open: str = '<|open|>call tool="'
    opened: str = '" index="1"<|sep|>'
    key: str = '<|open|>argument key="'
    value: str = ""
    value_end: str = "<|close|>argument<|sep|>"
    close: str = "<|close|>call<|sep|>"
    end: str = "<|close|>tools<|sep|>"
    special: bool = True

    def read_opened(self, text: Text) -> Read[bool]:
        if not (yield from tags(text, '" index="')):
            return False
        yield from text.match(KEY, MOST_NAME)
        return (yield from tags(text, '"<|sep|>'))

    def read_value_start(self, text: Text) -> Read[frozenset[str] | None]:
        if not (yield from tags(text, '" type="')):
            return None
        word = yield from text.match(KEY, MOST_NAME)
        if not (yield from tags(text, '"<|sep|>')):
            return None
        return STRING if word == "string" else frozenset()

    def value_start(self, types: frozenset[str]) -> str:
        kind = "string" if not types or "string" in types else min(types)
        return f'" type="{"number" if kind == "integer" else kind}"<|sep|>'


class _String:
    """Passes a string's text on as JSON.

    Args:
        sink: Takes it.
        lines: A line break at its end does not belong to it.
    """

    def __init__(self, sink: Sink, lines: bool) -> None:
        self._sink, self._lines, self._held = sink, lines, ""

    def take(self, piece: str) -> None:
        piece = self._held + piece
        self._held = "\n" if self._lines and piece.endswith("\n") else ""
        self._sink(escaped(piece.removesuffix(self._held)))


@lru_cache(64)
def _stops(mark: str) -> Stops:
    return Stops((mark,))
