"""The lines that tell what drafts, in which memory, or why nothing does, and what it can give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ngramspec.cli.output import size_text

if TYPE_CHECKING:
    from ngramspec.costs import CostTable
    from ngramspec.engine.info import Drafting

MOST_RIGHT = 15  # tokens of a draft: longer ones are seldom right to their end


def drafting_line(drafting: Drafting) -> str:
    """Return what drafts as one line."""
    parts = [
        f"{name} ({size_text(size)})" if size else name for name, size in drafting.drafters.items()
    ]
    small = drafting.draft_model
    if small is not None:
        size = f" ({size_text(small.nbytes)})" if small.nbytes else ""
        kind = "draft model " if small.kind == "draft-simple" else ""
        other = ", of another vocabulary" if small.vocabulary == "another" else ""
        named = f"{kind}{small.name} of up to {small.n_max}{other}{size}"
        parts.append(f"then {named}" if parts else named)
    if not drafting.active:
        return f"drafters none: {'; '.join(drafting.notes)}"
    branches = ""
    if drafting.branches > 1:
        branches = f" in {drafting.branches} branches ({size_text(drafting.branch_bytes)} at most)"
    parts.append(f"up to {drafting.longest} tokens{branches} by policy {drafting.policy}")
    state = size_text(drafting.state_bytes)
    if drafting.rollback == "snapshots":
        parts.append(f"{state} of state for each of them in each slot")
    elif drafting.rollback == "saved":
        parts.append(f"{state} of state saved for a draft")
    return "; ".join([f"drafters {', '.join(parts)}", *drafting.notes])


def gain_line(costs: CostTable, longest: int = MOST_RIGHT) -> str:
    """Return what right drafts of up to `longest` tokens can give as one line, "" for nothing."""
    from ngramspec.engine.info import best_pass

    size, times = best_pass(costs, min(longest, MOST_RIGHT))
    if times >= size:
        return ""
    return (
        f"a pass over {size} tokens costs {times:.1f} times one: right drafts make answers up to "
        f"{size / times:.1f} times as fast here"
    )
