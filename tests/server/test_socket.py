"""The listening socket: where it listens, and what its connections are like."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from ngramspec.server.http.run import bind, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_small_writes_are_sent_at_once(host: str) -> None:
    """With Nagle's algorithm an answer's body waits for the acknowledgement of its head."""

    async def option() -> int:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made = writer.get_extra_info("socket")
            seen.put_nowait(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = bind([host], 0)[0]
        async with await asyncio.start_server(accepted, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname()[:2])
            found = await seen.get()
            writer.close()
        return found

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


def test_a_host_that_nobody_knows_is_named() -> None:
    with pytest.raises(OSError, match="unknown host") as error:
        bind(["no.such.host.invalid"], 80)
    assert error.value.filename == "no.such.host.invalid"
