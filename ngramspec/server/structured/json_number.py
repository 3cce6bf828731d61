"""Bounds of numbers in GBNF: minimum, maximum and their exclusive kinds, digit by digit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ngramspec.server.errors import bad_request
from ngramspec.server.structured.gbnf import json_text

MAX_DIGITS = 16  # of a whole number, as in the rule `digits`
_BEYOND = 10**MAX_DIGITS
_FRACTION = '("." [0-9]{1,15})?'
_NAMES = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def integer_text(schema: Mapping[str, Any]) -> str | None:
    """Return GBNF for the whole numbers within a schema's bounds, None if it has no bounds.

    Raises:
        ApiError: A bound is not a finite number, or no whole number lies between them.
    """
    low, high = _whole_bounds(schema)
    low = None if low is None or low <= -_BEYOND else low
    high = None if high is None or high >= _BEYOND else high
    if low is None and high is None:
        return None
    if (1 - _BEYOND if low is None else low) > (_BEYOND - 1 if high is None else high):
        bounds = json_text({name: schema[name] for name in _NAMES if name in schema})
        raise bad_request(
            f"no whole number of at most {MAX_DIGITS} digits lies within the bounds {bounds}"
        )
    parts = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts.append(f'"-" {_natural(least, None if low is None else -low)}')
    if high is None or high >= 0:
        parts.append(_natural(max(0, low or 0), high))
    return " | ".join(parts)


def number_text(schema: Mapping[str, Any]) -> str | None:
    """Return GBNF for the numbers between two whole bounds of 0 or more, None for other bounds."""
    low, high = _whole_bounds(schema)
    if (schema.get("minimum"), schema.get("maximum")) != (low, high):
        return None
    if low is None or high is None or not 0 <= low <= high < _BEYOND:
        return None
    parts = [f'{_natural(high, high)} ("." "0"{{1,15}})?']
    if low < high:
        parts.append(f"{_natural(low, high - 1)} {_FRACTION}")
    return " | ".join(parts)


def has_no_sign(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema's bounds exclude all numbers below 0."""
    lows = [*_given(schema, "minimum"), *_given(schema, "exclusiveMinimum")]
    return max(lows, default=-1) >= 0


def _whole_bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the least and the greatest whole number that the bounds allow, None for any."""
    lows = [math.ceil(bound) for bound in _given(schema, "minimum")]
    lows += [math.floor(bound) + 1 for bound in _given(schema, "exclusiveMinimum")]
    highs = [math.floor(bound) for bound in _given(schema, "maximum")]
    highs += [math.ceil(bound) - 1 for bound in _given(schema, "exclusiveMaximum")]
    return max(lows, default=None), min(highs, default=None)


def _given(schema: Mapping[str, Any], name: str) -> list[float]:
    """Return a bound if there is one; true and false, as in old JSON schema drafts, are not."""
    bound = schema.get(name)
    if bound is None or isinstance(bound, bool):
        return []
    finite = isinstance(bound, int) or (isinstance(bound, float) and math.isfinite(bound))
    if not finite:
        raise bad_request(f"{name} must be a finite number, got {bound!r:.80}")
    return [bound]


def _natural(low: int, high: int | None) -> str:
    """Return GBNF for whole numbers >= 0; without an upper bound up to MAX_DIGITS digits."""
    parts = []
    longest = len(str(low)) if high is None else len(str(high))
    for length in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1 if high is None else min(high, 10**length - 1)
        parts.append(_digits(str(least), str(most)))
    if high is None and longest < MAX_DIGITS:
        parts.append(f"[1-9] [0-9]{{{longest},{MAX_DIGITS - 1}}}")
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _digits(low: str, high: str) -> str:
    """Return GBNF for the digit texts from `low` to `high`, which have the same length."""
    rest = len(low) - 1
    if low[0] == high[0]:
        return f'"{low[0]}" {_digits(low[1:], high[1:])}' if rest else f'"{low}"'
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts.append(f'"{first}" {_digits(low[1:], "9" * rest)}')
        first += 1
    if high[1:] != "9" * rest:
        parts.append(f'"{last}" {_digits("0" * rest, high[1:])}')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"
