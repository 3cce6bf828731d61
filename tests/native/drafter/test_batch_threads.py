"""Batches of rows on several threads: what they give is what one thread gives, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.machines import examples
from ngramspec import AutoPolicy, Drafter, HashPool, NgramCache, SuffixPool, create_drafter
from ngramspec._native.core.threads import await_workers, num_workers
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError

SLOTS = 66  # a thread for each 16 rows
WIDTH = 400
VOCABULARY = 12

CASES: dict[str, Any] = {
    "suffix": lambda: ("suffix", {"share": False}),
    "suffix with a pool of its own": lambda: ("suffix", {"pool": SuffixPool(4096)}),
    "simple": lambda: ("ngram-simple", {"size_n": 2, "size_m": 6}),
    "map-k": lambda: ("ngram-map-k", {"size_n": 2, "size_m": 24}),
    "map-k4v": lambda: ("ngram-map-k4v", {"size_n": 2, "size_m": 6}),
    "mod": lambda: ("ngram-mod", {"n_match": 2, "n_min": 1, "n_max": 7, "pool": HashPool(1024)}),
    "cache": lambda: ("ngram-cache", {"dynamic": NgramCache()}),
    "suffix, recycle": lambda: ("suffix,recycle", {"params": {"suffix": {"share": False}}}),
    "map, mod, suffix": lambda: (
        "ngram-map-k,ngram-mod,suffix",
        {
            "params": {
                "ngram-map-k": {"size_n": 3},
                "ngram-mod": {"n_match": 3, "n_min": 1, "n_max": 9},
                "suffix": {"share": False},
            }
        },
    ),
}


@pytest.fixture(autouse=True)
def all_come() -> Iterator[None]:
    """Have every thread take part, however busy the machine is."""
    await_workers(True)
    yield
    await_workers(False)


def make(case: str, threads: int, policy: bool, max_history: int = 1 << 20) -> Drafter:
    spec, options = CASES[case]()
    chosen = AutoPolicy(costs=PROFILES["h100-8b"]) if policy else None
    return create_drafter(
        spec, slots=SLOTS, threads=threads, policy=chosen, max_history=max_history, **options
    )


def counts(drafter: Drafter) -> Any:
    """The statistics but the times."""
    return {
        name: [value for key, value in vars(s).items() if not key.endswith("_ns")]
        if hasattr(s, "__dict__")
        else [getattr(s, key) for key in s.__dataclass_fields__ if not key.endswith("_ns")]
        for name, s in drafter.stats().items()
    }


class Run:
    """One drafter over a table of rows; the same seed makes the same calls."""

    def __init__(self, drafter: Drafter, seed: int, trees: bool) -> None:
        self.drafter, self.trees = drafter, trees
        self.rng = np.random.default_rng(seed)
        self.table = np.zeros((SLOTS, WIDTH), np.int32)
        self.lengths = self.rng.integers(0, 40, SLOTS).astype(np.int32)
        self.seen: list[Any] = []
        for slot in range(SLOTS):
            text = np.resize(self.rng.integers(0, VOCABULARY, 9), self.lengths[slot])
            self.table[slot, : len(text)] = text
            drafter.begin(slot, text.astype(np.int32))

    def step(self) -> None:
        drafter, rng = self.drafter, self.rng
        rows = rng.permutation(SLOTS)[: rng.integers(SLOTS - 3, SLOTS + 1)].astype(np.int32)
        limits = rng.integers(0, 9, len(rows)).astype(np.int32)
        drafts, lens = np.full((len(rows), 8), -1, np.int32), np.zeros(len(rows), np.int32)
        parents = np.full((len(rows), 8), -9, np.int32) if self.trees else None
        drafter.propose_batch(rows, limits, drafts, lens, parents, 3)
        claims = [drafter.confidence(int(slot)).tolist() for slot in rows]
        self.seen += [drafts.tolist(), lens.tolist(), claims]
        if parents is not None:
            self.seen.append(parents.tolist())
        if "recycle" in drafter.sources:
            self.observe(rows)
        self.emit(rows, drafts, lens)
        self.follow()

    def observe(self, rows: Any) -> None:
        for slot in rows[:20].tolist():
            if self.lengths[slot]:
                tokens = self.rng.permutation(VOCABULARY)[None, :8].astype(np.int32)
                logs = -np.sort(self.rng.random((1, 8), np.float32))
                self.drafter.observe_top(slot, np.ascontiguousarray(tokens), logs)

    def emit(self, rows: Any, drafts: Any, lens: Any) -> None:
        """Write what the target says: some of the draft, and a token of its own."""
        for slot, draft, length in zip(rows.tolist(), drafts, lens.tolist(), strict=True):
            right = int(self.rng.integers(0, length + 1))
            new = [*draft[:right].tolist(), int(self.rng.integers(0, VOCABULARY))]
            at = int(self.lengths[slot])
            if at + len(new) <= WIDTH:
                self.table[slot, at : at + len(new)] = new
                self.lengths[slot] += len(new)

    def follow(self) -> None:
        """Follow all rows, but some: without a slot, of another text, with a bad token."""
        slots = np.arange(SLOTS, dtype=np.int32)
        table = self.table.copy()
        for kind, row in enumerate(self.rng.permutation(SLOTS)[:3].tolist()):
            if kind == 0:
                slots[row] = -1
            elif kind == 1:
                table[row] = VOCABULARY
            else:
                table[row, max(0, self.lengths[row] - 1)] = -5
        accepted = np.full(SLOTS, -9, np.int32)
        self.drafter.follow_batch(slots, table, self.lengths, accepted)
        lost = np.flatnonzero(accepted < 0)
        self.seen += [accepted.tolist(), lost.tolist()]
        for slot in lost.tolist():
            self.drafter.begin(slot, self.table[slot, : self.lengths[slot]])


def same(case: str, seed: int, threads: int, trees: bool, policy: bool, **options: Any) -> None:
    runs = [Run(make(case, count, policy, **options), seed, trees) for count in (1, threads)]
    for _ in range(6):
        for run in runs:
            run.step()
        assert runs[0].seen == runs[1].seen
    assert counts(runs[0].drafter) == counts(runs[1].drafter)
    for slot in range(SLOTS):
        assert np.array_equal(runs[0].drafter.history(slot), runs[1].drafter.history(slot))
    assert [run.drafter.check() for run in runs] == ["", ""]
    assert num_workers() >= threads - 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", [False, True], ids=["fixed", "auto"])
@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1 << 30), threads=st.sampled_from([2, 3, 4]), trees=st.booleans()
)  # fmt: skip
def test_threads_change_nothing(
    case: str, policy: bool, seed: int, threads: int, trees: bool
) -> None:
    same(case, seed, threads, trees, policy)


@pytest.mark.parametrize("case", CASES)
def test_threads_change_nothing_where_old_tokens_are_dropped(case: str) -> None:
    """Some rows are short of room, which one thread does after all others."""
    runs = []
    for threads in (1, 4):
        drafter = make(case, threads, False, max_history=1024)
        rng = np.random.default_rng(3)
        table = np.zeros((SLOTS, 4000), np.int32)
        lengths = rng.integers(980, 1025, SLOTS).astype(np.int32)
        table[:] = np.resize(rng.integers(0, VOCABULARY, 300), (SLOTS, 4000))
        for slot in range(SLOTS):
            drafter.begin(slot, table[slot, : lengths[slot]])
        seen: list[Any] = []
        slots, accepted = np.arange(SLOTS, dtype=np.int32), np.zeros(SLOTS, np.int32)
        drafts, lens = np.full((SLOTS, 8), -1, np.int32), np.zeros(SLOTS, np.int32)
        for _ in range(8):
            drafter.propose_batch(slots, 8, drafts, lens)
            lengths += rng.choice([0, 1, 8, 600], SLOTS, p=[0.1, 0.5, 0.35, 0.05]).astype(np.int32)
            lengths = np.minimum(lengths, 4000)
            drafter.follow_batch(slots, table, lengths, accepted)
            seen += [drafts.tolist(), lens.tolist(), accepted.tolist()]
            assert (accepted >= 0).all()
        assert drafter.check() == ""
        assert max(len(drafter.history(slot)) for slot in range(SLOTS)) <= 1024
        runs.append((seen, counts(drafter)))
    assert runs[0] == runs[1]


def test_a_slot_that_comes_twice_is_drafted_for_twice() -> None:
    drafter = make("suffix", 4, False)
    for slot in range(SLOTS):
        drafter.begin(slot, np.resize(np.arange(7, dtype=np.int32), 30 + slot % 7))
    slots = np.repeat(np.arange(SLOTS // 2, dtype=np.int32), 2)
    drafts, lens = np.zeros((SLOTS, 4), np.int32), np.zeros(SLOTS, np.int32)
    drafter.propose_batch(slots, 4, drafts, lens)
    assert np.array_equal(drafts[::2], drafts[1::2])
    assert lens.min() > 0
    assert drafter.stats()["suffix"].propose_calls == SLOTS
    accepted = np.full(SLOTS, -9, np.int32)
    with pytest.raises(InputError, match="each slot once at most, got 0 twice"):
        drafter.follow_batch(slots, drafts, lens, accepted)
    assert set(accepted.tolist()) == {-9}


@pytest.mark.parametrize("threads", [0, 65, -1, 1.5, "2", True])
def test_a_bad_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(InputError, match=r"threads must be in 1..64 or None"):
        create_drafter("suffix", threads=threads)


def test_threads_are_by_the_cores_unless_given() -> None:
    assert 1 <= create_drafter("suffix").threads <= 8
    assert create_drafter("suffix", threads=3).threads == 3
