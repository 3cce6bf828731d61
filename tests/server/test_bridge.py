"""Bridge: chunks of the engine's thread reach the event loop, whenever they come."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.engine import Chunk, Engine, Generation, Request
from ngramspec.server import ServerSettings
from ngramspec.server.bridge.answer import Answer
from ngramspec.server.bridge.bridge import Bridge


def test_a_chunk_that_comes_when_the_queue_was_just_found_empty_wakes_the_loop() -> None:
    made = Generation(Request(prompt_ids=int32([1])), 0)

    class Arriving(deque[Any]):
        """The queue; when it is looked at and empty, the engine's thread puts one more in."""

        late = 3

        def _come(self) -> None:
            if not len(self) and self.late:
                self.late -= 1
                receive(Chunk(made, (self.late,), 0, "", (), (), None))

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not found:
                self._come()
            return found

        def popleft(self) -> Any:
            if not len(self):
                self._come()
                raise IndexError
            return super().popleft()

    async def run() -> list[int]:
        bridge._loop = asyncio.get_running_loop()
        bridge._arrived = Arriving()
        receive(Chunk(made, (9,), 0, "", (), (), None))
        taken: list[int] = []
        while len(taken) < 4:
            items = await asyncio.wait_for(answer.take(), 20)
            taken += [chunk.token_ids[0] for _, chunk in items or ()]
        return taken

    bridge = Bridge(Engine(FakeTarget(), None), ServerSettings())
    answer = Answer(streamed=True, max_items=100)
    receive = bridge.receiver(answer, 0)
    answer.generations = [made]
    assert asyncio.run(run()) == [9, 2, 1, 0]
