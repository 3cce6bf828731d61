"""CallFormat: one way to write tool calls: known by the template, read as it comes, forced."""

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
    """A text by which a call begins."""

    text: str
    first: bool = False  # only at the start of an answer, but for whitespace
    inside: bool = False  # it is a part of the call, which is read from there
    special: bool = False  # a control token, which the engine hides unless it is asked for


class CallReader(Protocol):
    """Reads one call as it comes.

    name: Of the function, None until it is known.
    done: The call is complete; `rest` follows it.
    bad: It is no call after all. Never after its name was known.
    """

    name: str | None
    done: bool
    bad: bool

    @property
    def rest(self) -> str:
        """Return what came after the call."""

    def feed(self, text: str) -> str:
        """Take text and return the arguments that it brings, as a piece of JSON."""


class CallFormat(ABC):
    """How some models write calls. It has no state, so that all requests share one.

    marks: Texts by which a call, or a row of calls, begins.
    """

    marks: ClassVar[tuple[Mark, ...]]

    @abstractmethod
    def fits(self, template: str) -> bool:
        """Tell whether the model with this chat template writes calls like this."""

    @abstractmethod
    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Return what reads the call behind a mark, and how many characters stand before it.

        None: more text is needed to tell. names: Those of the tools.
        """

    @abstractmethod
    def after(self, text: str) -> tuple[int, bool] | None:
        """Return how many characters behind a call belong to it, and whether another call follows.

        None: more text is needed to tell.
        """

    @abstractmethod
    def rule(self, rules: Rules, tools: Tools) -> str:
        """Return the grammar of a call, or of several where that is wanted; add rules for it."""

    def call_id(self) -> str:
        """Return an id for a call."""
        return f"call_{uuid.uuid4().hex[:24]}"
