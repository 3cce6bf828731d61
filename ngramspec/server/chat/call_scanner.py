"""CallScanner: reads one tool call, {"name": ..., "arguments": {...}}, as it comes."""

from __future__ import annotations

import json
import re
from typing import Any

HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


class CallScanner:
    """Finds the end of the object by its braces; arguments are handed out before that.

    Args:
        head: Text that stands for the beginning of the object where a format leaves that out;
            the object then ends with its arguments.

    name: None until it is known. done: the object is complete, `rest` follows it. bad: it is no
    call; `text` is all that came.
    """

    def __init__(self, head: str = "") -> None:
        self.text = ""
        self.name: str | None = None
        self.done = False
        self.bad = False
        self._floor = 1 if head else 0
        self._end = 0  # of the object
        self._args = -1  # where the arguments begin
        self._args_end = -1
        self._sent = -1
        self._opened = False  # its first brace was seen
        self._seen = 0  # characters that the braces were counted in
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
        """Take text and return the arguments, as the model writes them, that it brings."""
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
