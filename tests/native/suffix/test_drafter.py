"""The suffix drafter: matches, votes, where drafts end, what it learns, what it costs."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.recordings import TRACES, load_trace
from ngramspec import SuffixPool, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec.errors import InputError
from ngramspec.models import confidence_weights


def words(seed: int, length: int = 200) -> np.ndarray:
    """Random tokens; hardly any of them comes twice."""
    return np.random.default_rng(seed).integers(0, 1_000_000, length, dtype=np.int32)


def alone(**params: Any) -> Drafter:
    return create_drafter("suffix", share=False, **params)


def drafted(drafter: Drafter, prompt: Any, most: int = 64) -> list[int]:
    drafter.begin(0, prompt)
    return drafter.propose(0, most).tolist()


def step(drafter: Drafter, text: np.ndarray, at: int, most: int = 64) -> int:
    """Draft, and accept what the text says; return how many tokens were right."""
    draft = drafter.propose(0, most)
    wrong = np.flatnonzero(draft != text[at : at + len(draft)])
    right = int(wrong[0]) if len(wrong) else len(draft)
    drafter.accept(0, text[at : at + right + 1], right)
    return right


def test_a_loop_goes_on_past_the_end_of_the_history() -> None:
    assert drafted(alone(), [1, 2, 3] * 4) == [1, 2, 3] * 21 + [1]
    assert drafted(alone(), [7, 8, 9, 7], 7) == [8, 9, 7, 8, 9, 7, 8]
    assert drafted(alone(min_probability=0.0), [5, 5]) == [5] * 64


def test_nothing_is_drafted_for_what_never_came() -> None:
    assert drafted(alone(), [1]) == []
    assert drafted(alone(), words(0)) == []
    assert drafted(alone(), []) == []


@pytest.mark.parametrize(("max_draft", "max_tokens"), [(5, 64), (64, 5), (1, 9), (64, 1), (7, 7)])
def test_drafts_are_as_long_as_both_bounds_allow(max_draft: int, max_tokens: int) -> None:
    drafter = alone(max_draft=max_draft)
    assert drafter.max_draft == max_draft
    draft = drafted(drafter, [1, 2, 3] * 4, max_tokens)
    assert draft == ([1, 2, 3] * 3)[: min(max_draft, max_tokens)]


def test_the_longest_match_wins_over_the_latest() -> None:
    text = words(0, 60)
    other = text[20:22].tolist()  # the same last two tokens, another one behind them
    prompt = [*text.tolist(), *other, 1, *other, 2, 3, *text[:22].tolist()]
    assert drafted(alone(), prompt, 8) == text[22:30].tolist()


def test_most_votes_win_among_equals() -> None:
    prompt = int32([1, 2, 7, 3, 1, 2, 7, 4, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2])
    assert drafted(alone(), prompt, 1) == [7]
    assert drafted(alone(), np.where(prompt == 7, 9, prompt), 1) == [9]


def test_an_edited_copy_is_taken_up_again_at_once() -> None:
    """Behind a changed token nothing agrees, but where the copied text goes on is known."""
    text = words(1, 300)
    copy = text.copy()
    copy[[40, 41, 90]] = [11, 12, 13]
    drafter = alone()
    drafter.begin(0, text)
    drafter.accept(0, copy[:20], 0)
    at = 20
    for changed, after in ((40, 42), (90, 91)):
        while at <= changed:
            at += step(drafter, copy, at) + 1
        while at < after:
            drafter.propose(0, 8)
            drafter.accept(0, copy[at : at + 1], 0)
            at += 1
        assert drafter.propose(0, 8).tolist() == text[after : after + 8].tolist()
    assert drafter.check() == ""


def test_what_was_taken_back_is_not_drafted() -> None:
    drafter = alone(max_draft=16)
    shared, first, second = words(2), words(3), words(4)
    drafter.begin(0, [*shared, *first, *shared])
    assert drafter.propose(0, 16).tolist() == first[:16].tolist()
    drafter.truncate(0, 200)
    assert drafter.propose(0, 16).tolist() == []
    drafter.accept(0, second, 0)
    drafter.accept(0, shared, 0)
    assert drafter.propose(0, 16).tolist() == second[:16].tolist()
    drafter.begin(0, [*shared, *first[:50], *shared[:20]])  # a fork of the beginning
    assert drafter.propose(0, 16).tolist() == shared[20:36].tolist()
    drafter.begin(0, second[:20])
    assert drafter.propose(0, 16).tolist() == []
    assert drafter.check() == ""


def test_a_history_that_outgrows_its_index_is_indexed_anew() -> None:
    drafter = alone()
    text = words(5, 30_000)
    drafter.begin(0, text[:100])
    for start in range(100, len(text), 700):
        drafter.accept(0, text[start : start + 700], 0)
        assert drafter.check() == ""
    for start in (0, 90, 5000, 29_000):
        drafter.accept(0, text[start : start + 20], 0)
        assert drafter.propose(0, 9).tolist() == text[start + 20 : start + 29].tolist()


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_drafts_end_where_all_of_it_is_less_likely_than_the_bound(floor: float) -> None:
    prompt = [*words(6), *words(6)[100:103]]
    drafter = alone(min_probability=floor)
    draft = drafted(drafter, prompt)
    so_far = np.cumprod(drafter.confidence(0))
    assert (so_far[:-1] >= floor).all()
    assert so_far[-1] < floor or len(draft) == 64
    longest = drafted(alone(min_probability=0.0), prompt)
    assert len(longest) == 64
    assert draft == longest[: len(draft)]


def test_what_turns_out_right_is_claimed_with_more_confidence() -> None:
    claims = {}
    for name in ("right", "wrong"):
        drafter = alone()
        for seed in range(60):
            text = words(seed, 40)
            drafter.begin(0, text)
            drafter.accept(0, text[:10], 0)
            drafter.propose(0, 8)
            claims.setdefault((name, seed), drafter.confidence(0))
            drafter.accept(0, text[10:14] if name == "right" else [1], 0)
    first = claims["right", 0]
    assert first.tolist() == claims["wrong", 0].tolist()
    assert (claims["right", 59][:4] > first[:4]).all()
    assert claims["wrong", 59][0] < first[0] - 0.1


def test_all_slots_teach_one_model_and_keep_their_texts_apart() -> None:
    drafter = alone(slots=2)
    text = words(0)
    drafter.begin(1, text)
    drafter.begin(0, text[:50])
    assert drafter.propose(0, 8).tolist() == []
    drafter.accept(0, text[:10], 0)
    before = drafter.propose(0, 8), drafter.confidence(0)
    for start in range(0, 180, 20):
        drafter.accept(1, text[start : start + 10], 0)
        drafter.propose(1, 8)
        drafter.accept(1, [1], 0)
    assert drafter.propose(0, 8)[0] == before[0][0]
    assert drafter.confidence(0)[0] < before[1][0] - 0.1


def test_claims_agree_with_what_is_accepted_on_recorded_chats() -> None:
    drafter = create_drafter("suffix")
    claims, right = [], []
    for request in load_trace(TRACES / "chat.mtbench.txt.xz").requests[:50]:
        output = np.asarray(request.output[:1000], np.int32)
        drafter.begin(0, np.asarray(request.prompt, np.int32))
        at = 0
        while at < len(output):
            draft = drafter.propose(0, len(output) - at)
            claims += drafter.confidence(0)[:1].tolist()
            right += (draft[:1] == output[at : at + len(draft[:1])]).tolist()
            wrong = np.flatnonzero(draft != output[at : at + len(draft)])
            accepted = int(wrong[0]) if len(wrong) else len(draft)
            drafter.accept(0, output[at : at + accepted + 1], accepted)
            at += accepted + 1
        drafter.end(0)
    claimed, true = np.array(claims), np.array(right)
    assert len(claimed) > 5000
    assert claimed.mean() == pytest.approx(true.mean(), abs=0.05)
    for low in (0.0, 0.2, 0.4, 0.6):
        band = (claimed >= low) & (claimed < low + 0.2)
        assert band.sum() > 100
        assert claimed[band].mean() == pytest.approx(true[band].mean(), abs=0.1)


def time_steps(context: int, seed: int) -> float:
    """Median nanoseconds of propose and accept on a text that repeats with changes."""
    once = words(seed, context // 2)
    output = np.resize(once, 1000)
    output[::13] = 1
    drafter = alone()
    drafter.begin(0, np.concatenate([once, once]))
    times, at = [], 0
    while at < len(output) - 20:
        started = time.perf_counter_ns()
        at += step(drafter, output, at, 8) + 1
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times)


def test_the_cost_does_not_depend_on_the_context() -> None:
    ratios = []
    for seed in range(8):  # others use the machine too
        ratios.append(time_steps(131_072, seed) / time_steps(1024, seed))
        if min(ratios) < 2:
            return
    pytest.fail(f"128k tokens against 1k: {ratios}")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_draft": 0}, "max_draft must be an integer in 1..64, got 0"),
        ({"max_draft": 65}, "max_draft must be an integer in 1..64, got 65"),
        ({"min_probability": -0.1}, "min_probability must be a number in 0..1, got -0.1"),
        ({"min_probability": 1.5}, "min_probability must be a number in 0..1, got 1.5"),
        ({"min_probability": float("nan")}, "min_probability must be a number in 0..1, got nan"),
        ({"min_probability": "0"}, "min_probability must be a number in 0..1, got '0'"),
        ({"capacity": 4095}, "capacity must be an integer in 4096..29000000, got 4095"),
        ({"capacity": 29_000_001}, "capacity must be an integer in 4096..29000000"),
        ({"share": 1}, "share must be True or False, got 1"),
        ({"pool_prompts": None}, "pool_prompts must be True or False, got None"),
        ({"pool": 3}, "pool must be a SuffixPool, got int"),
        ({"n_max": 3}, "unknown parameter 'n_max' for suffix"),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create_drafter("suffix", **params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 0}, "slots must be >= 1, got 0"),
        ({"max_draft": 65}, "max_draft must be in 1..64"),
        ({"floor": 2.0}, "floor in 0..1, got 64 and 2.0"),
        ({"floor": float("nan")}, "floor in 0..1"),
        ({"weights": np.zeros(1152, np.float32)}, r"shape \(1153,\), got float32 of \(1152,\)"),
        ({"weights": np.zeros((1, 1153), np.float32)}, r"got float32 of \(1, 1153\)"),
        ({"weights": np.zeros(1153)}, "got float64"),
        ({"weights": "none"}, r"of \(\)"),
    ],
)
def test_a_source_checks_its_arguments(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "slots": 1, "pool": None, "max_draft": 64, "floor": 0.1, "prompts": True,
        "weights": confidence_weights(),
    }  # fmt: skip
    with pytest.raises(InputError, match=message):
        SuffixSource(**{**arguments, **change})
    assert SuffixSource(**arguments).pool is None


def test_a_source_tells_what_the_last_proposal_weighed() -> None:
    pool = SuffixPool(4096)
    source = SuffixSource(1, pool, 8, 0.0, True, confidence_weights())
    drafter = Drafter([source])
    assert source.pool is pool
    draft = drafted(drafter, [1, 2, 7, 1, 2, 8, 1, 2], 3)
    positions, after, tokens, chosen, probabilities, features = source.considered(0)
    assert {token for token, at in zip(tokens, positions, strict=True) if at == 0} == {7, 8}
    assert tokens[chosen].tolist() == draft
    assert probabilities[chosen].tolist() == drafter.confidence(0).tolist()
    assert features.shape == (len(tokens), 34)
    assert after.tolist() == [at - 1 for at in positions.tolist()]  # it has no branches
    drafter.accept(0, [7], 0)
    assert [len(part) for part in source.considered(0)] == [0] * 6
    for slot in (-1, 1):
        with pytest.raises(InputError, match=r"slot must be in 0..0"):
            source.considered(slot)


def test_a_source_tells_how_much_agrees_with_where_a_token_was_found() -> None:
    source = SuffixSource(1, None, 8, 0.0, True, confidence_weights())
    drafter = Drafter([source])
    drafted(drafter, [1, 2, 3, 4, 5, 6, 7, 9, 2, 3], 3)
    assert [source.match_length(0, token) for token in (4, 5)] == [2, 0]
    text = list(range(100, 140))
    drafted(drafter, [*text, 3, *text[:20], 5, *text[21:30]], 3)
    assert source.match_length(0, text[30]) == 29  # a changed token does not end it
    drafted(drafter, [*text, 3, *text[:38]], 3)
    assert source.match_length(0, text[38]) == 32
    for slot in (-1, 1):
        with pytest.raises(InputError, match=r"slot must be in 0..0"):
            source.match_length(slot, 1)


def test_the_bound_of_a_source_can_be_set() -> None:
    source = SuffixSource(1, None, 8, 0.0, True, confidence_weights())
    drafter = Drafter([source])
    assert source.floor == 0.0
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert len(drafted(drafter, text, 8)) == 8
    source.floor = 0.5
    assert source.floor == 0.5
    assert 0 < len(drafted(drafter, text, 8)) < 8
    for floor in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match=r"floor must be in 0..1, got"):
            source.floor = floor
    assert source.floor == 0.5


def test_the_weights_are_there_and_cannot_be_changed() -> None:
    weights = confidence_weights()
    assert (weights.shape, weights.dtype) == ((1153,), np.float32)
    assert np.isfinite(weights).all()
    with pytest.raises(ValueError, match="read-only"):
        weights[0] = 1
