"""Sizes, shares and numbers: as options, and in words."""

from __future__ import annotations

import re
from typing import Any

import click

UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
MOST = 1 << 62
MOST_HELD_OUT = 0.9
LEAST_FILE = 64 << 10  # head, provenance and some n-grams
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)")


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """SizeType(least=1): a number such as 64M or 1.5G, in powers of 1024; becomes an int."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            self.fail(f"expected a size such as 64M, 2G or 1.5G, got {value!r}", param, ctx)
        made = int(float(found[1]) * 1024 ** UNITS[found[2].upper()])
        if not self.least <= made < MOST:
            least = f"{self.least >> 10}K" if self.least >= 1024 else self.least
            self.fail(f"expected a size of {least} or more, got {value!r}", param, ctx)
        return made


class ShareType(click.ParamType):  # type: ignore[type-arg]
    """A share such as 5% or 0.05; becomes a float in 0..0.9."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share."""
        if isinstance(value, float):
            return value
        found = _SHARE.fullmatch(value.strip())
        if found is None:
            self.fail(f"expected a share such as 5% or 0.05, got {value!r}", param, ctx)
        made = float(found[1]) / (100 if found[2] else 1)
        if made > MOST_HELD_OUT:
            hint = "" if found[2] else f"; {found[1]}% is written with its sign"
            self.fail(f"expected a share of at most 90%, got {value!r}{hint}", param, ctx)
        return made


def size_text(num_bytes: float) -> str:
    """Return a number of bytes in words, such as "6.4 MiB"."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if num_bytes < 1024 or unit == "TiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """Return a time in words, such as "0.3 s", "4:05" or "1:00:03"."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 file" or "2,000 files"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
