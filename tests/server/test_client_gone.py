"""Waiting for work unless the client leaves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ngramspec.server.errors import ApiError, api_error
from ngramspec.server.http.connections import ClientGone, unless_gone, until_gone


class Connection:
    """A client that sends nothing more, and leaves when told to.

    reading: How many wait for its messages.
    """

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.reading = 0

    async def receive(self) -> dict[str, str]:
        self.reading += 1
        try:
            await self.left.wait()
        finally:
            self.reading -= 1
        return {"type": "http.disconnect"}


async def gives(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def fails() -> str:
    raise ValueError("broken")


def run(test: Callable[[Connection], Awaitable[None]]) -> None:
    """Run a test in an event loop; nothing of it may be left over."""

    async def whole() -> None:
        connection = Connection()
        await test(connection)
        assert connection.reading == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_work_that_ends_first_gives_its_result(timeout: float | None) -> None:
    async def test(connection: Connection) -> None:
        assert await unless_gone(gives("done"), connection.receive, timeout) == "done"
        assert await unless_gone(gives("done"), None, timeout) == "done"

    run(test)


def test_work_that_fails_raises_its_own_error() -> None:
    async def test(connection: Connection) -> None:
        for receive in (connection.receive, None):
            with pytest.raises(ValueError, match="broken"):
                await unless_gone(fails(), receive)

    run(test)


def test_a_client_that_leaves_ends_the_wait_and_the_work() -> None:
    async def test(connection: Connection) -> None:
        ended = asyncio.Event()

        async def work() -> None:
            connection.left.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # what the work cleans up is waited for
                ended.set()

        with pytest.raises(ClientGone) as caught:
            await unless_gone(work(), connection.receive)
        assert ended.is_set()
        assert (caught.value.status, caught.value.message) == (499, "the client disconnected")
        assert api_error(caught.value) is caught.value
        assert isinstance(caught.value, ApiError)

    run(test)


def test_work_that_takes_too_long_is_given_up() -> None:
    async def test(connection: Connection) -> None:
        for receive in (connection.receive, None):
            future = asyncio.get_running_loop().create_future()
            with pytest.raises(asyncio.TimeoutError):
                await unless_gone(future, receive, timeout=0.01)
            assert future.cancelled()

    run(test)


def test_work_that_is_done_counts_even_if_the_client_has_left_too() -> None:
    async def test(connection: Connection) -> None:
        connection.left.set()
        future = asyncio.get_running_loop().create_future()
        future.set_result("done")
        assert await unless_gone(future, connection.receive) == "done"

    run(test)


def test_an_error_of_work_that_was_given_up_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(connection: Connection) -> None:
        async def work() -> None:
            connection.left.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("too late") from None

        gone = False
        try:
            await unless_gone(work(), connection.receive)
        except ClientGone:  # pytest.raises would keep the task alive
            gone = True
        assert gone
        gc.collect()

    run(test)
    assert not caplog.records


def test_a_wait_that_is_cancelled_cancels_the_work() -> None:
    async def test(connection: Connection) -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(unless_gone(future, connection.receive))
        while not connection.reading:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    run(test)


def test_the_rest_of_a_body_is_no_sign_of_leaving() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    asyncio.run(until_gone(receive))
    assert not messages
