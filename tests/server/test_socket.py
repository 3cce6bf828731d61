"""The listening socket: where it listens, and what its connections are like."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from ngramspec.server.http.run import bind, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_small_writes_are_sent_at_once(host: str) -> None:
    """With Nagle's algorithm an answer's body waits for the acknowledgement of its head."""

    async def option() -> int:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            conn = writer.get_extra_info("socket")
            seen.put_nowait(conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = bind([host], 0)[0]
        async with await asyncio.start_server(accepted, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname()[:2])
            nodelay = await seen.get()
            writer.close()
        return nodelay

    assert asyncio.run(option()) != 0


def test_addresses_are_told_as_clients_need_them(tmp_path: Path) -> None:
    with bind(["127.0.0.1"], 0)[0] as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        assert url_of(sock, secure=True) == f"https://127.0.0.1:{port}"
        sock.listen()
        with pytest.raises(OSError, match="in use") as error:
            bind(["127.0.0.1"], port)
    assert error.value.filename == f"127.0.0.1:{port}"
    path = str(tmp_path / "here.sock")
    for _ in range(2):  # what a server left behind is no obstacle
        with bind([path], 0)[0] as sock:
            assert url_of(sock) == f"unix:{path}"


def test_a_path_where_a_server_listens_is_not_taken_away(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    with bind([path], 0)[0] as sock, socket.socket(socket.AF_UNIX) as client:
        sock.listen()
        with pytest.raises(OSError, match="already in use") as error:
            bind([path], 0)
        assert (error.value.errno, error.value.filename) == (errno.EADDRINUSE, path)
        client.connect(path)


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / f"{'x' * 200}.sock")
    with pytest.raises(OSError, match="too long") as error:
        bind([path], 0)
    assert error.value.filename == path


@pytest.mark.parametrize("host", ["no.such.host.invalid", "127..0.0.1"])
def test_a_host_that_nobody_knows_is_named(host: str) -> None:
    with pytest.raises(OSError, match="unknown host") as error:
        bind([host], 80)
    assert error.value.filename == host


def test_a_name_is_bound_at_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    v4 = socket.AF_INET
    tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    places: list[Any] = [(v4, *tcp, ("127.0.0.1", 0)), (v4, *tcp, ("127.0.0.2", 0))]
    absent: Any = (v4, *tcp, ("203.0.113.7", 0))  # for documents: no machine has it
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*places, absent, places[0]])
    sockets = bind(["somewhere"], 0)
    assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1", "127.0.0.2"]
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [absent, absent])
    with pytest.raises(OSError, match="Cannot assign") as error:
        bind(["nowhere"], 0)
    assert error.value.filename == "nowhere:0"


def test_several_hosts_are_bound_together_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    sockets = bind(["127.0.0.1", path, "127.0.0.2"], 0)
    ports = [sock.getsockname()[1] for sock in (sockets[0], sockets[2])]
    assert ports[0] == ports[1]
    sockets[0].listen()
    with pytest.raises(OSError, match="in use"):
        bind(["127.0.0.3", "127.0.0.1"], ports[0])
    with bind(["127.0.0.3"], ports[0])[0]:  # was given back
        pass
    for sock in sockets:
        sock.close()


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system cannot share a port")
def test_a_port_is_shared_where_both_say_so() -> None:
    with bind(["127.0.0.1"], 0, reuse_port=True)[0] as first:
        port = first.getsockname()[1]
        first.listen()
        with bind(["127.0.0.1"], port, reuse_port=True)[0] as second:
            assert second.getsockname()[1] == port
