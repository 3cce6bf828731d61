"""DraftPolicy: how long drafts may be. The default is Gate, which is native."""

from __future__ import annotations

from typing import Protocol


class DraftPolicy(Protocol):
    """Decides before each proposal how long it may be, and learns what came of it.

    Calls come from the engine's thread. `source` is the name of a draft source of the chain, such
    as "ngram" for the n-gram drafters, "prediction" or "draft-model".
    """

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot: another request runs on it."""

    def limit(self, slot: int, source: str) -> int:
        """Return the longest draft to ask the source for now, 0 for none. Once per step."""

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a verified draft were right."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a decode of so many tokens cost."""


class FixedLength:
    """Let every source draft up to a fixed length."""

    def __init__(self, max_draft: int) -> None:
        self._max_draft = max_draft

    def begin(self, slot: int) -> None:
        """Do nothing."""

    def limit(self, slot: int, source: str) -> int:
        """Return the fixed length."""
        return self._max_draft

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Do nothing."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""
