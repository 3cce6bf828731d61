"""Branches: how many of them a draft may have, or why none."""

from __future__ import annotations

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.engine.target import Target
from ngramspec.errors import InputError

AUTO, OFF = "auto", "off"
USUAL_BRANCHES = 4  # more bring next to nothing: see docs/results/benchmarks.md


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
