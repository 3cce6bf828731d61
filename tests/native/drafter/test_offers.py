"""A chain under an AutoPolicy sends the best draft of all its sources and corrects their claims."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.machines import SETTINGS, examples
from ngramspec import AutoPolicy, Drafter, create_drafter
from ngramspec.costs import PROFILES, CostTable
from reference.auto import AutoPolicy as SlowPolicy

NAMES = ("ngram-simple", "ngram-cache", "suffix")
LEARNS_ITSELF = "suffix"  # its claims are taken as they are
PARAMS = {"ngram-simple": {"size_n": 2, "size_m": 6}}
texts = st.lists(st.integers(1, 4), min_size=40, max_size=90)


class Twin:
    """Asks each source by a drafter of its own, and lets the slow policy choose."""

    def __init__(self, profile: str) -> None:
        table = PROFILES[profile]
        self.policy = SlowPolicy(64, table)
        self.drafters = {name: self.make(name) for name in NAMES}

    @staticmethod
    def make(name: str) -> Any:
        return create_drafter(name, params={k: v for k, v in PARAMS.items() if k == name})

    def begin(self, prompt: Any) -> None:
        self.streak = 0
        for drafter in self.drafters.values():
            drafter.begin(0, prompt)

    def propose(self, room: int) -> list[int]:
        self.offers = []
        for name, drafter in self.drafters.items():
            draft = drafter.propose(0, 64).tolist()
            if draft:
                self.offers.append((name, drafter.confidence(0).tolist(), draft))
        if not self.offers:
            return []
        chains = [(name, claims, room) for name, claims, _ in self.offers]
        best = self.policy.best(chains, streak=self.streak)
        length = self.policy.choose(*chains[best], streak=self.streak).length
        self.sent: list[int] = self.offers[best][2][:length]
        return self.sent

    def accept(self, emitted: list[int], drafted: int) -> None:
        had_right = False
        for name, claims, draft in self.offers:
            num_known = min(len(draft), len(emitted))
            right = next((i for i in range(num_known) if draft[i] != emitted[i]), num_known)
            had_right = had_right or right == num_known
            if name == LEARNS_ITSELF:
                continue
            self.policy.learn(name, claims, right, num_known)
        self.streak = self.streak + len(emitted) if had_right else 0
        self.policy.step(len(emitted), 1 + drafted)
        for drafter in self.drafters.values():
            drafter.accept(0, int32(emitted), 0)


@settings(SETTINGS, max_examples=examples(40))
@given(text=texts, profile=st.sampled_from(sorted(PROFILES)), room=st.sampled_from([1, 3, 64]))
def test_the_draft_is_the_best_of_all_sources(text: list[int], profile: str, room: int) -> None:
    policy = AutoPolicy(costs=PROFILES[profile])
    chain = create_drafter(NAMES, params=PARAMS, policy=policy)
    twin = Twin(profile)
    chain.begin(0, int32(text[:10]))
    twin.begin(int32(text[:10]))
    at = 10
    while at < len(text):
        draft = chain.propose(0, room).tolist()
        assert draft == twin.propose(room)
        right = next(
            (i for i, t in enumerate(draft) if [t] != text[at + i : at + i + 1]), len(draft)
        )
        emitted = text[at : at + right + 1]
        chain.accept(0, int32(emitted), min(right, len(emitted)))
        twin.accept(emitted, len(draft))
        at += len(emitted)
    claims = np.array([0.2, 0.5, 0.9], np.float32)
    for name in NAMES:
        expected = twin.policy.calibrated(name, claims.tolist())
        assert policy.calibrated(name, claims) == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_slots_shares_the_pass() -> None:
    policy = AutoPolicy(costs=PROFILES["cpu"])
    drafter = create_drafter("suffix", slots=2, policy=policy)
    for slot in range(2):
        drafter.begin(slot, int32([1, 2, 3, 4, 5, 6, 7, 8] * 4))
        drafter.accept(slot, int32([1]), 0)
    out, lens = np.zeros((2, 16), np.int32), np.zeros(2, np.int32)
    drafter.propose_batch(int32([0, 1]), 16, out, lens)
    chains = [("suffix", drafter.confidence(slot), 16) for slot in range(2)]
    assert [chain[1].size for chain in chains] == lens.tolist()
    assert (lens > 0).all()
    assert out[0, : lens[0]].tolist() == ([2, 3, 4, 5, 6, 7, 8, 1] * 2)[: lens[0]]
    for slot in range(2):
        drafter.accept(slot, int32(out[slot, : lens[slot]]), int(lens[slot]))


def test_a_slot_named_twice_in_a_batch_is_counted_once() -> None:
    policy = AutoPolicy(costs=PROFILES["cpu"])
    drafter = create_drafter("suffix", slots=1, policy=policy)
    drafter.begin(0, int32([1, 2, 3, 4, 5, 6, 7, 8] * 4))
    drafter.accept(0, int32([1]), 0)
    out, lens = np.zeros((2, 16), np.int32), np.zeros(2, np.int32)
    drafter.propose_batch(int32([0, 0]), 16, out, lens)
    drafter.accept(0, int32(out[1, : lens[1]]), int(lens[1]))
    assert drafter.stats()["suffix"].num_draft_tokens == lens[1] > 0


# A pass with a draft costs 8 passes more: 2 more than one may where no draft was right just before.
DEAR = CostTable(((1, 1.0), (2, 9.0), (65, 9.0)))
TEXT = int32([*range(100, 164)] * 2)


def tokens_until_a_draft(drafter: Drafter) -> int:
    """Emit what the text goes on with until a draft is sent; return the number of tokens."""
    for emitted in range(40):
        draft = drafter.propose(0, 60)
        if draft.size:
            assert draft.tolist() == TEXT[emitted : emitted + draft.size].tolist()
            return emitted
        drafter.accept(0, TEXT[emitted : emitted + 1], 0)
    raise AssertionError("no draft was sent")


def test_what_is_accepted_between_two_drafts_is_one_pass_of_all_slots() -> None:
    slots, rng = 8, np.random.default_rng(0)
    table = CostTable(((1, 1.0), (2, 1.0)))  # a pass costs the same for any number of tokens
    text = rng.integers(0, 1000, (slots, 200)).astype(np.int32)
    rates = []
    for together in (True, False):
        policy = AutoPolicy(costs=table)
        drafter = create_drafter("suffix", slots=slots, policy=policy)
        for slot in range(slots):
            drafter.begin(slot, text[slot, :100])
        out, lens = np.zeros((slots, 8), np.int32), np.zeros(slots, np.int32)
        for done in range(100, 200):
            drafter.propose_batch(int32(range(slots)), 8, out, lens)
            if together:
                accepted = np.zeros(slots, np.int32)
                lengths = np.full(slots, done + 1, np.int32)
                drafter.follow_batch(int32(range(slots)), text, lengths, accepted)
                continue
            for slot in range(slots):
                drafter.accept(slot, text[slot, done : done + 1], 0)
        drafter.propose(0, 8)
        rates.append(policy.rate)
    assert rates[1] == rates[0]


def test_drafters_with_one_policy_share_a_pass() -> None:
    """Two drafters, or one and rows that nobody drafts for, teach what one for all rows does."""
    slots, rng = 8, np.random.default_rng(0)
    table = CostTable(((1, 1.0), (2, 1.0)))  # a pass costs the same for any number of tokens
    text = rng.integers(0, 1000, (slots, 140)).astype(np.int32)
    rates = []
    for parts in ([8], [4, 4], [5]):
        policy = AutoPolicy(costs=table)
        drafters = [create_drafter("suffix", slots=size, policy=policy) for size in parts]
        rows = [text[sum(parts[:i]) :][:size] for i, size in enumerate(parts)]
        for drafter, own in zip(drafters, rows, strict=True):
            for slot, one in enumerate(own):
                drafter.begin(slot, one[:100])
        for done in range(100, 140):
            for drafter, own in zip(drafters, rows, strict=True):
                size = len(own)
                out, lens = np.zeros((size, 8), np.int32), np.zeros(size, np.int32)
                others = slots - size
                drafter.propose_batch(
                    int32(range(size)), 8, out, lens, others=others, other_tokens=others
                )
            for drafter, own in zip(drafters, rows, strict=True):
                size = len(own)
                lengths, accepted = np.full(size, done + 1, np.int32), np.zeros(size, np.int32)
                drafter.follow_batch(int32(range(size)), own, lengths, accepted)
            policy.note(slots - sum(parts), slots - sum(parts))
        drafters[0].propose(0, 8)
        rates.append(policy.rate)
    assert rates[0] > 5
    assert rates == [rates[0]] * 3


# A pass costs the same up to 8 tokens, and 3 times that more for each further one.
BOARD = CostTable(((1, 1.0), (8, 1.0), (9, 4.0), (10, 7.0)))


@pytest.mark.parametrize(
    ("others", "tokens", "length"), [(0, 0, 7), (4, 4, 3), (2, 6, 1), (7, 7, 0), (3, 40, 0)]
)
@pytest.mark.parametrize("width", [0, 4])
def test_a_pass_is_shared_with_slots_of_other_drafters(
    others: int, tokens: int, length: int, width: int
) -> None:
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=BOARD))
    drafter.begin(0, int32([1, 2, 3, 4, 5, 6, 7, 8] * 4))
    drafter.accept(0, int32([1]), 0)
    out, lens = np.zeros((1, 16), np.int32), np.zeros(1, np.int32)
    trees = (np.zeros((1, 16), np.int32), width) if width else ()
    shared = {"others": others, "other_tokens": tokens}
    drafter.propose_batch(int32([0]), 16, out, lens, *trees, **shared)
    assert lens.tolist() == [length]


def padded_pass(policy: AutoPolicy, padded_rows: int) -> tuple[Drafter, list[int]]:
    """Return a drafter and its drafts' lengths: of two slots, one repeats itself."""
    drafter = create_drafter("suffix", slots=2, policy=policy, share=False)
    texts = [int32([1, 2, 3, 4, 5, 6, 7, 8] * 4), int32(range(100, 132))]
    for slot, text in enumerate(texts):
        drafter.begin(slot, text)
        drafter.accept(slot, int32([1 + 200 * slot]), 0)
    out, lens = np.zeros((2, 8), np.int32), np.zeros(2, np.int32)
    drafter.propose_batch(int32([0, 1]), 8, out, lens, padded_rows=padded_rows)
    return drafter, lens.tolist()


