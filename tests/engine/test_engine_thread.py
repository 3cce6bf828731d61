"""EngineThread: runs requests, drains, survives errors, closes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from ngramspec.engine import AutoPolicy, Chunk, Engine, EngineThread, Generation, Request
from ngramspec.errors import BackendError, StateError

SECONDS = 60  # nothing here takes long; this only ends a test that hangs


class HungTarget(FakeTarget):
    """A target one of whose methods hangs, from a moment on, until it is let go."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method
        self.hangs, self.go = threading.Event(), threading.Event()

    def hang(self) -> None:
        inner = getattr(self, self.method)

        def wait(*arguments: Any) -> Any:
            self.hangs.set()
            assert self.go.wait(SECONDS)
            return inner(*arguments)

        setattr(self, self.method, wait)


class SlowTarget(FakeTarget):
    """A target whose decodes take a while, or wait until they are let go."""

    def __init__(self, seconds: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds
        self.go = threading.Event()
        self.go.set()

    def decode(self, batch: Any, rows: Any) -> None:
        assert self.go.wait(SECONDS)
        time.sleep(self.seconds)
        super().decode(batch, rows)


def request(first: int = 1, most: int = 20, **fields: Any) -> Request:
    return Request(prompt_ids=int32([first]), max_tokens=most, **fields)


def test_requests_run_while_others_are_submitted() -> None:
    target = FakeTarget()
    with EngineThread(Engine(target, "ngram-simple", slots=3)) as thread:
        answers = [thread.engine.submit(request(i + 1)) for i in range(9)]
        assert all(one.wait(SECONDS) for one in answers)
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 20) for i in range(9)]
    assert not thread._thread.is_alive()


def test_an_idle_engine_wakes_up_at_once() -> None:
    with EngineThread(Engine(FakeTarget(), None)) as thread:
        for _ in range(3):
            time.sleep(0.01)
            assert thread.engine.submit(request(most=2)).wait(SECONDS)
        assert not thread.engine.busy


def test_an_idle_engine_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngramspec.engine.thread.IDLE_SECONDS", SECONDS)
    thread = EngineThread(Engine(FakeTarget(), None))
    assert thread.engine.submit(request(most=2)).wait(SECONDS)
    assert thread.close(last=SECONDS / 4)
    assert not thread.alive


def test_an_idle_engine_waits_a_moment_for_announced_requests() -> None:
    for _ in range(20):  # it may be late once: the wait is short
        target = FakeTarget()
        with EngineThread(Engine(target, None, slots=2)) as thread:
            engine = thread.engine
            arrived = [engine.announce(), engine.announce()]
            answers = [engine.submit(request(1, 5))]
            arrived[0]()
            arrived[0]()  # counts once
            answers.append(engine.submit(request(2, 5)))
            arrived[1]()
            assert all(one.wait(SECONDS) for one in answers)
        if target.batches == [2] * 5:
            return
    raise AssertionError(f"they never started together: {target.batches}")


def test_an_announced_request_that_never_comes_holds_nobody_up() -> None:
    with EngineThread(Engine(FakeTarget(), None)) as thread:
        thread.engine.announce()
        for _ in range(3):
            assert thread.engine.submit(request(most=2)).wait(SECONDS)


def test_draining_lets_running_and_waiting_requests_finish() -> None:
    target = SlowTarget(0.001)
    thread = EngineThread(Engine(target, None, slots=1))
    answers = [thread.engine.submit(request(i + 1)) for i in range(4)]
    assert thread.close()
    assert [one.finish_reason for one in answers] == ["length"] * 4
    with pytest.raises(StateError, match="closed"):
        thread.engine.submit(request())


def test_without_draining_the_rest_is_cancelled() -> None:
    thread = EngineThread(Engine(SlowTarget(0.002, context_size=4000), None, slots=1))
    answers = [thread.engine.submit(request(i + 1, -1)) for i in range(3)]
    assert not thread.close(drain=False)
    assert [one.finish_reason for one in answers] == ["cancelled"] * 3
    assert all(one.wait(0) for one in answers)


