"""llama.cpp's lookup-cache files: a bare sequence of records, written and read exactly.

A record is 4 x int32 tokens of the n-gram (padded with -1), int32 number of followers F, then
F pairs of int32 token and count, little-endian. No header, no checksum: a reader can only check
that every record is complete and its values are possible. Source: common/ngram-cache.cpp.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.cache.ngram_cache import NgramCache, check_records, entries_of_records
from ngramspec.errors import CapacityError, FormatError, InputError
from ngramspec.files.atomic import kind_unless_file, new_file
from ngramspec.files.entries import Entries

LOOKUP_SUFFIX = ".bin"  # a new file with this suffix is written in this format
_SIZES = (1, 2, 3, 4)  # tokens of an n-gram
_OTHER = ": not a statistics file nor a lookup cache of llama.cpp, or a damaged one"
_GGUF = b"GGUF"  # with which models begin
_HEAD = 5  # words of a record before its followers
_LOOKED_AT = 1 << 16  # bytes that tell records from other files
_MOST_TOKENS = 1 << 21  # that a vocabulary may have; four letters as a number are more
_MOST = 1 << 30  # n-grams that a cache of unknown size may hold


def read_lookup_cache(path: str | os.PathLike[str], *, max_ngrams: int | None = None) -> NgramCache:
    """Read a lookup-cache file.

    Args:
        path: A file written by llama-lookup-create, llama-lookup-merge, llama-lookup or by
            write_lookup_cache.
        max_ngrams: Most n-grams in the cache, None = 2**30.

    Returns:
        NgramCache: A new one; the caller owns it.

    Raises:
        FormatError: The file is not a whole number of valid records; names file and offset.
        CapacityError: Not all of it fits; saving what fits would lose the rest.
        OSError: The file cannot be read.

    Cost: O(bytes), natively; twice where max_ngrams is given.
    """
    records = read_lookup_records(path)
    cache = NgramCache(1, 4, max_ngrams or _MOST)
    num_records = cache.add_records(records)
    if num_records > cache.max_ngrams:
        raise CapacityError(f"{path} holds {num_records} n-grams, max_ngrams is {max_ngrams}")
    if max_ngrams is not None:
        whole = NgramCache(1, 4, _MOST)
        whole.add_records(records)
        if cache.records().size < whole.records().size:
            raise CapacityError(
                f"{path}: max_ngrams {max_ngrams} is not room for all of its {num_records} n-grams "
                "and their followers, since they fill the parts of a cache unevenly: give more"
            )
    return cache


def read_lookup_records(path: str | os.PathLike[str]) -> NDArray[np.int32]:
    """Read and check the records of a lookup-cache file.

    Raises:
        FormatError: The file is not a whole number of valid records; names file and offset.
        OSError: The file cannot be read.
    """
    path = Path(path)
    if what := kind_unless_file(path):
        raise FormatError(f"{path}: expected a lookup-cache file, found {what}")
    raw = path.read_bytes()
    if len(raw) % 4:
        whole = len(raw) - len(raw) % 4
        raise FormatError(f"{path}: {len(raw) - whole} stray bytes at offset {whole}{_OTHER}")
    records = np.frombuffer(raw, dtype="<i4").astype(np.int32, copy=False)
    try:
        check_records(records)
    except InputError as error:
        reason, position = getattr(error, "reason", error), getattr(error, "position", 0)
        raise FormatError(
            f"{path}: {reason}, in the record at offset {4 * position}{_OTHER}"
        ) from None
    return records


def may_hold_records(path: Path) -> bool:
    """Return whether a file begins with records; a large one of another kind is not read whole."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    if start.startswith(_GGUF):
        return False
    words = np.frombuffer(start[: len(start) // 4 * 4], dtype="<i4").tolist()
    at = 0
    while at + _HEAD < len(words):
        *key, count = words[at : at + _HEAD]
        followers = words[at + _HEAD : at + _HEAD + 2 * max(count, 0)]
        if min(key[0], count - 1, *followers) < 0 or min(key) < -1 or max(key) >= _MOST_TOKENS:
            return False
        at += _HEAD + 2 * count
    return at > 0


def read_lookup_entries(path: str | os.PathLike[str]) -> dict[int, Entries]:
    """Read a lookup-cache file as sorted entries, by n-gram size; sizes without any are left out.

    Raises:
        As read_lookup_records; FormatError: A count or a token id is too large for an entry.
    """
    records = read_lookup_records(path)
    try:
        by_size = {size: entries_of_records(records, size) for size in _SIZES}
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None
    return {size: entries for size, entries in by_size.items() if len(entries)}


def write_lookup_cache(cache: NgramCache, path: str | os.PathLike[str]) -> int:
    """Write a cache as a lookup-cache file; equal counts give equal bytes.

    Args:
        cache: The counts. Not changed.
        path: Replaced atomically once all bytes are on disk.

    Returns:
        int: Bytes written.

    Raises:
        OSError: The folder does not exist, the disk is full, or the like; an existing file is kept.
    """
    data = cache.records().astype("<i4", copy=False)
    with new_file(path) as file:
        file.write(data.data)
    return int(data.nbytes)
