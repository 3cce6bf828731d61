"""Variables: what chat templates are given besides messages and tools, as llama-server has it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any


def variables_of(variables: Mapping[str, Any], thinks: bool) -> dict[str, Any]:
    """Return the variables of a template: the defaults, and what is given.

    Args:
        variables: Those of the request and the server; they take precedence.
        thinks: The template can switch reasoning on.
    """
    now = datetime.datetime.now()
    defaults: dict[str, Any] = {"preserve_reasoning": True}
    if isinstance(keep := variables.get("preserve_reasoning", True), bool):
        defaults |= kept_reasoning(keep)
    if isinstance(effort := variables.get("reasoning_effort"), str) and effort:
        defaults |= reasoning_effort(effort)
    defaults["enable_thinking"] = thinks
    defaults["datetime"] = now.strftime("%b %d %Y")
    defaults["date_string"] = now.strftime("%d %b %Y")
    return {**defaults, **variables}


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
