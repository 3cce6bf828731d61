"""A target that fails when a test wants it to."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.adapters.llama_cpp.target import LlamaTarget


def fail_after(monkeypatch: pytest.MonkeyPatch, decodes: int, error: Exception) -> None:
    """Let every decode after the first few fail."""
    decode = LlamaTarget.decode
    left = [decodes]

    def failing(self: LlamaTarget, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error
        decode(self, *arguments)

    monkeypatch.setattr(LlamaTarget, "decode", failing)
