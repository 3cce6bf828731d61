"""Calls that are a name and then a JSON object, with marks before, between and behind them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
)
from ngramspec.text.chat.calls.json_value import json_value
from ngramspec.text.chat.calls.typed_value import arguments_part
from ngramspec.text.chat.text import Read, Stops, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, optional, regex, row

MOST_NAME = 512  # characters of a name with what is written around it
CONTENT = "all"  # Functionary's recipient of content
NAME = re.compile(r"[^\n<>{}\"]*")


@dataclass(frozen=True, kw_only=True)
class NamedCalls(CallFormat):
    """Calls like `open` NAME `middle` {...} `close`, all of them between `start` and `end`.

    head: What stands between `open` and the name, and may be missing.
    """

    start: str = ""
    open: str
    head: str = ""
    middle: str
    close: str = ""
    end: str = ""
    between: str = ""

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        if mark.text != self.open and self.start:
            yield from text.space()
            if not (yield from text.passes(self.open)):
                raise NotACallError
        name, call_id = yield from self.read_name(text)
        yield from self.read_rest(name, call_id, text, sink)

    def read_rest(self, name: str, call_id: str, text: Text, sink: AnswerSink) -> Read[None]:
        """Read calls behind the name of the first one."""
        while True:
            yield from text.space()
            if not name or not ((yield from text.starts("{")) or text.is_cut("{")):
                raise NotACallError
            sink.begin(name, call_id)
            if text.is_cut("{") or not (yield from json_value(text, sink.arguments, self.stops)):
                return
            sink.end()
            yield from closing(text, *self.close.split())
            text.keep()
            yield from text.space()
            if not (yield from text.passes(self.open)):
                break
            name, call_id = yield from self.read_name(text)
        text.give_back()
        yield from closing(text, *self.end.split())

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Return marks that end a call in which a brace is missing."""
        return tuple(dict.fromkeys((*self.close.split(), *self.end.split(), self.open)))

    def read_name(self, text: Text) -> Read[tuple[str, str]]:
        """Read the name and what follows it up to the arguments; "" if there is no name."""
        name = yield from text.match(NAME, MOST_NAME)
        for token in self.middle.split():
            yield from text.space()
            if not (yield from text.passes(token)):
                return "", ""
        return name.strip(), ""

    def written_name(self, name: str) -> Part:
        """Return the grammar of a name as it is written between `open` and `middle`."""
        return self.head + name

    def rule(self, rules: Rules, tools: Tools) -> Part:
        return row(self.start, self._row(rules, tools), self.end)

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls; what is around all of them may be missing."""
        calls = rules.add("row", self._row(rules, tools))
        return either(row(self.start, calls, self.end), calls) if self.start else calls

    def _row(self, rules: Rules, tools: Tools) -> Part:
        call = rules.add("call", either(*(self._call(rules, tool) for tool in tools.tools)))
        return several(call, row(self.between, call), tools)

    def _call(self, rules: Rules, tool: Tool) -> Part:
        return rules.add("call", row(self.open, self._opened(rules, tool)))

    def _opened(self, rules: Rules, tool: Tool) -> Part:
        """Return the grammar of a call behind its mark."""
        name = self.written_name(tool.name)
        return row(name, self.middle, arguments_part(rules, tool), self.close)


@dataclass(frozen=True, kw_only=True)
class DeepSeekCalls(NamedCalls):
    """DeepSeek: R1 writes function<｜tool▁sep｜>NAME and a code fence, V3.1 the name alone."""

    marks: Sequence[Mark] = (Mark("<｜tool▁calls▁begin｜>"), Mark("<｜tool▁call▁begin｜>"))
    start: str = "<｜tool▁calls▁begin｜>"
    open: str = "<｜tool▁call▁begin｜>"
    end: str = "<｜tool▁calls▁end｜>"
    special: bool = True

    def read_name(self, text: Text) -> Read[tuple[str, str]]:
        name = yield from text.match(NAME, MOST_NAME)
        if not (yield from text.passes(SEPARATOR)):
            return "", ""
        yield from text.space()
        if not (yield from text.starts("{")):
            name = yield from text.match(FENCED_NAME, MOST_NAME)
            yield from text.space()
            if not (yield from text.passes("```json")) and not (yield from text.starts("{")):
                return "", ""
        return name.strip(), ""


SEPARATOR = "<｜tool▁sep｜>"
FENCED_NAME = re.compile(r"[^\n<>{}\"`]*")


@dataclass(frozen=True, kw_only=True)
class KimiCalls(NamedCalls):
    """Kimi K2: the name stands in the id, functions.NAME:NUMBER."""

    def read_name(self, text: Text) -> Read[tuple[str, str]]:
        call_id, _ = yield from NamedCalls.read_name(self, text)
        name = call_id.removeprefix("functions.")
        before, colon, number = name.rpartition(":")
        return (before if colon and number.isdigit() else name), call_id

    def written_name(self, name: str) -> Part:
        return row(f"functions.{name}:", regex("[0-9]{1,4}"))


@dataclass(frozen=True, kw_only=True)
class MistralCalls(NamedCalls):
    """Mistral: NAME[ARGS]{...}, in some models NAME[CALL_ID]ID[ARGS]{...}.

    has_id: They write an id.
    """

    has_id: bool = False

    def read_name(self, text: Text) -> Read[tuple[str, str]]:
        yield from text.space()
        pieces: list[str] = []
        mark = yield from text.until(MISTRAL_MARKS, pieces.append)
        name, call_id = "".join(pieces).strip(), ""
        if mark == "[CALL_ID]":
            call_id = yield from text.match(MISTRAL_ID, MOST_NAME)
            mark = "[ARGS]" if (yield from text.passes("[ARGS]")) else ""
        return (name if mark == "[ARGS]" and NAME.fullmatch(name) else ""), call_id

    def new_id(self) -> str:
        """Return nine characters: Mistral's templates accept no other ids."""
        return NamedCalls.new_id(self)[-9:]

    def written_name(self, name: str) -> Part:
        return row(f"{name}[CALL_ID]", regex("[a-zA-Z0-9]{9}")) if self.has_id else name


