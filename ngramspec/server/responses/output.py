"""Output: the items of a response as they come, and the events that tell of them."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ngramspec.server.responses.tools import ResponseTools
from ngramspec.text.chat.custom_tools import input_of
from ngramspec.text.chat.delta import Delta

Event = dict[str, Any]  # without its number


class Item(ABC):
    """One item of a response, from its first piece to its end."""

    prefix: ClassVar[str]  # of its id

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = f"{self.prefix}_{uuid.uuid4().hex}"
        self.status = "in_progress"
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def whole(self) -> bool:
        """Return whether it can be used as it is."""
        return True

    @abstractmethod
    def continued_by(self, delta: Delta) -> bool:
        """Return whether a piece of the answer belongs to this item."""

    @abstractmethod
    def json(self) -> dict[str, Any]:
        """Return the item so far."""

    def begin(self) -> list[Event]:
        return [self._state("response.output_item.added")]

    @abstractmethod
    def piece(self, text: str) -> list[Event]:
        """Add a piece and return its events."""

    def end(self) -> list[Event]:
        return [self._state("response.output_item.done")]

    def _state(self, type: str) -> Event:
        return {"type": type, "output_index": self.index, "item": self.json()}

    def _event(self, type: str, **members: Any) -> Event:
        return {"type": type, "item_id": self.id, "output_index": self.index, **members}


class Message(Item):
    """A text for the user."""

    prefix = "msg"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.logprobs: list[dict[str, Any]] = []

    def continued_by(self, delta: Delta) -> bool:
        return delta.kind == "content"

    def json(self) -> dict[str, Any]:
        """Return the message so far; before its end it has no parts."""
        content = [] if self.status == "in_progress" else [self._part()]
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": content,
        }

    def begin(self) -> list[Event]:
        return [*super().begin(), self._of_part("response.content_part.added", part=self._part())]

    def piece(self, text: str) -> list[Event]:
        self.pieces.append(text)
        return [self._of_part("response.output_text.delta", delta=text, logprobs=[])]

    def end(self) -> list[Event]:
        part = self._part()
        members = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            self._of_part("response.output_text.done", **members),
            self._of_part("response.content_part.done", part=part),
            *super().end(),
        ]

    def _part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": []}
        return {**part, "logprobs": self.logprobs}

    def _of_part(self, type: str, **members: Any) -> Event:
        return self._event(type, content_index=0, **members)


class ReasoningItem(Item):
    """What the model thought, as it is or as a summary: many clients show only summaries."""

    prefix = "rs"

    def __init__(self, index: int, summarizes: bool) -> None:
        super().__init__(index)
        self._summarizes = summarizes

    def continued_by(self, delta: Delta) -> bool:
        return delta.kind == "reasoning"

    def json(self) -> dict[str, Any]:
        """Return the reasoning so far; before its end it has no parts."""
        parts = [] if self.status == "in_progress" else [self._part()]
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": parts if self._summarizes else [],
            "content": [] if self._summarizes else parts,
        }

    def begin(self) -> list[Event]:
        return [*super().begin(), self._of_part("part.added", part=self._part())]

    def piece(self, text: str) -> list[Event]:
        self.pieces.append(text)
        return [self._of_part("text.delta", delta=text)]

    def end(self) -> list[Event]:
        part = self._part()
        return [
            self._of_part("text.done", text=part["text"]),
            self._of_part("part.done", part=part),
            *super().end(),
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": "summary_text" if self._summarizes else "reasoning_text", "text": self.text}

    def _of_part(self, what: str, **members: Any) -> Event:
        if self._summarizes:
            name = f"response.reasoning_summary_{what}"
            return self._event(name, summary_index=0, **members)
        name = "response.content_" if what.startswith("part") else "response.reasoning_"
        return self._event(name + what, content_index=0, **members)


class Call(Item):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, index: int, delta: Delta, tools: ResponseTools) -> None:
        super().__init__(index)
        self._number = delta.index
        origin = tools.origin(delta.text)
        self._named = {"call_id": delta.call_id, "name": origin.name}
        if origin.namespace:
            self._named["namespace"] = origin.namespace

    @property
    def whole(self) -> bool:
        """Return whether the arguments are JSON: an end may have cut them."""
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True

    def continued_by(self, delta: Delta) -> bool:
        return delta.kind == "arguments" and delta.index == self._number

    def json(self) -> dict[str, Any]:
        head = {"id": self.id, "type": "function_call", "status": self.status}
        return {**head, **self._named, "arguments": self.text}

    def piece(self, text: str) -> list[Event]:
        self.pieces.append(text)
        return [self._event("response.function_call_arguments.delta", delta=text)]

    def end(self) -> list[Event]:
        members = {"name": self._named["name"], "arguments": self.text}
        return [self._event("response.function_call_arguments.done", **members), *super().end()]


class CustomCall(Call):
    """A call of a custom tool. Its input is known at its end, when the arguments can be read."""

    prefix = "ctc"

    def json(self) -> dict[str, Any]:
        head = {"id": self.id, "type": "custom_tool_call", "status": self.status}
        return {**head, **self._named, "input": self._input()}

    def piece(self, text: str) -> list[Event]:
        self.pieces.append(text)
        return []

    def end(self) -> list[Event]:
        text = self._input()
        return [
            self._event("response.custom_tool_call_input.delta", delta=text),
            self._event("response.custom_tool_call_input.done", input=text),
            *Item.end(self),
        ]

    def _input(self) -> str:
        """Return the input, or what the model wrote where that is not the one argument."""
        return "" if self.status == "in_progress" else input_of(self.text)


class Output:
    """The items of a response."""

    def __init__(self, tools: ResponseTools, summarizes: bool) -> None:
        self.items: list[Item] = []
        self._tools = tools
        self._summarizes = summarizes

    @property
    def open(self) -> Item | None:
        """Return the item that has not ended, None if there is none."""
        last = self.items[-1] if self.items else None
        return last if last is not None and last.status == "in_progress" else None

    def add(self, delta: Delta) -> list[Event]:
        item, events = self.open, list[Event]()
        if item is None or not item.continued_by(delta):
            events += self.close("completed")
            item = self._new(delta)
            self.items.append(item)
            events += item.begin()
        if delta.kind != "call":
            events += item.piece(delta.text)
        return events

    def close(self, status: str) -> list[Event]:
        """End the open item, if there is one, and return its events."""
        item = self.open
        if item is None:
            return []
        item.status = status if item.whole else "incomplete"
        return item.end()

    def json(self) -> list[dict[str, Any]]:
        return [item.json() for item in self.items]

    def _new(self, delta: Delta) -> Item:
        index = len(self.items)
        if delta.kind == "content":
            return Message(index)
        if delta.kind == "reasoning":
            return ReasoningItem(index, self._summarizes)
        kind = CustomCall if self._tools.origin(delta.text).custom else Call
        return kind(index, delta, self._tools)
