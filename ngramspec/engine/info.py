"""What the engine tells of itself: what drafts and what that gained, and the state of slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.shadow import Shadow
from ngramspec._native.engine.slot import Slot
from ngramspec.costs import CostTable
from ngramspec.stats import SourceStats

if TYPE_CHECKING:
    from ngramspec.engine.generation import Generation

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
    policy: How long drafts are: "auto", "gate" or "fixed"; "shadow": none is sent.
    longest: Tokens of the longest draft that can be sent, 0 if none can.
    branches: Most branches of a draft; 1 = none but the draft itself.
    branch_bytes: What they take at most, in all slots.
    types: Drafters that a request can name; none where no draft can be sent.
    rollback: How rejected tokens are taken back: "cache" (any number of them), "snapshots" (of a
        state, one for each drafted token), "saved" (one state for each draft) or "none".
    state_bytes: Of one such state of a slot, as measured; 0 for "cache".
    shadows: What drafters that are only judged would have brought, those that bring most first.
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
    shadows: tuple[Shadow, ...] = ()
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
            "shadow": [shadow_json(shadow) for shadow in self.shadows],
            "notes": list(self.notes),
        }


def shadow_json(shadow: Shadow) -> dict[str, Any]:
    """Return as plain data what drafters that are only judged would have brought."""
    drafted, accepted = shadow.num_draft_tokens, shadow.num_accepted_tokens
    return {
        "drafters": shadow.name,
        "passes": shadow.num_passes,
        "drafts": shadow.num_drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "mean_accepted_length": round(shadow.mean_accepted_length, 4),
        "speedup": round(shadow.speedup, 4),
        "saved_seconds": round(shadow.saved_seconds, 4),
        "failures": shadow.num_failures,
    }


def shadow_line(facts: Mapping[str, Any]) -> str:
    share = facts["accepted_tokens"] / max(facts["draft_tokens"], 1)
    return (
        f"shadow {facts['drafters']}: {facts['speedup']:.2f} times as fast as without drafts, "
        f"{facts['mean_accepted_length']:.2f} tokens per pass, acceptance {share:.1%} "
        f"({facts['accepted_tokens']} of {facts['draft_tokens']} tokens), {facts['passes']} passes"
    )


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


def seconds_saved(stats: EngineStats, sources: Mapping[str, SourceStats]) -> dict[str, float]:
    """Return the seconds that each source has saved so far, negative where it has lost some.

    What passes saved was counted when they ended, and making drafts takes time besides. Each source
    has its part of it by its accepted tokens, and of what drafts added to passes by all its tokens.

    Args:
        stats: Of the engine.
        sources: Counts by source.
    """
    accepted = sum(source.num_accepted_tokens for source in sources.values())
    drafted = sum(source.num_draft_tokens for source in sources.values())
    each_accepted = stats.accepted_seconds / max(accepted, 1)
    each_drafted = stats.drafted_seconds / max(drafted, 1)
    return {
        name: source.num_accepted_tokens * each_accepted
        - source.num_draft_tokens * each_drafted
        - 1e-9 * (source.begin_ns + source.propose_ns + source.accept_ns)
        for name, source in sources.items()
    }


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The current state of a slot, for monitoring."""

    id: int
    # "idle", "prompt", "decode", or "preempted": its request waits until the cache has room again
    state: str
    request_id: str  # of the running or the last request, "" before the first
    request_number: int  # how many requests were submitted before the running one; -1 = it is idle
    num_prompt: int
    num_cached: int  # of these found in the cache
    num_tokens: int  # prompt and emitted tokens it holds
    num_past: int  # of these in the key-value cache
    num_emitted: int
    num_remaining: int  # tokens that it may still emit; -1 = no bound
    speculative: bool
    num_draft_tokens: int
    num_accepted_tokens: int
    # why requests wait although this slot is idle, or a request in it although it has a slot
    waits_for: str = ""


def slot_info(slot: Slot, request_id: str, waits_for: str = "") -> SlotInfo:
    """Return the current state of a slot.

    Args:
        slot: The slot.
        request_id: Of the request that was started on it last.
        waits_for: The room in the cache that the next request needs.
    """
    generation = slot.generation
    state = "idle" if generation is None else "decode" if slot.decoding else "prompt"
    state = "preempted" if slot.preempted else state
    timings = None if generation is None else generation.timings
    return SlotInfo(
        slot.id,
        state,
        request_id if generation is None else generation.request.id,
        -1 if generation is None else generation.number,
        slot.num_prompt,
        0 if timings is None else timings.num_cached,
        slot.length,
        slot.num_past,
        0 if generation is None else generation.num_tokens,
        -1 if generation is None else _remaining(generation),
        bool(slot.sources),
        0 if timings is None else timings.num_draft_tokens,
        0 if timings is None else timings.num_accepted_tokens,
        waits_for if state in ("idle", "preempted") else "",
    )


def _remaining(generation: Generation) -> int:
    most = generation.request.max_tokens
    return -1 if most < 0 else most - generation.num_tokens
