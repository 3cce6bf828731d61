"""Bridge: chunks of the engine's thread reach the event loop, whenever they come."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.engine import Chunk, Engine, Generation, Request
from ngramspec.server import ServerSettings
from ngramspec.server.bridge import intake as intakes
from ngramspec.server.bridge.answer import Answer
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.http.connections import ClientGone


def test_a_chunk_that_comes_when_the_queue_was_just_found_empty_wakes_the_loop() -> None:
    generation = Generation(Request(prompt_ids=int32([1])), 0)

    class Arriving(deque[Any]):
        """The queue; when it is looked at and empty, the engine's thread puts one more in."""

        late = 3

        def _come(self) -> None:
            if not len(self) and self.late:
                self.late -= 1
                receive(Chunk(generation, (self.late,), 0, "", (), (), None))

        def __bool__(self) -> bool:
            filled = len(self) > 0
            if not filled:
                self._come()
            return filled

        def popleft(self) -> Any:
            if not len(self):
                self._come()
                raise IndexError
            return super().popleft()

    async def run() -> list[int]:
        bridge._loop = asyncio.get_running_loop()
        bridge._arrived = Arriving()
        receive(Chunk(generation, (9,), 0, "", (), (), None))
        taken: list[int] = []
        while len(taken) < 4:
            items = await asyncio.wait_for(answer.take(), 20)
            taken += [chunk.token_ids[0] for _, chunk in items or ()]
        return taken

    bridge = Bridge(Engine(FakeTarget(), None), ServerSettings())
    answer = Answer(streamed=True, max_items=100)
    receive = bridge.receiver(answer, 0)
    answer.generations = [generation]
    assert asyncio.run(run()) == [9, 2, 1, 0]


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_leaves_as_its_request_is_submitted_leaves_nothing_running(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "QUICK_SECONDS", 0.001)  # the client is watched after it
    served: Any = None

    async def receive() -> dict[str, str]:
        left.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    def plan(_: Incoming) -> Plan:
        assert left.wait(10)
        return Plan([Request(prompt_ids=int32([1]))], True, False, False)

    async def ask() -> bool:
        incoming = Incoming(b"", served, ServerSettings(), receive=receive)
        try:
            await bridge.open(plan, incoming)
        except ClientGone:
            return False
        return True

    for _ in range(20):
        left, submitted = threading.Event(), list[Generation]()
        engine = Engine(FakeTarget(), None)
        submit = engine.submit

        def noted(*arguments: Any, submit: Any = submit, to: Any = submitted) -> Generation:
            to.append(submit(*arguments))
            return to[-1]

        monkeypatch.setattr(engine, "submit", noted)
        bridge = Bridge(engine, ServerSettings())
        opened = asyncio.run(ask())
        bridge.intake.join()
        assert [one.cancelled for one in submitted] == [not opened] * len(submitted)
