"""Statistics files of every kind, opened for the commands of `ngramspec cache`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec._native.cache.static import StaticCache
from ngramspec._native.files.unpack import EntryReader
from ngramspec.errors import FormatError, InputError
from ngramspec.formats.cache_file import KIND as CACHE_KIND
from ngramspec.formats.cache_file import SIZES, about_of, cache_in_memory, cache_of
from ngramspec.formats.container import Container, is_container, open_container
from ngramspec.formats.entries import ArraySource, Entries, EntrySource
from ngramspec.formats.llama_lookup import read_lookup_records
from ngramspec.formats.pool_file import KIND as POOL_KIND
from ngramspec.formats.pool_file import PoolShape, shape_of
from ngramspec.formats.suffix_file import KIND as INDEX_KIND

LOOKUP_KIND = "llama.cpp lookup cache"


@dataclass(frozen=True)
class Statistics:
    """An open file.

    kind: "ngram-cache", "hash-pool", "suffix" or LOOKUP_KIND.
    container: None of a lookup cache. entries: of a lookup cache only, by n-gram size.
    """

    path: Path
    kind: str
    file_bytes: int
    container: Container | None = None
    entries: Mapping[int, Entries] | None = None

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint of the tokenizer, None = unknown."""
        return self.container.header.fingerprint if self.container is not None else None

    @property
    def vocab_size(self) -> int:
        """A bound of the token ids, 0 = unknown."""
        return self.container.header.vocab_size if self.container is not None else 0

    @property
    def about(self) -> dict[str, Any]:
        """The provenance, {} = none is stated."""
        return about_of(self.container) if self.container is not None else {}

    @cached_property
    def cache(self) -> StaticCache:
        """The lookups of n-grams."""
        if self.container is not None:
            return cache_of(self.container)
        return cache_in_memory(self.sources())

    @property
    def sizes(self) -> tuple[int, ...]:
        """The n-gram sizes that the file holds."""
        if self.entries is not None:
            return tuple(self.entries)
        return tuple(size for size in SIZES if self.cache.sections(size) is not None)

    @property
    def shape(self) -> PoolShape:
        """The shape of a pool."""
        return shape_of(self.pool)

    @property
    def pool(self) -> Container:
        """The container of a pool."""
        if self.container is None or self.kind != POOL_KIND:
            raise InputError(f"{self.path} is a {self.kind}, not a hash-pool")
        return self.container

    @property
    def opened(self) -> Container:
        """The container of a file that is no lookup cache."""
        if self.container is None:
            raise InputError(f"{self.path} is a {self.kind}")
        return self.container

    def sources(self) -> dict[int, EntrySource]:
        """Return all entries by n-gram size, to be read once."""
        if self.entries is not None:
            return {size: ArraySource(some) for size, some in self.entries.items()}
        return {size: EntryReader(self.cache, size) for size in self.sizes}

    def cells(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the cells of a pool in place."""
        return np.frombuffer(self.pool.view("cells"), "<u4")

    def need_statistics(self, task: str) -> None:
        """Raise InputError if this is an index, which holds the texts themselves."""
        if self.kind == INDEX_KIND:
            raise InputError(
                f"{self.path} is an index of kind suffix: it holds texts, no statistics to {task}"
            )

    def need_ngrams(self, task: str) -> None:
        """Raise InputError if this is a pool or an index."""
        self.need_statistics(task)
        if self.kind == POOL_KIND:
            raise InputError(f"{self.path} is a hash-pool, which holds no n-grams to {task}")


def open_statistics(path: Path, *, verify: bool | None = None) -> Statistics:
    """Open a statistics file, or one of llama.cpp's lookup caches, which is read as a whole.

    Args:
        path: The file.
        verify: As open_container.

    Raises:
        FormatError: It is neither, or not whole.
        OSError: It cannot be read.
    """
    size = os.stat(path).st_size
    if is_container(path) or path.is_dir() or path.suffix != ".bin":
        try:
            container = open_container(path, verify=verify)
        except FormatError:
            if is_container(path) or path.is_dir() or not _is_lookup_cache(path):
                raise
        else:
            return Statistics(path, container.header.kind, size, container)
    return Statistics(path, LOOKUP_KIND, size, entries=_lookup_entries(path))


def _is_lookup_cache(path: Path) -> bool:
    """Tell whether a file of another name holds whole records, and some."""
    try:
        return len(read_lookup_records(path)) > 0
    except FormatError:
        return False


def _lookup_entries(path: Path) -> dict[int, Entries]:
    from ngramspec._native.cache.records import entries_of_records

    records = read_lookup_records(path)
    try:
        found = {size: entries_of_records(records, size) for size in SIZES}
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None
    return {size: entries for size, entries in found.items() if len(entries)}


__all__ = ["CACHE_KIND", "INDEX_KIND", "LOOKUP_KIND", "POOL_KIND", "Statistics", "open_statistics"]
