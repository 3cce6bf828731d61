"""What operators see of clients: errors, causes of cancellations, connections, all as metrics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from helpers.failing import decode_slowly, fail_after
from helpers.serving import CHAT, Serving, Start, wait_until
from ngramspec.errors import BackendError, CapacityError
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server.http.connections import CAUSES, DROPS, USUAL_ERRORS
from ngramspec.server.openai.chat_events import ChatEvents

LONG: dict[str, Any] = {
    "prompt": "def area(",
    "ignore_eos": True,
    "temperature": 1.2,
    "cache_prompt": False,
    "speculative.enabled": False,
}
SMALL = 4096  # bytes of a buffer
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def _slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep long answers from ending by themselves."""
    decode_slowly(monkeypatch)


@contextmanager
def streaming(server: Serving) -> Iterator[Iterator[str]]:
    """Keep a slot busy in the block; yield the lines of the stream."""
    body = {**LONG, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        yield lines


def errors(server: Serving) -> dict[tuple[str, str], int]:
    """Return the counted errors, without those that never happened."""
    return {key: count for key, count in server.bridge.traffic.errors.items() if count}


def cancelled(server: Serving) -> dict[str, int]:
    return {cause: count for cause, count in server.bridge.traffic.cancelled.items() if count}


def dropped(server: Serving) -> dict[str, int]:
    return {why: count for why, count in server.bridge.traffic.dropped.items() if count}


def scraped(server: Serving, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by their labels' values, in the order of their names."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in families(server.client.get("/metrics").text)
        for sample in family.samples
        if sample.name == name
    }


def test_errors_are_counted_by_status_and_code(start: Start) -> None:
    server = start(slots=1, max_queue=0, api_keys=("key",), api_prefix="/api", metrics=True)
    server.client.base_url = httpx.URL(f"{server.url}/api")
    assert httpx.get(f"{server.url}/api/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/v1/models").status_code == 404  # not below the prefix
    assert server.client.get("/no%0Awhere").status_code == 404
    assert server.client.delete("/props").status_code == 405
    assert server.client.post("/completion", content=b"{").status_code == 400
    assert server.client.get("/v1/models/other").status_code == 404
    with streaming(server):
        assert server.post("/completion", prompt="x").status_code == 503
        assert server.post("/v1/chat/completions", messages=CHAT, stream=True).status_code == 503
        expected = {
            ("400", "invalid_request_error"): 1,
            ("401", "invalid_api_key"): 1,
            ("404", "model_not_found"): 1,
            ("404", "not_found_error"): 2,
            ("405", "method_not_allowed_error"): 1,
            ("503", "server_overloaded"): 2,
        }
        assert errors(server) == expected
        counts = scraped(server, "ngramspec:http_errors_total")
    assert {(code, status) for code, status in counts} == {
        (code, status) for status, code in {*expected, *USUAL_ERRORS}
    }
    assert counts["server_overloaded", "503"] == 2
    assert counts["rate_limit_exceeded", "429"] == 0  # there from the start on
    assert all(re.fullmatch(r"[a-z_]+", code) for code, _ in counts)  # nothing that a client wrote


def test_what_a_key_may_not_have_is_counted(start: Start) -> None:
    server = start(slots=1, max_queue=2, api_keys=("one", "two"))
    head = {"authorization": "Bearer one"}
    with streaming(server):
        waiting = threading.Thread(
            target=lambda: server.client.post(
                "/completion", json={**LONG, "n_predict": 1}, headers=head
            )
        )
        waiting.start()
        wait_until(lambda: server.engine.queue_length == 1)
        refused = server.client.post("/completion", json={"prompt": "x"}, headers=head)
        assert refused.status_code == 429
        assert errors(server) == {("429", "rate_limit_exceeded"): 1}
    waiting.join(20)


def test_errors_of_answers_that_ran_are_counted_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1)
    for stream in (False, True):
        with monkeypatch.context() as patch:
            fail_after(patch, 0, BackendError("the device is gone"))
            reply = server.post("/completion", prompt="x", n_predict=4, stream=stream)
            assert reply.status_code == 500
    assert errors(server) == {("500", "server_error"): 2}
    with monkeypatch.context() as patch:
        fail_after(patch, 3, CapacityError("the cache has no room"))
        body = {**LONG, "n_predict": 40, "stream": True}
        assert "no room" in server.post("/completion", **body).text  # in a stream that has begun
    assert errors(server)["503", "server_overloaded"] == 1
    assert cancelled(server) == {}


