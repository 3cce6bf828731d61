"""DraftPolicy: how long drafts may be. The default is AutoPolicy, which is native."""

from __future__ import annotations

from typing import Protocol

from ngramspec._native.engine.gate import Gate
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafters.config import MAX_CHOSEN
from ngramspec.drafters.names import POLICY_NAMES
from ngramspec.errors import InputError


class DraftPolicy(Protocol):
    """Limits the length of each draft, and learns from the outcome.

    Calls come from the engine's thread. `source` is the name of a draft source of the chain, such
    as "ngram" for the n-gram drafters, "prediction" or "draft-simple".
    """

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot: another request runs on it."""

    def limit(self, slot: int, source: str) -> int:
        """Return the longest draft to ask the source for now, 0 for none. Once per step."""

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a verified draft were right."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a decode of this size cost."""


class FixedLength:
    """Let every source draft up to a fixed length."""

    def __init__(self, max_draft: int) -> None:
        self.max_draft = max_draft

    def begin(self, slot: int) -> None:
        """Do nothing."""

    def limit(self, slot: int, source: str) -> int:
        """Return the fixed length."""
        return self.max_draft

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Do nothing."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""


def make_policy(
    name: str,
    max_draft: int,
    costs: CostTable | None = None,
    max_rollback: int | None = None,
) -> DraftPolicy:
    """Return a policy by its name.

    Args:
        name: "auto": as long as tokens pay; "gate": longer while drafts are right, none for a while
            when they are not; "fixed": always up to max_draft.
        max_draft: Longest draft in tokens, >= 1.
        costs: Pass costs of the target for "auto", None = learn them.
        max_rollback: The target's. If it is bounded, rejected drafts are recomputed from a saved
            state and cost more than their pass, so "auto" becomes "gate".

    Raises:
        InputError: There is no such policy, or max_draft is out of its bounds.
    """
    if name not in POLICY_NAMES:
        raise InputError(f"policy must be one of {', '.join(POLICY_NAMES)}, got {name!r}")
    if name == "auto" and max_rollback is None:
        return AutoPolicy(min(max_draft, MAX_CHOSEN), costs)
    return FixedLength(max_draft) if name == "fixed" else Gate(max_draft)
