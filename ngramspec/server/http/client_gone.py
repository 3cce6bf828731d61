"""ClientGone, and waiting for work unless the client leaves first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from ngramspec.server.errors import ApiError

T = TypeVar("T")


class ClientGone(ApiError):
    """The client left before it had its answer; nobody gets it, it is counted and logged."""

    def __init__(self) -> None:
        super().__init__(499, "the client disconnected", code="client_left")


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection.

    receive: The connection's; the body must have been read.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    work: Awaitable[T], receive: Receive | None, timeout: float | None = None
) -> T:
    """Return what comes of work; give it up if the client leaves or it takes too long.

    Args:
        work: What is given up is cancelled, and has ended when this returns.
        receive: The connection's, which nobody else may read meanwhile; None = none is watched.
        timeout: Seconds, None = any number.

    Raises:
        ClientGone: The client left.
        asyncio.TimeoutError: The time is over.
        Exception: The work failed.

    For the event loop. Cost: one task more than the work's while it waits.
    """
    running = asyncio.ensure_future(work)
    watched = [] if receive is None else [asyncio.ensure_future(until_gone(receive))]
    tasks = (running, *watched)
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if running in done:
            return running.result()
        raise ClientGone if done else asyncio.TimeoutError
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
