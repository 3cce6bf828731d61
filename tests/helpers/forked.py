"""Python processes that begin with the command's modules loaded, which takes most of a start.

One process per run of the tests has loaded them. It forks what is asked for, and its children
become those of the process that asks: subprocess waits for them, kills them and reads their pipes.
What is about a start with nothing loaded uses subprocess itself.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = ("ngramspec.cli.serve.run", "uvicorn.protocols.http.h11_impl")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
Request = dict[str, Any]


class Forked(subprocess.Popen[Any]):
    """As subprocess.Popen([sys.executable, *arguments], ...); elsewhere than on Linux it is that.

    loaded: False = it is that here too.
    """

    def __init__(self, arguments: Sequence[str], *, loaded: bool = True, **options: Any) -> None:
        self._loaded = loaded and sys.platform == "linux"
        super().__init__([sys.executable, *arguments], **options)

    def _execute_child(self, args: list[str], *others: Any) -> None:
        if not self._loaded:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        folder, environment, pipes = others[4], others[5], others[9:15]
        ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
        request = {
            "arguments": args[1:],
            "folder": str(folder or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
            "ignored": ignored,
        }
        ends = [pipe if pipe >= 0 else n for n, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        connection = _parent()
        socket.send_fds(connection, [json.dumps(request).encode()], ends)
        self.pid = int(connection.recv(100))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(
    arguments: Sequence[str], stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` with pipes, so without a terminal; the environment gets some more."""
    clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    pipe = subprocess.PIPE
    env = {**clean, "COLUMNS": "80", **environment}
    with Forked(
        arguments, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", env=env
    ) as process:
        try:
            output, errors = process.communicate(stdin, timeout=120)
        finally:
            process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


@functools.cache
def _parent() -> socket.socket:
    """Start the process that has all loaded, and return the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        theirs.set_inheritable(True)
        command = [sys.executable, __file__, str(theirs.fileno())]
        os.posix_spawn(sys.executable, command, os.environ)  # it ends with its connection
    return ours


def _next_request(connection: socket.socket) -> Request:
    """Serve requests; return them in the processes that are to do what they say."""
    while True:
        message, ends, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            sys.exit()
        read, write = os.pipe()
        between = os.fork()
        if not between:
            if not (child := os.fork()):
                break
            os.write(write, str(child).encode())
            os._exit(0)  # so the child goes to who asked
        os.waitpid(between, 0)
        connection.send(os.read(read, 100))
        for number in (read, write, *ends):
            os.close(number)
    connection.close()
    for number, end in enumerate(ends):
        os.dup2(end, number)
    for number in (read, write, *ends):
        os.close(number)
    request: Request = json.loads(message)
    return request


def _take(request: Request) -> None:
    """Make this process look as if it had been started like that."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        own = name == "stderr" or os.isatty(number)
        file = os.fdopen(number, "rb" if name == "stdin" else "wb", closefd=False)
        stream = io.TextIOWrapper(file, old.encoding, old.errors, line_buffering=own)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(arguments: list[str]) -> None:
    """Run what Python would with these arguments: -m MODULE, -c CODE or a file, then the rest."""
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = [kind, *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = [kind, *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = ""
    os.chdir(ROOT)
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    request = _next_request(socket.socket(fileno=int(sys.argv[1])))
    _take(request)
    _run(request["arguments"])
