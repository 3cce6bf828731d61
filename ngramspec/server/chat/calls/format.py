"""CallFormat: one way to write tool calls: recognised, parsed from a stream, and forced."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ngramspec.server.chat.tools import Tools
from ngramspec.server.structured.gbnf import Rules


@dataclass(frozen=True)
class Mark:
    """A text that begins a call."""

    text: str
    first: bool = False  # only at the start of an answer, after optional whitespace
    inside: bool = False  # it belongs to the call, which is read from there
    special: bool = False  # a control token, which the engine hides by default


class CallReader(Protocol):
    """Reads one call from a stream.

    name: Name of the function, None until it is known.
    done: The call is complete; `rest` follows it.
    bad: It is not a call. Never set after the name is known.
    """

    name: str | None
    done: bool
    bad: bool

    @property
    def rest(self) -> str:
        """Return what came after the call."""

    def feed(self, text: str) -> str:
        """Take text and return the arguments in it, as a piece of JSON."""


class CallFormat(ABC):
    """How some models write calls. It has no state, so all requests share one.

    marks: Texts that begin a call, or a row of calls.
    """

    marks: ClassVar[tuple[Mark, ...]]

    @abstractmethod
    def fits(self, template: str) -> bool:
        """Return whether the model with this chat template writes calls like this."""

    @abstractmethod
    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Return how many characters to skip after a mark, and a reader for the call.

        None: more text is needed. names: Names of the tools.
        """

    @abstractmethod
    def after(self, text: str) -> tuple[int, bool] | None:
        """Return how many characters after a call to skip, and whether another call follows.

        None: more text is needed.
        """

    @abstractmethod
    def rule(self, rules: Rules, tools: Tools) -> str:
        """Return the grammar of a call, or of several if tools.parallel; add its rules."""

    def call_id(self) -> str:
        """Return an id for a call."""
        return f"call_{uuid.uuid4().hex[:24]}"
