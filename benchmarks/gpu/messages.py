"""What a measurement says while it runs."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Say it on stderr, at once: figures go to stdout."""
    print(text, file=sys.stderr, flush=True)
