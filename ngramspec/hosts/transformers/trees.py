"""Trees: how many tokens of a draft may stand at the same depth in a call of generate()."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.drafting.config import MAX_CHOSEN
from ngramspec.errors import InputError
from ngramspec.hosts.transformers.checks import why_no_masks

log = logging.getLogger(__name__)
WIDTH = 8  # branches beyond that hardly ever pay


def check_tree(tree: Any) -> None:
    """Raise InputError unless `tree` is a number of tokens, "auto" or "off"."""
    number = isinstance(tree, int) and not isinstance(tree, bool)
    if not (1 <= tree <= MAX_CHOSEN if number else tree in ("auto", "off")):
        raise InputError(
            f'tree must be "auto", "off" or an integer in 1..{MAX_CHOSEN}, the most drafted '
            f"tokens at one depth, got {tree!r}"
        )


def tree_width(tree: int | str, drafter: Drafter, model: Any, kwargs: dict[str, Any]) -> int:
    """Return the most tokens of a draft at the same depth, 0 = drafts are chains.

    Args:
        tree: As ngramspec_generate takes it.
        drafter: The drafter of the call.
        model: The model.
        kwargs: What generate() would hand to it.

    Raises:
        InputError: A number was asked for, and the model cannot verify trees.
    """
    if tree == "off":
        return 0
    reason = why_no_masks(model, kwargs)
    if isinstance(tree, int):
        if reason:
            raise InputError(f'tree={tree} needs masks of our own: {reason}; set tree="off"')
        return tree
    if drafter.policy is None:
        return 0
    reason = reason or _why_not_known(model)
    if reason:
        _say_once(f"drafts are chains, not trees: {reason}")
        return 0
    return WIDTH


def _why_not_known(model: Any) -> str:
    """Return why nobody knows whether a model takes a mask of 4 dimensions, "" if it does."""
    kind = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
    if kind.__module__.startswith("transformers."):
        return ""
    return (
        f"{kind.__name__} is not of transformers, and may take no 4D masks; tree={WIDTH} tries it"
    )


@cache
def _say_once(text: str) -> None:
    log.info(text)