LINEAR = CostTable(((1, 1.0), (2, 1.3)))


def padded_pair() -> tuple[AutoPolicy, AutoPolicy, Drafter]:
    """Return a policy, one to compare it with, and a drafter whose two slots are padded to four."""
    policy = AutoPolicy(fixed=3, costs=LINEAR)
    drafter, lengths = padded_pass(policy, 4)
    assert lengths == [3, 0]
    return policy, AutoPolicy(costs=LINEAR), drafter


def test_a_draft_that_others_are_padded_to_must_pay_for_that() -> None:
    lengths = [padded_pass(AutoPolicy(costs=LINEAR), rows)[1] for rows in (0, 2, 4)]
    assert lengths[0][0] > 0
    assert lengths[1][0] > 0
    assert lengths[2] == [0, 0]
    assert all(one[1] == 0 for one in lengths)


@pytest.mark.parametrize(
    ("shortened", "emitted", "rows"),
    [(None, [2, 3, 4, 5], (5, 16)), (1, [2, 7], (3, 8))],  # four rows of a newest token and drafts
)
def test_padding_counts_for_what_a_pass_costs_as_drafts_were_sent(
    shortened: int | None, emitted: list[int], rows: tuple[int, int]
) -> None:
    policy, twin, drafter = padded_pair()
    if shortened is not None:
        drafter.shorten(0, shortened)
    drafter.accept(0, int32(emitted), len(emitted) - 1)
    drafter.accept(1, int32([7]), 0)
    drafter.propose(0, 1)
    twin.step(*rows)
    assert policy.rate == twin.rate < 1


