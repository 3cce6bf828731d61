"""Preparation: work for a request that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from ngramspec.server.bridge.preparation import ClientGone, Preparation


def test_work_that_fails_after_its_client_left_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = threading.Event()
    abandoned = []  # not the futures, which would keep the error alive

    def work() -> None:
        left.wait(10)
        raise ClientGone

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def request() -> None:
        gone = False
        try:
            await preparation.run(work, receive=receive, abandon=lambda _: abandoned.append(1))
        except ClientGone:  # pytest.raises would keep the future alive
            gone = True
        assert gone
        left.set()
        preparation.join()
        await asyncio.sleep(0.1)  # the loop is told of the end of the work
        gc.collect()

    preparation = Preparation()
    asyncio.run(request())
    assert abandoned == [1]
    assert not caplog.records
