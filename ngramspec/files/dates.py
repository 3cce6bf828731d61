"""Dates: of files, and the one that stands for today in a reproducible build."""

from __future__ import annotations

import os
import stat
from datetime import datetime, timezone

from ngramspec.errors import InputError

SOURCE_DATE_EPOCH = "SOURCE_DATE_EPOCH"
NANO = 10**9


def changed_ns(path: str | os.PathLike[str]) -> int | None:
    """Return when a file was changed, in nanoseconds; None if it is gone or no regular file.

    The time of a pipe is that of its last reader or writer, so it says nothing about its bytes.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None


def date_of(seconds: int) -> str | None:
    """Return a time since 1970 as ISO 8601 in UTC; None if it is before year 1 or after 9999."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def fixed_date() -> str | None:
    """Return the date in SOURCE_DATE_EPOCH, None if it is not set.

    Raises:
        InputError: It is no number of seconds since 1970, or its date is after the year 9999.
    """
    text = os.environ.get(SOURCE_DATE_EPOCH, "")
    if not text:
        return None
    # int() fails on very long numbers, and takes signs, spaces and digits of other scripts.
    date = date_of(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else None
    if date is None:
        raise InputError(
            f"the environment variable {SOURCE_DATE_EPOCH} must be a number of seconds since 1970 "
            f"up to the year 9999, got {text[:40]!r}"
        )
    return date