def test_padding_is_of_the_pass_alone() -> None:
    policy, twin, drafter = padded_pair()
    drafter.accept(0, int32([2, 3, 4, 5]), 3)
    drafter.accept(1, int32([7]), 0)
    twin.step(5, 16)
    out, lens = np.zeros((2, 8), np.int32), np.zeros(2, np.int32)
    drafter.propose_batch(int32([0, 1]), 8, out, lens)
    assert lens.tolist() == [3, 0]
    drafter.accept(0, int32([6, 7, 8, 1]), 3)
    drafter.accept(1, int32([9]), 0)
    drafter.propose(0, 1)
    twin.step(5, 5)
    assert policy.rate == twin.rate


def test_padding_counts_where_another_drafter_drafts_for_the_pass_as_well() -> None:
    policy, twin, drafter = padded_pair()
    other = create_drafter("suffix", policy=policy, share=False)
    other.begin(0, int32(range(200, 232)))
    out, lens = np.zeros((1, 8), np.int32), np.zeros(1, np.int32)
    other.propose_batch(int32([0]), 8, out, lens, others=2, other_tokens=5)
    drafter.accept(0, int32([2, 3, 4, 5]), 3)
    drafter.accept(1, int32([7]), 0)
    other.accept(0, int32([8]), 0)
    drafter.propose(0, 1)
    twin.step(6, 17)  # four rows of four places, and the other drafter's
    assert policy.rate == twin.rate


