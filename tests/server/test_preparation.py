"""Preparation: work for a request that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from ngramspec.errors import CapacityError, StateError
from ngramspec.server.bridge import preparation as preparations
from ngramspec.server.bridge.preparation import THREADS, Preparation
from ngramspec.server.http.client_gone import ClientGone


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


@pytest.mark.parametrize("turns", range(6))
def test_work_that_ends_as_its_client_leaves_is_returned_or_abandoned(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparations, "QUICK_SECONDS", 0.001)  # the client is watched after it
    left, abandoned = threading.Event(), []

    async def receive() -> dict[str, str]:
        left.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def request() -> str | None:
        try:
            made = await preparation.run(
                lambda: left.wait(10) and "made",
                receive=receive,
                abandon=lambda _: abandoned.append(1),
            )
        except ClientGone:
            return None
        return str(made)

    preparation = Preparation()
    for _ in range(50):
        left.clear()
        abandoned.clear()
        returned = asyncio.run(request())
        assert (returned == "made") != (abandoned == [1])
    preparation.join()


def start_blocked(preparation: Preparation, tenant: str, number: int) -> tuple[Any, list[str]]:
    """Submit jobs that note their tenant and wait for an event; return it and the notes."""
    go, begun = threading.Event(), list[str]()
    for _ in range(number):
        preparation.submit(lambda: (begun.append(tenant), go.wait(10)), 1, tenant)
    while len(begun) < min(number, THREADS):
        time.sleep(0.001)
    return go, begun


def test_tenants_have_their_turns() -> None:
    preparation = Preparation()
    go, _ = start_blocked(preparation, "first", THREADS)
    order: list[str] = []
    futures = [
        preparation.submit(lambda name=name: order.append(name), 1, name)
        for name in ["many"] * 40 + ["one", "other", "one"]
    ]
    go.set()
    for future in futures:
        future.result(10)
    assert order.index("one") < 6
    assert order.index("other") < 8
    assert len(order) - 1 - order[::-1].index("one") < 12
    preparation.join()


def test_a_tenant_fills_only_a_part_of_the_places() -> None:
    async def ask(tenant: str, size: int = 1) -> str:
        try:
            return str(await preparation.run(lambda: "done", size=size, tenant=tenant))
        except CapacityError as error:
            return str(error)

    preparation = Preparation(most=8, max_bytes=100)
    go, _ = start_blocked(preparation, "many", 6)
    assert asyncio.run(ask("many")) == "6 requests with this key are being prepared already"
    other = threading.Timer(0.2, go.set)  # all threads are busy until then
    other.start()
    assert asyncio.run(ask("one")) == "done"
    preparation.join()

    preparation = Preparation(most=8, max_bytes=100)
    go = threading.Event()
    preparation.submit(lambda: go.wait(10), 70, "large")
    assert "with this key" in asyncio.run(ask("large", 6))
    assert asyncio.run(ask("one", 6)) == "done"
    assert asyncio.run(ask("one", 40)) == "1 requests are being prepared already"
    go.set()
    preparation.join()


def test_closing_drops_what_has_not_begun_and_waits_for_the_rest() -> None:
    preparation = Preparation()
    go, begun = start_blocked(preparation, "a", THREADS + 3)
    late = preparation.submit(lambda: begun.append("late"), 1, "a")
    preparation.close()
    assert late.cancelled()
    with pytest.raises(StateError, match="closing"):
        preparation.submit(lambda: None)
    go.set()
    preparation.join()
    assert begun == ["a"] * THREADS
    assert not preparation._running


def test_a_job_that_was_cancelled_costs_no_turn() -> None:
    preparation = Preparation()
    go, _ = start_blocked(preparation, "a", THREADS)
    ran: list[int] = []
    futures = [preparation.submit(lambda i=i: ran.append(i), 1, "b") for i in range(6)]
    for future in futures[:5]:
        assert future.cancel()
    assert len(preparation._running) == THREADS + 1
    go.set()
    futures[5].result(10)
    preparation.join()
    assert ran == [5]
