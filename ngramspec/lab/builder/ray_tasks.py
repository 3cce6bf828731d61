"""The job of a build on a cluster, and its tasks: plain functions without Ray."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.entries import EntryMerger, Tally
from ngramspec._version import __version__
from ngramspec.errors import BackendError, InputError
from ngramspec.files.entries import ArraySource, Entries
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.lab.builder.checkpoint import TokenArray, bordered
from ngramspec.lab.builder.feed import Feed
from ngramspec.lab.builder.finish import check_indexed
from ngramspec.lab.builder.held_out import MOST_TOKENS, measured_tokens
from ngramspec.lab.builder.local import BATCH_CHARS, tokens_within
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.builder.ray_shards import Report, ShardFile, ShardWriter
from ngramspec.lab.builder.result import Seconds
from ngramspec.lab.builder.runs import counted
from ngramspec.lab.corpus import (
    CorpusPlan,
    ReadOptions,
    Unit,
    document_digest,
    read_documents,
)
from ngramspec.text.tokenizers import Tokenizer, load_tokenizer

Digests = NDArray[np.uint64]  # shape (documents, 2)
Numbers = NDArray[np.int64]  # of documents in a shard, ascending
_loaded: dict[str, Tokenizer] = {}  # of this process: the latest one


@dataclass(frozen=True)
class Job:
    """What all tasks of a build have in common.

    version: Of ngramspec where the build was started.
    tokenizer_path: Read if the bytes are not sent with a task.
    tokenizer_key: Changes when the file does.
    fingerprint: Of the tokenizer, 16 bytes.
    num_ranges: Parts of equal size into which the upper words of entries are cut.
    memory: Bytes that counting may take in a process.
    work: The work folder, which all hosts see.
    """

    version: str
    options: BuildOptions
    tokenizer_path: str
    tokenizer_key: str
    fingerprint: bytes
    num_ranges: int
    memory: int
    work: str


def check_host(paths: Sequence[str], job: Job) -> None:
    """Check that this host can take part.

    Raises:
        InputError: It has another version of ngramspec, or a path does not exist.
    """
    host = socket.gethostname()
    if __version__ != job.version:
        raise InputError(
            f"host {host} has ngramspec {__version__}, expected {job.version} as where the build "
            "was started"
        )
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"host {host} has no {path}: corpus, tokenizer and work folder must be under the "
                "same path on all hosts, on a shared file system"
            )


def tokenizer_of(job: Job, vocabulary: NDArray[np.uint8] | None) -> Tokenizer:
    """Return the tokenizer, loaded once per process.

    Raises:
        InputError: The host lacks its file, or has another one.
        BackendError: The host cannot load it.
    """
    if job.tokenizer_key not in _loaded:
        _loaded.clear()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a task has one core
        try:
            tokenizer = _load(job, vocabulary)
        except BackendError as error:
            raise BackendError(f"host {socket.gethostname()}: {error}") from error
        if tokenizer.fingerprint.digest != job.fingerprint:
            host = socket.gethostname()
            raise InputError(f"host {host} has another tokenizer in {job.tokenizer_path}")
        _loaded[job.tokenizer_key] = tokenizer
    return _loaded[job.tokenizer_key]


def _load(job: Job, vocabulary: NDArray[np.uint8] | None) -> Tokenizer:
    if vocabulary is None:
        check_host([job.tokenizer_path], job)
        return load_tokenizer(job.tokenizer_path)
    with tempfile.NamedTemporaryFile() as file:
        file.write(vocabulary.data)
        file.flush()
        return load_tokenizer(file.name)


@dataclass
class ShardFeed(Feed):
    """A feed that is told which documents are duplicates.

    skip: Their numbers in the shard.
    """

    skip: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    _number: int = 0
    _skipped: int = 0
    _seen: list[bytes] = field(default_factory=list)

    def digest_of_all(self) -> bytes:
        return summary(np.frombuffer(b"".join(self._seen), np.uint64))

    def _is_new(self, digest: bytes) -> bool:
        number = self._number
        self._number += 1
        self._seen.append(digest)
        if self._skipped < len(self.skip) and self.skip[self._skipped] == number:
            self._skipped += 1
            self.totals.duplicates += 1
            return False
        return True


def read_digests(units: Sequence[Unit], job: Job) -> Digests:
    """Return the digest of every document of a shard, in order."""
    check_host([unit.path for unit in units], job)
    options = ReadOptions(job.options.field, job.options.roles)
    digests = [
        document_digest(each.text) for unit in units for each in read_documents(unit, options)
    ]
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def summary(digests: Digests) -> bytes:
    import xxhash

    return xxhash.xxh3_128_digest(np.ascontiguousarray(digests).data)


def count_shard(
    units: Sequence[Unit],
    skip: Numbers,
    expected: bytes,
    job: Job,
    vocabulary: NDArray[np.uint8] | None,
    path: str,
) -> Report:
    """Count a shard, duplicates left out, into a file.

    Args:
        units: What to read.
        skip: Numbers of the documents that are duplicates.
        expected: Summary of the digests of the first reading.
        job: The build.
        vocabulary: Bytes of the tokenizer's file; None = read it from its path.
        path: The file, in the work folder; it is there when all of it is on disk.

    Raises:
        InputError: The host lacks a file, or the shard has changed, or holds more than an index.
        OSError: No space in the work folder or for temporary files.
    """
    check_host([*(unit.path for unit in units), job.work], job)
    plan = CorpusPlan(tuple(units), 0, sum(unit.num_bytes for unit in units))
    feed = ShardFeed(plan, job.options, skip=skip)
    counting = ShardCount(job, tokenizer_of(job, vocabulary))
    counting.read(feed)
    if feed.digest_of_all() != expected:
        raise InputError(
            f"host {socket.gethostname()} read other documents from {units[0].path} to "
            f"{units[-1].path} than before: the corpus changes, or hosts have different copies"
        )
    feed.totals.tokens = counting.num_tokens
    report = Report(feed.totals, feed.problems, counting.seconds, counting.num_runs, [])
    ShardWriter(path).write(counting.parts(), counting.held_out, report)
    return report


def merge_range(paths: Sequence[str], part: int, min_count: int) -> Entries:
    """Return a part of all shards' files as one, without pairs whose count is below min_count.

    Raises:
        FormatError: A file is damaged.

    Cost: memory of twice the entries.
    """
    arrays = [ShardFile(path).part(part, "<u8").astype(np.uint64, copy=False) for path in paths]
    return merge_entries(min_count, *(array.reshape(-1, 2) for array in arrays))


class ShardCount:
    """ShardCount(job, tokenizer): texts -> tally -> sorted runs in unnamed files -> parts."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.held_out: list[TokenArray] = []
        self.num_tokens = 0
        self.num_runs = 0
        self.seconds = Seconds()
        self._job = job
        self._tokenizer = tokenizer
        self._tally = Tally()
        self._texts: list[TokenArray] = []  # of an index
        self._runs: dict[int, list[Entries]] = {label: [] for label in job.options.labels}
        self._held_tokens = 0
        self._most_tokens = tokens_within(job.memory)

    def read(self, feed: Feed) -> None:
        batch: list[str] = []
        chars, before = 0, False
        for parts, aside in feed.documents():
            for part in parts:
                if aside != before or chars > BATCH_CHARS:
                    self._tokenise(batch, before)
                    batch, chars, before = [], 0, aside
                batch.append(part)
                chars += len(part)
        self._tokenise(batch, before)
        self._to_runs()

    def parts(self) -> Iterator[NDArray[Any]]:
        """Yield the entries of every range of every label, or the texts of an index."""
        if self._job.options.kind == INDEX_KIND:
            yield bordered(self._texts)
        for runs in self._runs.values():
            cuts = [cut_points(run, self._job.num_ranges) for run in runs]
            for i in range(self._job.num_ranges):
                start = time.perf_counter()
                parts = [run[at[i] : at[i + 1]] for run, at in zip(runs, cuts, strict=True)]
                bucket = parts[0] if len(parts) == 1 else merge_entries(1, *parts)
                self.seconds.counting += time.perf_counter() - start
                yield bucket

    def _tokenise(self, texts: list[str], aside: bool) -> None:
        start = time.perf_counter()
        documents = self._tokenizer.encode_batch(texts) if texts else []
        self.seconds.tokenising += time.perf_counter() - start
        for tokens in documents:
            if aside:
                self._hold_out(tokens)
                continue
            self.num_tokens += len(tokens)
            if self._job.options.kind == INDEX_KIND:
                self._texts.append(tokens)
                check_indexed(self.num_tokens)  # before they fill the memory
            else:
                self._tally.add(tokens)
        if len(self._tally) > self._most_tokens:
            self._to_runs()

    def _hold_out(self, tokens: TokenArray) -> None:
        """Keep a document for measuring, until MOST_TOKENS are kept."""
        if self._held_tokens < MOST_TOKENS and (measured_tokens(tokens) or not self.held_out):
            self.held_out.append(tokens)
            self._held_tokens += measured_tokens(tokens)

    def _to_runs(self) -> None:
        if not len(self._tally):
            return
        start = time.perf_counter()
        for label, runs in self._runs.items():
            runs.append(_on_disk(counted(self._tally, label, self._job.options)))
            self.num_runs += 1
        self._tally.clear()
        self.seconds.counting += time.perf_counter() - start


def cut_points(entries: Entries, num_ranges: int) -> list[int]:
    """Return where each range of sorted entries begins, and the end of the last.

    All followers of an n-gram share its upper word, so they are in one range.
    """
    words = entries[:, 0]
    starts = [np.uint64((i << 64) // num_ranges) for i in range(1, num_ranges)]
    return [0, *(bisect_left(words, start) for start in starts), len(entries)]


def merge_entries(min_count: int, *arrays: Entries) -> Entries:
    """Return sorted entries as one array, without pairs whose count is below min_count."""
    merger = EntryMerger([ArraySource(array) for array in arrays], min_count)
    entries = np.empty((sum(map(len, arrays)), 2), np.uint64)
    num = 0
    while len(part := merger.read()):
        entries[num : num + len(part)] = part
        num += len(part)
    return entries[:num]


def _on_disk(entries: Entries) -> Entries:
    """Move entries to an unnamed temporary file, which ends with the process."""
    if not len(entries):
        return entries.copy()
    with tempfile.TemporaryFile() as file:
        file.write(entries.data)
        file.flush()
        return np.asarray(np.memmap(file, np.uint64, "r", shape=entries.shape))
