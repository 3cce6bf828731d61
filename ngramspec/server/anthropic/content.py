"""Content: the blocks of a message as they come, and the events that tell of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ngramspec.server.request.finite_json import finite_object
from ngramspec.text.chat.delta import Delta

Event = dict[str, Any]
# Kind of a piece -> type of its block, of its events, and the member that holds the text.
TYPES = {
    "content": ("text", "text_delta", "text"),
    "reasoning": ("thinking", "thinking_delta", "thinking"),
    "call": ("tool_use", "input_json_delta", "partial_json"),
}


@dataclass
class Block:
    """One block of a message, from its first piece on."""

    index: int
    kind: str  # content, reasoning or call
    number: int = 0  # of the call
    call: dict[str, Any] = field(default_factory=dict)  # its id and name
    pieces: list[str] = field(default_factory=list)
    open: bool = True

    def json(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        type, _, name = TYPES[self.kind]
        if self.kind == "call":
            arguments = finite_object(text or ("{}" if self.open else ""))
            if arguments is None:
                begun = f'{{"name": {json.dumps(self.call["name"])}, "arguments": {text}'
                return {"type": "text", "text": begun}
            return {"type": type, **self.call, "input": arguments}
        # Only Anthropic can sign its models' thinking; its clients want the member.
        signed = {"signature": ""} if self.kind == "reasoning" else {}
        return {"type": type, name: text, **signed}

    def event(self, text: str) -> Event:
        _, type, name = TYPES[self.kind]
        return self._delta({"type": type, name: text})

    def begin(self) -> Event:
        return {"type": "content_block_start", "index": self.index, "content_block": self.json()}

    def end(self) -> list[Event]:
        stop = {"type": "content_block_stop", "index": self.index}
        if self.kind != "reasoning":
            return [stop]
        return [self._delta({"type": "signature_delta", "signature": ""}), stop]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}


class Content:
    """The blocks of a message."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    @property
    def open(self) -> Block | None:
        """Return the block that has not ended, None if there is none."""
        last = self.blocks[-1] if self.blocks else None
        return last if last is not None and last.open else None

    def add(self, delta: Delta) -> list[Event]:
        kind = "call" if delta.kind == "arguments" else delta.kind
        block, events = self.open, list[Event]()
        if block is None or block.kind != kind or block.number != delta.index:
            events += self.close()
            block = Block(len(self.blocks), kind, delta.index)
            if kind == "call":
                block.call = {"id": delta.call_id, "name": delta.text}
            self.blocks.append(block)
            events.append(block.begin())
        if delta.kind != "call":
            block.pieces.append(delta.text)
            events.append(block.event(delta.text))
        return events

    def close(self) -> list[Event]:
        """End the open block, if there is one, and return its events."""
        block = self.open
        if block is None:
            return []
        block.open = False
        return block.end()

    def json(self) -> list[dict[str, Any]]:
        """Return all blocks; a call that was cut short is a text, so that nobody runs it."""
        self.close()
        return [block.json() for block in self.blocks]
