"""Building on one machine: threads tokenise and count, sorted runs bound the memory.

And how a build divides the memory that it may use.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ngramspec._native.files.entries import Tally
from ngramspec.errors import CapacityError
from ngramspec.files.entries import ArraySource, EntrySource
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.lab.builder.checkpoint import TokenArray, WorkFolder, identity_of
from ngramspec.lab.builder.feed import Feed, UnfitCorpusError, plan_of
from ngramspec.lab.builder.finish import Counted, check_indexed, finish
from ngramspec.lab.builder.held_out import MOST_TOKENS, measured_tokens
from ngramspec.lab.builder.options import BuildOptions, Resources
from ngramspec.lab.builder.result import BuildResult, NoProgress, Progress, Seconds
from ngramspec.lab.builder.runs import LateSource, counted, fewer_runs, merged
from ngramspec.text.tokenizers import Tokenizer

BATCH_CHARS = 1 << 19  # text that a thread tokenises at a time
TALLY_BYTES = 36  # per token: up to 8 to hold it, 16 to 24 to count, and what the allocator keeps
MOST_TALLIED = 1 << 31  # half of a tally's limit: more are added before the next check
IN_FLIGHT = 32 << 20  # texts, token ids and buffers between reading and counting
UNKNOWN_RESIDENT = 120 << 20
_MMAP_THRESHOLD = -3  # a parameter of glibc's mallopt
_LARGE_BLOCK = 1 << 20
_STATUS = Path("/proc/self/statm")


class BuildStopped(Exception):
    """The build was stopped on request; resume continues it."""


@dataclass
class _Batch:
    """Parts of documents; `aside`: they are held out, their tokens are kept."""

    aside: bool = False
    texts: list[str] = field(default_factory=list)
    chars: int = 0


@dataclass(frozen=True)
class _Tokenised:
    """A batch's tokens. documents: empty if a tally has them. seconds: in the tokenizer."""

    aside: bool
    num_tokens: int
    documents: list[TokenArray]
    seconds: float


