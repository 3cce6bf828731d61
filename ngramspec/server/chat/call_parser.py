"""CallParser: finds tool calls in an answer as it comes, in the formats that models write them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ngramspec.server.chat.call_scanner import CallScanner
from ngramspec.server.chat.thinking import open_end

HERMES, HERMES_END = "<tool_call>", "</tool_call>"
MISTRAL = "[TOOL_CALLS]"
PYTHON = "<|python_tag|>"
NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")  # newer Mistral models


@dataclass(frozen=True, slots=True)
class Delta:
    """What comes to an answer: text, reasoning, a call's name, or a piece of its arguments."""

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str  # of a call its name
    index: int = 0  # of the call
    call_id: str = ""


class CallParser:
    """Splits content from calls.

    <tool_call>{...}</tool_call> (Hermes, Qwen), [TOOL_CALLS] [{...}, ...] and
    [TOOL_CALLS]name[ARGS]{...} (Mistral), and {...} at the start of the answer (Llama 3), which
    must name a known tool. What only looked like a call is content.

    Args:
        names: Names of the tools.
        limit: Number of calls at most; later ones are left out.
    """

    def __init__(self, names: Collection[str], limit: int | None = None) -> None:
        self.num_calls = 0
        self._names = names
        self._limit = limit
        self._held = ""  # not yet clear what it is
        self._begun = False  # something was returned: a bare object is content from now on
        self._mark = ""  # the format of the call that is read, "{" for bare
        self._scanner: CallScanner | None = None
        self._lead = ""  # the mark of that call, with whitespace before it
        self._taken = ""  # its text after that
        self._announced = False  # its name was returned
        self._between = False  # after a call, before its end mark or the next one

    def feed(self, text: str, last: bool = False) -> list[Delta]:
        """Return what is certain now; the last call returns the rest."""
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        if last:
            self._flush(deltas)
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Go on to the next part; False when more text is needed."""
        if self._limit is not None and self.num_calls >= self._limit and self._scanner is None:
            self._held = ""
            return False
        if self._scanner is not None:
            return self._call(deltas)
        if self._between:
            return self._after()
        return self._content(deltas)

    def _content(self, deltas: list[Delta]) -> bool:
        """Return text up to the next call."""
        start = self._held.lstrip()
        skipped = len(self._held) - len(start)
        if not self._begun and start.startswith(PYTHON):
            self._open("{", skipped + len(PYTHON))
            return True
        if not self._begun and start[:1] == "{":
            self._open("{", skipped)
            return True
        found = [(at, mark) for mark in (HERMES, MISTRAL) if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            shown = self._held[:at].rstrip()
            self._held = self._held[len(shown) :]
            self._emit(deltas, shown)
            self._open(mark, at - len(shown) + len(mark))
            return True
        marks = (HERMES, MISTRAL) if self._begun else (HERMES, MISTRAL, PYTHON)
        kept = len(self._held) - max(open_end(self._held, mark) for mark in marks)
        shown = self._held[:kept].rstrip()  # whitespace before a call is left out
        self._held = self._held[len(shown) :]
        self._emit(deltas, shown)
        return False

    def _open(self, mark: str, at: int) -> None:
        """Begin a call whose object stands at a place of the held text."""
        self._mark, self._scanner, self._announced = mark, CallScanner(), False
        self._lead, self._held, self._taken = self._held[:at], self._held[at:], ""

    def _skip(self, count: int) -> None:
        """Take characters of a call that are not a part of its object."""
        self._taken += self._held[:count]
        self._held = self._held[count:]

    def _call(self, deltas: list[Delta]) -> bool:
        """Read on in a call."""
        if not self._enter():
            return False
        scanner = self._scanner
        assert scanner is not None
        piece = scanner.feed(self._held)
        self._skip(len(self._held))
        unknown = self._mark == "{" and scanner.name is not None and scanner.name not in self._names
        if scanner.bad or unknown:
            self._give_up(deltas)
            return True
        if scanner.name is not None and not self._announced:
            call_id = uuid.uuid4().hex  # Mistral's templates take ids of nine characters only
            call_id = call_id[:9] if self._mark == MISTRAL else f"call_{call_id[:24]}"
            deltas.append(Delta("call", scanner.name, self.num_calls, call_id))
            self._announced = self._begun = True
        if piece:
            deltas.append(Delta("arguments", piece, self.num_calls))
        if scanner.done:
            self.num_calls += 1
            self._held, self._scanner, self._between = scanner.rest, None, True
        return scanner.done

    def _enter(self) -> bool:
        """Skip what stands before a Mistral call's object; False when more text is needed."""
        assert self._scanner is not None
        if self._mark != MISTRAL or self._scanner.text:
            return True
        start = self._held.lstrip()
        if start[:1] == "[":
            start = start[1:].lstrip()
        elif (named := NAMED.match(start)) is not None:
            self._scanner = CallScanner(f'{{"name": "{named[1]}", "arguments": ')
            start = start[named.end() :]
            self._skip(len(self._held) - len(start))
        elif start and start[0] != "{":
            return re.fullmatch(r"[\w.\[\]-]*", start) is None
        if start:
            self._skip(len(self._held) - len(start))
        return bool(start)

    def _after(self) -> bool:
        """Skip what stands between two calls, or after the last one."""
        start = self._held.lstrip()
        if self._mark == HERMES:
            if start != HERMES_END and HERMES_END.startswith(start):
                return False
            self._held, self._between = start.removeprefix(HERMES_END), False
            return True
        if not start:
            return False
        skipped = len(self._held) - len(start)
        if start[0] in ",;":
            self._open(self._mark, skipped + 1)
        elif self._mark == "{" and start[0] == "{":
            self._open(self._mark, skipped)
        else:
            self._held = start.removeprefix("]") if self._mark == MISTRAL else start
        self._between = False
        return True

    def _flush(self, deltas: list[Delta]) -> None:
        """Return what is left at the end: an unfinished call that has no name yet is content."""
        while self._scanner is not None and not self._announced:
            self._give_up(deltas)
            while self._step(deltas):
                pass
        rest, self._held = self._held, ""
        if self._scanner is None and not self._between and (rest.strip() or not self.num_calls):
            self._emit(deltas, rest)

    def _give_up(self, deltas: list[Delta]) -> None:
        """Return the mark of a call that is none as content; what follows is looked at again."""
        self._held, self._scanner, self._begun = self._taken + self._held, None, True
        self._emit(deltas, self._lead)

    def _emit(self, deltas: list[Delta], text: str) -> None:
        if text:
            self._begun = True
            deltas.append(Delta("content", text))
