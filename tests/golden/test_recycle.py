"""recycle drafts of recorded texts and logits what it drafted when they were recorded."""

from __future__ import annotations

import pytest

from helpers.backends import Backend, Native, Reference
from helpers.recycle_run import SLOTS, read, run
from reference.source import widest


@pytest.mark.parametrize("backend", [Native(), Reference()], ids=["native", "reference"])
def test_recycle_drafts_what_was_recorded(backend: Backend) -> None:
    sessions, steps = read()
    assert run(backend.drafter("recycle", SLOTS), sessions) == steps


def test_the_recording_has_trees_right_tokens_and_wrong_ones() -> None:
    _, steps = read()
    trees = [step for step in steps if any(step["parents"].count(p) > 1 for p in step["parents"])]
    drafted = sum(len(step["draft"]) for step in steps)
    assert len(trees) > 50
    assert all(widest(step["parents"]) <= step["width"] for step in steps)
    assert 0.1 * drafted < sum(step["accepted"] for step in steps) < 0.5 * drafted
