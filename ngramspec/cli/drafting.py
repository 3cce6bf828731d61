"""The line that tells what drafts, in which memory, or why nothing does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ngramspec.cli.output import size_text

if TYPE_CHECKING:
    from ngramspec.engine.drafting import Drafting


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
