"""ChatFormat: how the answer to one chat is written: its reasoning and its tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.engine.reasoning import ReasoningBudget
from ngramspec.server.chat.calls import CALL_FORMATS, call_format_of
from ngramspec.server.chat.calls.format import CallFormat
from ngramspec.server.chat.parser import ChatParser
from ngramspec.server.chat.reasoning import reasoning_format_of
from ngramspec.server.chat.reasoning.budget import reasoning_budget
from ngramspec.server.chat.reasoning.format import ReasoningFormat
from ngramspec.server.chat.tools import Tools
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody


@dataclass(frozen=True)
class ChatFormat:
    """A model's formats, and which of them a request uses."""

    calls: CallFormat
    reasoning: ReasoningFormat
    tools: Tools
    reasoning_begun: bool  # the prompt has opened the reasoning
    parses_reasoning: bool  # reasoning is split from the answer
    shows_special: bool  # the engine must show control tokens: calls begin with one

    def budget(
        self, body: SamplingBody, served: ServedModel, tokens: int
    ) -> ReasoningBudget | None:
        """Return what bounds the reasoning of a request; see reasoning_budget."""
        marks = self.reasoning.open, (self.reasoning.close,)
        return reasoning_budget(body, served, tokens, *marks, self.reasoning_begun)

    def parser(self) -> ChatParser:
        """Return a parser for one answer."""
        splitter = self.reasoning.splitter(self.reasoning_begun)
        return ChatParser(splitter if self.parses_reasoning else None, self.tools, self.calls)


def end_of_reasoning(template: str, prompt: str) -> str:
    """Return what ends the reasoning that a prompt has opened, "" if it has opened none."""
    reasoning = reasoning_format_of(template)
    return f"\n{reasoning.close}\n\n" if reasoning.begun(prompt) else ""


def chat_format(
    template: str, prompt: str, tools: Tools | None = None, parses_reasoning: bool = False
) -> ChatFormat:
    """Return how the model with a chat template answers a prompt.

    Args:
        template: "" for none.
        prompt: As the template wrote it.
        tools: The tools that the model can call.
        parses_reasoning: Split reasoning from the answer.
    """
    tools, reasoning = tools or Tools(), reasoning_format_of(template)
    special = (mark.text for known in CALL_FORMATS for mark in known.marks if mark.special)
    return ChatFormat(
        calls=call_format_of(template),
        reasoning=reasoning,
        tools=tools,
        reasoning_begun=reasoning.begun(prompt),
        parses_reasoning=parses_reasoning,
        shows_special=bool(tools) and any(text in template for text in special),
    )
