"""Building on a Ray cluster: the same statistics, byte for byte, as on one machine."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._version import __version__
from ngramspec.errors import FormatError, InputError
from ngramspec.files.entries import ArraySource, Entries, EntrySource, no_entries
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.lab.builder.checkpoint import TokenArray, WorkFolder, identity_of
from ngramspec.lab.builder.feed import Totals, UnfitCorpusError, plan_of
from ngramspec.lab.builder.finish import Counted, check_indexed, finish
from ngramspec.lab.builder.held_out import MOST_TOKENS, measured_tokens
from ngramspec.lab.builder.options import LEAST_MEMORY, BuildOptions, Resources
from ngramspec.lab.builder.ray_cluster import Cluster, Ref, connected, errors_of_tasks, import_ray
from ngramspec.lab.builder.ray_shards import PATTERN, Report, ShardFile
from ngramspec.lab.builder.ray_tasks import (
    Digests,
    Job,
    Numbers,
    count_shard,
    merge_range,
    read_digests,
    summary,
)
from ngramspec.lab.builder.result import BuildResult, NoProgress, Progress, Seconds
from ngramspec.lab.corpus import CorpusPlan, Problems, Unit
from ngramspec.text.tokenizers import Tokenizer, load_tokenizer

MOST_SENT = 64 << 20  # a larger tokenizer file is read from its path
MOST_RANGES = 4096
SLICES = 16  # of the digests, compared one after another
MOST_AHEAD = 16  # ranges that are merged while one is written
ENTRY_SHARE = 5  # bytes of a label's entries per byte of text, at most
PACKED_SHARE = 4  # bytes of text per byte of a compressed file, about
LEAST_SHARD = 64 << 20
MOST_SHARDS = 1000  # about: the merge of each range opens the files of all
Shards = Sequence[Sequence[Unit]]
_NONE = np.empty((0, 2), np.uint64)


def build_on_ray(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    *,
    address: str | None = None,
    num_ranges: int | None = None,
    shard_bytes: int | None = None,
    memory: int = 2 << 30,
    work: str | os.PathLike[str] | None = None,
    resume: bool = False,
    restart: bool = False,
) -> BuildResult:
    """Build a statistics file from a corpus on a Ray cluster.

    The file equals that of ngramspec.lab.builder.build, byte for byte; the arguments after
    `options` do not change it. Tasks of lost workers and hosts are retried. A shard that was
    counted is a file in the work folder: after whatever ends this process, `resume` counts only
    the others. Running tasks of a build that ends early finish on their own, unless the connection
    to Ray ends too.

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
            counted by one task. None = 64 MiB, in a large corpus a thousandth of it.
        memory: Bytes that a counting task may take, 64 MiB at least; fewer if no host offers them.
        work: Folder in which the build makes one of its own for what the tasks count, and which all
            hosts see; None = that of the output.
        resume: Continue a build that was stopped or killed; its num_ranges and shard_bytes count.
            min_count, max_bytes and provenance may be others than before.
        restart: Discard such a build.

    Returns:
        BuildResult: As for a local build; seconds are sums over the tasks.

    Raises:
        BuildStopped: The progress asked for it; resume continues.
        InputError: An option or SOURCE_DATE_EPOCH is impossible; nothing to read, or more than an
            index holds; standard input or a pipe; a host lacks a file or has another version; none
            has 64 MiB for a task; there is an unfinished build.
        FormatError: The unfinished build is damaged, as after a power failure: use restart.
        BackendError: Ray is not installed, not reachable, or gave up; no host can run a task.
        CapacityError: More n-grams than a file can hold: resume with a larger min_count.
        OSError: A path does not exist, a disk is full.

    Cost: reads the corpus twice, tokenises it once. Memory of this process: 21 bytes per document
    and a range per core of the cluster, 16 at most. See docs/how-to/clusters.md.
    """
    options, progress = options or BuildOptions(), progress or NoProgress()
    started = time.perf_counter()
    _check(num_ranges, shard_bytes, memory)
    options.check_date()
    ray = import_ray()
    plan = _plan(paths, output, options)
    tokenizer = load_tokenizer(tokenizer_path)
    folder = WorkFolder(
        os.path.abspath(Resources(work=work).work_folder(output)),
        identity_of(plan, options, tokenizer.fingerprint.digest, "ray"),
    )
    # The folder comes last: until the connection ends, tasks may write to it.
    with _keeping(folder), connected(ray, address), errors_of_tasks(ray):
        cluster = Cluster(ray, progress)
        memory = cluster.memory(memory)
        cut = Division(num_ranges or ranges_for(plan, memory), shard_bytes or shard_bytes_for(plan))
        cut = _opened(folder, cut, resume=resume, restart=restart)
        job, vocabulary = _job(tokenizer_path, tokenizer, options, cut, memory, folder)
        shards = shards_of(plan, cut.shard_bytes)
        building = ClusterBuild(cluster, shards, job, folder, progress)
        building.count(plan, vocabulary)
        result = finish(building.counted(), output, plan, tokenizer, options, progress)
    folder.remove()
    tokenizer.close()
    result.seconds.total = time.perf_counter() - started
    return result


@dataclass(frozen=True)
class Division:
    """Into what a build is cut: it stays so when the build is resumed."""

    num_ranges: int
    shard_bytes: int


class ClusterBuild:
    """One build: shards -> duplicates -> files of entries -> merged ranges in order."""

    def __init__(
        self, cluster: Cluster, shards: Shards, job: Job, work: WorkFolder, progress: Progress
    ) -> None:
        self._cluster = cluster
        self._shards = shards
        self._job = job
        self._work = work
        self._progress = progress
        self._job_ref = cluster.put(job)
        self._merge = cluster.remote(merge_range, job.memory // 4)
        self._files: list[str] = []
        self._reports: dict[int, Report] = {}
        self._num_bytes = self._num_tokens = 0  # counted

    def count(self, plan: CorpusPlan, vocabulary: NDArray[np.uint8] | None) -> None:
        """Read, tokenise and count all shards that have no file."""
        self._progress.phase("finding duplicates", plan.num_bytes)
        skip, expected = self._compare()
        self._files = [
            os.path.join(self._job.work, self._name(i, skip[i], expected[i]))
            for i in range(len(self._shards))
        ]
        self._progress.phase("reading", plan.num_bytes)
        sent = None if vocabulary is None else self._cluster.put(vocabulary)
        count = self._cluster.remote(count_shard, self._job.memory)

        def submit(i: int) -> Ref:
            return count(self._shards[i], skip[i], expected[i], self._job_ref, sent, self._files[i])

        for i, path in enumerate(self._files):
            if os.path.exists(path):
                self._counted(i, ShardFile(path).report())
        left = [i for i in range(len(self._shards)) if i not in self._reports]
        for i, report in self._cluster.run(left, submit):
            self._counted(i, report)
        if not self._num_tokens:  # the build ends with an error: there is nothing to resume
            for path in self._files:
                os.unlink(path)

    def counted(self) -> Counted:
        totals, problems, seconds, num_runs = Totals(), Problems(), Seconds(), 0
        for _, report in sorted(self._reports.items()):
            totals.add(report.totals)
            problems.merge(report.problems)
            seconds.tokenising += report.seconds.tokenising
            seconds.counting += report.seconds.counting
            num_runs += report.num_runs
        return Counted(
            totals, problems, seconds, num_runs, self._sources, self._held_out, self._texts,
            self._job.memory // 2,
        )  # fmt: skip

    def _counted(self, i: int, report: Report) -> None:
        self._reports[i] = report
        self._num_bytes += _num_bytes(self._shards[i])
        self._num_tokens += report.totals.tokens
        if self._job.options.kind == INDEX_KIND:
            check_indexed(self._num_tokens)  # without the borders, which `finish` knows
        self._progress.done(self._num_bytes, self._num_tokens)

    def _name(self, i: int, skip: Numbers, expected: bytes) -> str:
        """Return the name of a shard's file: another one if anything that it depends on differs."""
        from xxhash import xxh3_64_hexdigest

        key = repr((self._work.identity, self._job.num_ranges, self._shards[i], skip.tobytes()))
        return f"shard-{i:06d}-{xxh3_64_hexdigest(key.encode() + expected)}"

    def _compare(self) -> tuple[list[Numbers], list[bytes]]:
        """Return the duplicates in each shard and a summary of its documents."""
        read = self._cluster.remote(read_digests)
        digests: list[Any] = [None] * len(self._shards)
        num_bytes = 0
        for i, rows in self._cluster.run(
            range(len(self._shards)), lambda i: read(self._shards[i], self._job_ref)
        ):
            digests[i] = rows
            num_bytes += _num_bytes(self._shards[i])
            self._progress.done(num_bytes, 0)
        return find_duplicates(digests), [summary(each) for each in digests]

    def _sources(self) -> dict[int, EntrySource]:
        num, ahead = self._job.num_ranges, min(self._cluster.room(), MOST_AHEAD)
        files = self._cluster.put(self._files)  # once, not with every task

        def start(part: int) -> Ref:
            return self._merge(files, part, self._job.options.min_count)

        return {
            label: BucketSource(range(i * num, (i + 1) * num), ahead, start, self._cluster.get)
            for i, label in enumerate(self._job.options.labels)
        }

    def _texts(self) -> TokenArray:
        return self._work.gathered(ShardFile(path).part(0, "<i4") for path in self._files)

    def _held_out(self) -> list[TokenArray]:
        documents: list[TokenArray] = []
        num_tokens = 0
        for path in self._files:
            if num_tokens < MOST_TOKENS:
                texts = ShardFile(path).held_out()
                documents += texts
                num_tokens += sum(map(measured_tokens, texts))
        return documents


