"""ChatParser: splits an answer, as it comes, into reasoning, content and tool calls."""

from __future__ import annotations

from ngramspec.server.chat.calls.format import CallFormat
from ngramspec.server.chat.calls.parser import CallParser
from ngramspec.server.chat.delta import ChatMessage, Delta
from ngramspec.server.chat.reasoning.format import ReasoningSplitter
from ngramspec.server.chat.tools import Tools


class ChatParser:
    """Parses one answer.

    Args:
        reasoning: Splits reasoning from the answer, None = do not split.
        tools: The tools that the model can call.
        calls: The model's own format of calls.

    plain: All further text is content.
    """

    def __init__(
        self, reasoning: ReasoningSplitter | None, tools: Tools, calls: CallFormat
    ) -> None:
        self._reasoning = reasoning
        limit = 1 if tools.parallel is False else None
        self._calls = CallParser(tools.names, limit, calls) if tools else None
        self.plain = self._reasoning is None and self._calls is None

    @property
    def num_calls(self) -> int:
        """Return how many complete calls were found."""
        return 0 if self._calls is None else self._calls.num_calls

    def feed(self, text: str, last: bool = False) -> list[Delta]:
        """Return the pieces that are certain by now; with `last` all the rest."""
        if self._reasoning is None:
            return self._content(text, last)
        deltas: list[Delta] = []
        for reasoning, piece in self._reasoning.feed(text, last):
            if reasoning:
                deltas.append(Delta("reasoning", piece))
            else:
                deltas += self._content(piece, False)
        if self._reasoning.done:
            self._reasoning = None
            self.plain = self._calls is None
        return deltas + self._content("", True) if last else deltas

    def _content(self, text: str, last: bool) -> list[Delta]:
        if self._calls is not None:
            return self._calls.feed(text, last)
        return [Delta("content", text)] if text else []


def read_message(parser: ChatParser, text: str) -> ChatMessage:
    """Return a whole answer's message."""
    message = ChatMessage()
    for delta in parser.feed(text, last=True):
        message.add(delta)
    return message
