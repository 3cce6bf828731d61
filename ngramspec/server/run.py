"""run_server: uvicorn with an end that lets running requests finish, and signals of our own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import Scope

from ngramspec.server.service import Service

BACKLOG = 2048
KEEP_ALIVE = 65  # seconds; clients with pools of connections close theirs before
LAST_SECONDS = 10  # after the drain timeout, for answers to say that they were cancelled


class HttpServer(uvicorn.Server):
    """Serves an application until SIGTERM or SIGINT; the second SIGINT ends it at once.

    Args:
        app: Made by create_app.
        on_report: Called in the event loop's thread when SIGUSR1 comes.
        on_start: Called when requests are taken.
    """

    def __init__(
        self,
        app: FastAPI,
        on_report: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        service: Service = app.state.service
        settings = service.settings
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=settings.access_log,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(settings.drain_timeout) + LAST_SECONDS,
            ssl_keyfile=settings.ssl_key_file,
            ssl_certfile=settings.ssl_cert_file,
        )
        super().__init__(config)
        self._service = service
        self._on_report = on_report
        self._on_start = on_start
        service.bridge.disconnect = self.disconnect

    def disconnect(self, scope: Scope) -> None:
        """Close the connection of a request without waiting for its client to read."""
        client = scope.get("client")
        for connection in list(self.server_state.connections):
            same = client is not None and getattr(connection, "client", None) == tuple(client)
            transport = getattr(connection, "transport", None)
            if same and isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, let running ones finish up to the drain timeout, end the rest."""
        self._service.bridge.refuse()
        timer = asyncio.create_task(self._cancel_late())
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override, unused-ignore]
        """Handle signals in the block. Other than uvicorn, do not raise them again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[int, Any] = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
        }
        if hasattr(signal, "SIGUSR1"):
            report = self._on_report
            handlers[signal.SIGUSR1] = lambda *_: loop.call_soon_threadsafe(report)
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    async def _cancel_late(self) -> None:
        await asyncio.sleep(self._service.settings.drain_timeout)
        self._service.bridge.cancel_all()


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Args:
        host: Name or address, or the path of a Unix socket, which ends with .sock.
        port: 0 = any free one.

    Raises:
        OSError: The address cannot be used; its filename names it.
    """
    if host.endswith(".sock"):
        if os.path.exists(host) and stat.S_ISSOCK(os.stat(host).st_mode):
            os.unlink(host)  # what a server before left behind
        family, protocol, address = socket.AF_UNIX, 0, host
    else:
        found = _resolve(host, port)
        # asyncio turns off Nagle's delays only where the protocol is named
        family, protocol, address = found[0], socket.IPPROTO_TCP, found[4]
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        place = host if family == getattr(socket, "AF_UNIX", None) else f"{host}:{port}"
        raise OSError(error.errno, error.strerror, place) from error
    return sock


def url_of(sock: socket.socket, secure: bool = False) -> str:
    """Return where clients reach a bound socket."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http{'s' if secure else ''}://{host}:{name[1]}"


def run_server(
    app: FastAPI,
    sock: socket.socket,
    on_report: Callable[[], None] = lambda: None,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application on a bound socket until a signal ends it; arguments as HttpServer."""
    HttpServer(app, on_report, on_start).run(sockets=[sock])


def _resolve(host: str, port: int) -> Any:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(error.errno, "unknown host", host) from error
    return found[0]