MISTRAL_MARKS = Stops(("[CALL_ID]", "[ARGS]", "{", "\n", "[TOOL_CALLS]"))
MISTRAL_ID = re.compile(r"\w*")


@dataclass(frozen=True, kw_only=True)
class SolarCalls(NamedCalls):
    """Solar: ID<|tool_call:name|>NAME<|tool_call:args|>{...}."""

    def read_name(self, text: Text) -> Read[tuple[str, str]]:
        call_id = yield from text.match(NAME, MOST_NAME)
        if not (yield from text.passes("<|tool_call:name|>")):
            return "", ""
        name, _ = yield from NamedCalls.read_name(self, text)
        return name, call_id.strip()

    def written_name(self, name: str) -> Part:
        return row(regex("[a-z0-9]{10}"), f"<|tool_call:name|>{name}")


@dataclass(frozen=True, kw_only=True)
class FunctionaryCalls(NamedCalls):
    """Functionary 3.2: >>>RECIPIENT and a line break before content and calls.

    Prompts end with the mark, so answers begin with a recipient; that of content is "all".
    """

    marks: Sequence[Mark] = (Mark("", first=True, inside=True), Mark(">>>"))
    open: str = ">>>"
    middle: str = "\n"
    whole: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read a recipient, and the calls if it is a tool."""
        name, call_id = yield from self.read_name(text)
        if name == CONTENT and (yield from text.passes("\n")):
            return
        if sink.tools.named(name) is None:
            raise NotACallError
        yield from self.read_rest(name, call_id, text, sink)

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        names = [f"{tool.name}\n" for tool in tools.tools]
        return [f"{self.open}{name}" for name in names], names

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls, the first one with its mark or without it."""
        return row(optional(self.open), self.rule(rules, tools))

    def rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls, the first one without its mark."""
        call = rules.add("call", either(*(self._opened(rules, tool) for tool in tools.tools)))
        return several(call, row(self.open, call), tools)
