"""A build on Ray whose driver is killed goes on where it was."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_jobs import write_long

from ngramspec import embedded_model
from ngramspec.lab.builder import BuildResult, Resources

# Says which files of shards there are, and their inodes, when all are counted.
PROGRAM = """
import json, sys
from pathlib import Path
from ngramspec.lab.builder import BuildOptions, NoProgress
from ngramspec.lab.builder.ray_executor import build_on_ray

class Noting(NoProgress):
    def phase(self, name, total):
        if name == "writing":
            files = Path(work).glob(".file.*.build/shard-*")
            print(json.dumps({path.name: path.stat().st_ino for path in files}))

corpus, output, tokenizer, work, resume = sys.argv[1:]
build_on_ray([corpus], output, tokenizer, BuildOptions(), Noting(), shard_bytes=1, num_ranges=2,
             work=work, resume=resume == "resume")
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start the program in a session of its own, with the Ray that it starts."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)


def test_the_driver_is_killed_and_the_build_resumed(
    tmp_path: Path, build_here: Callable[[dict[str, Any]], BuildResult]
) -> None:
    corpus, output, scratch = write_long(tmp_path / "corpus"), tmp_path / "file", tmp_path / "work"
    arguments = (corpus, output, embedded_model(), scratch)
    work = Path(Resources(work=scratch).work_folder(output))
    process = start(*arguments, "new")
    try:
        deadline = time.monotonic() + 100
        while len(done := {path.name: path.stat().st_ino for path in work.glob("shard-*")}) < 8:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not output.exists()
    again = start(*arguments, "resume")
    stdout, _ = again.communicate(timeout=150)
    assert again.returncode == 0
    counted = json.loads(stdout.splitlines()[-1])
    assert len(counted) == 41
    assert done.items() <= counted.items()
    here = build_here({"paths": [corpus], "tokenizer": embedded_model()})
    assert output.read_bytes() == Path(here.path).read_bytes()
    assert not work.exists()
