"""EngineWatch and /health: a dead or hanging engine is told as such, a stopped process is none."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from helpers.serving import running_engine, wait_until
from ngramspec.engine import Engine
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.bridge.bridge import EngineWatch


@dataclass
class Beating:
    """What a watch looks at."""

    beats: int = 0
    failure: BaseException | None = None


def test_a_silent_engine_is_in_trouble_and_then_lost() -> None:
    engine: Any = Beating()
    watch = EngineWatch(engine, 10)
    for now in range(100):
        engine.beats += 1
        assert watch.look(1000.0 + now) == ""
    reasons = [watch.look(1100.0 + now) for now in range(10)]
    assert reasons == [""] * 10
    assert watch.look(1110.5) == "a step of the engine hangs for 12 seconds"
    assert not watch.lost
    assert [watch.look(1111.0 + now) != "" for now in range(8)] == [True] * 8
    assert not watch.lost
    watch.look(1120.0)
    assert watch.lost


def test_an_engine_that_goes_on_is_well_again() -> None:
    engine: Any = Beating()
    watch = EngineWatch(engine, 5)
    for now in range(8):
        watch.look(float(now))
    assert watch.trouble
    engine.beats += 1
    assert watch.look(9.0) == ""
    assert watch.look(10.0) == ""
    assert not watch.lost


@pytest.mark.parametrize("patience", [0.0, 30.0])
def test_time_without_a_look_does_not_count(patience: float) -> None:
    """As while the process is stopped; without patience no time counts at all."""
    watch = EngineWatch(Beating(), patience)  # type: ignore[arg-type]
    for now in range(10):
        assert watch.look(1e6 * now) == ""


def test_an_engine_that_has_failed_is_lost_at_once() -> None:
    engine: Any = Beating(failure=MemoryError("of 7 GB"))
    watch = EngineWatch(engine, 0.0)
    assert watch.look(0.0) == "the engine's thread has ended: MemoryError"
    assert watch.lost


def test_health_tells_of_a_dead_engine_wherever_the_application_runs(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    with running_engine(model, slots=1) as engine:
        app = create_app(ServedModel(name="tiny", model=model, engine=engine), ServerSettings())
        with TestClient(app) as client:
            body = {"prompt": "x", "n_predict": 4}
            assert client.get("/health").json() == {"status": "ok"}
            assert client.post("/completion", json=body).status_code == 200
            monkeypatch.setattr(Engine, "step", fail)
            monkeypatch.setattr(Engine, "fail", fail)
            replies = [client.post("/completion", json=body) for _ in range(2)]
            assert [one.status_code for one in replies] == [503, 503]
            wait_until(lambda: client.get("/v1/health").status_code == 503)
            error = client.get("/health").json()["error"]
            assert error["type"] == "unavailable_error"
            assert error["message"] == "the engine's thread has ended: ZeroDivisionError"
            assert "secret" not in replies[0].text + replies[1].text


def test_a_decode_that_hangs_for_a_while_costs_its_requests_only(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, go = LlamaTarget.decode, threading.Event()

    def slow(self: LlamaTarget, *arguments: Any) -> None:
        go.wait(20)
        decode(self, *arguments)

    with running_engine(model, slots=1) as engine:
        settings = ServerSettings(stall_timeout=0.7)
        app = create_app(ServedModel(name="tiny", model=model, engine=engine), settings)
        with TestClient(app) as client:
            body = {"prompt": "x", "n_predict": 4}
            with monkeypatch.context() as patch:
                patch.setattr(LlamaTarget, "decode", slow)
                reply = client.post("/completion", json=body)
                assert reply.status_code == 503
                assert "hangs" in reply.json()["error"]["message"]
                assert client.get("/health").status_code == 503
                go.set()
            wait_until(lambda: client.get("/health").status_code == 200)
            assert client.post("/completion", json=body).status_code == 200
