"""The tools of a request, and the choice among them, as a chat has them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.server.anthropic.bodies import ToolChoice
from ngramspec.server.errors import bad_request

log = logging.getLogger(__name__)
CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that the client runs and describes.

    Those that Anthropic runs or describes itself (web_search_20250305, ...) are left out with a
    line in the log.

    Raises:
        ApiError: A tool does not have its shape.
    """
    functions: list[dict[str, Any]] = []
    left_out: set[str] = set()
    for index, tool in enumerate(tools):
        kind, schema, place = tool.get("type"), tool.get("input_schema"), f"tools[{index}]"
        if kind not in (None, "custom") and schema is None:
            left_out.add(f"{kind!s:.80}")
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{place} must have a name", place)
        if not isinstance(schema, dict):
            raise bad_request(f"{place}.input_schema must be a JSON schema", place)
        function: dict[str, Any] = {"name": name, "parameters": schema}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if tool.get("strict") is True:
            function["strict"] = True
        functions.append({"type": "function", "function": function})
    if left_out:
        log.warning("left out tools that only Anthropic knows: %.200a", ", ".join(left_out))
    return functions


def chat_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """Return the choice among tools.

    Raises:
        ApiError: It is not one of Anthropic's.
    """
    if choice is None:
        return None
    if choice.type not in CHOICES:
        words = f"tool_choice.type must be one of {', '.join(CHOICES)}, got {choice.type!r:.80}"
        raise bad_request(words, "tool_choice")
    if choice.type != "tool":
        return CHOICES[choice.type]
    if not choice.name:
        raise bad_request("tool_choice must have a name", "tool_choice")
    return {"type": "function", "function": {"name": choice.name}}
