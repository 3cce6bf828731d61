"""A drafter that learns from logits, in generate(): shown what the model held likely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.later import Later
from helpers.tiny_models import prompts, tiny
from ngramspec import AutoPolicy, SuccessorPool, create_drafter
from ngramspec.costs import CostTable
from ngramspec.hosts.transformers import NgramSpeculator, ngramspec_generate
from ngramspec.hosts.transformers.drafts import Drafts

for name in ("torch", "transformers"):
    Later(name, "drives transformers, which is not installed")
CHEAP = CostTable(((1, 1.0), (64, 1.05)))


@pytest.mark.parametrize(
    "sampled", [{"do_sample": False}, {"do_sample": True, "seeds": 3, "temperature": 0.15}]
)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_the_model_held_likely_is_drafted_later(
    monkeypatch: Any, rows: int, sampled: dict[str, Any]
) -> None:
    monkeypatch.setattr(Drafts, "observe", lambda *_: None)  # costs stay as given
    model, inputs = tiny("Llama", vocab_size=400), prompts(rows)
    options = {"max_new_tokens": 60, "custom_generate": ngramspec_generate, **sampled}
    expected = model.generate(**inputs, **options, max_draft=0)
    speculator = NgramSpeculator("recycle", policy=AutoPolicy(costs=CHEAP))
    accepted = []
    for _ in range(2):
        before = speculator.stats().get("recycle")
        before = 0 if before is None else before.num_accepted_tokens
        assert model.generate(**inputs, **options, drafter=speculator).equal(expected)
        accepted.append(speculator.stats()["recycle"].num_accepted_tokens - before)
    assert accepted[1] > 20 * rows  # every context was seen


def test_rows_are_shown_with_their_drafts_and_only_to_who_wants_them() -> None:
    pool = SuccessorPool(256, 4)
    drafts = Drafts(create_drafter("recycle", slots=2, pool=pool), 2, 8, 50, ())
    assert drafts.top == 4
    for row in range(2):
        drafts.begin(row, np.array([1, 2 + row], np.int32))
    tokens = np.arange(16, dtype=np.int32).reshape(2, 2, 4)
    logprobs = np.tile(np.array([-0.5, -1.0, -2.0, -3.0], np.float32), (2, 2, 1))
    drafts.observe_top(np.array([1], np.int32), tokens, logprobs)
    assert pool.successors([1, 3])[0].tolist() == [8, 9, 10, 11]
    assert pool.successors([1, 2])[0].tolist() == []
    assert Drafts(create_drafter("suffix"), 1, 8, 50, ()).top == 0
