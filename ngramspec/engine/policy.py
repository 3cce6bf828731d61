"""make_policy: an AutoPolicy by its name."""

from __future__ import annotations

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafting.config import MAX_CHOSEN, MAX_LENGTH
from ngramspec.drafting.names import POLICY_NAMES
from ngramspec.errors import InputError


def make_policy(
    name: str,
    max_draft: int,
    costs: CostTable | None = None,
    max_rollback: int | None = None,
) -> AutoPolicy:
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
    longest = min(max_draft, MAX_LENGTH)
    return AutoPolicy(longest, fixed=longest) if name == "fixed" else AutoPolicy(longest, gate=True)
