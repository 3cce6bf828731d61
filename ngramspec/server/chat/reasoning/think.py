"""Think: <think>...</think>, as DeepSeek R1, Qwen 3 and many others write it."""

from __future__ import annotations

from ngramspec.server.chat.reasoning.format import ReasoningFormat


class Think(ReasoningFormat):
    """Reasoning between tags."""

    open, close = "<think>", "</think>"
