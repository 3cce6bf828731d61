"""ChatFormat: how the answer to one chat is written: its reasoning and its tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.text.chat.calls import call_format_of, formats_of
from ngramspec.text.chat.calls.format import CallFormat
from ngramspec.text.chat.delta import ChatMessage
from ngramspec.text.chat.parser import ChatParser
from ngramspec.text.chat.reasoning import ReasoningFormat, reasoning_format_of
from ngramspec.text.chat.tools import Tools


@dataclass(frozen=True)
class ChatFormat:
    """A model's formats, and which of them a request uses."""

    calls: CallFormat
    reasoning: ReasoningFormat
    tools: Tools
    reasons: bool  # the template knows the format of the reasoning
    begun: str  # the end of the prompt if it has opened the reasoning, else ""
    ended: bool  # the prompt has ended the reasoning
    parses_reasoning: bool  # reasoning is split from the answer
    shows_special: bool  # the engine must show control tokens: marks are among them
    follows_schema: bool = False  # so its calls can only be in the model's own format

    @property
    def may_reason(self) -> bool:
        """Return whether an answer may begin with reasoning that the prompt has not opened."""
        return self.reasons and self.parses_reasoning and not self.begun and not self.ended

    def parser(self) -> ChatParser:
        """Return a parser for one answer."""
        return ChatParser(
            [self.calls] if self.follows_schema else formats_of(self.calls),
            self.tools,
            reasoning=self.reasoning if self.parses_reasoning else None,
            begun=bool(self.begun),
            start="" if self.parses_reasoning or self.reasoning.inner else self.begun,
            hidden=self._hidden,
        )

    def message(self, text: str) -> ChatMessage:
        """Return an answer in its parts; one that was cut short has those that were begun."""
        return self.parser().message(text)

    @property
    def _hidden(self) -> list[str]:
        around = self.reasoning.open, self.reasoning.close
        marks = self.reasoning.hidden if self.reasons else ()
        if self.reasoning.inner:
            return [*marks, *around]
        shown = () if self.parses_reasoning else around
        return [mark for mark in marks if not any(mark in text for text in shown)]


def end_of_reasoning(template: str, prompt: str) -> str:
    """Return what ends the reasoning that a prompt has opened, "" if it has opened none."""
    reasoning = reasoning_format_of(template)
    return f"\n{reasoning.close}\n\n" if reasoning.begun(prompt) else ""


def chat_format(
    template: str,
    prompt: str,
    tools: Tools | None = None,
    parses_reasoning: bool = False,
    begun: bool = False,
    follows_schema: bool = False,
) -> ChatFormat:
    """Return how the model with a chat template answers a prompt.

    Args:
        template: "" for none.
        prompt: As the template wrote it.
        tools: The tools that the model can call.
        parses_reasoning: Split reasoning from the answer.
        begun: The prompt ends within reasoning that is continued.
        follows_schema: The answer must follow a schema where it is no call.
    """
    tools, calls, reasoning = (
        tools or Tools(),
        call_format_of(template),
        reasoning_format_of(template),
    )
    reasons = reasoning.fits(template)
    special = [
        other
        for other in formats_of(calls)
        if other.special and (tools or other.whole) and _occurs(other, calls, template)
    ]
    return ChatFormat(
        calls=calls,
        reasoning=reasoning,
        tools=tools,
        reasons=reasons,
        begun=reasoning.begun(prompt) or (reasoning.open if begun else ""),
        ended=prompt.rstrip().endswith(reasoning.close),
        parses_reasoning=parses_reasoning,
        shows_special=bool(special) or (reasons and reasoning.special),
        follows_schema=follows_schema,
    )


def _occurs(calls: CallFormat, own: CallFormat, template: str) -> bool:
    """Return whether a model may write the control tokens of a format."""
    return calls is own or any(mark.text in template for mark in calls.marks if not mark.inside)


PLAIN_ANSWER = chat_format("", "")  # all of it is content
