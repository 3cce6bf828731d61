"""What messages are made of: sizes in words, addresses of pages, what to install."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

DOCS = "https://github.com/ngramspec/ngramspec/tree/main/docs"


def not_installed(need: str, extra: str) -> str:
    """Return the message for a missing package, with the line that installs it.

    pip finds an installed ngramspec in place, whether it came from a checkout or an index, and
    adds what the extra names. Sources that are run without being installed get the line for their
    folder.

    Args:
        need: What needs which package, such as "serve needs uvicorn".
        extra: The extra that brings it.
    """
    try:
        distribution("ngramspec")
        source = "ngramspec"
    except PackageNotFoundError:
        source = "."
    return f'{need}, which is not installed: pip install "{source}[{extra}]"'


def page_url(page: str) -> str:
    """Return the address of a page of the documentation, which a wheel does not hold.

    page: Its path in docs/, as "explanation/exactness.md".
    """
    return f"{DOCS}/{page}"


def size_text(num_bytes: float) -> str:
    """Return a number of bytes as text, such as "6.4 MiB"."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if num_bytes < 1024 or unit == "TiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
