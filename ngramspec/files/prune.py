"""Keep the n-grams that are most useful for their bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ngramspec._native.cache.static import StaticCache
from ngramspec._native.files.entries import EntryMerger, EntryReader
from ngramspec._native.files.image import useful_ngrams, usefulness
from ngramspec.errors import InputError
from ngramspec.files.atomic import commit, temporary_file
from ngramspec.files.cache_file import (
    SIZES,
    Origin,
    about_bytes,
    fill_cache,
    open_cache,
    write_cache,
)
from ngramspec.files.container import ALIGNMENT, HEAD_BYTES, ContainerWriter, Header
from ngramspec.files.entries import EntrySource, OnRead, WatchedSource, ignored
from ngramspec.files.statistics import Statistics

_ANY = (1 << 63) - 1


def useful_sources(
    cache: StaticCache, *, max_bytes: int | None = None, max_ngrams: int | None = None
) -> Mapping[int, EntrySource]:
    """Return the most useful n-grams by size, as sorted entries.

    The best expected acceptance per byte comes first; docs/reference/formats.md defines it.

    Args:
        cache: The statistics, kept alive by what is returned.
        max_bytes: Bytes that records, lists and index may take, None = any.
        max_ngrams: Most n-grams to keep, None = any.

    Raises:
        InputError: A bound is negative.

    Cost: O(n-grams), two passes; one byte of memory per n-gram.
    """
    if min(max_bytes or 0, max_ngrams or 0) < 0:
        raise InputError(f"bounds must not be negative, got {max_bytes} and {max_ngrams}")
    sizes = [size for size in SIZES if cache.num_ngrams(size)]
    counted = [usefulness(cache, size) for size in sizes]
    least, left_ngrams, left_bytes = _threshold(counted, max_bytes, max_ngrams)
    sources: dict[int, EntrySource] = {}
    for size in sizes:
        keep, num, num_bytes = useful_ngrams(cache, size, least, left_ngrams, left_bytes)
        left_ngrams -= num
        left_bytes -= num_bytes
        sources[size] = EntryReader(cache, size, keep)
    return sources


def prune_statistics(
    statistics: Statistics,
    output: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    min_count: int = 1,
    ngram_min: int | None = None,
    ngram_max: int | None = None,
    on_read: OnRead = ignored,
) -> Header:
    """Write the most useful part of a file of n-grams.

    Args:
        statistics: The file, opened with verify=True.
        output: The file to write; it may be the same one.
        max_bytes: Largest size of the output, None = any. Keeps the n-grams with the best expected
            acceptance per byte.
        min_count: Leave out followers with smaller counts.
        ngram_min, ngram_max: Shortest and longest n-gram to keep, in tokens.
        on_read: Told how many more entries were read, of Statistics.num_entries at most.

    Returns:
        Header: What was written.

    Raises:
        InputError: The file holds no n-grams, or none of these lengths.
        FormatError: It is damaged.
        OSError: The file cannot be written; an existing one is kept.
    """
    statistics.need_ngrams("prune")
    low, high = ngram_min or SIZES[0], ngram_max or SIZES[-1]
    sources = {
        size: EntryMerger([WatchedSource(source, on_read)], min_count)
        for size, source in statistics.sources().items()
        if low <= size <= high
    }
    if not sources:
        held = " ".join(map(str, statistics.sizes))
        raise InputError(
            f"{statistics.path} has no n-grams of {low} to {high} tokens, only of {held}"
        )
    about = statistics.about
    if about:
        step = {"max_bytes": max_bytes, "min_count": min_count}
        step |= {"ngram_min": ngram_min, "ngram_max": ngram_max}
        about["pruned"] = [*about.get("pruned", ()), step]
    origin = Origin(statistics.fingerprint, statistics.vocab_size, about or None)
    return write_within(output, sources, origin, max_bytes)


def write_within(
    path: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    max_bytes: int | None,
) -> Header:
    """Write sorted entries as write_cache does; above max_bytes only the most useful ones.

    Raises:
        As write_cache; InputError: Not even the head of a file fits in max_bytes.
    """
    if max_bytes is None:
        return write_cache(path, sources, origin)
    with temporary_file(path) as whole:
        header = fill_cache(ContainerWriter(whole), path, sources, origin)
        if whole.seek(0, os.SEEK_END) <= max_bytes:
            commit(whole, path)
            return header
        whole.flush()
        return write_pruned(path, open_cache(whole.name), origin, max_bytes)


def write_pruned(
    path: str | os.PathLike[str], cache: StaticCache, origin: Origin, max_bytes: int
) -> Header:
    """Write the most useful n-grams as a file of max_bytes at most.

    Raises:
        InputError: Not even the head fits.
        FormatError: `cache` is damaged.
        OSError: The file cannot be written; an existing one is kept.
    """
    about = len(about_bytes(origin.about)) if origin.about else 0
    fixed = HEAD_BYTES + about + len(SIZES) * (3 * ALIGNMENT + 16)
    if max_bytes < fixed:
        raise InputError(f"a statistics file needs {fixed} bytes at least, max_size is {max_bytes}")
    return write_cache(path, useful_sources(cache, max_bytes=max_bytes - fixed), origin)


def _threshold(
    counted: Sequence[tuple[Any, Any]], max_bytes: int | None, max_ngrams: int | None
) -> tuple[int, int, int]:
    """Return the class above which all n-grams fit, and what the bounds leave for that class."""
    left_bytes = _ANY if max_bytes is None else max_bytes
    left_ngrams = _ANY if max_ngrams is None else max_ngrams
    numbers = np.sum([number for number, _ in counted], axis=0) if counted else ()
    sums = np.sum([num_bytes for _, num_bytes in counted], axis=0) if counted else ()
    for cls in range(len(numbers) - 1, -1, -1):
        if sums[cls] > left_bytes or numbers[cls] > left_ngrams:
            return cls, left_ngrams, left_bytes
        left_bytes -= int(sums[cls])
        left_ngrams -= int(numbers[cls])
    return -1, 0, 0
