"""Calls that are JSON objects: {"name": ..., "arguments": {...}}, alone or in a list."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
)
from ngramspec.text.chat.calls.json_value import json_string, json_value, unquoted
from ngramspec.text.chat.calls.typed_value import arguments_part
from ngramspec.text.chat.text import Read, Text, ignored
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, regex, row

NESTED = "function"  # {"function": {"name": ..., "arguments": ...}}
NAMES = ("name", "tool_name", NESTED)
ARGUMENTS = ("arguments", "parameters")
IDS = ("id", "tool_call_id", "call_id")
FENCE = "```json"


@dataclass(frozen=True, kw_only=True)
class JsonCalls(CallFormat):
    """Calls between two texts, each or all together.

    start, end: The texts, as the model writes them.
    between: What stands between two calls.
    listed: The texts are around all calls together.
    name_key, arguments_key: Members of the object. No name key: the name is the key itself.
    id_key: Member for an id, which comes first; "" for none.
    by_name: Only the name of a tool makes it a call: its mark alone is not a clear sign.
    short_ids: Ids have nine characters.
    """

    start: str = ""
    end: str = ""
    between: str = ", "
    listed: bool = True
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    by_name: bool = False
    short_ids: bool = False

    def new_id(self) -> str:
        """Return nine characters where templates accept no other ids, as Mistral's do."""
        call_id = CallFormat.new_id(self)
        return call_id[-9:] if self.short_ids else call_id

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read objects, in a list or not."""
        yield from text.space()
        if (yield from text.passes(FENCE)):
            yield from text.space()
        if (yield from text.passes("[")):
            yield from text.space()
        while (yield from _Object(self, text, sink).read()):
            yield from text.space()
            char = yield from text.ahead(1)
            if char in (",", ";"):
                text.skip(1)
                yield from text.space()
            elif char != "{":
                text.give_back()
                yield from closing(text, *self.stops)
                return

    @cached_property
    def stops(self) -> tuple[str, ...]:
        return ("]", *re.findall(r"[^\s\]]+", self.end))

    def rule(self, rules: Rules, tools: Tools) -> Part:
        call = either(*(self._call(rules, tool) for tool in tools.tools))
        if not self.listed:
            call = row(self.start, call, self.end)
        call = rules.add("call", call)
        calls = several(call, row(self.between, call), tools)
        return row(self.start, calls, self.end) if self.listed else calls

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls from their mark on: whitespace before it is content."""
        return replace(self, start=self.start.lstrip()).rule(rules, tools)

    def _call(self, rules: Rules, tool: Tool) -> Part:
        parts: list[Part] = ["{"]
        if self.id_key:
            parts += [_start(self.id_key, '"'), regex("[0-9]{1,4}"), '", ']
        if self.name_key:
            parts += [_start(self.name_key), json_text(tool.name), ", "]
            parts.append(_start(self.arguments_key))
        else:
            parts += [json_text(tool.name), ": "]
        return rules.add("call", row(*parts, arguments_part(rules, tool), "}"))


class _Object:
    """Reads the object of one call."""

    def __init__(self, format: JsonCalls, text: Text, sink: AnswerSink) -> None:
        self._format, self._text, self._sink = format, text, sink
        self._name = self._id = ""
        self._held: list[str] = []  # arguments before a name
        self._begun = False
        self._depth = 0  # objects around the current member

    def read(self) -> Read[bool]:
        """Read all of it; return False if the text ends within it.

        Raises:
            NotACallError: It names no function.
        """
        if not (yield from self._text.passes("{")):
            raise NotACallError
        self._depth = 1
        try:
            while self._depth and not self._begun:
                yield from self._text.space()
                if (yield from self._text.passes("}")):
                    self._depth -= 1
                elif not (yield from self._text.passes(",")) and not (yield from self._member()):
                    return False
            if not self._begun:
                self._begin()
                self._sink.arguments("".join(self._held) or "{}")
        except NotACallError:
            if not self._name or self._held or (yield from self._text.ahead(1)):
                raise
            self._begin()  # the text ends behind the name
            return False
        whole = yield from self._rest()
        if whole:
            self._sink.end()
        return whole

    def _member(self) -> Read[bool]:
        """Read a member; return False if the text ends within the arguments of a call."""
        key = yield from json_string(self._text)
        yield from self._text.space()
        if not (yield from self._text.passes(":")):
            raise NotACallError
        yield from self._text.space()
        char = yield from self._text.ahead(1)
        if key == NESTED and char == "{" and self._depth == 1:
            self._text.skip(1)
            self._depth += 1
        elif not self._format.name_key and char == "{":
            self._name = key
            return (yield from self._arguments())
        elif key in NAMES and self._format.name_key:
            self._name = yield from json_string(self._text)
        elif key in IDS and char == '"':
            self._id = yield from json_string(self._text)
        elif key in ARGUMENTS:
            return (yield from self._arguments())
        elif not (yield from json_value(self._text, ignored)):
            raise NotACallError
        return True

    def _arguments(self) -> Read[bool]:
        """Read the arguments and pass them on as they come if the name is known."""
        if self._name:
            self._begin()
        take = self._sink.arguments if self._begun else self._held.append
        char = yield from self._text.ahead(1)
        if char == "{":
            whole = yield from json_value(self._text, take, self._format.stops)
        else:  # no object: a text that holds one, or nothing
            pieces: list[str] = []
            whole = yield from json_value(self._text, pieces.append)
            value = "".join(pieces)
            value = unquoted(value[1:-1]) if char == '"' else value
            take("{}" if value in ("", "null", "[]") else value)
        if not whole and not self._begun:
            raise NotACallError
        return whole

    def _begin(self) -> None:
        by_name = self._format.by_name
        if not self._name or (by_name and self._sink.tools.named(self._name) is None):
            raise NotACallError
        if by_name and not self._held and not self._depth:
            raise NotACallError  # it has no arguments
        self._begun = True
        self._sink.begin(self._name, self._id)

    def _rest(self) -> Read[bool]:
        """Read what follows the arguments; return False if the text ends before the object."""
        while self._depth:
            yield from self._text.space()
            char = yield from self._text.ahead(1)
            if char == "}":
                self._depth -= 1
            if char in ("}", ",", ":"):
                self._text.skip(1)
            elif char in ('"', "{", "[") or char.isalnum() or char == "-":
                if not (yield from json_value(self._text, ignored)):
                    return False
            else:
                return bool(char)  # a brace is missing
        return True


def json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _start(key: str, value: str = "") -> str:
    return f"{json.dumps(key)}: {value}"
