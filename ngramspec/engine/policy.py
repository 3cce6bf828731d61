"""An AutoPolicy by its name, and how many branches a draft may have with it, or why none."""

from __future__ import annotations

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafting.config import MAX_CHOSEN, MAX_LENGTH
from ngramspec.drafting.names import POLICY_NAMES, WITH_COSTS
from ngramspec.engine.target import Target
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
            when they are not; "fixed": always up to max_draft; "shadow": as "auto", but drafts are
            only judged, and none is sent.
        max_draft: Longest draft in tokens, >= 1.
        costs: Pass costs of the target for "auto", None = learn them.
        max_rollback: The target's. If it is bounded, rejected drafts are recomputed from a saved
            state and cost more than their pass, so "auto" becomes "gate".

    Raises:
        InputError: There is no such policy, or max_draft is out of its bounds.
    """
    if name not in POLICY_NAMES:
        raise InputError(f"policy must be one of {', '.join(POLICY_NAMES)}, got {name!r}")
    shadow = name == "shadow"
    if name in WITH_COSTS and max_rollback is None:
        return AutoPolicy(min(max_draft, MAX_CHOSEN), costs, shadow=shadow)
    longest = min(max_draft, MAX_LENGTH)
    if name == "fixed":
        return AutoPolicy(longest, fixed=longest)
    return AutoPolicy(longest, gate=True, shadow=shadow)


AUTO, OFF = "auto", "off"
USUAL_BRANCHES = 4  # more bring next to nothing: see benchmarks/README.md


def most_branches(tree: int | str, target: Target, policy: AutoPolicy) -> tuple[int, str]:
    """Return how many branches a draft may have, and why only one if more were asked for.

    Args:
        tree: The most; "auto" = USUAL_BRANCHES, or what the target can hold of them; "off" = 1.
        target: The model.
        policy: Only one that weighs knows which branches pay.

    Raises:
        InputError: tree is none of these, or a number that cannot be had here.
    """
    if tree == OFF:
        return 1, ""
    if tree != AUTO and not (type(tree) is int and tree >= 1):
        raise InputError(f'tree must be "auto", "off" or a number >= 1, got {tree!r}')
    why = target.no_branches
    if not why and policy.weighs:
        count = USUAL_BRANCHES if isinstance(tree, str) else tree
        if count > target.max_branches and tree != AUTO:
            raise InputError(f"a draft may have at most {target.max_branches} branches, got {tree}")
        return min(count, target.max_branches), ""
    if tree not in (AUTO, 1):
        why = why or "only the policy auto chooses branches"
        raise InputError(f"drafts cannot have {tree} branches: {why}")
    return 1, why if tree == AUTO else ""
