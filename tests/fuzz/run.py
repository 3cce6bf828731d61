"""Fuzzes targets with atheris: python tests/fuzz/run.py [TARGET ...] [--seconds 60] [--seed 1].

What fails is made small, kept in found/TARGET and told; the search goes on behind it until the time
is over. Inputs that reach something new are kept in build/fuzz/TARGET for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path[0] = str(FOLDER.parent)  # the folder tests, and not this one

from fuzz import json_inputs  # noqa: E402
from fuzz.replay import Replayer  # noqa: E402
from fuzz.target import NAMES, inputs_of, load  # noqa: E402

MINIMIZING = 60.0  # seconds per finding
MOST_FINDINGS = 20
GRACE = 120.0  # seconds for the start of a target, with all seeds run once


@dataclass
class Outcome:
    """What a run came to.

    executed: Inputs that were tried.
    reached: Edges of Python code, as libFuzzer counts them.
    failures: Files of inputs that fail, by the kind of failure.
    broken: Why the run ended early, "" if it did not.
    """

    name: str
    executed: int = 0
    reached: int = 0
    failures: dict[str, Path] = field(default_factory=dict)
    broken: str = ""

    def line(self) -> str:
        """Return one line."""
        line = (
            f"{self.name}: {self.executed} inputs, {self.reached} edges, {len(self.failures)} found"
        )
        return f"{line}; {self.broken}" if self.broken else line


def fuzz(name: str, seconds: float, seed: int = 0) -> Outcome:
    """Fuzz a target for so long; findings are kept in found/TARGET. seed: 0 = a new search."""
    outcome = Outcome(name)
    folder = ROOT / "build" / "fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(load(name).more_seeds()):
        (folder / f"made-{number}").write_bytes(data)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        while (left := end - time.monotonic()) > 1 and len(outcome.failures) < MOST_FINDINGS:
            crash = _guided(outcome, folder, Path(scratch), int(left), seed)
            if crash is None:
                break
            _keep(outcome, crash)
    return outcome


def _guided(outcome: Outcome, folder: Path, scratch: Path, seconds: int, seed: int) -> Path | None:
    """Run atheris until the time is over or an input fails; return that input."""
    target = load(outcome.name)
    (scratch / "known").write_text("\n".join(outcome.failures))
    words = scratch / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if word))
    seeds = scratch / "seeds"
    seeds.mkdir(exist_ok=True)
    for path in inputs_of(outcome.name):
        (seeds / path.name).write_bytes(path.read_bytes())
    for old in scratch.glob("failed-*"):
        old.unlink()
    command = [sys.executable, str(FOLDER / "guided.py"), outcome.name, str(scratch / "known")]
    command += [str(folder), str(seeds), f"-max_total_time={max(1, seconds)}", f"-seed={seed}"]
    command += [f"-max_len={target.max_bytes}", f"-timeout={target.seconds}"]
    command += [f"-rss_limit_mb={target.rss_mib}", f"-artifact_prefix={scratch / 'failed-'}"]
    command += ["-report_slow_units=100000"]  # slow is what takes longer than -timeout
    if target.words:
        command.append(f"-dict={words}")
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    if seed:
        env["PYTHONHASHSEED"] = str(seed)
    log = scratch / "log"
    with log.open("wb") as file:
        try:
            status = subprocess.run(
                command, env=env, stdout=file, stderr=file, timeout=seconds + GRACE, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    text = log.read_text("utf-8", "replace")
    edges = [int(number) for number in re.findall(r"cov: (\d+)", text)]
    done = re.findall(r"^#(\d+)", text, re.MULTILINE)
    outcome.executed += int(done[-1]) if done else 0
    outcome.reached = max([outcome.reached, *edges])
    crashes = sorted(scratch.glob("failed-*"))
    if not crashes and status:
        outcome.broken = f"atheris ended with {status}: {text[-1500:]}"
    return crashes[0] if crashes else None


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


def _keep(outcome: Outcome, crash: Path) -> None:
    data = crash.read_bytes()
    with Replayer(outcome.name, load(outcome.name).seconds) as replayer:
        kind = replayer.kind_of_bytes(data)
        if kind == "ok":
            kind = f"fails only after others: {crash.name.split('-')[1]}"
        elif kind not in outcome.failures:
            data = smaller(data, kind, replayer)
    kept_in = FOLDER / "found" / outcome.name
    kept_in.mkdir(parents=True, exist_ok=True)
    path = kept_in / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    if kind in outcome.failures:
        path.unlink()
        outcome.broken = f"{kind} cannot be passed over"
    else:
        outcome.failures[kind] = path
        print(f"{outcome.name}: {kind}\n    {path}\n    {data[:300]!r}", flush=True)


def smaller(data: bytes, kind: str, replayer: Replayer) -> bytes:
    """Return an input without what the failure does not need: parts of JSON, then any bytes."""
    end = time.monotonic() + MINIMIZING
    shrunk = True
    while shrunk:
        shrunk = False
        for shorter in json_inputs.shorter(data):
            if time.monotonic() > end:
                return data
            if replayer.kind_of_bytes(shorter) == kind:
                data, shrunk = shorter, True
                break
    size = max(1, len(data) // 2)
    while size and time.monotonic() < end:
        at = 0
        while at < len(data) and time.monotonic() < end:
            piece = data[:at] + data[at + size :]
            if replayer.kind_of_bytes(piece) == kind:
                data = piece
            else:
                at += size
        size //= 2
    return data


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz targets with atheris.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=float, default=60.0, help="per target")
    parser.add_argument("--seed", type=int, default=0, help="of the search; 0: a new one")
    args = parser.parse_args()
    failed = False
    for name in args.targets or NAMES:
        outcome = fuzz(name, args.seconds, args.seed)
        print(outcome.line(), flush=True)
        failed |= bool(outcome.failures or outcome.broken)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
