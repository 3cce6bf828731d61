"""Run one writer again and again, each time with a fault at another of its file calls.

Usage: program.py WRITER FOLDER LIBRARY [all], with LIBRARY (shim.c) preloaded.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from writers import WRITERS, Writer

OFF, COUNT, FAIL, FULL, SHORT, KILL, TEAR = range(7)
ERRORS = ((FULL, errno.ENOSPC), (FAIL, errno.EIO), (FAIL, errno.EINTR), (SHORT, 0))
FEW = 12  # calls that get all faults in any case
WRITES = ("write", "pwrite", "writev")


class Shim:
    """The preloaded library, armed for calls below a folder."""

    def __init__(self, library: str, folder: Path) -> None:
        self._library = ctypes.CDLL(library)
        self._library.shim_log.restype = ctypes.c_char_p
        self._folder = os.fsencode(folder)

    def arm(self, mode: int, nth: int = 0, code: int = 0) -> None:
        self._library.shim_arm(self._folder, mode, ctypes.c_long(nth), code)

    def disarm(self) -> bool:
        """Return whether the fault came."""
        return bool(self._library.shim_disarm())

    def calls(self) -> list[str]:
        return self._library.shim_log().decode().splitlines()


class Run:
    """All runs of one writer in a folder."""

    def __init__(self, writer: Writer, folder: Path, shim: Shim) -> None:
        self.writer, self.folder, self.shim = writer, folder, shim
        writer.set_up(folder.parent / "sources")
        self.before: dict[str, bytes] = {}
        self.prepare()
        writer.prepare(folder)
        self.before = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.old = self.read()
        shim.arm(COUNT)
        writer.run(folder)
        shim.disarm()
        self.calls = shim.calls()
        self.new = self.read()
        assert self.new is not None
        assert self.new != self.old
        assert self.leftovers() == [], self.leftovers()
        print(f"{len(self.calls)} calls")

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name, content in self.before.items():
            (self.folder / name).write_bytes(content)

    def read(self) -> bytes | None:
        path = self.folder / self.writer.target
        return path.read_bytes() if path.exists() else None

    def leftovers(self) -> list[str]:
        expected = {self.writer.target, f"{self.writer.target}.lock"}
        return sorted({path.name for path in self.folder.iterdir()} - expected)

    def fail(self, nth: int, mode: int, code: int) -> None:
        """A call goes wrong: the writer says so, or has made up for it."""
        self.prepare()
        self.shim.arm(mode, nth, code)
        raised = True
        try:
            self.writer.run(self.folder)
            raised = False
        except (OSError, SystemExit):
            pass
        fired = self.shim.disarm()
        assert fired or mode == SHORT, "the call did not come"
        contents = self.read()
        assert contents in (self.old, self.new)
        assert raised or contents == self.new
        assert set(self.leftovers()) <= self.writer.kept_after_errors, self.leftovers()
        self.writer.again(self.folder)
        self.check_end()

    def kill(self, nth: int, mode: int) -> None:
        """The process dies at a call."""
        self.prepare()
        child = os.fork()
        if child == 0:
            try:
                self.shim.arm(mode, nth)
                self.writer.run(self.folder)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), "the call did not come"
        assert self.read() in (self.old, self.new)
        if self.writer.after_death(self.folder):
            self.check_end()
        else:
            assert self.read() in (self.old, self.new)
            assert self.leftovers() == [], self.leftovers()

    def check_end(self) -> None:
        assert self.read() == self.new
        assert self.leftovers() == [], self.leftovers()

    def all(self, exhaustive: bool) -> None:
        exhaustive |= len(self.calls) <= FEW
        for nth, call in enumerate(self.calls, start=1):
            is_write = call.split(" ")[0] in WRITES
            faults: list[tuple[Any, ...]] = [(self.fail, nth, *error) for error in ERRORS]
            faults.append((self.kill, nth, KILL))
            if is_write:
                faults.append((self.kill, nth, TEAR))
            if not exhaustive:  # each call, each fault now and then
                faults = [faults[nth % len(faults)], faults[(nth // 2 + 2) % len(faults)]]
            for run, *arguments in faults:
                try:
                    run(*arguments)
                except BaseException as error:
                    self.shim.disarm()
                    error.add_note(f"at call {nth}, {call}: {run.__name__}{tuple(arguments)}")
                    raise


def main(name: str, folder: str, library: str, *options: str) -> None:
    place = Path(folder).resolve() / "made"
    run = Run(WRITERS[name](), place, Shim(library, place))
    if "log" in options:
        print("\n".join(run.calls))
    else:
        run.all("all" in options)


if __name__ == "__main__":
    main(*sys.argv[1:])
