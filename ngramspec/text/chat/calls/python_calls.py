"""Calls like those of Python: [name(parameter="value", other=1), ...]."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
)
from ngramspec.text.chat.calls.json_calls import JsonCalls
from ngramspec.text.chat.calls.loose_value import PYTHON, loose_value
from ngramspec.text.chat.calls.typed_value import parameters_of, value_part
from ngramspec.text.chat.text import Read, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, in_order, optional, regex, row

MOST_NAME = 256  # characters
COMMA = regex(", ?")
NAME = re.compile(r"[\w.:/-]*")
PARAMETER = re.compile(r"[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class PythonCalls(CallFormat):
    """A list of calls between two marks; JSON objects are read as well.

    by_name: Only the name of a tool makes it a call, and the marks may be missing.
    """

    start: str = ""
    end: str = ""
    by_name: bool = False

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read a list of calls, or a call without the list."""
        yield from text.space()
        if (yield from text.passes("[")):
            yield from text.space()
        if (yield from text.starts("{")):
            objects = JsonCalls(name=self.name, end=self.end, by_name=self.by_name)
            yield from objects.read(mark, text, sink)
            return
        while (yield from read_call(text, sink, self.by_name)):
            yield from text.space()
            if not (yield from text.passes(",")):
                text.give_back()
                yield from closing(text, "]", self.end)
                return
            yield from text.space()

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        """Return the mark, or the beginnings of lists that name a tool where there is none."""
        if not self.by_name:
            return CallFormat.triggers(self, tools)
        return (), [f"{self.start}[{tool.name}(" for tool in tools.tools]

    def rule(self, rules: Rules, tools: Tools) -> Part:
        call = rules.add("call", either(*(_call(rules, tool) for tool in tools.tools)))
        calls = several(call, row(", ", call), tools)
        end = optional(self.end) if self.by_name else self.end
        return row(f"{self.start}[", calls, "]", end)


def read_call(text: Text, sink: AnswerSink, by_name: bool = False) -> Read[bool]:
    """Read a call; return False if the text ends within it.

    by_name: The name must be a tool's.

    Raises:
        NotACallError: There is no name with a parenthesis.
    """
    name = yield from text.match(NAME, MOST_NAME)
    if not name or (by_name and sink.tools.named(name) is None):
        raise NotACallError
    if not (yield from text.passes("(")):
        raise NotACallError
    sink.begin(name)
    return (yield from read_arguments(text, sink))


def read_arguments(text: Text, sink: AnswerSink) -> Read[bool]:
    """Read named arguments and the parenthesis behind them, and end the call.

    Returns:
        False if the text ends before that.
    """
    sink.arguments("{")
    before = ""
    while True:
        yield from text.space()
        if (yield from text.passes(",")):
            continue
        key = yield from text.match(PARAMETER, MOST_NAME)
        yield from text.space()
        if not key or not (yield from text.passes("=")):
            break
        sink.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        before = ", "
        if not (yield from loose_value(text, sink.arguments, PYTHON)):
            return False
    if not (yield from text.passes(")")) and text.is_cut(")"):
        return False
    sink.arguments("}")
    sink.end()
    return True


def _call(rules: Rules, tool: Tool) -> Part:
    parts = [
        (rules.add("value", row(f"{key}=", value_part(rules, schema, tool))), needed)
        for key, schema, needed in parameters_of(tool)
    ]
    return row(f"{tool.name}(", in_order(rules, parts, COMMA), ")")