def test_drafts_that_are_made_anew_without_padding_have_none() -> None:
    policy, twin, drafter = padded_pair()
    out, lens = np.zeros((2, 8), np.int32), np.zeros(2, np.int32)
    drafter.propose_batch(int32([0, 1]), 8, out, lens)
    drafter.accept(0, int32([2, 3, 4, 5]), 3)
    drafter.accept(1, int32([7]), 0)
    drafter.propose(0, 1)
    twin.step(5, 5)
    assert policy.rate == twin.rate


@pytest.mark.parametrize("width", [0, 8])
def test_a_room_without_bounds_is_no_smaller_than_another(width: int) -> None:
    drafts = []
    for room in (sys.maxsize, 1000):
        drafter = create_drafter("suffix", policy=AutoPolicy(costs=PROFILES["h100-8b"]))
        drafter.begin(0, int32([*range(50)] * 4))
        drafter.accept(0, [0], 0)
        draft = drafter.propose_tree(0, room, width)[0] if width else drafter.propose(0, room)
        drafts.append(draft.tolist())
    assert drafts[0] == drafts[1] != []


def test_a_dear_draft_waits_until_drafts_were_right() -> None:
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=DEAR))
    drafter.begin(0, TEXT)
    assert tokens_until_a_draft(drafter) == 2
    for token in TEXT[2:30]:
        assert drafter.propose(0, 60).size
        drafter.accept(0, int32([token]), 0)
    assert drafter.propose(0, 60).size
    drafter.accept(0, int32([7]), 0)
    for token in TEXT[:3]:  # two would do if drafts were still trusted
        assert not drafter.propose(0, 60).size
        drafter.accept(0, int32([token]), 0)


def test_another_request_starts_without_trust() -> None:
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=DEAR))
    drafter.begin(0, TEXT)
    assert tokens_until_a_draft(drafter) == 2
    drafter.begin(0, TEXT)
    assert not drafter.propose(0, 60).size


def test_a_tree_is_right_where_one_of_its_branches_is() -> None:
    begin, first, second = (int32(range(at, at + 40)) for at in (100, 200, 300))
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=DEAR))
    drafter.begin(0, np.concatenate([begin, first, begin, second, begin]))
    for token in second[:2]:  # which is not the branch that comes first
        assert not drafter.propose_tree(0, 60)[0].size
        drafter.accept(0, int32([token]), 0)
    assert drafter.propose_tree(0, 60)[0][0] == second[2]


def test_a_row_of_a_batch_waits_alike() -> None:
    drafter = create_drafter("suffix", policy=AutoPolicy(costs=DEAR))
    slots, rows = int32([0]), np.tile(TEXT, (1, 2))
    out, lens = np.zeros((1, 60), np.int32), np.zeros(1, np.int32)
    drafter.begin(0, TEXT)
    for emitted in range(1, 4):
        drafter.propose_batch(slots, 60, out, lens)
        assert bool(lens.any()) == (emitted == 3)
        drafter.follow_batch(slots, rows, int32([TEXT.size + emitted]), np.zeros(1, np.int32))
