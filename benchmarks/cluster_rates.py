"""What one core does in a build on a cluster: the rates behind docs/how-to/clusters.md.

Workload: by default the Python files of this Python's standard library and of the installed
packages, cut into shards; every step of a build runs on them in this process, on one thread, as its
tasks run it. Rates are per second of processor time, so that a busy machine shows the same.

    python benchmarks/cluster_rates.py [--tokenizer FILE] [--shard-bytes N] [--shards N] [PATH ...]
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from ngramspec import embedded_model
from ngramspec._version import __version__
from ngramspec.build import BuildOptions
from ngramspec.build.feed import Feed
from ngramspec.build.ray_executor import shards_of
from ngramspec.build.ray_job import Job
from ngramspec.build.ray_shuffle import SLICES, find_duplicates
from ngramspec.build.ray_tasks import merge_entries, read_digests
from ngramspec.build.runs import counted
from ngramspec.corpus import CorpusPlan, Unit, find_units
from ngramspec.formats.cache_file import Origin, write_cache
from ngramspec.formats.entries import ArraySource, Entries
from ngramspec.tokenizers import Tokenizer, load_tokenizer

NUM_DIGESTS = 2_000_000
T = TypeVar("T")


@dataclass
class Sums:
    """Seconds and amounts over all shards."""

    text: int = 0
    documents: int = 0
    tokens: int = 0
    entries: int = 0
    reading: float = 0.0
    tokenising: float = 0.0
    counting: float = 0.0


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its processor time."""
    start = time.process_time()
    found = function()
    return found, time.process_time() - start


def count(units: Sequence[Unit], tokenizer: Tokenizer, job: Job, sums: Sums) -> dict[int, Entries]:
    """Do what the tasks of a shard do; return its entries by label."""
    from ngramspec._native.files.tally import Tally

    sums.reading += timed(lambda: read_digests(units, job))[1]
    feed = Feed(CorpusPlan(tuple(units), 0, 0), job.options)
    texts = [part for parts, _ in feed.documents() for part in parts]
    documents, seconds = timed(lambda: tokenizer.encode_batch(texts))
    sums.tokenising += seconds
    tally = Tally()

    def add_all() -> dict[int, Entries]:
        for tokens in documents:
            tally.add(tokens)
        return {label: counted(tally, label, job.options) for label in job.options.labels}

    entries, seconds = timed(add_all)
    sums.counting += seconds
    sums.text += feed.totals.text_bytes
    sums.documents += feed.totals.documents
    sums.tokens += sum(map(len, documents))
    sums.entries += sum(map(len, entries.values()))
    return entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="default: Python files of this installation")
    parser.add_argument("--tokenizer", type=Path, default=embedded_model())
    parser.add_argument("--shard-bytes", type=int, default=16 << 20)
    parser.add_argument("--shards", type=int, default=8)
    order = parser.parse_args()
    places = sysconfig.get_paths()
    paths = order.paths or [places["stdlib"], places["purelib"]]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer, options = load_tokenizer(order.tokenizer), BuildOptions()
    job = Job(__version__, options, str(order.tokenizer), "", b"", 1, 2 << 30)
    plan = find_units(paths, include=[] if order.paths else ["*.py"])
    sums, shards = Sums(), []
    for units in shards_of(plan, order.shard_bytes)[: order.shards]:
        shards.append(count(units, tokenizer, job, sums))
    print(f"{len(shards)} shards, {sums.text / 1e6:.0f} MB of text, {sums.documents} documents")
    print(f"bytes of text per token          {sums.text / sums.tokens:8.2f}")
    print(f"reading for digests, MB/s        {sums.text / 1e6 / sums.reading:8.1f}")
    print(f"tokenising, MB/s                 {sums.text / 1e6 / sums.tokenising:8.1f}")
    print(f"tokenising, Mtokens/s            {sums.tokens / 1e6 / sums.tokenising:8.2f}")
    print(f"counting, Mtokens/s              {sums.tokens / 1e6 / sums.counting:8.2f}")
    print(f"entry bytes per token, shards    {16 * sums.entries / sums.tokens:8.1f}")
    merge_and_write(shards, options, sums)
    digests()


def merge_and_write(shards: list[dict[int, Entries]], options: BuildOptions, sums: Sums) -> None:
    """Merge the shards' entries and write them as a file."""
    for min_count in (1, 2):
        merging = 0.0
        merged = {}
        for label in options.labels:
            arrays = [shard[label] for shard in shards]
            merged[label], seconds = timed(lambda: merge_entries(min_count, *arrays))  # noqa: B023
            merging += seconds
        num = sum(map(len, merged.values()))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            sources = {label: ArraySource(entries) for label, entries in merged.items()}
            _, writing = timed(lambda: write_cache(path, sources, Origin()))  # noqa: B023
            size = path.stat().st_size
        print(f"with min_count {min_count}")
        print(f"  merging, Mentries read/s       {sums.entries / 1e6 / merging:8.1f}")
        print(f"  entry bytes per token, merged  {16 * num / sums.tokens:8.1f}")
        print(f"  writing, Mentries/s            {num / 1e6 / writing:8.1f}")
        print(f"  bytes of the file per token    {size / sums.tokens:8.2f}")


def digests() -> None:
    """Compare digests as the driver does."""
    rng = np.random.default_rng(1)
    found = np.array_split(rng.integers(0, 1 << 64, (NUM_DIGESTS, 2), np.uint64), 100)
    _, seconds = timed(lambda: find_duplicates(found))
    tracemalloc.start()
    find_duplicates(found)
    peak = tracemalloc.get_traced_memory()[1]
    print(f"comparing digests, us each       {seconds * 1e6 / NUM_DIGESTS:8.2f}")
    print(f"memory besides, bytes each       {peak / NUM_DIGESTS:8.1f}  (in {SLICES} slices)")


if __name__ == "__main__":
    main()
