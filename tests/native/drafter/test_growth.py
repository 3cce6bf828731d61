"""Slots whose tables grow while tokens are taken back: nothing is lost, no call does all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from helpers.backends import Backend, Native, NativeDrafter, Reference, int32
from helpers.machines import SETTINGS
from ngramspec import Drafter, NgramCache, SuffixPool, create_drafter
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec.models import confidence_weights
from reference import ReferenceDrafter

ROOM = 64  # tokens that the first lines of a suffix slot have room for, here
PIECE = 17
HALF = settings(SETTINGS, max_examples=max(6, SETTINGS.max_examples // 2))


def text_of(seed: int, length: int, vocabulary: int) -> list[int]:
    """New text, of which pieces come again."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocabulary, length)
    for start in range(60, length - 20, 90):
        tokens[start : start + 20] = tokens[start - 60 : start - 40]
    return tokens.tolist()


def suffix_of(backend: Backend) -> NativeDrafter | ReferenceDrafter:
    """A suffix drafter whose first lines are small."""
    if isinstance(backend, Reference):
        return backend.drafter("suffix", share=False, room=ROOM, max_draft=16)
    source = SuffixSource(1, None, 16, 0.01, True, confidence_weights(), None, ROOM)
    return NativeDrafter(Drafter((source,)))


class Machine(RuleBasedStateMachine):
    """One slot on each side, of several hundred tokens; every rule crosses some growth."""

    spec = "ngram-simple"
    vocabulary = 40
    params: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        sides = (Native(), Reference())
        self.native, self.reference = (self.drafter(side) for side in sides)
        self.both("begin", [])

    def drafter(self, backend: Backend) -> Any:
        if self.spec == "suffix":
            return suffix_of(backend)
        params = dict(self.params)
        if params.pop("dynamic", False):
            params["dynamic"] = backend.cache()
        return backend.drafter(self.spec, **params)

    def both(self, method: str, *arguments: Any) -> None:
        getattr(self.reference, method)(0, *arguments)
        getattr(self.native, method)(0, *arguments)

    def history(self) -> list[int]:
        return self.reference.slots[0].history

    def drafts_agree(self) -> None:
        expected = self.reference.propose(0, 16)
        draft = self.native.propose(0, 16)
        if self.reference.is_ambiguous(0):
            self.reference.adopt(0, draft)
        else:
            assert draft == expected

    def say(self, tokens: list[int]) -> None:
        for at in range(0, len(tokens), PIECE):
            self.drafts_agree()
            self.both("accept", tokens[at : at + PIECE], 0)

    @rule(seed=st.integers(0, 99), length=st.integers(1, 300))
    def generate(self, seed: int, length: int) -> None:
        self.say(text_of(seed, length, self.vocabulary))

    @rule(removed=st.integers(1, 40), seed=st.integers(0, 99), again=st.integers(1, 6))
    def take_back_and_go_on(self, removed: int, seed: int, again: int) -> None:
        for i in range(again):
            self.both("truncate", max(0, len(self.history()) - removed))
            self.say(text_of(seed + i, removed + 5, self.vocabulary))

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        self.both("truncate", int(share * len(self.history())))

    @rule(share=st.floats(0, 1), seed=st.integers(0, 99), length=st.integers(0, 500))
    def begin(self, share: float, seed: int, length: int) -> None:
        prefix = self.history()[: int(share * len(self.history()))]
        self.both("begin", prefix + text_of(seed, length, self.vocabulary))

    @invariant()
    def they_agree(self) -> None:
        assert self.native.check() == ""
        assert self.native.history(0) == self.history()
        self.drafts_agree()


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "simple": ("ngram-simple", 40, {"size_n": 2, "size_m": 9}),
    "simple, many n-grams": ("ngram-simple", 5000, {"size_n": 3, "size_m": 9}),
    "map-k": ("ngram-map-k", 40, {"size_n": 2, "size_m": 9}),
    "k4v": ("ngram-map-k4v", 12, {"size_n": 2, "size_m": 9}),
    "cache": ("ngram-cache", 12, {}),
    "cache, many n-grams": ("ngram-cache", 5000, {"dynamic": True}),
    "suffix": ("suffix", 40, {}),
    "suffix, few tokens": ("suffix", 4, {}),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", CASES)
def test_native_and_reference_agree_while_tables_grow(name: str) -> None:
    class Case(Machine):
        pass

    Case.spec, Case.vocabulary, Case.params = CASES[name]
    run_state_machine_as_test(Case, settings=HALF)


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache"])
def test_what_is_taken_back_at_any_moment_of_a_growth_leaves_no_trace(name: str) -> None:
    """Beside a drafter that begins with the same text, whose tables were made for it."""
    params = {} if name == "ngram-cache" else {"size_n": 3}
    grown, rng = create_drafter(name, **params), np.random.default_rng(3)
    text = rng.integers(0, 50, 4000, dtype=np.int32)
    text[2000:3000] = text[500:1500]
    grown.begin(0, text[:1])
    at = 1
    while at < len(text):
        more, back = int(rng.integers(1, 18)), int(rng.integers(0, 18))
        wrong = rng.integers(0, 50, back, dtype=np.int32)
        grown.accept(0, text[at : at + more], 0)
        at = min(at + more, len(text))
        grown.accept(0, wrong, 0)
        grown.truncate(0, at)
        if at % 7 == 0:
            assert grown.check() == ""
            whole = create_drafter(name, **params)
            whole.begin(0, text[:at])
            assert grown.propose(0, 16).tolist() == whole.propose(0, 16).tolist()
    assert grown.check() == ""


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-cache", "suffix"])
def test_what_replaces_a_full_table_is_filled_by_many_calls(name: str) -> None:
    """The memory of both shows for how long both are there."""
    drafter = create_drafter(name, **({"capacity": 4096} if name == "suffix" else {}))
    text = np.random.default_rng(5).integers(0, 50_000, 60_000, dtype=np.int32)
    drafter.begin(0, text[:1])
    sizes = []
    for i in range(1, len(text)):
        drafter.accept(0, text[i : i + 1], 0)
        sizes.append(drafter.nbytes)
    changes = np.diff(np.array(sizes, np.int64))
    given_back = np.flatnonzero(changes < 0)
    assert len(given_back)
    piece = np.max(-changes[given_back])
    assert piece <= sizes[-1] / 20  # in pieces, too
    taken = int(np.argmax(changes[: given_back[-1]]))
    later = given_back[given_back > taken]
    assert later[0] - taken > 500
    assert drafter.check() == ""


def test_a_shared_cache_grows_by_steps_under_all_of_its_users() -> None:
    cache = NgramCache()
    first, second = (create_drafter("ngram-cache", dynamic=cache) for _ in range(2))
    whole = NgramCache()
    text = np.random.default_rng(6).integers(0, 3000, 8000, dtype=np.int32)
    for drafter in (first, second):
        drafter.begin(0, text[:1])
    for at in range(1, len(text), 16):
        for drafter in (first, second):
            drafter.accept(0, text[at : at + 16], 0)
        if at % 15 == 1:
            assert cache.check() == ""
    for _ in range(2):
        whole.update(text, 1)
    assert len(cache) == len(whole)
    assert cache.followers(int32(text[70:73].tolist())) == whole.followers(
        int32(text[70:73].tolist())
    )
    assert np.array_equal(cache.records(), whole.records())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")
def test_a_pool_has_its_pages_before_a_request_writes_to_it() -> None:
    before = resident_bytes()
    pool = SuffixPool(1 << 20)
    assert resident_bytes() - before > 0.9 * pool.nbytes


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])
