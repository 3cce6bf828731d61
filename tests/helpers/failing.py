"""A target that fails, or takes its time, when a test wants it to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ngramspec.llamacpp.target import LlamaTarget


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


def decode_slowly(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.005) -> None:
    """Let every decode take longer, so that a long answer keeps its slot until it is cancelled."""
    decode = LlamaTarget.decode

    def slow(self: LlamaTarget, *arguments: Any) -> None:
        time.sleep(seconds)
        decode(self, *arguments)

    monkeypatch.setattr(LlamaTarget, "decode", slow)