def test_a_client_that_leaves_is_the_cause(start: Start) -> None:
    server = start(slots=1)
    with streaming(server):
        pass
    wait_until(lambda: cancelled(server) == {"client": 1})
    wait_until(lambda: errors(server) == {("499", "client_left"): 1})
    sock = server.connect()
    data = json.dumps(LONG).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    with sock:  # an answer that is not streamed
        sock.sendall(head.encode() + data)
        wait_until(lambda: server.busy_slots() == 1)
    wait_until(lambda: cancelled(server) == {"client": 2})


def test_a_slot_that_does_not_come_is_the_cause(start: Start) -> None:
    server = start(slots=1, queue_timeout=0.2)
    with streaming(server):
        assert server.post("/completion", prompt="x").status_code == 503
        wait_until(lambda: cancelled(server) == {"queue_timeout": 1})
        assert errors(server) == {("503", "server_overloaded"): 1}


@pytest.mark.parametrize("bound", ["chunks", "seconds"])
def test_a_client_that_does_not_read_is_the_cause(start: Start, bound: str) -> None:
    limits = {"max_buffered_chunks": 16} if bound == "chunks" else {"slow_client_timeout": 0.5}
    server = start(slots=1, send_buffer=SMALL, metrics=True, **limits)
    body = json.dumps({**LONG, "stream": True, "n_probs": 50}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with server.connect(SMALL) as sock:
        sock.sendall(head.encode() + body)
        wait_until(lambda: cancelled(server) == {"slow_client": 1})
        if bound == "seconds":  # its connection is closed, once
            wait_until(lambda: dropped(server) == {"unread": 1})
            wait_until(lambda: errors(server) == {("503", "slow_client"): 1})
    server.wait_idle()
    assert scraped(server, "ngramspec:cancelled_requests_total")[("slow_client",)] == 1
    assert dropped(server) == ({"unread": 1} if bound == "seconds" else {})


def test_the_end_of_the_server_is_the_cause(start: Start) -> None:
    server = start(slots=1)
    with streaming(server) as lines:
        server.bridge.cancel_all()  # as when the drain timeout is over
        assert any("the server is closing" in line for line in lines)
        wait_until(lambda: cancelled(server) == {"shutdown": 1})
    assert errors(server) == {("503", "server_closing"): 1}


def test_an_engine_that_hangs_is_the_cause(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server, go, decode = start(slots=1, stall_timeout=1.2), threading.Event(), LlamaTarget.decode

    def slow(self: LlamaTarget, *arguments: Any) -> None:
        go.wait(20)
        decode(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaTarget, "decode", slow)
        assert server.post("/completion", prompt="x", n_predict=4).status_code == 503
        go.set()
        assert errors(server) == {("503", "engine_failed"): 1}
        wait_until(lambda: cancelled(server) == {"engine": 1})


def test_what_ends_with_another_choice_is_told_apart(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1, max_queue=1)
    body = {**LONG, "n": 3}  # two are submitted before the third finds no place
    assert server.post("/completion", **body).status_code == 503
    wait_until(lambda: cancelled(server) == {"error": 2})

    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(ChatEvents, "encode", broken)
        server.post("/v1/chat/completions", messages=CHAT, stream=True, **LONG)
    wait_until(lambda: cancelled(server) == {"error": 3})
    assert errors(server)["500", "server_error"] == 1


def test_connections_are_counted(start: Start) -> None:
    server = start(slots=1, max_connections=2, metrics=True)
    traffic = server.bridge.traffic
    with streaming(server), server.connect() as first, server.connect() as second:
        assert first.recv(100) == b""  # it makes room
        second.sendall(HEALTH)
        assert second.recv(100).startswith(b"HTTP/1.1 200")
        assert dropped(server) == {"crowded": 1}
        wait_until(lambda: traffic.num_connections == 2)
    wait_until(lambda: traffic.num_connections == 0)
    assert scraped(server, "ngramspec:connections")[()] == 1  # the one that asks
    counts = scraped(server, "ngramspec:dropped_connections_total")
    assert counts == {(why,): int(why == "crowded") for why in DROPS}


def test_a_connection_whose_head_does_not_come_is_counted(start: Start) -> None:
    server = start(slots=1, header_timeout=0.3)
    with server.connect() as sock:
        assert sock.recv(100) == b""
    assert dropped(server) == {"head": 1}


def test_refused_connections_are_errors(start: Start) -> None:
    server = start(slots=1, max_connections=1)
    with streaming(server), server.connect() as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 503")
        assert errors(server) == {("503", "too_many_connections"): 1}


def test_all_causes_are_told_from_the_start_on(start: Start) -> None:
    server = start(slots=1, metrics=True)
    counts = scraped(server, "ngramspec:cancelled_requests_total")
    assert counts == {(cause,): 0 for cause in CAUSES}
