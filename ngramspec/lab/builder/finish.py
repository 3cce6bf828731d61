"""The end of a build, local or on Ray: write the file and measure it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ngramspec.errors import InputError
from ngramspec.files.cache_file import Origin
from ngramspec.files.container import Header
from ngramspec.files.entries import EntrySource
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.pool_file import cells_of, write_pool
from ngramspec.files.prune import write_within
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.files.suffix_file import MEMORY, MOST_TOKENS, write_suffix_index
from ngramspec.lab.builder.checkpoint import TokenArray
from ngramspec.lab.builder.feed import Totals, UnfitCorpusError
from ngramspec.lab.builder.held_out import HeldOut, measure
from ngramspec.lab.builder.options import POOL, BuildOptions
from ngramspec.lab.builder.result import BuildResult, Progress, Seconds, provenance
from ngramspec.lab.corpus import CorpusPlan, Problems
from ngramspec.text.tokenizers import Tokenizer

ALL_HELD_OUT = ", as all of it is held out"


def check_indexed(num_tokens: int) -> None:
    """Check that an index has room for a corpus: its tokens, and a border after each text.

    Raises:
        UnfitCorpusError: It cannot.
    """
    if num_tokens > MOST_TOKENS:
        raise UnfitCorpusError(
            f"an index holds {MOST_TOKENS:,} tokens at most, with one after each text, and the "
            "corpus has more: give fewer files"
        )


@dataclass
class Counted:
    """A corpus that has been counted.

    num_runs: Sorted runs written to disk.
    sources: Returns the entries by label, to be read once.
    held_out: Returns the tokens of the documents that were set aside, in order.
    texts: Returns the texts of an index, each followed by a border.
    memory: Bytes that writing may take.
    """

    totals: Totals
    problems: Problems
    seconds: Seconds
    num_runs: int
    sources: Callable[[], Mapping[int, EntrySource]]
    held_out: Callable[[], list[TokenArray]]
    texts: Callable[[], TokenArray] | None = None
    memory: int = MEMORY


def finish(
    counted: Counted,
    output: str | os.PathLike[str],
    plan: CorpusPlan,
    tokenizer: Tokenizer,
    options: BuildOptions,
    progress: Progress,
) -> BuildResult:
    """Write the file and measure it.

    Raises:
        InputError: Nothing was counted, or too much for an index.
        OSError: The file cannot be written; an existing one is kept.
    """
    totals, seconds, problems = counted.totals, counted.seconds, Problems()
    for link in plan.left_out:
        problems.skipped(link.source, link.reason)
    problems.merge(counted.problems)
    if not totals.tokens:
        reason = ALL_HELD_OUT if totals.held_out else ""
        reason += f": {problems.first[0]}" if problems.first else ""
        raise InputError(f"no text to count in the corpus{reason}")
    start = time.perf_counter()
    progress.phase("writing", 0)
    about = provenance(plan, options, totals, problems, tokenizer.name)
    origin = Origin(tokenizer.fingerprint.digest, tokenizer.fingerprint.vocab_size, about)
    if options.kind == INDEX_KIND and counted.texts is not None:
        texts, limit = counted.texts(), options.max_bytes
        check_indexed(len(texts))
        header = write_suffix_index(output, texts, origin, max_bytes=limit, memory=counted.memory)
    else:
        header = write_output(output, counted.sources(), origin, options)
    seconds.writing = time.perf_counter() - start
    held_out: HeldOut | None = None
    if options.held_out and (documents := counted.held_out()):
        progress.phase("measuring", 0)
        start = time.perf_counter()
        held_out = measure(output, documents, options)
        seconds.measuring = time.perf_counter() - start
    size, runs = os.stat(output).st_size, counted.num_runs
    return BuildResult(os.fspath(output), header, size, totals, problems, seconds, runs, held_out)


def write_output(
    output: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    options: BuildOptions,
) -> Header:
    if options.kind == POOL_KIND:
        return write_pool(output, cells_of(sources[POOL], options.pool), options.pool, origin)
    return write_within(output, sources, origin, options.max_bytes)
