"""Intake: work for a request that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from ngramspec.errors import StateError
from ngramspec.server import ServerSettings
from ngramspec.server.bridge import intake as intakes
from ngramspec.server.bridge.intake import THREADS, Incoming, Intake
from ngramspec.server.errors import ApiError
from ngramspec.server.http.connections import ClientGone


def incoming(size: int = 0, tenant: str = "", receive: Any = None) -> Incoming:
    served: Any = None
    return Incoming(b"x" * size, served, ServerSettings(), tenant=tenant, receive=receive)


def test_work_that_fails_after_its_client_left_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = threading.Event()

    def work(_: Incoming) -> None:
        left.wait(10)
        raise ClientGone

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def request() -> None:
        gone = False
        try:
            await intake.run(work, incoming(receive=receive))
        except ClientGone:  # pytest.raises would keep the future alive
            gone = True
        assert gone
        left.set()
        intake.join()
        await asyncio.sleep(0.1)  # the loop is told of the end of the work
        gc.collect()

    intake = Intake()
    asyncio.run(request())
    assert not caplog.records


@pytest.mark.parametrize("turns", range(6))
def test_work_that_ends_as_its_client_leaves_is_returned_or_given_up(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "QUICK_SECONDS", 0.001)  # the client is watched after it
    left = threading.Event()

    async def receive() -> dict[str, str]:
        left.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def request() -> str:
        try:
            return await intake.run(
                lambda _: "made" if left.wait(10) else "late", incoming(receive=receive)
            )
        except ClientGone:
            return "given up"

    intake = Intake()
    for _ in range(50):
        left.clear()
        assert asyncio.run(request()) in ("made", "given up")
    intake.join()


def start_blocked(intake: Intake, tenant: str, number: int) -> tuple[Any, list[str]]:
    """Submit jobs that note their tenant and wait for an event; return it and the notes."""
    go, begun = threading.Event(), list[str]()
    for _ in range(number):
        intake.submit(lambda: (begun.append(tenant), go.wait(10)), 1, tenant)
    while len(begun) < min(number, THREADS):
        time.sleep(0.001)
    return go, begun


def test_tenants_have_their_turns() -> None:
    intake = Intake()
    go, _ = start_blocked(intake, "first", THREADS)
    order: list[str] = []
    futures = [
        intake.submit(lambda name=name: order.append(name), 1, name)
        for name in ["many"] * 40 + ["one", "other", "one"]
    ]
    go.set()
    for future in futures:
        future.result(10)
    assert order.index("one") < 6
    assert order.index("other") < 8
    assert len(order) - 1 - order[::-1].index("one") < 12
    intake.join()


def test_a_tenant_fills_only_a_part_of_the_places() -> None:
    async def ask(tenant: str, size: int = 1) -> str:
        try:
            return await intake.run(lambda _: "done", incoming(size, tenant))
        except ApiError as error:
            return error.message

    intake = Intake(most=8, max_bytes=100)
    go, _ = start_blocked(intake, "many", 6)
    assert asyncio.run(ask("many")) == "6 requests with this key are being prepared already"
    other = threading.Timer(0.2, go.set)  # all threads are busy until then
    other.start()
    assert asyncio.run(ask("one")) == "done"
    intake.join()

    intake = Intake(most=8, max_bytes=100)
    go = threading.Event()
    intake.submit(lambda: go.wait(10), 70, "large")
    assert "with this key" in asyncio.run(ask("large", 6))
    assert asyncio.run(ask("one", 6)) == "done"
    assert asyncio.run(ask("one", 40)) == "1 requests are being prepared already"
    go.set()
    intake.join()


def test_closing_drops_what_has_not_begun_and_waits_for_the_rest() -> None:
    intake = Intake()
    go, begun = start_blocked(intake, "a", THREADS + 3)
    late = intake.submit(lambda: begun.append("late"), 1, "a")
    intake.close()
    assert late.cancelled()
    with pytest.raises(StateError, match="closing"):
        intake.submit(lambda: None)
    go.set()
    assert intake.finish()
    assert begun == ["a"] * THREADS
    assert not intake._jobs


def test_a_job_that_was_cancelled_costs_no_turn() -> None:
    intake = Intake()
    go, _ = start_blocked(intake, "a", THREADS)
    ran: list[int] = []
    futures = [intake.submit(lambda i=i: ran.append(i), 1, "b") for i in range(6)]
    for future in futures[:5]:
        assert future.cancel()
    assert len(intake._jobs) == THREADS + 1
    go.set()
    futures[5].result(10)
    intake.join()
    assert ran == [5]
