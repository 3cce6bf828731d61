"""The options of a build."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ngramspec.costs import PROFILES, CostTable
from ngramspec.errors import InputError
from ngramspec.files.cache_file import KIND as CACHE_KIND
from ngramspec.files.dates import fixed_date
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.pool_file import PoolShape
from ngramspec.files.suffix_file import KIND as INDEX_KIND

KINDS = (CACHE_KIND, POOL_KIND, INDEX_KIND)
LEAST_MEMORY = 64 << 20
AT_THE_END = ("min_count", "max_bytes", "provenance")  # options that counting does without
POOL = 0  # the label of a pool's entries; a cache's labels are n-gram sizes


@dataclass(frozen=True)
class BuildOptions:
    """What determines the statistics, apart from corpus and tokenizer.

    kind: "ngram-cache", "hash-pool" or "suffix", an index of the texts themselves.
    ngram_min, ngram_max: N-gram sizes of a cache, 1..4.
    pool: Shape of a hash pool.
    min_count: Leave out pairs of n-gram and follower with smaller counts, >= 1; 1 for an index.
    max_bytes: Largest size of the file, which keeps the most useful; None = any. Not for a pool.
    held_out: Share of the documents that is not counted but used to measure, 0..0.9.
    include, exclude, format, field, roles, follow_links, gitignore: As for find_units and
        ReadOptions.
    provenance: Record names, dates and options in the file. The statistics do not change.
    costs: Of the target's passes, to measure with; the file does not depend on them.
    """

    kind: str = CACHE_KIND
    ngram_min: int = 2
    ngram_max: int = 4
    pool: PoolShape = dataclasses.field(default_factory=PoolShape)
    min_count: int = 1
    max_bytes: int | None = None
    held_out: float = 0.0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    format: str | None = None
    field: str | None = None
    roles: tuple[str, ...] = ()
    provenance: bool = True
    follow_links: bool = False
    gitignore: bool = True
    costs: CostTable = PROFILES["cpu"]

    def __post_init__(self) -> None:
        """Check the bounds; find_units, ReadOptions and the writers check theirs."""
        if self.kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 1 <= self.ngram_min <= self.ngram_max <= 4:
            raise InputError(
                f"n-gram sizes must satisfy 1 <= min <= max <= 4, got {self.ngram_min}, "
                f"{self.ngram_max}"
            )
        if self.min_count < 1:
            raise InputError(f"min_count must be at least 1, got {self.min_count}")
        if not 0 <= self.held_out <= 0.9:
            raise InputError(f"held_out must be in 0..0.9, got {self.held_out}")
        if self.max_bytes is not None and self.kind == POOL_KIND:
            raise InputError("a hash pool has a fixed size: choose its capacity, not max_bytes")
        if self.min_count > 1 and self.kind == INDEX_KIND:
            raise InputError("an index of kind suffix holds texts, not counts: leave out min_count")

    @property
    def labels(self) -> tuple[int, ...]:
        """Return the labels of the entries that are counted: n-gram sizes, POOL, or none."""
        if self.kind == INDEX_KIND:
            return ()
        if self.kind == POOL_KIND:
            return (POOL,)
        return tuple(range(self.ngram_min, self.ngram_max + 1))

    def check_date(self) -> None:
        """Check, before anything is counted, the date that the provenance will take.

        Raises:
            InputError: SOURCE_DATE_EPOCH is no date.
        """
        if self.provenance:
            fixed_date()

    def as_dict(self) -> dict[str, Any]:
        """Return the options that the file depends on as plain data."""
        values = asdict(self)
        del values["costs"]
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }


@dataclass(frozen=True)
class Resources:
    """What a build may use; none of it changes the result.

    jobs: Threads. memory: Bytes of memory to stay below, 64 MiB at least. work: Folder in which the
    build makes one of its own for runs and checkpoints, None = that of the output. seconds: Between
    checkpoints.
    """

    jobs: int = 1
    memory: int = 2 << 30
    work: str | os.PathLike[str] | None = None
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 1024:
            raise InputError(f"jobs must be in 1..1024, got {self.jobs}")
        if self.memory < LEAST_MEMORY:
            raise InputError(f"memory must be at least {LEAST_MEMORY >> 20} MiB, got {self.memory}")

    def work_folder(self, output: str | os.PathLike[str]) -> str:
        """Return the folder for runs and checkpoints of an output, with nothing else in it.

        It is hidden, so that it is never read as text.
        """
        from xxhash import xxh3_64_hexdigest

        path = Path(output)
        if self.work is None:
            return str(path.parent / f".{path.name}.build")
        # Outputs of one name in several folders may have one `work`.
        place = xxh3_64_hexdigest(os.fsencode(os.path.realpath(path.parent)))[:8]
        return str(Path(self.work) / f".{path.name}.{place}.build")
