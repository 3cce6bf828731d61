"""Numbers of bytes in words, the same in all notes, errors and tables."""

from __future__ import annotations


def size_text(num_bytes: float) -> str:
    """Return a number of bytes as text, such as "6.4 MiB"."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if num_bytes < 1024 or unit == "TiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
