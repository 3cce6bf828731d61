"""Drafting: what drafts for requests that ask for nothing else, in which memory, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ngramspec.costs import CostTable

MOST_LOOKED_AT = 64  # longest draft whose worth is looked at


@dataclass(frozen=True, kw_only=True)
class DraftModelInfo:
    """A draft model or the target's own MTP heads, for monitoring.

    kind: llama.cpp's word: "draft-simple" or "draft-mtp".
    """

    name: str
    path: str
    nbytes: int  # of its weights and its context; 0 = unknown
    n_max: int
    n_min: int
    p_min: float
    kind: str = "draft-simple"
    vocabulary: str = "same"  # as the target's; "another": it drafts through text
    notes: tuple[str, ...] = ()  # on settings that do nothing

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "type": self.kind,
            "path": self.path,
            "bytes": self.nbytes,
            "n_max": self.n_max,
            "n_min": self.n_min,
            "p_min": self.p_min,
            "vocabulary": self.vocabulary,
        }


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What drafts, for monitoring.

    drafters: N-gram drafters in the order in which they are asked, each with the bytes of its pool,
        caches and index; 0 for those that look at the slot's own text only.
    slot_bytes: Of the histories and indexes of all slots; they grow with the texts.
    draft_model: Asked where it is worth its time; None: there is none.
    policy: How long drafts are: "auto", "gate" or "fixed".
    longest: Tokens of the longest draft that can be sent, 0 if none can.
    branches: Most branches of a draft; 1 = none but the draft itself.
    branch_bytes: What they take at most, in all slots.
    types: Drafters that a request can name; none where no draft can be sent.
    rollback: How rejected tokens are taken back: "cache" (any number of them), "snapshots" (of a
        state, one for each drafted token), "saved" (one state for each draft) or "none".
    state_bytes: Of one such state of a slot, as measured; 0 for "cache".
    notes: Why nothing drafts, or less than was asked for.
    """

    drafters: Mapping[str, int]
    slot_bytes: int
    draft_model: DraftModelInfo | None
    policy: str
    longest: int
    branches: int
    branch_bytes: int
    types: tuple[str, ...]
    rollback: str
    state_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Return whether anything drafts."""
        return bool((self.drafters or self.draft_model is not None) and self.longest)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, as /props shows it."""
        small = self.draft_model
        return {
            "active": self.active,
            "drafters": [{"name": name, "bytes": size} for name, size in self.drafters.items()],
            "slot_bytes": self.slot_bytes,
            "draft_model": None if small is None else small.as_json(),
            "policy": self.policy,
            "n_max": self.longest,
            "branches": self.branches,
            "branch_bytes": self.branch_bytes,
            "types": list(self.types),
            "rollback": self.rollback,
            "state_bytes": self.state_bytes,
            "notes": list(self.notes),
        }


def best_pass(costs: CostTable, longest: int) -> tuple[int, float]:
    """Return the pass by which right drafts of up to `longest` tokens gain most.

    A draft pays best where all of it is right: then its pass yields one token more than it has.

    Returns:
        (int, float): Its tokens, and how many passes over one token it costs.
    """
    sizes = range(2, longest + 2)
    size = min(sizes, key=lambda size: costs.cost(size) / size, default=1)
    return size, costs.cost(size) / costs.cost(1)


def unpaid(costs: CostTable, longest: int) -> str:
    """Return why no draft of up to `longest` tokens can pay, "" if one may."""
    size, times = best_pass(costs, min(longest, MOST_LOOKED_AT))
    if size == 1 or times < size:
        return ""
    return f"the policy sends next to none: {size} tokens in a pass cost {times:.1f} times one"