def _opened(folder: WorkFolder, cut: Division, *, resume: bool, restart: bool) -> Division:
    try:
        state = folder.open(resume=resume, restart=restart)
        if state is None:
            folder.begin(asdict(cut))
            return cut
        return _cut_of(state, folder)
    except BaseException:
        folder.close()
        raise


def _cut_of(state: dict[str, Any], folder: WorkFolder) -> Division:
    try:
        cut = Division(int(state["num_ranges"]), int(state["shard_bytes"]))
        _check(cut.num_ranges, cut.shard_bytes, LEAST_MEMORY)
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise FormatError(
            f"{folder.path}: {error!r}: the unfinished build is damaged, --restart starts over"
        ) from None
    return cut


@contextmanager
def _keeping(folder: WorkFolder) -> Iterator[None]:
    """Keep the work folder of a build that ends early if a shard was counted."""
    try:
        yield
    except BaseException as error:
        if folder.is_open:  # otherwise another build may be writing there
            if any(folder.path.glob(PATTERN)) and not isinstance(error, UnfitCorpusError):
                folder.remove_unfinished()
                folder.close()
            else:
                folder.remove()
        raise


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


def shard_bytes_for(plan: CorpusPlan) -> int:
    """Return the size of a shard that leaves some thousand of them at most."""
    return max(LEAST_SHARD, plan.num_bytes // MOST_SHARDS)


def _packed(unit: Unit) -> bool:
    return bool(unit.compression) or unit.format == "parquet"


def _num_bytes(shard: Sequence[Unit]) -> int:
    return sum(unit.num_bytes for unit in shard)


def _check(num_ranges: int | None, shard_bytes: int | None, memory: int) -> None:
    if num_ranges is not None and not 1 <= num_ranges <= MOST_RANGES:
        raise InputError(f"num_ranges must be in 1..{MOST_RANGES}, got {num_ranges}")
    if shard_bytes is not None and shard_bytes < 1:
        raise InputError(f"shard_bytes must be at least 1, got {shard_bytes}")
    if memory < LEAST_MEMORY:
        raise InputError(f"memory must be at least {LEAST_MEMORY >> 20} MiB, got {memory}")


def _plan(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: BuildOptions,
) -> CorpusPlan:
    """Find what to read; it is read twice, by other processes."""
    plan = plan_of(paths, output, options)
    for unit in plan.units:
        if unit.path == "-" or not stat.S_ISREG(os.stat(unit.path).st_mode):
            name = "standard input" if unit.path == "-" else f"{unit.path}, which is no plain file,"
            raise InputError(f"{name} cannot be read on Ray: several processes read it, twice")
    return plan


def _job(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    options: BuildOptions,
    cut: Division,
    memory: int,
    folder: WorkFolder,
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
    work = os.fspath(folder.path)
    job = Job(__version__, options, path, key, digest, cut.num_ranges, memory, work)
    return job, vocabulary


def find_duplicates(digests: Sequence[Digests]) -> list[Numbers]:
    """Find the documents that occurred before.

    Args:
        digests: Those of every shard, in order.

    Returns:
        list: For every shard the numbers of the documents to leave out, ascending.

    Cost: 0.3 us per document; 5 bytes per document in addition to `digests`.
    """
    duplicates: list[list[Numbers]] = [[] for _ in digests]
    for value in range(SLICES):
        at = [np.flatnonzero(each[:, 0] >> np.uint64(60) == value) for each in digests]
        shards = np.repeat(np.arange(len(digests)), [*map(len, at)])
        numbers = np.concatenate([*at, np.empty(0, np.int64)])
        rows = np.concatenate([each[i] for each, i in zip(digests, at, strict=True)] or [_NONE])
        order = np.lexsort((rows[:, 1], rows[:, 0]))  # stable: equal ones stay in order
        rows = rows[order]
        again = order[1:][(rows[1:] == rows[:-1]).all(axis=1)]
        again.sort()
        bounds = np.searchsorted(shards[again], np.arange(len(digests) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            duplicates[i].append(numbers[again[bounds[i] : bounds[i + 1]]])
    return [np.sort(np.concatenate([*each, np.empty(0, np.int64)])) for each in duplicates]


class BucketSource:
    """BucketSource(buckets, ahead, start, get): buckets as one stream of entries.

    Args:
        buckets: Their numbers, in order.
        ahead: Buckets that are merged while one is written.
        start: Starts the merge of a bucket; returns its reference.
        get: Waits for a reference; returns its entries.
    """

    def __init__(
        self,
        buckets: Sequence[int],
        ahead: int,
        start: Callable[[int], Ref],
        get: Callable[[Ref], Entries],
    ) -> None:
        self._left = deque(buckets)
        self._ahead = ahead
        self._start = start
        self._get = get
        self._started: deque[Ref] = deque()
        self._source = ArraySource(no_entries())

    def read(self) -> Entries:
        """Return the next entries, an empty array at the end."""
        while not len(entries := self._source.read()):
            while self._left and len(self._started) < self._ahead:
                self._started.append(self._start(self._left.popleft()))
            if not self._started:
                break
            self._source = ArraySource(self._get(self._started.popleft()))
        return entries
