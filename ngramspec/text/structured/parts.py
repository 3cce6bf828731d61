"""What rules of a grammar are put together of: names, and other parts in a row, as alternatives or
repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P", covariant=True)  # what a part may hold


@dataclass(frozen=True)
class Name:
    """A rule."""

    text: str


@dataclass(frozen=True)
class Row(Generic[P]):
    """Parts one after the other."""

    parts: tuple[P, ...]


@dataclass(frozen=True)
class Either(Generic[P]):
    """One of several parts."""

    parts: tuple[P, ...]


@dataclass(frozen=True)
class Times(Generic[P]):
    """A part between `low` and `high` times; None = any number of times."""

    part: P
    low: int
    high: int | None
