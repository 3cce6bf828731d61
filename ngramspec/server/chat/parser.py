"""ChatParser: splits an answer, as it comes, into reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ngramspec.server.chat.call_parser import CallParser, Delta
from ngramspec.server.chat.thinking import ThinkSplitter
from ngramspec.server.chat.tools import Tools


class ChatParser:
    """Args as ThinkSplitter and CallParser.

    plain: nothing is looked for any more, all further text is content.
    """

    def __init__(self, tools: Tools, parses_thinking: bool, inside: bool) -> None:
        self._think = ThinkSplitter(inside) if parses_thinking else None
        limit = 1 if tools.parallel is False else None
        self._calls = CallParser(tools.names, limit) if tools else None
        self.plain = self._think is None and self._calls is None

    @property
    def num_calls(self) -> int:
        """Return how many complete calls were found."""
        return 0 if self._calls is None else self._calls.num_calls

    def feed(self, text: str, last: bool = False) -> list[Delta]:
        """Return what is certain now; the last call returns the rest."""
        if self._think is None:
            return self._content(text, last)
        deltas: list[Delta] = []
        for reasoning, piece in self._think.feed(text, last):
            if reasoning:
                deltas.append(Delta("reasoning", piece))
            else:
                deltas += self._content(piece, False)
        if self._think.done:
            self._think = None
            self.plain = self._calls is None
        return deltas + self._content("", True) if last else deltas

    def _content(self, text: str, last: bool) -> list[Delta]:
        if self._calls is not None:
            return self._calls.feed(text, last)
        return [Delta("content", text)] if text else []


@dataclass
class ChatMessage:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Add what comes next."""
        if delta.kind == "content":
            self.content += delta.text
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "call":
            function = {"name": delta.text, "arguments": ""}
            self.calls.append({"id": delta.call_id, "type": "function", "function": function})
        else:
            self.calls[delta.index]["function"]["arguments"] += delta.text

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's message."""
        made: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if not self.calls:
            made["content"] = self.content
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made["tool_calls"] = self.calls
        return {**made, "refusal": None}


def read_message(parser: ChatParser, text: str) -> ChatMessage:
    """Return a whole answer's message."""
    message = ChatMessage()
    for delta in parser.feed(text, last=True):
        message.add(delta)
    return message
