"""HttpServer: uvicorn with bounded connections and a shutdown that lets running requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ngramspec.server.http.connections import Connections
from ngramspec.server.service import Service

log = logging.getLogger(__name__)
BACKLOG = 2048
KEEP_ALIVE = 65  # seconds; clients with pools of connections close theirs before
LAST_SECONDS = 10  # after the drain timeout, for answers to report that they were cancelled
# Why an address of a name cannot be bound although another can: this machine does not have it.
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
CHECK_SECONDS = 0.25  # between two checks of connections and engine


class Workers(ThreadPoolExecutor):
    """The event loop's threads. `shutdown` does not wait for a thread that hangs."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start nothing more; running work continues."""
        super().shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for running work, after `shutdown`."""
        super().shutdown(wait=True)


class HttpServer(uvicorn.Server):
    """Serves an application until `stop`, or until its engine fails. The owner handles signals.

    failure: Why it ended by itself, "" if it did not.

    Args:
        app: Made by create_app.
        on_start: Called when the server accepts requests.
        on_end: Called when it accepts no more.
    """

    def __init__(
        self,
        app: Starlette,
        on_start: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        service: Service = app.state.service
        settings = service.settings
        self.connections = Connections(settings, service.bridge.traffic)
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=self.connections.protocol(),
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
        self.failure = ""
        self.workers = Workers(thread_name_prefix="ngramspec")
        self._service = service
        self._on_start = on_start
        self._on_end = on_end

    def stop(self) -> None:
        """Start the shutdown. Call it from any thread or from a signal handler."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_default_executor(self.workers)
        await super().startup(sockets)
        self._looking = asyncio.create_task(self._look())
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, let running ones finish up to the drain timeout, end the rest."""
        self._on_end()
        self._service.bridge.intake.close()
        timer = asyncio.create_task(self._cancel_late())
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self._looking.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override, unused-ignore]
        yield

    async def _look(self) -> None:
        loop, watch = asyncio.get_running_loop(), self._service.bridge.watch
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                self.connections.look(loop.time())
            except Exception:  # keep watching
                log.exception("checking the connections failed")
            if watch.lost and not self.should_exit:
                self.failure = watch.trouble
                log.critical("the server ends: %s", watch.trouble)
                self.stop()

    async def _cancel_late(self) -> None:
        await asyncio.sleep(self._service.settings.drain_timeout)
        self._service.bridge.cancel_all()
        self.connections.drop_unsent()


def bind(hosts: Sequence[str], port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return bound sockets that do not listen yet, at least one for each host.

    Args:
        hosts: Names or addresses, or paths of Unix sockets, which end with .sock. A name is bound
            at all of its addresses that this machine has.
        port: Of all addresses; 0 = any free one.
        reuse_port: Let other processes bind the same port, which the system then deals out.

    Raises:
        OSError: An address cannot be used; its filename names it.
    """
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            if host.endswith(".sock"):
                sockets.append(_bind_path(host))
                continue
            addresses = _resolve(host, port)
            several = len(addresses) + len(hosts) > 2
            for index, address in enumerate(addresses):
                port = port or _port_of(sockets)
                try:
                    sockets.append(_bind_address(address, port, reuse_port, several))
                except OSError as error:
                    # A name such as localhost may have an address of a kind that is switched off.
                    if error.errno in ABSENT and (index or index + 1 < len(addresses)):
                        continue
                    reason = error.strerror or ""
                    if error.errno == errno.EADDRINUSE:
                        reason += ": choose another port, or end the program that listens there"
                    raise OSError(error.errno, reason, f"{host}:{port}") from error
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError(errno.EADDRNOTAVAIL, "no address to listen on", ",".join(hosts))
    return sockets


def _bind_path(path: str) -> socket.socket:
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        if _is_listening(path):
            reason = "Address already in use: choose another path, or end the program that listens"
            raise OSError(errno.EADDRINUSE, reason, path)
        os.unlink(path)  # left behind by an earlier server
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)  # a path that is too long has no number
        raise OSError(error.errno or errno.ENAMETOOLONG, reason, path) from error
    return sock


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # a full queue is an answer too
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _bind_address(address: Any, port: int, reuse_port: bool, several: bool) -> socket.socket:
    family, place = address[0], address[4]
    # asyncio sets TCP_NODELAY only if the protocol is named
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if several and family == socket.AF_INET6:  # 0.0.0.0 and :: together
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((place[0], port, *place[2:]))
    except OSError:
        sock.close()
        raise
    return sock


def _port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the port of the first socket that has one, 0 for none: all get the same."""
    names = [sock.getsockname() for sock in sockets]
    return next((int(name[1]) for name in names if not isinstance(name, (str, bytes))), 0)


def url_of(sock: socket.socket, secure: bool = False) -> str:
    """Return the URL at which clients reach a bound socket."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http{'s' if secure else ''}://{host}:{name[1]}"


def _resolve(host: str, port: int) -> list[Any]:
    """Return the different addresses of a host."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:  # the latter for an empty or a long label
        raise OSError(getattr(error, "errno", errno.EINVAL), "unknown host", host) from error
    return list({one[4]: one for one in infos}.values())
