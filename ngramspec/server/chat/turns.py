"""Turns: messages in OpenAI's shape, put together from the pieces in which other APIs send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import MAX_OBJECTS


class Turns:
    """The turns of a chat so far. What one side says in a row is one turn.

    Anthropic combines such messages, and most templates want sides that alternate and one system
    message at the start.

    late_system: The template takes system messages within the chat; otherwise users say them.
    """

    def __init__(self, late_system: bool = True) -> None:
        self._late_system = late_system
        self._messages: list[dict[str, Any]] = []
        self._reasoning: list[str] = []  # of the model's turn that is the last message

    def say(self, role: str, text: str) -> None:
        """Add a text of anybody but the model."""
        last = self._messages[-1]["role"] if self._messages else ""
        if role == "system" and last not in ("", "system") and not self._late_system:
            role = "user"
        if last == role:
            self._messages[-1]["content"].append(_part(text))
        else:
            self._add({"role": role, "content": [_part(text)]})

    def answer(self, text: str) -> None:
        self._answer()["content"].append(_part(text))

    def reason(self, text: str) -> None:
        self._answer()
        self._reasoning.append(text)

    def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._answer().setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, text: str) -> None:
        self._add({"role": "tool", "tool_call_id": call_id, "content": text})

    def messages(self, field: str) -> list[dict[str, Any]]:
        """Return the messages.

        field: Name of the field that they come from.

        Raises:
            ApiError: There are more than MAX_OBJECTS.
        """
        self._end()
        count = len(self._messages)
        if count > MAX_OBJECTS:
            words = f"{field} must make at most {MAX_OBJECTS} messages, got {count}"
            raise bad_request(words, field)
        return self._messages

    def _add(self, message: dict[str, Any]) -> None:
        self._end()
        self._messages.append(message)

    def _answer(self) -> dict[str, Any]:
        """Return the model's turn, a new one after somebody else's."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": []})
        return self._messages[-1]

    def _end(self) -> None:
        if self._reasoning:
            self._messages[-1]["reasoning_content"] = "\n".join(self._reasoning)
            self._reasoning = []


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
