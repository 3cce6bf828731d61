"""Runs: sorted entries on disk, and several of them read as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ngramspec._native.files.entries import EntryMerger, Tally
from ngramspec.errors import FormatError
from ngramspec.files.atomic import naming, private
from ngramspec.files.entries import Entries, EntrySource, no_entries
from ngramspec.lab.builder.options import POOL, BuildOptions

ENTRY_BYTES = 16
FAN_IN = 64  # runs that are merged at once
LEAST_READ = 1 << 12  # entries read from a run at a time, at least
MOST_READ = 1 << 18


class RunFile:
    """RunFile(path, start, stop, max_entries): entries of a run, or of a part of it."""

    def __init__(
        self, path: Path, start: int = 0, stop: int | None = None, max_entries: int = MOST_READ
    ) -> None:
        self._file = open(path, "rb")  # noqa: SIM115, closed at the end of the entries
        size = path.stat().st_size
        if size % ENTRY_BYTES:
            self._file.close()
            raise FormatError(f"{path}: {size % ENTRY_BYTES} stray bytes at the end of a run")
        self._left = (size // ENTRY_BYTES if stop is None else stop) - start
        self._file.seek(start * ENTRY_BYTES)
        self._max_entries = max_entries

    def read(self) -> Entries:
        """Return the next entries, an empty array at the end, after which the file is closed."""
        num = min(self._left, self._max_entries)
        if num <= 0:
            self._file.close()
            return no_entries()
        entries = np.fromfile(self._file, dtype="<u8", count=2 * num).reshape(-1, 2)
        if len(entries) != num:
            raise FormatError(
                f"{self._file.name}: expected {num} more entries, found {len(entries)}"
            )
        self._left -= num
        return entries.astype(np.uint64, copy=False)


class LateSource:
    """LateSource(make): entries that are made at the first read and freed at the end."""

    def __init__(self, make: Callable[[], EntrySource]) -> None:
        self._make = make
        self._source: EntrySource | None = None

    def read(self) -> Entries:
        if self._source is None:
            self._source = self._make()
        entries = self._source.read()
        if not len(entries):
            self._source = None
            self._make = _Ended
        return entries


class _Ended:
    """A source without entries."""

    def read(self) -> Entries:
        return no_entries()


def counted(tally: Tally, label: int, options: BuildOptions) -> Entries:
    if label == POOL:
        shape = options.pool
        return tally.hashed(shape.n_match, shape.cell_bits, shape.check_bits)
    return tally.ngrams(label)


def write_run(path: Path, source: EntrySource) -> int:
    """Write a run and return its checksum; it is complete and on disk when the call returns."""
    from xxhash import xxh3_64

    checksum = xxh3_64()
    with naming(path), open(path, "xb", opener=private) as file:
        while len(entries := source.read()):
            data = entries.astype("<u8", copy=False).data
            checksum.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return checksum.intdigest()


def merged(paths: Sequence[Path], memory: int, min_count: int = 1) -> EntrySource:
    """Return the entries of up to FAN_IN runs as one stream with read buffers of `memory` bytes."""
    share = memory // (ENTRY_BYTES * (len(paths) + 1))
    chunk = max(LEAST_READ, min(MOST_READ, share))
    return EntryMerger([RunFile(path, max_entries=chunk) for path in paths], min_count)


def fewer_runs(
    paths: Sequence[Path], write: Callable[[EntrySource], Path], memory: int
) -> list[Path]:
    """Merge runs into new ones until at most FAN_IN are left; their files stay.

    Cost: O(bytes log runs) over a build.
    """
    left = sorted(paths, key=_num_bytes)
    while len(left) > FAN_IN:
        num = _num_alike([_num_bytes(path) for path in left])
        left = sorted([write(merged(left[:num], memory)), *left[num:]], key=_num_bytes)
    return left


def _num_alike(sizes: Sequence[int]) -> int:
    """Return how many of the runs, the smallest first, to merge.

    None is larger than those before it together: what is written again lands in a run of at least
    twice the size, so large runs are seldom written again.
    """
    total = sizes[0]
    for num in range(1, FAN_IN):
        if num > 1 and sizes[num] > total:
            return num
        total += sizes[num]
    return FAN_IN


def _num_bytes(path: Path) -> int:
    return path.stat().st_size
