"""JSON as this server takes it: without NaN, and without numbers that are infinite to us."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def finite_json(raw: bytes | str) -> Any:
    """Return the value of JSON without NaN and numbers that are infinite to us.

    Raises:
        ValueError: It is not JSON, or holds such a number.
        RecursionError: It is too deep.
    """
    return json.loads(raw, parse_constant=_refuse, parse_float=_finite)


def finite_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text of JSON is, None where it is none or a number is infinite."""
    try:
        value = finite_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        _refuse(digits)
    return number


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number:.40} is no finite number")