def test_draining_ends_after_its_time() -> None:
    thread = EngineThread(Engine(SlowTarget(0.002, context_size=4000), None, slots=1))
    answer = thread.engine.submit(request(1, -1))
    assert not answer.wait(0.01)
    started = time.monotonic()
    assert not thread.close(timeout=0.05)
    assert (answer.finish_reason, time.monotonic() - started < SECONDS / 2) == ("cancelled", True)


def test_closing_twice_is_harmless() -> None:
    thread = EngineThread(Engine(FakeTarget(), None))
    assert thread.close()
    assert thread.close()


def test_an_exception_inside_the_with_block_does_not_drain() -> None:
    answers: list[Generation] = []

    def fail_inside() -> None:
        with EngineThread(Engine(SlowTarget(0.002, context_size=4000), None)) as thread:
            answers.append(thread.engine.submit(request(1, -1)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert [one.finish_reason for one in answers] == ["cancelled"]


def test_an_error_in_a_step_ends_all_requests_and_the_engine_goes_on() -> None:
    target = SlowTarget()
    error = ArithmeticError("not one of ours")
    with EngineThread(Engine(target, Oracle(target), slots=2)) as thread:
        target.go.clear()
        answers = [thread.engine.submit(request(i + 1)) for i in range(3)]
        target.fail_next = error
        target.go.set()
        assert all(one.wait(SECONDS) for one in answers)
        assert [one.finish_reason for one in answers][:1] == ["error"]
        ended = [one for one in answers if one.finish_reason == "error"]
        assert all(one.error is error for one in ended)
        again = thread.engine.submit(request(7))
        assert again.wait(SECONDS)
    assert again.token_ids == target.expected([7], 20)


def test_a_step_that_raises_after_the_decode_leaves_no_trace() -> None:
    class Broken(FakeTarget):
        broken = False

        def __getattribute__(self, name: str) -> Any:
            assert name != "aside" or 1 // (not self.broken)
            return super().__getattribute__(name)

    target = Broken()
    target.broken = True
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=4))
    with EngineThread(engine) as thread:
        answers = [thread.engine.submit(request(i + 1)) for i in range(2)]
        assert all(one.wait(SECONDS) for one in answers)
        assert [type(one.error) for one in answers] == [ZeroDivisionError] * 2
        target.broken = False
        again = [thread.engine.submit(request(i + 1)) for i in range(2)]
        assert all(one.wait(SECONDS) for one in again)
    assert [one.token_ids for one in again] == [target.expected([i + 1], 20) for i in range(2)]


def test_a_request_that_cannot_be_started_ends_with_the_error() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    engine.generate([request(1, 9)])
    original, error = target.truncate, BackendError("no memory for this")

    def failing(sequence: int, length: int) -> bool:
        target.truncate = original  # type: ignore[method-assign]
        raise error

    target.truncate = failing  # type: ignore[method-assign]
    answer = engine.submit(request(1, 5))
    engine.step()
    assert (answer.finish_reason, answer.error, engine.busy) == ("error", error, False)
    assert engine.generate([request(1, 5)])[0].token_ids == target.expected([1], 5)


def test_a_broken_callback_does_not_stop_the_thread() -> None:
    def broken(chunk: Chunk) -> None:
        raise RuntimeError("the loop is closed")

    target = FakeTarget()
    with EngineThread(Engine(target, None)) as thread:
        answer = thread.engine.submit(request(), broken)
        assert answer.wait(SECONDS)
        target.fail_next = ArithmeticError("and a failing step")
        assert thread.engine.submit(request(), broken).wait(SECONDS)
        good = thread.engine.submit(request(3))
        assert good.wait(SECONDS)
    assert good.token_ids == target.expected([3], 20)


