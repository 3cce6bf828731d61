"""What every drafter promises, whatever it has seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import Native, NativeDrafter, int32
from helpers.machines import SETTINGS, texts
from ngramspec.errors import StateError
from reference.source import common_prefix

DRAFTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "simple": ("ngram-simple", {"size_n": 2, "size_m": 7}),
    "map-k": ("ngram-map-k", {"size_n": 2, "size_m": 16}),
    "k4v": ("ngram-map-k4v", {"size_n": 2, "size_m": 9}),
    "mod": ("ngram-mod", {"n_match": 2, "n_min": 1, "n_max": 6}),
    "cache": ("ngram-cache", {"n_draft": 5}),
    "chain": ("ngram-map-k,ngram-mod,ngram-cache", {"size_n": 4, "n_match": 3, "n_min": 3}),
}
LONGEST = {"simple": 7, "map-k": 16, "k4v": 9, "mod": 6, "cache": 5, "chain": 64}
COPIERS = ["simple", "map-k", "k4v"]  # their drafts continue an earlier occurrence of the key
each_drafter = pytest.mark.parametrize("name", DRAFTERS)
prompts = texts(3, 40)
outputs = texts(3, 20).filter(bool)


def drafter_of(name: str, slots: int = 1) -> NativeDrafter:
    spec, params = DRAFTERS[name]
    return Native().drafter(spec, slots, **params)


@each_drafter
@SETTINGS
@given(prompt=prompts, max_tokens=st.integers(0, 70))
def test_a_draft_is_no_longer_than_asked_for(name: str, prompt: list[int], max_tokens: int) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    assert len(drafter.propose(0, max_tokens)) <= min(max_tokens, LONGEST[name])


@each_drafter
@SETTINGS
@given(prompt=prompts, max_tokens=st.integers(0, 70))
def test_a_shorter_room_gives_a_prefix_of_the_same_draft(
    name: str, prompt: list[int], max_tokens: int
) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    whole = drafter.propose(0, 64)
    assert drafter.propose(0, max_tokens) == whole[:max_tokens]


@each_drafter
@SETTINGS
@given(prompt=prompts)
def test_proposing_again_changes_nothing(name: str, prompt: list[int]) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    draft = drafter.propose(0, 64)
    assert drafter.propose(0, 64) == draft
    assert drafter.history(0) == prompt


@pytest.mark.parametrize("name", COPIERS)
@SETTINGS
@given(prompt=prompts)
def test_a_draft_continues_an_earlier_occurrence_of_the_key(name: str, prompt: list[int]) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    draft = drafter.propose(0, 64)
    extended = prompt + draft
    key = prompt[-2:]
    starts = [p for p in range(len(prompt) - 2) if prompt[p : p + 2] == key]
    copies = [extended[p + 2 : p + 2 + len(draft)] for p in starts]
    assert draft == [] or draft in copies


@each_drafter
@SETTINGS
@given(prompt=prompts, steps=st.lists(st.tuples(st.integers(0, 9), texts(3, 3)), max_size=8))
def test_follow_equals_the_calls_that_it_stands_for(
    name: str, prompt: list[int], steps: list[tuple[int, list[int]]]
) -> None:
    """An engine that only shows its text, and one that says what it accepted."""
    shown, stepwise = drafter_of(name), drafter_of(name)
    assert shown.follow(0, prompt) == -1
    stepwise.begin(0, prompt)
    text = list(prompt)
    for right, other in steps:
        draft = stepwise.propose(0, 9)
        assert shown.propose(0, 9) == draft
        new = (draft[:right] + other) or [1]
        text += new
        accepted = min(common_prefix(draft, new), len(new) - 1)
        stepwise.accept(0, new, accepted)
        assert shown.follow(0, text) == accepted
    assert shown.history(0) == stepwise.history(0) == text
    assert shown.propose(0, 64) == stepwise.propose(0, 64)
    assert shown.core.stats().keys() == stepwise.core.stats().keys()


@each_drafter
@SETTINGS
@given(prompt=prompts, draft_length=st.integers(0, 20))
def test_follow_with_the_same_text_keeps_the_pending_draft(
    name: str, prompt: list[int], draft_length: int
) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    draft = drafter.propose(0, draft_length)
    assert drafter.follow(0, prompt) == 0
    drafter.accept(0, [*draft, 1], len(draft))
    assert drafter.history(0) == [*prompt, *draft, 1]


@each_drafter
@SETTINGS
@given(
    texts_of_slots=st.lists(prompts, min_size=3, max_size=3),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=5),
    width=st.integers(1, 12),
)
def test_a_batch_equals_single_proposals(
    name: str, texts_of_slots: list[list[int]], rows: list[tuple[int, int]], width: int
) -> None:
    single, batch = drafter_of(name, 3), drafter_of(name, 3)
    for slot, text in enumerate(texts_of_slots):
        single.begin(slot, text)
        batch.begin(slot, text)
    out = np.full((len(rows), width), -7, dtype=np.int32)
    lengths = np.full(len(rows), -7, dtype=np.int32)
    slots, limits = int32([s for s, _ in rows]), int32([m for _, m in rows])
    batch.core.propose_batch(slots, limits, out, lengths)
    for i, (slot, limit) in enumerate(rows):
        draft = single.propose(slot, min(limit, width))
        assert out[i, : lengths[i]].tolist() == draft
        assert set(out[i, lengths[i] :].tolist()) <= {-7}


@each_drafter
@SETTINGS
@given(
    texts_of_slots=st.lists(prompts, min_size=3, max_size=3),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=5),
    width=st.integers(0, 12),
    most=st.integers(1, 4),
)
def test_a_batch_of_trees_equals_single_trees(
    name: str, texts_of_slots: list[list[int]], rows: list[tuple[int, int]], width: int, most: int
) -> None:
    single, batch = drafter_of(name, 3), drafter_of(name, 3)
    for slot, text in enumerate(texts_of_slots):
        single.begin(slot, text)
        batch.begin(slot, text)
    out = np.full((len(rows), width), -7, dtype=np.int32)
    parents = np.full((len(rows), width), -7, dtype=np.int32)
    lengths = np.full(len(rows), -7, dtype=np.int32)
    slots, limits = int32([s for s, _ in rows]), int32([m for _, m in rows])
    batch.core.propose_batch(slots, limits, out, lengths, parents, most)
    for i, (slot, limit) in enumerate(rows):
        tokens, above, _ = single.core.propose_tree(slot, min(limit, width), most)
        assert out[i, : lengths[i]].tolist() == tokens.tolist()
        assert parents[i, : lengths[i]].tolist() == above.tolist()
        assert {*out[i, lengths[i] :], *parents[i, lengths[i] :]} <= {-7}


def python_replay(
    drafter: NativeDrafter, prompt: list[int], output: list[int], max_tokens: int
) -> tuple[int, int, list[int]]:
    """Steps, accepted tokens and the length of each draft, by single calls."""
    drafter.begin(0, prompt)
    drafter.accept(0, output[:1], 0)
    steps, accepted, lengths, done = 0, 0, [], 1
    while done < len(output):
        room = len(output) - done
        draft = drafter.propose(0, min(room, max_tokens or room))
        right = common_prefix(draft, output[done:])
        drafter.accept(0, output[done : done + right + 1], right)
        steps, accepted, done = steps + 1, accepted + right, done + right + 1
        lengths.append(len(draft))
    return steps, accepted, lengths


@each_drafter
@SETTINGS
@given(
    sessions=st.lists(st.tuples(prompts, outputs), min_size=1, max_size=3), cut=st.integers(0, 4)
)
def test_a_replay_equals_a_loop_over_the_same_calls(
    name: str, sessions: list[tuple[list[int], list[int]]], cut: int
) -> None:
    native, by_hand = drafter_of(name), drafter_of(name)
    for prompt, output in sessions:
        replay = native.replay(prompt, output, max_tokens=cut)
        steps, accepted, lengths = python_replay(by_hand, prompt, output, cut)
        assert (replay.steps, replay.accepted, replay.drafted) == (steps, accepted, sum(lengths))
        assert replay.drafts == sum(map(bool, lengths))
        assert replay.tokens == len(output) - 1
        expected = np.bincount(lengths, minlength=replay.draft_lengths.size)
        assert replay.draft_lengths.tolist() == expected.tolist()
        assert native.history(0) == by_hand.history(0) == prompt + output
        for source, stats in native.core.stats().items():
            other = by_hand.core.stats()[source]
            assert (stats.num_drafts, stats.num_accepted_tokens) == (
                other.num_drafts,
                other.num_accepted_tokens,
            )


@each_drafter
@SETTINGS
@given(prompt=prompts, max_tokens=st.integers(0, 70), width=st.integers(1, 9))
def test_a_drafter_without_trees_gives_its_draft_as_a_chain(
    name: str, prompt: list[int], max_tokens: int, width: int
) -> None:
    drafter = drafter_of(name)
    drafter.begin(0, prompt)
    draft = drafter.propose(0, max_tokens)
    claims = drafter.confidence(0)
    tree = drafter.propose_tree(0, max_tokens, width)
    assert tree == (draft, [i - 1 for i in range(len(draft))])
    assert drafter.confidence(0) == claims
    assert drafter.propose(0, max_tokens) == draft


@each_drafter
@SETTINGS
@given(prompt=prompts, steps=st.lists(st.tuples(st.integers(0, 9), outputs), max_size=8))
def test_chains_taken_for_trees_teach_the_same(
    name: str, prompt: list[int], steps: list[tuple[int, list[int]]]
) -> None:
    chain, tree = drafter_of(name), drafter_of(name)
    chain.begin(0, prompt)
    tree.begin(0, prompt)
    for right, other in steps:
        draft = chain.propose(0, 9)
        assert tree.propose_tree(0, 9)[0] == draft
        new = draft[:right] + other
        right = min(right, len(draft))
        for drafter in (chain, tree):
            drafter.accept(0, new, right)
    counts = [
        [(one.num_draft_tokens, one.accepted_per_position) for one in side.core.stats().values()]
        for side in (chain, tree)
    ]
    assert counts[0] == counts[1]
    assert tree.check() == ""


@each_drafter
@SETTINGS
@given(prompt=prompts, other=prompts)
def test_slots_do_not_touch_each_others_history(
    name: str, prompt: list[int], other: list[int]
) -> None:
    drafter = drafter_of(name, 2)
    drafter.begin(0, prompt)
    drafter.begin(1, other)
    drafter.accept(1, [1, 2], 0)
    drafter.truncate(1, 0)
    drafter.end(1)
    assert drafter.history(0) == prompt
    assert drafter.check() == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.propose(0, 5),
        lambda d: d.propose_tree(0, 5),
        lambda d: d.accept(0, int32([1]), 0),
        lambda d: d.truncate(0, 0),
        lambda d: d.end(0),
    ],
    ids=["propose", "propose_tree", "accept", "truncate", "end"],
)
@each_drafter
def test_a_call_on_an_idle_slot_is_a_state_error(name: str, call: Any) -> None:
    drafter = drafter_of(name, 2)
    with pytest.raises(StateError):
        call(drafter.core)
    drafter.begin(0, [1, 2])
    drafter.end(0)
    with pytest.raises(StateError):
        call(drafter.core)
    assert drafter.history(0) == [1, 2]
