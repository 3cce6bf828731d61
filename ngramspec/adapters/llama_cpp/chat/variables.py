"""Variables: what chat templates are given besides messages and tools, as llama-server has it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any


def variables_of(given: Mapping[str, Any], thinks: bool) -> dict[str, Any]:
    """Return the variables of a template: the defaults, and what is given.

    Args:
        given: Those of the request and the server; they take precedence.
        thinks: The template can switch reasoning on.
    """
    now = datetime.datetime.now()
    made: dict[str, Any] = {"preserve_reasoning": True}
    if isinstance(keep := given.get("preserve_reasoning", True), bool):
        made |= kept_reasoning(keep)
    if isinstance(effort := given.get("reasoning_effort"), str) and effort:
        made |= reasoning_effort(effort)
    made["enable_thinking"] = thinks
    made["datetime"] = now.strftime("%b %d %Y")
    made["date_string"] = now.strftime("%d %b %Y")
    return {**made, **given}


def kept_reasoning(keep: bool) -> dict[str, bool]:
    """Return the names that templates have for keeping the reasoning of earlier turns."""
    return {
        "preserve_thinking": keep,
        "clear_thinking": not keep,
        "truncate_history_thinking": not keep,
        "drop_thinking": not keep,
    }


def reasoning_effort(effort: str) -> dict[str, str]:
    """Return the names that templates have for how much a model is to think."""
    return {"reasoning_effort": effort, "reasoning_strength": effort}
