"""Damaged files of every kind: refused, or used within their bounds; never a crash or a hang.

50 files per example of the other tests: 1,500 by default, the same ones every time, and 100,000 new
ones in `make fuzz`. To see a failure again: python tests/helpers/fuzz.py FOLDER SEED 1
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import fuzz
from helpers.machines import examples

pytestmark = [
    pytest.mark.hypothesis,  # as many as NGRAMSPEC_MAX_EXAMPLES says, like those
    pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux does"),
]

PER_EXAMPLE = 50
NEW = "NGRAMSPEC_MAX_EXAMPLES" in os.environ
EXAMPLES = examples(30)
FIRST = random.SystemRandom().randrange(1 << 40) if NEW else 0
AT_ONCE = 5000  # files per process
MOST_MEMORY = 600 << 10  # KiB resident; the files have some 20 KB
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


@pytest.mark.parametrize("start", range(0, EXAMPLES * PER_EXAMPLE, AT_ONCE))
def test_damaged_files_are_refused_or_used_within_their_bounds(tmp_path: Path, start: int) -> None:
    first, number = FIRST + start, min(AT_ONCE, EXAMPLES * PER_EXAMPLE - start)
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, fuzz.__file__, str(tmp_path), str(first), str(number)]
    try:
        ended = subprocess.run(
            command + ["--bounded"] * (not SANITIZED),
            env={**os.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"},
            capture_output=True,
            text=True,
            timeout=60 + number * 0.05,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"seed {last_seed(tmp_path)} takes forever")
    assert ended.returncode == 0, f"seed {last_seed(tmp_path)}:\n{ended.stderr[-3000:]}"
    assert SANITIZED or int(ended.stdout) < MOST_MEMORY


def last_seed(folder: Path) -> int:
    (seed,) = struct.unpack("<q", (folder / "seed").read_bytes())
    return int(seed)
