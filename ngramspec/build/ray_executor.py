"""Building on a Ray cluster: the same statistics, byte for byte, as on one machine."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._version import __version__
from ngramspec.build.checkpoint import TokenArray
from ngramspec.build.feed import Totals
from ngramspec.build.finish import Counted, finish
from ngramspec.build.held_out import MOST_TOKENS, measured_tokens
from ngramspec.build.options import LEAST_MEMORY, BuildOptions
from ngramspec.build.progress import NoProgress, Progress
from ngramspec.build.ray_cluster import Cluster, Ref, connected, errors_of_tasks, import_ray
from ngramspec.build.ray_job import Job
from ngramspec.build.ray_shuffle import BucketSource, MergeTree, find_duplicates
from ngramspec.build.ray_tasks import (
    Numbers,
    Report,
    count_shard,
    merge_entries,
    read_digests,
    summary,
)
from ngramspec.build.result import BuildResult, Seconds
from ngramspec.corpus import CorpusPlan, Problems, Unit, find_units
from ngramspec.errors import InputError
from ngramspec.formats.entries import EntrySource
from ngramspec.tokenizers import Tokenizer, load_tokenizer

MOST_SENT = 64 << 20  # a larger tokenizer file is read from its path
MOST_RANGES = 4096
ENTRY_SHARE = 5  # bytes of a label's entries per byte of text, at most
PACKED_SHARE = 4  # bytes of text per byte of a compressed file, about
Shards = Sequence[Sequence[Unit]]


def build_on_ray(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    *,
    address: str | None = None,
    num_ranges: int | None = None,
    shard_bytes: int = 64 << 20,
    memory: int = 2 << 30,
) -> BuildResult:
    """Build a statistics file from a corpus on a Ray cluster.

    The file equals that of ngramspec.build.build, byte for byte; the arguments after `options` do
    not change it. Tasks of lost workers and hosts are retried. There are no checkpoints. Running
    tasks of a build that ends early finish on their own, unless the connection to Ray ends too.

    Args:
        paths: Files and folders that all hosts see under the same path.
        output: The file, written by this process; it replaces an existing one once complete.
        tokenizer_path: Of the target model; above 64 MiB, all hosts must see it.
        options: What to count; default: 2- to 4-grams.
        progress: Receives the progress; may ask to stop.
        address: "auto" or host:port of a cluster; None = start Ray on this machine for the build. A
            Ray that is already initialised in this process is used in any case.
        num_ranges: Parts of the key space, merged separately, 1..4096; None = by corpus size.
        shard_bytes: Bytes of the corpus that a task counts, about; a file that cannot be split is
            counted by one task.
        memory: Bytes that a counting task may take, 64 MiB at least; fewer if no host offers them.

    Returns:
        BuildResult: As for a local build; seconds are sums over the tasks.

    Raises:
        BuildStopped: The progress asked for it; nothing is kept.
        InputError: An option is impossible; nothing to read; standard input or a pipe; a host lacks
            a file or has another version; none has 64 MiB for a task.
        BackendError: Ray is not installed, not reachable, or gave up.
        OSError: A path does not exist, a disk is full.

    Cost: reads the corpus twice, tokenises it once. Memory of this process: 21 bytes per document
    and a few ranges. See docs/how-to/clusters.md.
    """
    options, progress = options or BuildOptions(), progress or NoProgress()
    started = time.perf_counter()
    _check(num_ranges, shard_bytes, memory)
    if not options.labels:
        raise InputError(f"a file of kind {options.kind} is built on one machine, without Ray")
    ray = import_ray()
    plan = _plan(paths, options)
    tokenizer = load_tokenizer(tokenizer_path)
    with connected(ray, address), errors_of_tasks(ray):
        cluster = Cluster(ray, progress)
        memory = cluster.memory(memory)
        num_ranges = num_ranges or ranges_for(plan, memory)
        job, vocabulary = _job(tokenizer_path, tokenizer, options, num_ranges, memory)
        building = ClusterBuild(cluster, shards_of(plan, shard_bytes), job, progress)
        building.count(plan, vocabulary)
        result = finish(building.counted(), output, plan, tokenizer, options, progress)
    tokenizer.close()
    result.seconds.total = time.perf_counter() - started
    return result


class ClusterBuild:
    """One build: shards -> duplicates -> buckets of entries -> merged buckets in order."""

    def __init__(self, cluster: Cluster, shards: Shards, job: Job, progress: Progress) -> None:
        self._cluster = cluster
        self._shards = shards
        self._job = job
        self._progress = progress
        self._job_ref = cluster.put(job)
        merge = cluster.remote(merge_entries, memory=job.memory // 4)
        self._tree = MergeTree(lambda refs: merge(1, *refs)[0])
        self._merge = merge
        self._reports: list[Report | None] = [None] * len(shards)
        self._held_out: list[Ref] = [None] * len(shards)

    def count(self, plan: CorpusPlan, vocabulary: NDArray[np.uint8] | None) -> None:
        """Read, tokenise and count all shards."""
        self._progress.phase("finding duplicates", plan.num_bytes)
        skip, expected = self._compare()
        self._progress.phase("reading", plan.num_bytes)
        sent = None if vocabulary is None else self._cluster.put(vocabulary)
        num_returns = self._job.num_buckets + 2
        count = self._cluster.remote(count_shard, num_returns, self._job.memory)
        num_bytes = num_tokens = 0

        def submit(i: int) -> list[Ref]:
            refs: list[Ref] = count(self._shards[i], skip[i], expected[i], self._job_ref, sent)
            return refs

        for i, refs in self._cluster.run(len(self._shards), submit):
            report: Report = self._cluster.get(refs.pop())
            self._reports[i] = report
            self._held_out[i] = refs.pop()
            self._tree.add(refs)
            num_bytes += _num_bytes(self._shards[i])
            num_tokens += report.totals.tokens
            self._progress.done(num_bytes, num_tokens)

    def counted(self) -> Counted:
        """Return the input of `finish`."""
        totals, problems, seconds, num_runs = Totals(), Problems(), Seconds(), 0
        for report in self._reports:
            assert report is not None
            totals.add(report.totals)
            problems.merge(report.problems)
            seconds.tokenising += report.seconds.tokenising
            seconds.counting += report.seconds.counting
            num_runs += report.num_runs
        return Counted(totals, problems, seconds, num_runs, self._sources, self._held_out_tokens)

    def _compare(self) -> tuple[list[Numbers], list[bytes]]:
        """Return the duplicates in each shard and a summary of its documents."""
        read = self._cluster.remote(read_digests)
        digests: list[Any] = [None] * len(self._shards)
        num_bytes = 0
        for i, refs in self._cluster.run(
            len(self._shards), lambda i: list(read(self._shards[i], self._job_ref))
        ):
            digests[i] = self._cluster.get(refs[0])
            num_bytes += _num_bytes(self._shards[i])
            self._progress.done(num_bytes, 0)
        return find_duplicates(digests), [summary(each) for each in digests]

    def _sources(self) -> dict[int, EntrySource]:
        num = self._job.num_ranges
        return {
            label: BucketSource(range(i * num, (i + 1) * num), self._start, self._cluster.get)
            for i, label in enumerate(self._job.options.labels)
        }

    def _start(self, bucket: int) -> Ref:
        return self._merge(self._job.options.min_count, *self._tree.take(bucket))[0]

    def _held_out_tokens(self) -> list[TokenArray]:
        """Return the held-out documents to measure with."""
        documents: list[TokenArray] = []
        num_tokens = 0
        for ref in self._held_out:
            if num_tokens < MOST_TOKENS:
                found = self._cluster.get(ref)
                documents += found
                num_tokens += sum(map(measured_tokens, found))
        return documents


def shards_of(plan: CorpusPlan, shard_bytes: int) -> list[list[Unit]]:
    """Group units, in order, until a group is large enough; paths are made absolute."""
    shards: list[list[Unit]] = [[]]
    size = 0
    for unit in plan.units:
        if size >= shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(replace(unit, path=os.path.abspath(unit.path)))
        size += unit.num_bytes
    return shards


def ranges_for(plan: CorpusPlan, memory: int) -> int:
    """Return the number of ranges that keeps a bucket of the whole corpus below memory / 4."""
    text = sum(unit.num_bytes * (PACKED_SHARE if _packed(unit) else 1) for unit in plan.units)
    return min(MOST_RANGES, max(1, -(-text * ENTRY_SHARE // (memory // 4))))


def _packed(unit: Unit) -> bool:
    return bool(unit.compression) or unit.format == "parquet"


def _num_bytes(shard: Sequence[Unit]) -> int:
    return sum(unit.num_bytes for unit in shard)


def _check(num_ranges: int | None, shard_bytes: int, memory: int) -> None:
    if num_ranges is not None and not 1 <= num_ranges <= MOST_RANGES:
        raise InputError(f"num_ranges must be in 1..{MOST_RANGES}, got {num_ranges}")
    if shard_bytes < 1:
        raise InputError(f"shard_bytes must be at least 1, got {shard_bytes}")
    if memory < LEAST_MEMORY:
        raise InputError(f"memory must be at least {LEAST_MEMORY >> 20} MiB, got {memory}")


def _plan(paths: Iterable[str | os.PathLike[str]], options: BuildOptions) -> CorpusPlan:
    """Find what to read; it is read twice, by other processes."""
    plan = find_units(
        paths, include=options.include, exclude=options.exclude, format=options.format,
        gitignore=options.gitignore, follow_links=options.follow_links,
    )  # fmt: skip
    for unit in plan.units:
        if unit.path == "-" or not stat.S_ISREG(os.stat(unit.path).st_mode):
            name = "standard input" if unit.path == "-" else f"{unit.path}, which is no plain file,"
            raise InputError(f"{name} cannot be read on Ray: several processes read it, twice")
    return plan


def _job(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    options: BuildOptions,
    num_ranges: int,
    memory: int,
) -> tuple[Job, NDArray[np.uint8] | None]:
    """Return the job of all tasks, and the tokenizer's file if it is small enough to send."""
    from xxhash import xxh3_128_hexdigest

    path = os.path.abspath(path)
    status = os.stat(path)
    key, vocabulary = f"{path} {status.st_size} {status.st_mtime_ns}", None
    if status.st_size <= MOST_SENT:
        vocabulary = np.fromfile(path, np.uint8)
        key = xxh3_128_hexdigest(vocabulary.data)
    digest = tokenizer.fingerprint.digest
    return Job(__version__, options, path, key, digest, num_ranges, memory), vocabulary