class LocalBuild:
    """One build: feed -> batches -> tallies -> runs -> file; for an index: batches -> file."""

    def __init__(
        self,
        feed: Feed,
        tokenizer: Tokenizer,
        options: BuildOptions,
        resources: Resources,
        work: WorkFolder,
    ) -> None:
        self.feed = feed
        self.seconds = Seconds()
        self.num_runs = 0
        self._tokenizer = tokenizer
        self._options = options
        self._resources = resources
        self._work = work
        self._tallies: queue.SimpleQueue[Tally] = queue.SimpleQueue()
        for _ in range(resources.jobs):
            self._tallies.put(Tally())
        self._pool = ThreadPoolExecutor(resources.jobs, "ngramspec-build")
        self._running: deque[Future[_Tokenised]] = deque()
        self._batch = _Batch()
        self._held_out: list[TokenArray] = []
        self._texts: list[TokenArray] = []  # of an index, since the last checkpoint
        self._num_indexed = len(work.texts())  # tokens of an index, with borders
        self._counted = 0  # tokens in the tallies
        self._aside = sum(map(measured_tokens, work.held_out()))
        self._most_tokens = tokens_within(resources.memory)

    def count(self, progress: Progress) -> None:
        """Read, tokenise and count everything after the feed's position.

        Raises:
            BuildStopped: progress.stopped; all that was read is in a checkpoint.
        """
        last = time.monotonic()
        for parts, aside in self.feed.documents():
            if parts:
                self._add(parts, aside)
            progress.done(self.feed.done_bytes, self.feed.totals.tokens)
            late = time.monotonic() - last > self._resources.seconds
            stopped = progress.stopped  # once: a signal may come between two looks
            if stopped or late or self._counted > self._most_tokens:
                self._checkpoint()
                last = time.monotonic()
            if stopped:
                raise BuildStopped(f"stopped after {self.feed.totals.documents} documents")
        self._wait()

    def sources(self) -> dict[int, EntrySource]:
        """Return what was counted, by label: runs on disk and what is still in the tallies."""
        tallies = self._all_tallies()
        memory = read_bytes(self._resources.memory)
        sources: dict[int, EntrySource] = {}
        for label in self._options.labels:
            late = [self._late(tally, label) for tally in tallies if len(tally)]
            runs = fewer_runs(self._work.runs.get(label, []), self._work.add_run, memory)
            streams: list[EntrySource] = [merged(runs, memory), *late] if runs else late
            sources[label] = _merge(streams, self._options.min_count)
        return sources

    def held_out(self) -> list[TokenArray]:
        return [*self._work.held_out(), *self._held_out]

    def texts(self) -> TokenArray:
        """Return the texts of an index, each followed by a border, as a mapped array."""
        self._work.add_texts(self._texts)
        self._texts = []
        return self._work.texts()

    def counted(self) -> Counted:
        feed, memory = self.feed, self._resources.memory // 2
        return Counted(
            feed.totals, feed.problems, self.seconds, self.num_runs, self.sources, self.held_out,
            self.texts, memory,
        )  # fmt: skip

    def keep(self) -> None:
        """Write a checkpoint of all that was counted, if it can be written."""
        with contextlib.suppress(OSError, MemoryError):
            self._checkpoint()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _late(self, tally: Tally, label: int) -> EntrySource:
        return LateSource(lambda: ArraySource(counted(tally, label, self._options)))

    def _add(self, parts: list[str], aside: bool) -> None:
        if aside != self._batch.aside:
            self._submit()
            self._batch.aside = aside
        for part in parts:
            self._batch.texts.append(part)
            self._batch.chars += len(part)
            if self._batch.chars >= BATCH_CHARS:
                self._submit()

    def _submit(self) -> None:
        batch, self._batch = self._batch, _Batch(self._batch.aside)
        if batch.texts:
            self._running.append(self._pool.submit(self._tokenise, batch))
            self._take_results(2 * self._resources.jobs)

    def _wait(self) -> None:
        self._submit()
        self._take_results(0)

    def _take_results(self, most: int) -> None:
        while len(self._running) > most:
            done = self._running.popleft().result()
            self.seconds.tokenising += done.seconds
            if done.aside:
                self._keep(done.documents)
                continue
            self.feed.totals.tokens += done.num_tokens
            self._counted += done.num_tokens
            self._texts += done.documents
            self._num_indexed += sum(len(tokens) + 1 for tokens in done.documents if len(tokens))
            check_indexed(self._num_indexed)

    def _keep(self, documents: list[TokenArray]) -> None:
        """Keep the held-out documents that will be replayed, and one that tells there were some."""
        for tokens in documents:
            if self._aside < MOST_TOKENS and (measured_tokens(tokens) or not self._held_out):
                self._held_out.append(tokens)
                self._aside += measured_tokens(tokens)

    def _tokenise(self, batch: _Batch) -> _Tokenised:
        """Tokenise in a worker thread; add the tokens to a tally unless they are kept."""
        start = time.perf_counter()
        documents = self._tokenizer.encode_batch(batch.texts)
        seconds = time.perf_counter() - start
        num_tokens = sum(map(len, documents))
        if batch.aside or self._options.kind == INDEX_KIND:
            return _Tokenised(batch.aside, num_tokens, documents, seconds)
        tally = self._tallies.get()
        try:
            for tokens in documents:
                tally.add(tokens)
        finally:
            self._tallies.put(tally)
        return _Tokenised(False, num_tokens, [], seconds)

    def _all_tallies(self) -> list[Tally]:
        """Return all tallies; no batch may be running."""
        tallies = [self._tallies.get() for _ in range(self._resources.jobs)]
        for tally in tallies:
            self._tallies.put(tally)
        return tallies

    def _checkpoint(self) -> None:
        """Write what was counted as runs, and save the position."""
        self._wait()
        start = time.perf_counter()
        tallies = [tally for tally in self._all_tallies() if len(tally)]
        runs = [
            (label, self._work.new_run(), tally)
            for tally in tallies
            for label in self._options.labels
        ]
        list(self._pool.map(lambda run: self._write_run(*run), runs))
        for label, path, _ in runs:
            self._work.runs.setdefault(label, []).append(path)
        for tally in tallies:
            tally.clear()
        for label, paths in self._work.runs.items():
            memory = read_bytes(self._resources.memory)
            self._work.runs[label] = fewer_runs(paths, self._work.add_run, memory)
        self._work.add_texts(self._texts)
        self._texts = []
        self._work.save(self.feed, self._held_out)
        self.num_runs += len(runs)
        self._held_out = []
        self._counted = 0
        self.seconds.counting += time.perf_counter() - start

    def _write_run(self, label: int, path: Path, tally: Tally) -> None:
        self._work.write_run(path, ArraySource(counted(tally, label, self._options)))


