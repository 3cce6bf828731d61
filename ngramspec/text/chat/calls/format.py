"""CallFormat: one way to write tool calls: recognised, read from a stream, and forced."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ngramspec.text.chat.text import Read, Text
from ngramspec.text.chat.tools import Tools
from ngramspec.text.structured.lark_rules import Part, Rules, many, row


class NotACallError(Exception):
    """What follows a mark is not a call. Never raised while a call is open."""


@dataclass(frozen=True)
class Mark:
    """A text that begins a call."""

    text: str
    first: bool = False  # only at the start of an answer, after optional whitespace
    inside: bool = False  # it belongs to the call, which is read from there


class AnswerSink(Protocol):
    """Takes what is read of an answer.

    parses_reasoning: Reasoning is told from content.
    """

    parses_reasoning: bool

    @property
    def tools(self) -> Tools: ...

    def content(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def reasoned(self, start: int, end: int) -> None:
        """Note where reasoning stood, its marks included: positions of the text."""

    def begin(self, name: str, call_id: str = "") -> None:
        """Begin a call; "" makes a new id. What was read so far is not content any more."""

    def arguments(self, text: str) -> None:
        """Add a piece of the JSON text of the open call's arguments."""

    def end(self) -> None:
        """End the open call. What is read from here on is content unless `begin` follows."""


@dataclass(frozen=True, kw_only=True)
class CallFormat(ABC):
    """How some models write calls. It has no state, so all requests share one.

    name: Name of the model family, for messages.
    signs: Texts that are all in the chat templates of these models. None: no template tells.
    without: Texts that are in none of these templates.
    marks: Texts that begin a call, or a row of calls.
    special: The marks can be control tokens, which the engine hides by default.
    general: Models of other families write it too.
    whole: Its marks are around reasoning and content too.
    reasons: Its marks tell reasoning from content, as no others do.
    ends_reasoning: A mark within the reasoning ends it.
    keeps_space: Whitespace between content and a call belongs to the content.
    """

    name: str
    signs: Sequence[str] = ()
    without: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    special: bool = False
    general: bool = False
    whole: bool = False
    reasons: bool = False
    ends_reasoning: bool = False
    keeps_space: bool = False

    def fits(self, template: str) -> bool:
        return (
            bool(self.signs)
            and all(sign in template for sign in self.signs)
            and not any(sign in template for sign in self.without)
        )

    @abstractmethod
    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read the calls after a mark.

        Raises:
            NotACallError: There is none, or what follows the last one is not one.
        """

    @abstractmethod
    def rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of a call, or of several if tools.several; add its rules."""

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        """Return the texts from which on an answer can only be calls, and those at its start.

        Before the latter may be whitespace. None at all: nothing tells calls from content.
        """
        return [mark.text for mark in self.marks if not mark.first], ()

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls that the model has begun itself, from any trigger on."""
        return self.rule(rules, tools)

    def answer_rule(self, rules: Rules, answer: Part) -> Part:
        """Return the grammar of an answer that is no call, from that of its content."""
        return answer

    def new_id(self) -> str:
        return f"call_{uuid.uuid4().hex[:24]}"


def closing(text: Text, *tokens: str) -> Read[None]:
    """Read the tokens that end a row of calls; each may be missing, with whitespace around it."""
    text.keep()
    for token in tokens:
        yield from text.space()
        if (yield from text.passes(token)):
            text.keep()
        elif text.is_cut(token):
            text.drop()
            text.keep()
    text.give_back()


def tags(text: Text, written: str) -> Read[bool]:
    """Read what a format writes on one or several lines; return whether it is there.

    There may be more or less whitespace between the lines.
    """
    for token in written.split("\n"):
        if token:
            yield from text.space()
            if not (yield from text.passes(token)):
                return False
    return True


def several(first: Part, more: Part, tools: Tools) -> Part:
    """Return the grammar of one call or, if allowed, of more."""
    return row(first, many(more)) if tools.several else first
