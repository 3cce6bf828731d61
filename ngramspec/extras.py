"""What to install where an optional part is used and a package of its extra is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


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
