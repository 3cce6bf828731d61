"""Guard by itself, with messages of ASGI: bodies in pieces, the room of all bodies, the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.server import ServerSettings
from ngramspec.server.http.connections import Traffic
from ngramspec.server.http.guard import SMALL_BODY, ApiKeys, BodyRoom, Guard, HeldBody


def guarded(settings: ServerSettings, app: Any) -> Guard:
    return Guard(app, settings, ApiKeys(()), Traffic())


async def ask(guard: Guard, pieces: Iterable[bytes], path: str = "/completion") -> int:
    """Send a body in pieces, each with a pause before it, and return the status."""
    waiting, seen = list(pieces), []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        seen.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"x")]}
    await guard(scope, receive, send)
    return int(seen[0]["status"])


async def taking(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads the body and says how long it is."""
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_the_pieces_of_a_body_count_together(size: int) -> None:
    guard = guarded(ServerSettings(max_body_bytes=2000), taking)
    assert asyncio.run(ask(guard, [b"x" * size] * (2000 // size))) == 200
    assert asyncio.run(ask(guard, [b"x" * size] * (2000 // size) + [b"x"])) == 413


def test_large_bodies_share_a_room_and_small_ones_need_none() -> None:
    most = 4 * SMALL_BODY
    settings = ServerSettings(max_body_bytes=most, max_held_bytes=0)  # room for one of the largest

    async def run() -> None:
        held = asyncio.Event()

        async def holding(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            await held.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        guard, large, small = guarded(settings, holding), [b"x" * most], [b"x" * SMALL_BODY]
        first = asyncio.create_task(ask(guard, large))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(ask(guard, [b"x" * SMALL_BODY] * 4))
        await asyncio.sleep(0.01)
        many = [asyncio.create_task(ask(guard, small)) for _ in range(50)]
        third = asyncio.create_task(ask(guard, large))
        await asyncio.sleep(0.01)
        assert [one.done() for one in (first, *many)] == [False] * 51
        held.set()
        assert {await first, *[await one for one in many]} == {200}
        assert (await second, await third) == (503, 503)
        assert await ask(guard, large) == 200  # nothing of the room is lost

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5 * SMALL_BODY)), max_size=40))
def test_the_room_is_what_is_free_of_it(steps: list[tuple[int, int]]) -> None:
    """Against the sum of all bodies; size 0 ends one."""
    room = BodyRoom(6 * SMALL_BODY)
    bodies = [HeldBody(room) for _ in range(5)]
    sizes = [0] * 5
    for which, size in steps:
        others = sum(max(0, one - SMALL_BODY) for i, one in enumerate(sizes) if i != which)
        if size == 0:
            bodies[which].release()
            bodies[which], sizes[which] = HeldBody(room), 0
        elif size >= sizes[which]:
            fits = others + max(0, size - SMALL_BODY) <= 6 * SMALL_BODY
            assert bodies[which].grow(size) == fits
            sizes[which] = size if fits else sizes[which]
        used = sum(max(0, one - SMALL_BODY) for one in sizes)
        assert room.free == 6 * SMALL_BODY - used


def test_a_path_cannot_write_lines_of_its_own_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    guard = guarded(ServerSettings(), broken)
    with caplog.at_level(logging.INFO):
        assert asyncio.run(ask(guard, [b""], "/x\n\x1b[31m2026 ERROR all is lost\r")) == 500
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("guard")]
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert "all is lost" in lines[0]
