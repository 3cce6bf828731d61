"""DraftPolicy: how long drafts may be. The default is AutoPolicy, which is native."""

from __future__ import annotations

from typing import Protocol

from ngramspec._native.engine.gate import Gate
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafters.config import MAX_CHOSEN
from ngramspec.drafters.names import POLICY_NAMES
from ngramspec.errors import InputError

USUAL = 64  # longest draft, where nothing is said


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
        """Learn what a decode of this size cost."""


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


def make_policy(
    name: str,
    max_draft: int,
    costs: CostTable | None = None,
    max_rollback: int | None = None,
) -> DraftPolicy:
    """Return a policy by its name.

    Args:
        name: "auto": as far as tokens pay; "gate": longer while drafts are right, silent where they
            are not; "fixed": always as far as the sources go.
        max_draft: Longest draft in tokens, >= 1.
        costs: What "auto" knows of the target's passes, None = to be learnt.
        max_rollback: The target's. Where it is bounded, a rejected draft is computed again from a
            saved state and costs more than its pass: "auto" is "gate" there.

    Raises:
        InputError: There is no such policy, or max_draft is out of its bounds.
    """
    if name not in POLICY_NAMES:
        raise InputError(f"policy must be one of {', '.join(POLICY_NAMES)}, got {name!r}")
    if name == "auto" and max_rollback is None:
        return AutoPolicy(min(max_draft, MAX_CHOSEN), costs)
    return FixedLength(max_draft) if name == "fixed" else Gate(max_draft)
