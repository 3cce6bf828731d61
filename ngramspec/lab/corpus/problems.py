"""What was left out of a corpus or read in another way than usual."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_KEPT = 20


@dataclass(frozen=True)
class Problem:
    """One thing that was left out, or read in another way.

    source: Name of the file.
    where: "line 7", "row group 0, row 3" or "" for the whole file.
    reason: What was wrong with it.
    """

    source: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}{', ' if self.where else ''}{self.where}: {self.reason}"


@dataclass
class Problems:
    """Counts of problems and the first few in full.

    num_files: Files, or row groups of them, that could not be read to their end.
    num_skipped: Files left out on purpose: binary ones, and links that are not followed.
    num_recoded: Files with bytes that are not UTF-8: read as Windows-1252, or as U+FFFD.
    num_records: Lines and rows left out.
    first: The first problems, at most 20.
    skipped_sources: All files left out on purpose.
    """

    num_files: int = 0
    num_skipped: int = 0
    num_recoded: int = 0
    num_records: int = 0
    first: list[Problem] = field(default_factory=list)
    skipped_sources: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.num_files + self.num_skipped + self.num_recoded + self.num_records

    def file(self, source: str, reason: str) -> None:
        """Note a file that cannot be read to its end."""
        self.num_files += 1
        self._keep([Problem(source, "", reason)])

    def skipped(self, source: str, reason: str) -> None:
        """Note a file that is left out on purpose."""
        self.num_skipped += 1
        self.skipped_sources.append(source)
        self._keep([Problem(source, "", reason)])

    def recoded(self, source: str, how: str) -> None:
        """Note a file with bytes that are not UTF-8, and how they are read."""
        self.num_recoded += 1
        self._keep([Problem(source, "", how)])

    def record(self, source: str, where: str, reason: str) -> None:
        """Note a line or row that is left out."""
        self.num_records += 1
        self._keep([Problem(source, where, reason)])

    def merge(self, other: Problems) -> None:
        """Add the problems of another unit; merging in order keeps `first` in order."""
        self.num_files += other.num_files
        self.num_skipped += other.num_skipped
        self.num_recoded += other.num_recoded
        self.num_records += other.num_records
        self.skipped_sources += other.skipped_sources
        self._keep(other.first)

    def _keep(self, problems: Iterable[Problem]) -> None:
        self.first = [*self.first, *problems][:MOST_KEPT]
