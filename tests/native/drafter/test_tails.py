"""Drafts behind another source's draft: what they say, what they leave as it was, what pays."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.machines import SETTINGS
from ngramspec import AutoPolicy, create_drafter
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError, StateError

NAMES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix")
SHORT = {"size_n": 2, "size_m": 8}
PARAMS = {
    "ngram-simple": SHORT,
    "ngram-map-k": SHORT,
    "ngram-map-k4v": {"size_n": 2, "size_m": 4},
    "ngram-mod": {"n_match": 2, "n_min": 1, "n_max": 8},
}
LINE = [7, 3, 9, 4, 8, 2, 6, 5, 1, 10, 12, 11]


def text_of(length: int, seed: int) -> list[int]:
    """Pieces that come again and again, so that every drafter finds something."""
    rng, tokens = random.Random(seed), list[int]()
    while len(tokens) < length:
        start = rng.randrange(len(LINE))
        tokens += LINE[start : start + rng.randint(1, 8)]
    return tokens[:length]


@pytest.mark.parametrize("name", NAMES)
def test_a_tail_goes_on_behind_another_draft(name: str) -> None:
    """The text is new; with two tokens of a model behind it, it is found again."""
    drafter = create_drafter(name, params={name: PARAMS[name]} if name in PARAMS else None)
    drafter.begin(0, [*LINE, 90, *LINE, 91, *LINE, 92])
    assert drafter.propose(0, 4).size == 0
    tail = drafter.propose_after(0, LINE[2:5], 4)
    assert tail.tolist() == LINE[5:9]
    claims = drafter.confidence(0)
    assert claims.shape == (4,)
    assert ((claims > 0) & (claims <= 1)).all()
    drafter.accept(0, [*LINE[2:7], 93], 2)
    stats = drafter.stats()[name]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 4, 2)
    assert stats.accepted_per_position == (1, 1)
    assert drafter.history(0).tolist()[-6:] == [*LINE[2:7], 93]
    assert drafter.check() == ""


def test_a_tail_behind_a_wrong_draft_counts_as_wrong() -> None:
    drafter = create_drafter("ngram-map-k", **SHORT)
    drafter.begin(0, [*LINE, 90])
    assert drafter.propose_after(0, LINE[2:5], 4).size == 4
    with pytest.raises(InputError):
        drafter.accept(0, [LINE[2], 50, *LINE[5:7]], 1)
    drafter.accept(0, [LINE[2], 50], 0)
    stats = drafter.stats()["ngram-map-k"]
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (4, 0)
    drafter.accept(0, LINE[2:5], 0)  # nothing was learnt of it: drafts are as long as before
    assert drafter.propose(0, 64).size == SHORT["size_m"]


def test_an_accepted_tail_is_cut_and_followed_like_any_draft() -> None:
    drafter = create_drafter("ngram-simple", **SHORT)
    text = [*LINE, 90]
    drafter.begin(0, text)
    assert drafter.propose_after(0, LINE[:2], 6).size == 6
    drafter.shorten(0, 3)
    assert drafter.follow(0, int32([*text, *LINE[:6], 50])) == 3
    assert drafter.stats()["ngram-simple"].num_draft_tokens == 3


@pytest.mark.hypothesis
@pytest.mark.parametrize("names", [*NAMES, "suffix,recycle", "ngram-map-k,ngram-cache,suffix"])
@given(seed=st.integers(0, 1 << 20), data=st.data())
@SETTINGS
def test_tails_that_are_not_sent_change_nothing(names: str, seed: int, data: st.DataObject) -> None:
    """A drafter that is asked for them drafts and claims what one does that is not."""
    own = {name: PARAMS[name] for name in names.split(",") if name in PARAMS}
    asked, other = (create_drafter(names, params=own) for _ in range(2))
    tokens = text_of(220, seed)
    rng = random.Random(seed)
    for drafter in (asked, other):
        drafter.begin(0, tokens[:60])
    at = 60
    while at < len(tokens):
        drafts = [drafter.propose(0, 8) for drafter in (asked, other)]
        np.testing.assert_array_equal(*drafts)
        np.testing.assert_array_equal(asked.confidence(0), other.confidence(0))
        sent = data.draw(st.booleans())
        right = 0
        while sent and right < len(drafts[0]) and at + right < len(tokens):
            if drafts[0][right] != tokens[at + right]:
                break
            right += 1
        if not sent:
            for drafter in (asked, other):
                drafter.shorten(0, 0)
            before = tokens[at : at + rng.randint(0, 3)] + [rng.randrange(12)] * rng.randint(0, 2)
            if before:
                asked.propose_after(0, before, 8)
                asked.shorten(0, 0)
        new = tokens[at : at + right + rng.randint(1, 3)]
        if "recycle" in names:
            ids = np.array([[t, t + 1, t + 2] for t in new], np.int32)
            logs = np.log(np.array([[0.7, 0.2, 0.1]] * len(new), np.float32))
        for drafter in (asked, other):
            drafter.accept(0, new, right)
            if "recycle" in names:
                drafter.observe_top(0, ids, logs, drafter.length(0) - len(new))
        at += len(new)
    assert asked.check() == other.check() == ""


def test_a_tail_is_as_long_as_it_pays() -> None:
    """It pays less the less likely the other draft is, and where passes cost more."""
    lengths = {}
    for profile in ("h100-8b", "cpu"):
        for likely in (0.99, 0.5, 0.02):
            policy = AutoPolicy(costs=PROFILES[profile])
            drafter = create_drafter("suffix", policy=policy)
            drafter.begin(0, LINE * 20 + [90])
            tail = drafter.propose_after(0, LINE[:4], 32, np.full(4, likely, np.float32))
            lengths[profile, likely] = tail.size
            assert tail.tolist()[:8] == LINE[4 : 4 + min(tail.size, 8)]
    assert lengths["h100-8b", 0.99] > lengths["h100-8b", 0.5] > 0
    assert lengths["h100-8b", 0.02] == lengths["cpu", 0.02] == 0
    assert lengths["cpu", 0.99] < lengths["h100-8b", 0.99]


def test_the_policy_learns_that_tails_are_wrong_and_goes_on_trusting_other_drafts() -> None:
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    drafter = create_drafter("ngram-cache", policy=policy)
    drafter.begin(0, LINE * 4 + [90])
    first = drafter.propose_after(0, LINE[:2], 8).size
    assert first > 0
    rng = random.Random(3)
    for _ in range(60):
        drafter.propose_after(0, LINE[:2], 8)
        drafter.accept(0, [*LINE[:2], rng.randrange(100, 10000)], 0)
    assert drafter.propose_after(0, LINE[:2], 8).size == 0
    drafter.accept(0, LINE[:4], 0)
    assert drafter.propose(0, 8).size > 0


def test_the_policy_learns_from_tails_where_nothing_else_is_asked() -> None:
    policy, same = (AutoPolicy(costs=PROFILES["h100-8b"]) for _ in range(2))
    drafter = create_drafter("ngram-simple", policy=policy, **SHORT)
    claims = np.full(4, 0.5, np.float32)
    before = policy.calibrated("ngram-simple, tail", claims)
    drafter.begin(0, LINE * 4 + [90])
    for i in range(5):
        tail = drafter.propose_after(0, LINE[:2], 8)
        drafter.accept(0, [*LINE[:2], 100 + i], 0)
        same.step(3, 3 + tail.size)
    drafter.propose(0, 1)
    assert (policy.calibrated("ngram-simple, tail", claims) < before).all()
    assert policy.rate == pytest.approx(same.rate)


def test_what_is_offered_behind_another_draft_is_the_tail() -> None:
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=PROFILES["h100-8b"]))
    drafter.begin(0, LINE * 20 + [90, *LINE[:4]])
    drafter.propose_tree(0, 16)
    assert drafter.offered_by(0) == ""
    tail = drafter.propose_after(0, LINE[4:6], 6, np.full(2, 0.5, np.float32))
    offered = drafter.offered(0)
    assert offered.size >= tail.size > 0
    np.testing.assert_array_equal(offered[: tail.size], drafter.confidence(0))
    assert drafter.offered_by(0) == "suffix, tail"
    assert drafter.offered_parents(0) is None


def test_errors() -> None:
    drafter = create_drafter("ngram-simple")
    with pytest.raises(StateError):
        drafter.propose_after(0, [1], 4)
    drafter.begin(0, LINE)
    for arguments in (([1], -1), ([-1], 4), ([1] * 65, 4), ([1], 4, np.ones(2, np.float32))):
        with pytest.raises(InputError):
            drafter.propose_after(0, *arguments)
    assert drafter.propose_after(0, [], 4).size == 0
    assert drafter.propose_after(0, [1], 0).size == 0
