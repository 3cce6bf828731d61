"""Connections: floods, and clients that keep the server waiting, while others are answered."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.serving import CHAT, Start, wait_until

HEAD = b"POST /completion HTTP/1.1\r\nHost: x\r\n"
HALF_HEAD = HEAD + b"X-Slow: "
HALF_BODY = HEAD + b"Content-Length: 1000\r\n\r\n{"
WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LONG: dict[str, Any] = {"prompt": "def area(", "ignore_eos": True, "temperature": 1.2}
SMALL = 4096  # bytes of a buffer


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Return a list whose sockets are closed at the end."""
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()


def is_closed(sock: socket.socket) -> bool:
    """Tell whether the server has closed a connection; what it sent before is thrown away."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def answer_of(sock: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            answer += data
    return answer


def is_well(sock: socket.socket) -> bool:
    """Ask for the health over a connection that stays open, and tell whether it is good."""
    sock.sendall(WHOLE)
    answer = b""
    while not answer.endswith(b"}"):
        data = sock.recv(65536)
        if not data:
            return False
        answer += data
    return answer.endswith(b'{"status": "ok"}')


def request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("most", [64, 400])
def test_good_clients_are_answered_in_a_flood_of_slow_ones(
    start: Start, opened: list[socket.socket], most: int
) -> None:
    server = start(slots=2, max_connections=most, header_timeout=1.5, read_timeout=1.5)
    with server.client.stream("POST", "/completion", json={**LONG, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)  # it began before, and goes on
        for index in range(300):
            opened.append(server.connect())
            opened[-1].sendall((b"", HALF_HEAD, HALF_BODY)[index % 3])
        stopped = threading.Event()

        def trickle() -> None:
            while not stopped.wait(0.1):
                for index, sock in enumerate(opened):
                    with contextlib.suppress(OSError):
                        sock.send((b"", b"x", b" ")[index % 3])

        slow = threading.Thread(target=trickle)
        slow.start()
        try:
            for _ in range(5):  # each with a connection of its own, and with a kept one
                body = {"messages": CHAT, "max_tokens": 4}
                url = f"{server.url}/v1/chat/completions"
                with httpx.Client(timeout=60, verify=False) as client:
                    assert client.post(url, json=body).status_code == 200
                assert server.client.get("/health").status_code == 200
                assert len(server.http.connections.open) <= most + 2
            wait_until(lambda: all(map(is_closed, opened)))
        finally:
            stopped.set()
            slow.join()
        assert next(lines) is not None
    assert server.http.connections.num_dropped >= 200
    server.wait_idle()
    wait_until(lambda: len(server.http.connections.open) <= 1)  # the client's own


def test_heads_that_do_not_come_are_not_waited_for(
    start: Start, opened: list[socket.socket]
) -> None:
    server = start(slots=1, header_timeout=0.6)
    idle = server.connect()  # between two requests, which may be for longer
    opened.append(idle)
    assert is_well(idle)
    began = time.monotonic()
    for second, sent in product((False, True), (b"", b"P", HALF_HEAD)):
        if not second or sent:
            opened.append(server.connect())
            if second:
                assert is_well(opened[-1])
            opened[-1].sendall(sent)
    assert [answer_of(sock) for sock in opened[1:]] == [b""] * 5
    assert time.monotonic() - began < 10
    assert is_well(idle)


def test_bodies_that_do_not_come_are_not_waited_for(
    start: Start, opened: list[socket.socket]
) -> None:
    server = start(slots=1, header_timeout=0.5, read_timeout=0.5)
    for path in (b"/completion", b"/health", b"/nowhere"):
        opened.append(server.connect())
        opened[-1].sendall(HALF_BODY.replace(b"/completion", path))
    first, *others = map(answer_of, opened)
    assert first.startswith(b"HTTP/1.1 408 ")
    assert [answer[:11] for answer in others] == [b"HTTP/1.1 40"] * 2


def test_a_body_that_comes_slowly_is_not_waited_for(
    start: Start, opened: list[socket.socket]
) -> None:
    server = start(slots=1, header_timeout=0.5, read_timeout=0.5)
    sock = server.connect()
    opened.append(sock)
    sock.sendall(HALF_BODY)

    def trickle() -> bool:
        with contextlib.suppress(OSError):
            sock.send(b" ")
        return is_closed(sock)

    wait_until(trickle)


def test_idle_connections_make_room_and_busy_ones_do_not(
    start: Start, opened: list[socket.socket]
) -> None:
    server = start(slots=2, max_connections=3)
    for _ in range(2):
        opened.append(server.connect())
        opened[-1].sendall(request("/completion", {**LONG, "stream": True}))
    wait_until(lambda: server.busy_slots() == 2)
    idle = []
    for _ in range(3):  # each of them is answered, though there is room for one
        idle.append(server.connect())
        assert is_well(idle[-1])
    opened.extend(idle)
    assert list(map(is_closed, idle)) == [True, True, False]
    idle[2].setblocking(True)
    idle[2].sendall(request("/completion", LONG))  # it waits for a slot
    wait_until(lambda: server.engine.queue_length == 1)
    refused = server.connect()
    opened.append(refused)
    answer = answer_of(refused)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert not is_closed(opened[0])
    assert not is_closed(idle[2])


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_clients_that_do_not_read_lose_their_connections(
    start: Start, opened: list[socket.socket], tmp_path: Path, kind: str
) -> None:
    where = {} if kind == "tcp" else {"host": str(tmp_path / "server.sock")}
    server = start(slots=2, slow_client_timeout=0.5, send_buffer=SMALL, **where)
    for stream in (True, False):
        body = {**LONG, "stream": stream, "n_probs": 50, "n_predict": 300}
        opened.append(server.connect(SMALL))
        opened[-1].sendall(request("/completion", body))
    wait_until(lambda: server.busy_slots() == 2)
    server.wait_idle()
    wait_until(lambda: not server.http.connections.open)
    body = {"prompt": "x", "n_predict": 1}
    assert server.client.post("/completion", json=body).status_code == 200


def test_other_clients_of_a_unix_socket_keep_theirs(
    start: Start, opened: list[socket.socket], tmp_path: Path
) -> None:
    host = str(tmp_path / "server.sock")
    server = start(slots=2, slow_client_timeout=0.5, send_buffer=SMALL, host=host)
    opened.append(server.connect(SMALL))
    body = {**LONG, "stream": True, "n_probs": 50}
    opened[-1].sendall(request("/completion", body))
    wait_until(lambda: server.busy_slots() == 1)
    body = {**LONG, "stream": True, "n_predict": 600}
    with server.client.stream("POST", "/completion", json=body) as reply:
        text = "".join(reply.iter_text())
    assert '"stop": true' in text
    wait_until(lambda: len(server.http.connections.open) == 1)


def test_the_end_does_not_wait_for_bodies_that_do_not_come(
    start: Start, opened: list[socket.socket]
) -> None:
    server = start(slots=1, drain_timeout=0.3)
    for sent in (HALF_BODY, HALF_HEAD, b""):
        opened.append(server.connect())
        opened[-1].sendall(sent)
    wait_until(lambda: len(server.http.connections.open) == 3)
    began = time.monotonic()
    server.http.stop()
    wait_until(lambda: not server.http.connections.open)
    assert time.monotonic() - began < 5  # the timeout for bodies is a minute


def test_a_pause_of_the_engine_is_not_the_clients_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ngramspec.llamacpp.target import LlamaTarget

    server = start(slots=1, slow_client_timeout=0.5, sse_ping_interval=0)
    decode, decodes = LlamaTarget.decode, [0]

    def pausing(self: LlamaTarget, *arguments: Any) -> None:
        decodes[0] += 1
        if decodes[0] == 6:
            time.sleep(1.6)
        decode(self, *arguments)

    monkeypatch.setattr(LlamaTarget, "decode", pausing)
    settings: dict[str, Any] = {"max_tokens": 40, "extra": {"speculative.enabled": False}}
    events = list(server.chat(stream=True, **settings))
    assert decodes[0] > 6
    assert events[-1].choices[0].finish_reason is not None
