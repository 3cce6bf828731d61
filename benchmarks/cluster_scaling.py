"""How a build on Ray grows with the corpus and the workers: the figures in docs/how-to/clusters.md.

Workload: the Python files of this Python's standard library and of the installed packages, as
files of about 1 MB. Where they do not suffice, they come again with their words exchanged for
others of the same length, so that no document is a duplicate. Every size is built on a Ray of its
own with 1 worker and with more; seconds are by the clock, so use a quiet machine.

    python benchmarks/cluster_scaling.py [--megabytes 1,4,16,64,256,1024] [--workers 1,2]
        [--kind ngram-cache|suffix] [--shard-megabytes 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np

from ngramspec import embedded_model
from ngramspec.lab.builder import BuildOptions, NoProgress
from ngramspec.lab.builder.ray_executor import build_on_ray

MEGA = 1_000_000
WORD = re.compile(rb"[A-Za-z_]{4,}")


@dataclass
class Run:
    """One build: seconds by phase, bytes of the work folder when all is counted and of the file."""

    workers: int
    megabytes: float
    tokens: int
    finding: float
    reading: float
    writing: float
    work_bytes: int
    file_bytes: int


class Clock(NoProgress):
    """Clock(work): notes when phases begin, and how large the work folder gets."""

    def __init__(self, work: Path) -> None:
        self.work, self.work_bytes = work, 0
        self.starts: list[float] = []

    def phase(self, name: str, total: int) -> None:
        """Note the time."""
        self.starts.append(time.perf_counter())
        if name == "writing":
            self.work_bytes = sum(path.stat().st_size for path in self.work.glob("shard-*"))


def texts() -> Iterator[bytes]:
    """Yield files of about 1 MB without end, all of them different."""
    places = sysconfig.get_paths()
    names = [path for place in ("stdlib", "purelib") for path in Path(places[place]).rglob("*.py")]
    names.sort()
    random.Random(1).shuffle(names)
    for turn in count():
        exchanged: dict[bytes, bytes] = {}
        if turn:
            exchanged = words_for(turn, names)
        parts, size = list[bytes](), 0
        for name in names:
            part = name.read_bytes()
            if exchanged:
                part = WORD.sub(lambda match: exchanged.get(match[0], match[0]), part)  # noqa: B023
            parts.append(part)
            size += len(part)
            if size >= MEGA:
                yield b"".join(parts)
                parts, size = [], 0


def words_for(turn: int, names: list[Path]) -> dict[bytes, bytes]:
    """Return other words of the same length for the words of some files."""
    by_length: dict[int, set[bytes]] = defaultdict(set)
    for name in names[::10]:
        for word in WORD.findall(name.read_bytes()):
            by_length[len(word)].add(word)
    exchanged: dict[bytes, bytes] = {}
    for words in by_length.values():
        ordered = sorted(words)
        others = ordered[:]
        random.Random(turn).shuffle(others)
        exchanged |= zip(ordered, others, strict=True)
    return exchanged


def build(corpus: Path, folder: Path, workers: int, options: BuildOptions, shard: int) -> Run:
    """Build once, on a Ray of its own."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=workers,
        log_to_driver=False,
        include_dashboard=False,
        logging_level=logging.ERROR,
    )
    clock = Clock(folder / ".file.build")
    try:
        result = build_on_ray(
            [corpus], folder / "file", embedded_model(), options, clock,
            shard_bytes=shard,
        )  # fmt: skip
        ended = time.perf_counter()
    finally:
        ray.shutdown()
    finding, reading, writing = np.diff([*clock.starts, ended]).tolist()
    return Run(
        workers, result.totals.text_bytes / MEGA, result.totals.tokens, finding, reading, writing,
        clock.work_bytes, result.file_bytes,
    )  # fmt: skip


def exponent(runs: list[Run], name: str) -> tuple[float, float]:
    """Return a and b of name = a * megabytes ** b, by least squares of the logarithms."""
    sizes = np.log([run.megabytes for run in runs])
    values = np.log([getattr(run, name) for run in runs])
    slope, start = np.polyfit(sizes, values, 1)
    return float(np.exp(start)), float(slope)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", default="1,4,16,64,256")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--kind", default="ngram-cache")
    parser.add_argument("--shard-megabytes", type=float, default=8)
    parser.add_argument("--json", type=Path)
    order = parser.parse_args()
    sizes = sorted(float(size) for size in order.megabytes.split(","))
    options, runs = BuildOptions(kind=order.kind), list[Run]()
    print("| MB | workers | finding duplicates, s | reading, s | MB/s and worker | writing, s |"
          " work folder, B per B | file, B per B |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus"
        corpus.mkdir()
        more, size = texts(), 0.0
        for goal in sizes:
            while size < goal:
                text = next(more)
                (corpus / f"{len(list(corpus.iterdir())):05}.py").write_bytes(text)
                size += len(text) / MEGA
            for workers in map(int, order.workers.split(",")):
                run = build(corpus, folder, workers, options, int(order.shard_megabytes * MEGA))
                runs.append(run)
                speed = run.megabytes / run.reading / workers
                per = run.megabytes * MEGA
                print(f"| {run.megabytes:.0f} | {workers} | {run.finding:.1f} | {run.reading:.1f} |"
                      f" {speed:.2f} | {run.writing:.1f} | {run.work_bytes / per:.2f} |"
                      f" {run.file_bytes / per:.2f} |", flush=True)  # fmt: skip
    if order.json:
        order.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    most = max(run.workers for run in runs)
    large = [run for run in runs if run.workers == most and run.megabytes > 10]
    if len(large) > 1:
        for what in ("finding", "reading", "writing", "work_bytes", "file_bytes"):
            start, slope = exponent(large, what)
            print(f"{what} with {most} workers: {start:.3g} * MB ** {slope:.3f}")


if __name__ == "__main__":
    main()
