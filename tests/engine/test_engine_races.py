"""What any thread may do while the engine runs: nothing is lost, nothing waits forever."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from ngramspec._native.engine.slot import Slot
from ngramspec.engine import Engine, EngineThread, Generation, Request, Speculation
from ngramspec.engine.queue import Queue, Ticket
from ngramspec.errors import CapacityError, StateError

SECONDS = 60  # nothing here takes long; this only ends a test that hangs


def request(first: int = 1, most: int = 20, **fields: Any) -> Request:
    return Request(prompt_ids=int32([first]), max_tokens=most, **fields)


def test_everything_at_once_from_many_threads() -> None:
    """Submit, cancel, read and step at the same time: nothing is lost, nothing mixed up."""
    target = FakeTarget(sequences=4)
    engine = Engine(target, Oracle(target, 0.8), slots=4, max_queue=10)
    answers: list[tuple[Generation, int]] = []
    problems: list[BaseException] = []

    def submit(number: int, i: int) -> None:
        first = 1 + (number * 60 + i) % 90
        asked = Speculation(namespace=str(i % 3))
        try:
            one = engine.submit(request(first, 15, speculation=asked, slot=i % 5 - 1))
        except CapacityError:
            time.sleep(0.001)
            return
        answers.append((one, first))
        if i % 7 == 0:
            one.cancel()
        engine.slots(), engine.stats_lines(), engine.busy, engine.queue_length

    def work(number: int) -> None:
        try:
            for i in range(60):
                submit(number, i)
        except BaseException as error:
            problems.append(error)

    with EngineThread(engine) as thread:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(SECONDS)
        assert thread.close(timeout=SECONDS)
    assert problems == []
    assert len(answers) >= 10
    assert engine.stats().num_requests == len(answers)
    for one, first in answers:
        expected = target.expected([first], 15)
        assert one.token_ids == expected[: len(one.token_ids)]
        assert one.finish_reason == "length" or one.cancelled
        assert one.finish_reason == "cancelled" or one.token_ids == expected


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_the_queue_may_be_filled_while_it_is_searched() -> None:
    queue, problems = Queue(), []
    searching, done = threading.Event(), threading.Event()
    generation = Generation(request(slot=1), 0)
    tickets: Any = [Ticket(generation, None, (), None) for _ in range(500)]  # type: ignore[arg-type]

    def search() -> None:
        try:
            while not done.is_set():
                assert queue.next([Slot(0, 1, 1)]) is None  # all of them wait for slot 1
                searching.set()
        except BaseException as error:
            problems.append(error)

    for ticket in tickets[:50]:
        queue.put(ticket)
    thread = threading.Thread(target=search)
    thread.start()
    assert searching.wait(SECONDS)
    for ticket in tickets[50:]:
        queue.put(ticket)
    done.set()
    thread.join(SECONDS)
    assert (problems, len(queue)) == ([], len(tickets))


def test_what_is_put_while_the_engine_closes_does_not_wait_forever() -> None:
    engine = Engine(FakeTarget(), None)
    closing = threading.Thread(target=engine.close)
    put = engine._queue.put

    def slow_put(ticket: Ticket) -> None:
        closing.start()
        closing.join(0.05)  # it must wait for this submit
        put(ticket)

    engine._queue.put = slow_put  # type: ignore[method-assign]
    answer = engine.submit(request())
    closing.join(SECONDS)
    assert (answer.finish_reason, engine.busy) == ("cancelled", False)


def test_an_engine_is_busy_while_a_request_moves_to_its_slot() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    engine.generate([request(1, 5)])
    original, busy = target.truncate, []

    def truncate(sequence: int, length: int) -> bool:
        busy.append(engine.busy)
        return original(sequence, length)

    target.truncate = truncate  # type: ignore[method-assign]
    engine.generate([request(2, 5)])
    assert busy == [True]


@pytest.mark.parametrize("how", ["length", "cancelled"])
def test_who_learns_of_an_end_finds_the_slot_free(how: str) -> None:
    engine = Engine(FakeTarget(), None)
    answer = engine.submit(request(most=3))
    states: list[tuple[str | None, str]] = []

    class Event(threading.Event):
        def set(self) -> None:
            states.append((answer.finish_reason, engine.slots()[0].state))

    answer._finished = Event()
    engine.step()
    if how == "cancelled":
        answer.cancel()
    while engine.step():
        pass
    assert states == [(how, "idle")]


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_what_is_submitted_while_the_engine_closes_ends_or_is_refused(seconds: float) -> None:
    for _ in range(5):
        thread = EngineThread(Engine(FakeTarget(), None, slots=2))
        answers: list[Generation] = []

        def submit(engine: Engine = thread.engine, answers: list[Generation] = answers) -> None:
            try:
                while True:
                    answers.append(engine.submit(request(most=3)))
            except (StateError, CapacityError):
                pass

        other = threading.Thread(target=submit)
        other.start()
        time.sleep(seconds)
        thread.close()
        other.join(SECONDS)
        assert all(one.wait(SECONDS) for one in answers)
        assert not thread.engine.busy