def build(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    tokenizer: Tokenizer,
    options: BuildOptions | None = None,
    resources: Resources | None = None,
    progress: Progress | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
) -> BuildResult:
    """Build a statistics file from a corpus.

    The result does not depend on `resources` nor, except for an index, on the document order.

    Args:
        paths: Files and folders, "-" is standard input.
        output: The file; an existing one is replaced once the new one is complete.
        tokenizer: Of the target model; several threads use it at once.
        options: What to count; default: 2- to 4-grams.
        resources: Threads, memory, work folder.
        progress: Receives the progress; may ask to stop.
        resume: Continue a build that was stopped or killed; min_count, max_bytes and provenance may
            be others than before.
        restart: Discard such a build.

    Returns:
        BuildResult: Header, totals, times and the measurement on held-out text.

    Raises:
        BuildStopped: The progress asked for it; resume continues.
        InputError: An option or SOURCE_DATE_EPOCH is impossible; nothing to read, or more than an
            index holds; recorded requests from a pipe without options.format; there is an
            unfinished build.
        FormatError: The unfinished build is damaged, as after a power failure: use restart.
        CapacityError: More n-grams than a file can hold: resume with a larger min_count.
        OSError: A path does not exist; or the disk is full, then what was counted is kept for
            resume if it fits.

    Cost: the tokenizer's, with llama.cpp 2 to 8 MB of text per second and thread; plus about 0.1 us
    per token and n-gram size. Memory: resources.memory at most, plus 43 bytes per document, 80 for
    moments, and some 550 per file; for an index above some 100 million tokens, up to 8 bytes per
    token. On top of that, writing a cache takes up to 1.6 bytes per n-gram of one size, and with
    max_bytes a byte per n-gram of every size.
    """
    options, resources = options or BuildOptions(), resources or Resources()
    progress = progress or NoProgress()
    started = time.perf_counter()
    options.check_date()
    plan = plan_of(paths, output, options)
    work = WorkFolder(
        resources.work_folder(output), identity_of(plan, options, tokenizer.fingerprint.digest)
    )
    try:
        state = work.open(resume=resume, restart=restart)
        feed = Feed(plan, options)
        if state is not None:
            work.restore(state, feed)
        with contextlib.closing(LocalBuild(feed, tokenizer, options, resources, work)) as running:
            progress.phase("reading", plan.num_bytes)
            running.count(progress)
            try:
                result = finish(running.counted(), output, plan, tokenizer, options, progress)
            except (OSError, CapacityError, MemoryError):
                running.keep()
                raise
        work.remove()
    except UnfitCorpusError:
        work.remove()
        raise
    except BaseException:
        work.close()
        raise
    result.seconds.total = time.perf_counter() - started
    return result


def _merge(streams: Sequence[EntrySource], min_count: int) -> EntrySource:
    from ngramspec._native.files.entries import EntryMerger

    return EntryMerger(streams, min_count)


def tokens_within(memory: int) -> int:
    """Return how many tokens all tallies may hold so that the process stays below `memory`.

    What interpreter, libraries and vocabulary already use is subtracted, but tallies always get an
    eighth of `memory`.
    """
    free = memory - resident_bytes() - IN_FLIGHT
    return min(max(free, memory // 8) // TALLY_BYTES, MOST_TALLIED)


def read_bytes(memory: int) -> int:
    """Return the part of `memory` for the read buffers of runs being merged."""
    return memory // 16


def return_large_blocks() -> None:
    """Let the allocator give large blocks back to the system as soon as they are free.

    Otherwise glibc keeps up to 32 MiB per thread. This affects the whole process, so it is for
    programs that only build; without glibc it does nothing.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def resident_bytes() -> int:
    """Return the resident memory of this process, a guess if the system does not report it."""
    try:
        pages = int(_STATUS.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return UNKNOWN_RESIDENT
    return pages * os.sysconf("SC_PAGE_SIZE")
