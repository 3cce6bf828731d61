"""Calls that are a JSON object, {"name": ..., "arguments": {...}}: parsed from a stream, forced."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, ClassVar

from ngramspec.server.chat.calls.format import CallFormat, CallReader
from ngramspec.server.chat.tools import Tools
from ngramspec.server.structured.gbnf import Rules, json_literal, literal
from ngramspec.server.structured.json_schema import add_schema

HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


class JsonCallFormat(CallFormat):
    """A format whose calls are JSON objects; the texts are those of a forced call."""

    start: ClassVar[str] = ""  # before the first call
    open: ClassVar[str]  # before the name of a call
    middle: ClassVar[str]  # between name and arguments
    close: ClassVar[str]
    between: ClassVar[str]
    end: ClassVar[str] = ""  # after the last call

    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Return a reader for the object."""
        return 0, JsonCallReader()

    def rule(self, rules: Rules, tools: Tools) -> str:
        """Return the grammar of a call whose arguments follow the schema of its tool."""
        items = []
        for tool in tools.tools:
            name = tool.name[:80]
            arguments = add_schema(
                rules, tool.parameters, f"{name}-arguments", f"tools.{name}", tool.strict
            )
            head = f"{literal(self.open)} {json_literal(tool.name)} {literal(self.middle)}"
            items.append(rules.add(f"call-{name}", f"{head} {arguments} {literal(self.close)}"))
        call = rules.add("call", " | ".join(items))
        more = f"({literal(self.between)} {call})*" if tools.parallel else ""
        parts = (literal(self.start), call, more, literal(self.end))
        return " ".join(part for part in parts if part != '""')


class JsonCallReader:
    """Finds the end of the object by counting braces; returns arguments before that.

    Args:
        head: Beginning of the object, for formats that leave it out; the object then ends with its
            arguments.
        names: Names that a call can have, None = any.
    """

    def __init__(self, head: str = "", names: Collection[str] | None = None) -> None:
        self.text = ""  # all text so far
        self.name: str | None = None
        self.done = False
        self.bad = False
        self._names = names
        self._floor = 1 if head else 0
        self._end = 0  # of the object
        self._args = -1  # where the arguments begin
        self._args_end = -1
        self._sent = -1
        self._opened = False  # its first brace was seen
        self._seen = 0  # characters scanned for braces
        self._depth = 0
        self._in_string = False
        self._escaped = False
        if head:
            self.feed(head)

    @property
    def rest(self) -> str:
        """Return what came after the object."""
        return self.text[self._end :]

    def feed(self, text: str) -> str:
        """Take text and return the arguments in it, as the model writes them."""
        self.text += text
        if self._args < 0 and (head := HEAD.match(self.text)) is not None:
            self.name = _unquoted(head[1])
            self._args = self._sent = head.end()
        if not self._opened:
            start = self.text.lstrip()[:1]
            self._opened, self.bad = start == "{", start not in ("", "{")
            if self.bad:
                return ""
        self._count()
        piece = self._piece()
        self.bad = self.bad or (
            self.name is not None and self._names is not None and self.name not in self._names
        )
        return piece

    def _piece(self) -> str:
        """Return the arguments that were not returned yet."""
        if self._args >= 0:
            end = self._args_end if self._args_end >= 0 else len(self.text)
            piece, self._sent = self.text[self._sent : end], end
            return piece
        return self._whole() if self.done else ""

    def _count(self) -> None:
        """Follow strings and braces up to the end of the object."""
        for at in range(self._seen, len(self.text)):
            char = self.text[at]
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                if self._depth == 1 and 0 <= self._args < at and self._args_end < 0:
                    self._args_end = at + 1
                if self._depth == self._floor and (not self._floor or self._args_end >= 0):
                    self.done = True
                    self._end = at + 1
                    return
        self._seen = len(self.text)

    def _whole(self) -> str:
        """Read an object in which the name does not come first."""
        try:
            call: Any = json.loads(self.text[: self._end])
            arguments = call["arguments"] if "arguments" in call else call["parameters"]
            name = call["name"]
        except (ValueError, KeyError):
            self.bad = True
            return ""
        if not isinstance(name, str):
            self.bad = True
            return ""
        self.name = name
        return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
