"""Clients that go away or do not read lose their slot; others go on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from helpers.serving import CHAT, Serving, Start, wait_until

LONG: dict[str, Any] = {
    "messages": CHAT,
    "prompt": "def area(",
    "ignore_eos": True,
    "temperature": 1.2,
    "cache_prompt": False,
    "speculative.enabled": False,
}
SMALL = 4096  # bytes of a buffer
VERBOSE = {**LONG, "stream": True, "n_probs": 50}


def text_of(events: Any) -> str:
    return "".join(event.choices[0].delta.content or "" for event in events)


def received(sock: socket.socket) -> bytes:
    """Return what is there to read, b"" once the connection is closed in whatever way."""
    try:
        return sock.recv(1 << 16)
    except ConnectionResetError:
        return b""


@contextmanager
def raw_request(
    server: Serving, path: str, body: dict[str, Any], buffer: int = 0
) -> Iterator[socket.socket]:
    """Send a request and hand out its socket, of which nothing is read by itself."""
    place = urlsplit(server.url)
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect((place.hostname, place.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    with sock:
        sock.sendall(head.encode() + data)
        yield sock


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(server: Serving, path: str, stream: bool) -> None:
    server.wait_idle()
    cancelled = server.engine.stats().finished.get("cancelled", 0)
    with raw_request(server, path, {**LONG, "stream": stream}):
        wait_until(lambda: server.busy_slots() == 1)
    server.wait_idle()
    assert server.engine.stats().finished["cancelled"] == cancelled + 1


def test_a_waiting_request_whose_client_goes_away_is_never_run(start: Start) -> None:
    server = start(slots=1)
    with raw_request(server, "/completion", LONG):
        wait_until(lambda: server.busy_slots() == 1)
        with raw_request(server, "/completion", LONG):
            wait_until(lambda: server.engine.queue_length == 1)
        wait_until(lambda: server.engine.queue_length == 0)
        assert server.busy_slots() == 1
    server.wait_idle()
    assert server.engine.stats().finished == {"cancelled": 2}


def test_all_choices_of_a_client_that_goes_away_end(server: Serving) -> None:
    with raw_request(server, "/v1/chat/completions", {**LONG, "n": 3, "stream": True}):
        wait_until(lambda: server.busy_slots() == 3)
    server.wait_idle()
    assert server.busy_slots() == 0


def test_a_client_that_does_not_read_loses_its_slot(start: Start) -> None:
    server = start(slots=1, slow_client_timeout=0.5, send_buffer=SMALL)
    with raw_request(server, "/completion", VERBOSE, buffer=SMALL) as sock:
        wait_until(lambda: server.busy_slots() == 1)
        server.wait_idle()
        assert server.engine.stats().finished == {"cancelled": 1}
        while data := received(sock):  # what was on its way; then the connection is closed
            assert data
    assert server.chat(max_tokens=1).usage.completion_tokens == 1


def test_a_slow_client_may_not_let_chunks_pile_up(start: Start) -> None:
    server = start(slots=1, max_buffered_chunks=16, send_buffer=SMALL)
    with raw_request(server, "/completion", VERBOSE, buffer=SMALL):
        wait_until(lambda: server.engine.stats().finished == {"cancelled": 1})
    server.wait_idle()


def test_other_streams_go_on_beside_one_that_is_not_read(start: Start) -> None:
    server = start(slots=2, send_buffer=SMALL)
    alone = text_of(server.chat(max_tokens=60, stream=True))
    with raw_request(server, "/completion", VERBOSE, buffer=SMALL):
        wait_until(lambda: server.busy_slots() == 1)
        assert text_of(server.chat(max_tokens=60, stream=True)) == alone
    server.wait_idle()


def test_a_body_that_never_comes_holds_nothing(server: Serving) -> None:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port)) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert server.chat(max_tokens=1).usage.completion_tokens == 1
    server.wait_idle()


def test_many_clients_that_come_and_go_leave_nothing_behind(server: Serving) -> None:
    def visit(number: int) -> None:
        body = {**LONG, "stream": bool(number % 2), "n_predict": 200}
        with raw_request(server, "/completion", body) as sock:
            if number % 3:
                sock.settimeout(0.05 * (number % 4 + 1))
                with suppress(TimeoutError):
                    sock.recv(100)

    threads = [threading.Thread(target=visit, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    server.wait_idle()
    assert server.engine.queue_length == 0
    assert server.chat(max_tokens=4).usage.completion_tokens == 4
