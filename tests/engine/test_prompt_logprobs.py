"""How likely the tokens of a prompt are: against the softmax of every row, whatever else runs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import END, FakeTarget, Oracle
from ngramspec.engine import AutoPolicy, Engine, Generation, Request
from ngramspec.errors import InputError

REQUESTS = st.lists(
    st.tuples(st.integers(1, 120), st.none() | st.integers(0, 9), st.integers(0, 30)),
    min_size=1,
    max_size=7,
)


class Noisy(FakeTarget):
    """Its rows differ in every logit, some of which are equal, impossible or no numbers."""

    def row(self, tokens: list[int]) -> np.ndarray:
        noise = np.random.default_rng([len(tokens), *tokens[-3:]])
        row = noise.normal(0, 3, self.vocab_size).astype(np.float32).round(1)
        row[noise.integers(0, self.vocab_size, 5)] = [-np.inf, np.nan, 2.0, 2.0, -1.0]
        row[self.next_token(tokens)] = 30.0
        return row


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1, 97), k=length)


def check(target: FakeTarget, answer: Generation, top: int) -> None:
    """Compare with the softmax of each row, one at a time."""
    ids = answer.request.prompt_ids.tolist()
    entries = answer.prompt_logprobs
    assert [entry.token_id for entry in entries] == ids
    assert math.isnan(entries[0].logprob)
    assert (entries[0].top, entries[0].rank) == ((), 0)
    for place, entry in enumerate(entries[1:], start=1):
        row = np.fmax(target.row(ids[:place]).astype(np.float64), -np.inf)
        logprobs = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert entry.logprob == pytest.approx(logprobs[ids[place]], abs=1e-5)
        assert entry.rank == 1 + (row > row[ids[place]]).sum()
        order = [int(i) for i in np.argsort(-row, kind="stable") if row[i] > -np.inf][:top]
        assert [token for token, _ in entry.top] == order
        assert [value for _, value in entry.top] == pytest.approx(logprobs[order], abs=1e-5)


@given(
    REQUESTS,
    st.integers(1, 4),
    st.sampled_from([4, 9, 64]),
    st.sampled_from([0, 4, 5, 7]),
    st.sampled_from([None, 256, 300]),
    st.booleans(),
)
def test_every_token_is_told_of_beside_drafts_and_without_room(
    asked: list[tuple[int, int | None, int]],
    slots: int,
    batch: int,
    outputs: int,
    cells: int | None,
    drafts: bool,
) -> None:
    target = Noisy(max_batch=batch, max_outputs=outputs, cells=cells)
    drafter = Oracle(target, 0.7) if drafts else None
    engine = Engine(target, drafter, slots=slots, policy=AutoPolicy(fixed=6))
    requests = [
        Request(prompt_ids=int32(prompt(length, length)), prompt_logprobs=top, max_tokens=most)
        for length, top, most in asked
    ]
    for (length, top, most), answer in zip(asked, engine.generate(requests), strict=True):
        assert answer.error is None
        assert answer.token_ids == target.expected(prompt(length, length), most)
        if top is None:
            assert answer.prompt_logprobs == []
        else:
            check(target, answer, top)


def test_a_prompt_is_read_anew_however_much_of_it_a_slot_holds() -> None:
    target = Noisy()
    engine = Engine(target, None, slots=2)
    ids = int32(prompt(100, 1))
    engine.generate([Request(prompt_ids=ids, max_tokens=3)])
    answer = engine.generate([Request(prompt_ids=ids, max_tokens=3, prompt_logprobs=2)])[0]
    assert answer.timings.num_cached == 0
    check(target, answer, 2)
    again = engine.generate([Request(prompt_ids=ids, max_tokens=3)])[0]
    assert again.timings.num_cached == 99  # what it left is used


def test_a_pass_computes_no_more_rows_than_drafts_may_need() -> None:
    target = Noisy(max_batch=256, context_size=1024)
    engine = Engine(target, None, slots=2)
    request = Request(prompt_ids=int32(prompt(400, 2)), prompt_logprobs=0, max_tokens=0)
    check(target, engine.generate([request])[0], 0)
    assert target.batches == [131, 131, 131, 7]  # 65 for each slot, and the one of its own
    target.batches.clear()
    engine.generate([Request(prompt_ids=int32(prompt(400, 3)), max_tokens=0)])
    assert target.batches == [256, 144]


def test_a_cancelled_request_tells_what_was_read_and_nothing_of_the_rest() -> None:
    target = Noisy(max_batch=16)
    engine = Engine(target, None)
    generation = engine.submit(Request(prompt_ids=int32(prompt(60, 4)), prompt_logprobs=1))
    assert all(math.isnan(entry.logprob) for entry in generation.prompt_logprobs)
    engine.step()
    generation.cancel()
    while engine.step():
        pass
    has_numbers = [not math.isnan(entry.logprob) for entry in generation.prompt_logprobs]
    assert has_numbers == [False] + [True] * 16 + [False] * 43
    engine.generate([Request(prompt_ids=int32(prompt(60, 4)), max_tokens=2)])  # the slot is free


def test_an_end_token_has_its_log_probability_where_the_prompt_has() -> None:
    target = Noisy(end_every=1)  # ends at once
    engine = Engine(target, None)
    ids = int32(prompt(10, 5))
    both, plain, none = engine.generate(
        [
            Request(prompt_ids=ids, max_tokens=1, logprobs=1, prompt_logprobs=1),
            Request(prompt_ids=ids, max_tokens=1, logprobs=1),
            Request(prompt_ids=ids, max_tokens=0, logprobs=1, prompt_logprobs=1),
        ]
    )
    assert [entry.token_id for entry in both.logprobs] == [END]
    assert both.token_ids == plain.token_ids == []
    assert plain.logprobs == none.logprobs == []


@pytest.mark.parametrize("count", [-1, 1001, True, 1.0])
def test_a_wrong_number_of_likeliest_tokens_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=r"prompt_logprobs must be in 0\.\.1000"):
        Request(prompt_ids=int32([1]), prompt_logprobs=count)
