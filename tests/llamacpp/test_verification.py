"""What the target makes of a draft: vectors of sample-and-compare verification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.adversaries import FakeDrafter
from helpers.host_loop import Generation, generate_tokens
from ngramspec.hosts.llama_cpp import NgramDraft

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
TASK = (
    "<|im_start|>user\nRepeat this code:\n\n```python\nx = 1\n```<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def run(llama: Any, prompt: list[int], draft: list[int] | None, **options: Any) -> Generation:
    """Generate with one draft, proposed after the first token, or without any."""
    drafts = None
    if draft is not None:
        plan = FakeDrafter(lambda history, limit: draft if history.size == len(prompt) + 1 else [])
        drafts = NgramDraft(drafter=plan, max_draft=12)
    return generate_tokens(llama, prompt, draft=drafts, fresh=True, **options)


@pytest.mark.parametrize(
    ("wrong_at", "accepted", "steps"),
    [(2, 2, 4), (None, 3, 3), (0, 0, 6)],
    ids=["E1: a b wrong", "E2: all agree", "none agrees"],
)
def test_the_right_part_of_a_draft_and_one_more_token_come_of_one_pass(
    make_llama: Any, wrong_at: int | None, accepted: int, steps: int
) -> None:
    llama = make_llama("llama")
    prompt = list(llama.tokenize(PROSE.encode()))
    options = {"max_tokens": 7, "temperature": 0.0, "seed": 1}
    plain = run(llama, prompt, None, **options)
    draft = plain.token_ids[1:4].tolist()
    if wrong_at is not None:
        draft[wrong_at] = (draft[wrong_at] + 1) % llama.n_vocab()
    got = run(llama, prompt, draft, **options)
    np.testing.assert_array_equal(got.token_ids, plain.token_ids)
    assert np.flatnonzero(got.accepted).tolist() == list(range(1, 1 + accepted))
    assert (plain.steps, got.steps) == (6, steps)


def test_e3_an_end_token_inside_a_draft_ends_the_text_there(make_llama: Any) -> None:
    llama = make_llama("embedded", n_ctx=1024)
    prompt = list(llama.tokenize(TASK.encode(), add_bos=False, special=True))
    options = {"max_tokens": 60, "temperature": 0.0, "seed": 1}
    plain = run(llama, prompt, None, **options)
    assert plain.finish_reason == "stop"
    after_the_end = [llama.token_eos(), *plain.token_ids[:3].tolist()]
    got = run(llama, prompt, plain.token_ids[1:9].tolist() + after_the_end, **options)
    assert got.finish_reason == "stop"
    np.testing.assert_array_equal(got.token_ids, plain.token_ids)


@pytest.mark.parametrize("seed", range(4))
def test_e4_a_seed_gives_one_text_with_and_without_drafts(make_llama: Any, seed: int) -> None:
    llama = make_llama("llama")
    prompt = list(llama.tokenize(PROSE.encode()))
    options = {"max_tokens": 12, "temperature": 0.8, "seed": seed}
    plain = run(llama, prompt, None, **options)
    for draft in (plain.token_ids[1:6].tolist(), [5, 6, 7]):
        got = run(llama, prompt, draft, **options)
        np.testing.assert_array_equal(got.token_ids, plain.token_ids)
