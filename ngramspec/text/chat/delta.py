"""Delta: a piece of a chat's answer, and ChatMessage, the sum of the pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ngramspec.text.chat.custom_tools import input_of
from ngramspec.text.chat.tools import Tools

NO_TOOLS = Tools()
Kind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer: text, reasoning, a call's name, or a piece of its arguments."""

    kind: Kind
    text: str  # of kind "call": the name
    index: int = 0  # of the call
    call_id: str = ""


@dataclass
class ChatMessage:
    """An answer in its parts, without the marks between them."""

    content: str = ""
    reasoning: str = ""  # "" for none
    calls: list[dict[str, Any]] = field(default_factory=list)  # of functions, in OpenAI's shape

    def add(self, delta: Delta) -> None:
        """Add the next piece."""
        if delta.kind == "content":
            self.content += delta.text
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "call":
            function = {"name": delta.text, "arguments": ""}
            self.calls.append({"id": delta.call_id, "type": "function", "function": function})
        else:
            self.calls[delta.index]["function"]["arguments"] += delta.text

    def as_json(self, tools: Tools = NO_TOOLS) -> dict[str, Any]:
        """Return OpenAI's message, which a chat goes on with.

        tools: Those of the chat, to tell which calls are of custom tools.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if not self.calls:
            message["content"] = self.content
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                custom_call(call) if tools.is_custom(call["function"]["name"]) else call
                for call in self.calls
            ]
        return {**message, "refusal": None}


def custom_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a function as one of a custom tool."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    others = {key: value for key, value in call.items() if key != "function"}
    return {**others, "type": "custom", "custom": {"name": name, "input": input_of(arguments)}}