def test_cancelling_from_another_thread_ends_a_running_and_a_waiting_request() -> None:
    target = SlowTarget(0.001, context_size=5000)
    with EngineThread(Engine(target, None, slots=1)) as thread:
        answers = [thread.engine.submit(request(i + 1, -1)) for i in range(2)]
        while not answers[0].token_ids:
            time.sleep(0.001)
        answers[1].cancel()
        assert answers[1].wait(SECONDS)
        answers[0].cancel()
        assert answers[0].wait(SECONDS)
        assert not thread.engine.busy
    assert [one.finish_reason for one in answers] == ["cancelled"] * 2


class Helpless(Engine):
    """An engine whose last resort raises too."""

    broken: BaseException | None = None  # what its steps raise

    def step(self) -> bool:
        if self.broken is not None:
            raise self.broken
        return super().step()

    def fail(self, error: BaseException) -> None:
        raise error


def test_a_thread_whose_last_resort_raises_fails_all_requests_and_says_so() -> None:
    error = ZeroDivisionError("the device is gone")
    engine = Helpless(FakeTarget(), None, slots=2)
    answers = [engine.submit(request(i + 1)) for i in range(5)]
    assert engine.step()  # two run, three wait
    engine.broken = error
    thread = EngineThread(engine)
    assert all(one.wait(SECONDS) for one in answers)
    assert [one.finish_reason for one in answers] == ["error"] * 5
    assert engine.failure is error
    assert not engine.busy
    with pytest.raises(StateError, match="has failed"):
        engine.submit(request())
    assert not thread.close()
    assert not thread.alive


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_whatever_ends_the_thread_nobody_waits_in_vain(error: BaseException) -> None:
    engine = Helpless(FakeTarget(), None)
    answer = engine.submit(request())
    engine.broken = error
    thread = EngineThread(engine)
    assert answer.wait(SECONDS)
    assert type(error).__name__ in str(answer.error)
    assert engine.failure is error
    thread.close()
    assert not thread.alive


def test_a_step_that_hangs_does_not_hold_up_the_end() -> None:
    target = SlowTarget()
    engine = Engine(target, None, slots=1)
    thread = EngineThread(engine)
    target.go.clear()
    answers = [engine.submit(request(i + 1)) for i in range(2)]
    while engine.queue_length == 2:
        time.sleep(0.001)
    beats = engine.beats
    assert not thread.close(timeout=0.05, last=0.05)
    assert thread.alive
    assert engine.beats <= beats + 1
    assert [one.finish_reason for one in answers] == ["error"] * 2
    assert all(one.wait(0) for one in answers)
    target.go.set()  # it comes to itself: the thread ends
    thread._thread.join(SECONDS)
    assert not thread.alive


def test_an_idle_engine_shows_that_its_thread_lives() -> None:
    with EngineThread(Engine(FakeTarget(), None)) as thread:
        for _ in range(2):
            beats, end = thread.engine.beats, time.monotonic() + SECONDS
            while thread.engine.beats == beats:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_a_request_that_is_being_started_fails_with_the_engine() -> None:
    target = HungTarget("truncate")
    with EngineThread(Engine(target, None)) as thread:
        assert thread.engine.submit(request()).wait(SECONDS)
        target.hang()
        answer = thread.engine.submit(request(2))
        assert target.hangs.wait(SECONDS)
        thread.engine.abandon(RuntimeError("it hangs"))
        assert answer.wait(SECONDS)
        assert answer.finish_reason == "error"
        target.go.set()


def test_work_on_slots_that_is_under_way_fails_with_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = HungTarget("dump")
    with EngineThread(Engine(target, None, slots=2)) as thread:
        assert thread.engine.submit(request(slot=0)).wait(SECONDS)
        target.hang()
        busy = thread.engine.submit(request(2, 100, slot=0))
        works = [thread.engine.save_slot(0) for _ in range(3)]  # together once it is idle
        busy.cancel()
        assert target.hangs.wait(SECONDS)
        thread.engine.abandon(RuntimeError("it hangs"))
        for work in works:
            assert isinstance(work.exception(SECONDS), BackendError)
        target.go.set()
    assert [record.message for record in caplog.records if record.levelname == "CRITICAL"] == []
    assert not any("a step of the engine failed" in record.message for record in caplog.records)
