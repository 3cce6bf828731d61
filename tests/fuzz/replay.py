"""Replays inputs in a process of their own, so that one that ends or hangs it is told.

As a program: python replay.py TARGET, with paths of inputs on its standard input, one a line. It
says "ready" and answers with one line each: "ok", or the kind of the failure, after which it ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

FOLDER = Path(__file__).parent
STARTING = 120.0  # seconds
SLOWER = 2  # this machine may be so much slower than the one that found an input


class Replayer:
    """Asks a process what an input does; starts another when it ended. Close it at the end.

    name: Of the target.
    seconds: What one input may take on a fast machine.
    program: What is run.
    """

    def __init__(self, name: str, seconds: float, program: Path = Path(__file__)) -> None:
        self._command = [sys.executable, str(program), name]
        self._seconds = seconds * SLOWER
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with this

    def kind(self, path: Path) -> str:
        """Return "ok" or what fails with an input."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            print(path, file=process.stdin, flush=True)
            line = self._lines.get(timeout=self._seconds)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            self.close()
            return "hangs"
        if line.strip() == "ok":
            return "ok"
        status = process.wait(self._seconds)
        self.close()
        return line.strip() or f"dies with {status}"

    def kind_of_bytes(self, data: bytes) -> str:
        """Return "ok" or what fails with an input that is no file yet."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "input")
            path.write_bytes(data)
            return self.kind(path)

    def log(self) -> str:
        """Return the end of what the process wrote, for a failure's trace."""
        self._log.seek(0)
        return self._log.read()[-4000:]

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._log.close()

    def close(self) -> None:
        """End the process; it may be used again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._reader.join()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # a line that was never read
                process.stdin.close()

    def _start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        self._lines = lines = queue.Queue()
        assert process.stdout is not None
        stdout = process.stdout

        def read() -> None:
            for line in stdout:
                lines.put(line)
            lines.put("")

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        self._process = process
        assert lines.get(timeout=STARTING) == "ready\n", self.log()
        return process


def main() -> None:
    import faulthandler

    from fuzz.target import kind_of, load

    faulthandler.enable()
    with load(sys.argv[1]).opened() as run:
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                run(Path(line.rstrip("\n")).read_bytes())
            except Exception as error:
                traceback.print_exc()
                print(kind_of(error).replace("\n", " "), flush=True)
                os._exit(1)  # what failed may be broken for good
            print("ok", flush=True)


if __name__ == "__main__":
    main()
