"""Statistics: an open file of any kind, or a lookup cache of llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.cache.static import StaticCache
from ngramspec._native.files.entries import EntryReader
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.errors import FormatError, InputError
from ngramspec.files.atomic import kind_unless_file
from ngramspec.files.cache_file import KIND as CACHE_KIND
from ngramspec.files.cache_file import SIZES, about_of, cache_in_memory, cache_of, check_cache
from ngramspec.files.container import Container, is_container, open_container
from ngramspec.files.entries import ArraySource, Entries, EntrySource
from ngramspec.files.llama_lookup import LOOKUP_SUFFIX, may_hold_records, read_lookup_entries
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.pool_file import PoolShape, check_pool, shape_of
from ngramspec.files.slot_file import KIND as SLOT_KIND
from ngramspec.files.successor_file import KIND as SUCCESSORS_KIND
from ngramspec.files.successor_file import pool_of
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.files.suffix_file import check_index, index_of

LOOKUP_KIND = "llama.cpp lookup cache"
# What a pool counts, in the order of its section "counters".
POOL_COUNTERS = ("num_used", "hand", "num_replaced", "num_collided", "num_aged")


@dataclass(frozen=True)
class Statistics:
    """An open statistics file; see open_statistics.

    kind: "ngram-cache", "hash-pool", "suffix", "successors" or LOOKUP_KIND.
    container: None for a lookup cache.
    entries: By n-gram size, for a lookup cache only.
    """

    path: Path
    kind: str
    file_bytes: int
    container: Container | None = None
    entries: Mapping[int, Entries] | None = None

    @property
    def fingerprint(self) -> bytes | None:
        return self.container.header.fingerprint if self.container is not None else None

    @property
    def vocab_size(self) -> int:
        """Every token id is below it; 0 = unknown."""
        return self.container.header.vocab_size if self.container is not None else 0

    @property
    def about(self) -> dict[str, Any]:
        """The provenance, {} = none."""
        return about_of(self.container) if self.container is not None else {}

    @cached_property
    def cache(self) -> StaticCache:
        if self.container is not None:
            return cache_of(self.container)
        return cache_in_memory(self.sources())

    @property
    def sizes(self) -> tuple[int, ...]:
        if self.entries is not None:
            return tuple(self.entries)
        return tuple(size for size in SIZES if self.cache.sections(size) is not None)

    @property
    def num_entries(self) -> int:
        """How many entries its sources yield; 0 for a pool and an index."""
        if self.entries is not None:
            return sum(map(len, self.entries.values()))
        return self.opened(CACHE_KIND).header.num_pairs if self.kind == CACHE_KIND else 0

    def sources(self) -> dict[int, EntrySource]:
        """Return all entries by n-gram size, to be read once."""
        if self.entries is not None:
            return {size: ArraySource(some) for size, some in self.entries.items()}
        return {size: EntryReader(self.cache, size) for size in self.sizes}

    @property
    def shape(self) -> PoolShape:
        return shape_of(self.opened(POOL_KIND))

    @property
    def cells(self) -> NDArray[np.uint32]:
        """The cells of a pool, in place."""
        return np.frombuffer(self.opened(POOL_KIND).view("cells"), "<u4")

    @property
    def counters(self) -> NDArray[np.int64]:
        """What a pool has counted, in the order of POOL_COUNTERS."""
        return np.frombuffer(self.opened(POOL_KIND).view("counters"), "<i8")

    @cached_property
    def index(self) -> SuffixIndex:
        return index_of(self.opened(INDEX_KIND))

    def opened(self, kind: str) -> Container:
        """Return the container if the file is of this kind.

        Raises:
            InputError: It is of another kind.
        """
        if self.container is None or self.kind != kind:
            raise InputError(f"{self.path} is a {self.kind}, not a {kind}")
        return self.container

    def need_statistics(self, task: str) -> None:
        """Raise InputError if this is an index, which holds texts, or holds what a target said."""
        if self.kind == SUCCESSORS_KIND:
            raise InputError(f"{self.path} is of kind successors: it has no counts to {task}")
        if self.kind == INDEX_KIND:
            raise InputError(
                f"{self.path} is an index of kind suffix: it holds texts, no statistics to {task}"
            )

    def need_ngrams(self, task: str) -> None:
        """Raise InputError if this is a pool or an index."""
        self.need_statistics(task)
        if self.kind == POOL_KIND:
            raise InputError(f"{self.path} is a hash-pool, which holds no n-grams to {task}")

    def check(self) -> None:
        """Check every n-gram, follower, index word and cell. O(bytes).

        Checksums are compared by open_statistics(verify=True).

        Raises:
            FormatError: A value is impossible; names file, offset and what was expected.
        """
        if self.container is None:
            return  # every record was checked when it was read
        about_of(self.container)
        if self.kind == POOL_KIND:
            check_pool(self.container)
        elif self.kind == INDEX_KIND:
            check_index(self.container)
        elif self.kind == SUCCESSORS_KIND:
            pool_of(self.container)
        else:
            check_cache(self.cache)


def open_statistics(path: str | os.PathLike[str], *, verify: bool | None = None) -> Statistics:
    """Open a statistics file of any kind, or one of llama.cpp's lookup caches.

    Args:
        path: The file. A lookup cache is read as a whole.
        verify: Compare all bytes with their checksums; None = files up to 32 MiB only.

    Raises:
        FormatError: It is neither, incomplete or damaged.
        OSError: It cannot be read.

    Example:
        >>> statistics = open_statistics("code.ngc")  # doctest: +SKIP
        >>> statistics.kind, statistics.cache.followers([17, 4])  # doctest: +SKIP
        ('ngram-cache', {93: 12, 5: 2})
    """
    path = Path(path)
    size, is_file = os.stat(path).st_size, not kind_unless_file(path)
    if is_container(path) or not is_file or path.suffix != LOOKUP_SUFFIX:
        try:
            container = open_container(path, verify=verify)
        except FormatError:
            entries = _entries_if_any(path) if is_file and not is_container(path) else {}
            if not entries:
                raise
            return Statistics(path, LOOKUP_KIND, size, entries=entries)
        if container.header.kind == SLOT_KIND:
            raise FormatError(f"{path}: a saved slot of a server, not statistics")
        return Statistics(path, container.header.kind, size, container)
    return Statistics(path, LOOKUP_KIND, size, entries=read_lookup_entries(path))


def _entries_if_any(path: Path) -> dict[int, Entries]:
    """Return the entries of a lookup cache with an unusual name, {} if it is none."""
    if not may_hold_records(path):
        return {}
    try:
        return read_lookup_entries(path)
    except FormatError:
        return {}


__all__ = [
    "CACHE_KIND", "INDEX_KIND", "LOOKUP_KIND", "LOOKUP_SUFFIX", "POOL_COUNTERS", "POOL_KIND",
    "SUCCESSORS_KIND", "Statistics", "open_statistics",
]  # fmt: skip
