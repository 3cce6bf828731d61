"""one_of: GBNF for one of several texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

MAX_GROUPS = 30  # nested groups
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_of(texts: Iterable[str]) -> str:
    """Return what stands for one of several texts in a rule of GBNF.

    A common beginning is written once, so that few alternatives are followed at a time.

    Cost: as for sorting them.
    """
    return _one_of(sorted(set(texts)), 0)


def _one_of(left: list[str], depth: int) -> str:
    """Return it for texts in their order."""
    if len(left) == 1 or depth == MAX_GROUPS:
        return " | ".join(map(_literal, left))
    parts = []
    for _, group in itertools.groupby(left, key=lambda text: text[:1]):
        same = list(group)
        start = _common_start(same[0], same[-1])  # also of those between: they are sorted
        if len(same) == 1:
            parts.append(_literal(start))
        else:
            rest = _one_of([text[len(start) :] for text in same], depth + 1)
            parts.append(f"{_literal(start)} ({rest})")
    return " | ".join(parts)


def _common_start(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _literal(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'
