"""confidence and shorten: what any drafter claims of a draft, and drafts that are cut."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.backends import int32
from helpers.logits import teach
from ngramspec import DRAFTER_NAMES, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.errors import InputError, StateError

OPTIONS = {
    "recycle": {},
    "ngram-mod": {"n_match": 3, "n_min": 1},
    "ngram-cache": {"n_draft": 16},
    "suffix": {},
}
LOOP = np.resize(np.arange(9, dtype=np.int32), 100)
ALL = ",".join(DRAFTER_NAMES)


def begun(name: str) -> Drafter:
    """A drafter with two slots, of which slot 0 has a draft of 8 tokens."""
    drafter = create_drafter(name, slots=2, params={name: OPTIONS.get(name, {"size_n": 3})})
    drafter.begin(0, LOOP)
    teach(drafter)
    assert drafter.propose(0, 8).tolist() == np.roll(LOOP, -1)[:8].tolist()
    return drafter


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_there_is_a_claim_between_0_and_1_for_every_token(name: str) -> None:
    drafter = begun(name)
    for most in (8, 3, 1, 0):
        draft = drafter.propose(0, most)
        claims = drafter.confidence(0)
        assert (claims.dtype, claims.shape) == (np.float32, (len(draft),)) == (np.float32, (most,))
        assert ((claims > 0) & (claims < 1)).all()
    assert drafter.confidence(0).flags.owndata


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_claims_are_a_copy_and_go_with_the_draft(name: str) -> None:
    drafter = begun(name)
    claims = drafter.confidence(0)
    claims[:] = 5
    assert (drafter.confidence(0) < 1).all()
    drafter.accept(0, [1], 1)
    assert drafter.confidence(0).tolist() == []
    drafter.propose(0, 4)
    assert len(drafter.confidence(0)) == 4
    drafter.truncate(0, 50)
    assert drafter.confidence(0).tolist() == []


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_what_is_cut_off_was_offered_nevertheless(name: str) -> None:
    drafter = begun(name)
    drafter.propose(0, 4)
    claims = drafter.confidence(0).tolist()
    drafter.shorten(0, 1)
    assert drafter.offered(0).tolist() == claims
    drafter.shorten(0, 0)
    assert drafter.offered(0).tolist() == claims
    drafter.accept(0, [1], 0)
    assert drafter.offered(0).tolist() == []
    with pytest.raises(InputError, match="slot"):
        drafter.offered(9)


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_a_source_says_whether_what_it_offered_is_to_be_corrected(name: str) -> None:
    drafter = begun(name)
    drafter.propose(0, 4)
    assert drafter.offered_by(0) == ("" if name in ("suffix", "recycle") else name)
    drafter.accept(0, [1], 0)
    assert drafter.offered_by(0) == ""
    with pytest.raises(InputError, match="slot"):
        drafter.offered_by(9)


@pytest.mark.parametrize(
    "name", [name for name in DRAFTER_NAMES if name not in ("ngram-mod", "recycle")]
)
def test_more_agreement_is_claimed_to_be_more_likely(name: str) -> None:
    claims = []
    for same in (4, 30):  # tokens in a row that agree before the draft
        drafter = create_drafter(name, params={name: OPTIONS.get(name, {"size_n": 3})})
        text = np.arange(40, dtype=np.int32)
        times = 1 if same == 4 else 6
        drafter.begin(0, [*np.tile(text, times), *text[35 - same : 35]])
        drafter.propose(0, 2)
        claims.append(drafter.confidence(0)[0])
    assert claims[0] < claims[1]


@pytest.mark.parametrize("name", DRAFTER_NAMES)
@pytest.mark.parametrize("length", [0, 1, 5, 8])
def test_a_shortened_draft_is_what_will_be_verified(name: str, length: int) -> None:
    drafter = begun(name)
    claims = drafter.confidence(0)
    drafter.shorten(0, length)
    assert drafter.confidence(0).tolist() == claims[:length].tolist()
    with pytest.raises(InputError, match="num_accepted"):
        drafter.accept(0, LOOP[1:10], length + 1)
    drafter.accept(0, LOOP[1 : length + 2], length)
    assert drafter.length(0) == 100 + length + 1
    assert drafter.propose(0, 4).tolist() == np.resize(LOOP, 120)[length + 2 :][:4].tolist()
    assert drafter.check() == ""


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_what_was_cut_off_counts_as_never_drafted(name: str) -> None:
    drafter = begun(name)
    drafter.shorten(0, 8)
    drafter.shorten(0, 5)
    drafter.shorten(0, 3)
    drafter.accept(0, LOOP[1:2], 0)
    stats = drafter.stats()[name]
    assert (stats.num_drafts, stats.num_draft_tokens) == (1, 3)
    assert len(drafter.propose(0, 8)) == 8
    drafter.shorten(0, 0)
    drafter.shorten(0, 0)
    drafter.accept(0, [1], 0)
    stats = drafter.stats()[name]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 0)


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_bounds_and_states_are_checked_and_nothing_changes(name: str) -> None:
    drafter = begun(name)
    for length in (-1, 9):
        with pytest.raises(InputError, match=rf"length must be in 0..8, got {length}"):
            drafter.shorten(0, length)
    for slot in (-1, 2):
        with pytest.raises(InputError, match=r"slot must be in 0\.\.1"):
            drafter.shorten(slot, 0)
        with pytest.raises(InputError, match=r"slot must be in 0\.\.1"):
            drafter.confidence(slot)
    with pytest.raises(StateError, match="shorten"):
        drafter.shorten(1, 0)
    with pytest.raises(StateError, match="confidence"):
        drafter.confidence(1)
    assert len(drafter.confidence(0)) == 8
    drafter.accept(0, LOOP[1:9], 8)
    drafter.end(0)
    with pytest.raises(StateError, match="confidence"):
        drafter.confidence(0)


def test_in_a_chain_the_claims_are_those_of_the_source_that_drafted() -> None:
    names = ("ngram-simple", "suffix")
    drafter = create_drafter(",".join(names), size_n=12)
    drafter.begin(0, [1, 2, 3, 4] * 2)
    assert len(drafter.propose(0, 8)) > 0  # suffix: 12 tokens in a row are not there yet
    own = create_drafter("suffix")
    own.begin(0, int32([1, 2, 3, 4] * 2))
    own.propose(0, 8)
    assert drafter.confidence(0).tolist() == own.confidence(0).tolist()
    drafter.begin(0, [1, 2, 3, 4] * 6)
    drafter.propose(0, 3)
    assert drafter.confidence(0).tolist() == pytest.approx([21 / 22, 22 / 23, 23 / 24])
    drafter.accept(0, [9], 0)
    assert drafter.stats()["ngram-simple"].num_drafts == 1
