"""Branches in llama.cpp's cache: rows, adoption, rollback, neighbours; against plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helpers.decoding import tokens_of
from helpers.gguf_models import llama
from helpers.machines import examples
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.errors import InputError, StateError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SLOTS, BRANCHES, CONTEXT = 2, 3, 128
# A text whose branch was adopted lies in its cells in another order, which rounds differently.
CLOSE = 1e-3
PLAIN = {"kv_unified": True, "threads": 1, "flash_attn": False, "type_k": "f32", "type_v": "f32"}
Open = Callable[..., LlamaTarget]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Return a model of single-precision weights, so that rounding is small."""
    path = tmp_path_factory.mktemp("model") / "single.gguf"
    llama(path, "F32", noise=0.5)
    with LlamaModel(path) as opened:
        yield opened


@pytest.fixture
def open_target(model: LlamaModel) -> Iterator[Open]:
    """Return a function that makes a target with branches; all are closed afterwards."""
    targets: list[LlamaTarget] = []

    def make(**changes: Any) -> LlamaTarget:
        sizes = {"slots": SLOTS, "context_size": CONTEXT, "branches": BRANCHES}
        targets.append(LlamaTarget(model, **{**PLAIN, **sizes, **changes}))
        return targets[-1]

    yield make
    for target in targets:
        target.close()


def plain_row(target: LlamaTarget, text: list[int]) -> np.ndarray:
    """Return the logits after a text, decoded alone from its beginning on sequence 0."""
    target.truncate(0, 0)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    batch.add(0, 0, text)
    target.decode(batch, rows)
    return rows.copy(0)


def paths_of(parents: list[int]) -> list[list[int]]:
    """Return for each token of a tree the indexes from its root to itself."""
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), i])
    return paths


def branches_of(parents: list[int]) -> list[int]:
    """Return the first branch of each token; first children go on with their parent's."""
    own: list[int] = []
    seen: set[int] = set()
    count = 0
    for parent in parents:
        if parent >= 0 and parent not in seen:
            own.append(own[parent])
        else:
            own.append(count)
            count += 1
        seen.add(parent)
    below = [{branch} for branch in own]
    for i in reversed(range(len(parents))):
        if parents[i] >= 0:
            below[parents[i]] |= below[i]
    return [min(branches) for branches in below]


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Return parents of a tree with at most BRANCHES leaves."""
    parents: list[int] = []
    children: dict[int, int] = {}
    leaves = 0
    for i in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(-1, i - 1))
        begins = parent < 0 or parent in children
        if begins and leaves == BRANCHES:
            parent = i - 1
            begins = parent in children
        if begins and leaves == BRANCHES:
            break
        leaves += begins
        children[parent] = children.get(parent, 0) + 1
        parents.append(parent)
    return parents


@pytest.mark.hypothesis
def test_a_cache_with_branches_is_one_without(model: LlamaModel) -> None:
    class Machine(RuleBasedStateMachine):
        """Texts of SLOTS sequences, grown by trees of which any path is right."""

        @initialize()
        def begin(self) -> None:
            options: dict[str, Any] = {"context_size": CONTEXT, **PLAIN}
            self.target = LlamaTarget(model, slots=SLOTS, branches=BRANCHES, **options)
            self.other = LlamaTarget(model, slots=1, **options)
            self.texts: list[list[int]] = [[] for _ in range(SLOTS)]  # in the cache
            self.seed = 0

        def teardown(self) -> None:
            if hasattr(self, "target"):
                self.target.close()
                self.other.close()

        def words(self, count: int) -> list[int]:
            self.seed += 1
            return [int(t) % model.vocab_size for t in tokens_of(self.seed, count)]

        @rule(data=st.data(), slots=st.sets(st.integers(0, SLOTS - 1), min_size=1))
        def grow(self, data: st.DataObject, slots: set[int]) -> None:
            """Decode pending tokens and a tree of some sequences at once, then keep a path."""
            batch, rows = Batch(self.target.max_batch), Rows(model.vocab_size)
            added = []
            for slot in sorted(slots):
                if len(self.texts[slot]) > CONTEXT - 16:
                    continue
                pending, parents = self.words(data.draw(st.integers(1, 3))), data.draw(trees())
                draft = self.words(len(parents))
                held = len(self.texts[slot])
                first = batch.add(slot, held, pending, draft, True, np.array(parents, np.int32))
                added.append((slot, pending, parents, draft, first))
            if not added:
                return
            self.target.decode(batch, rows)
            logits = [rows.copy(i) for i in range(batch.num_outputs)]
            for slot, pending, parents, draft, first in added:
                text = [*self.texts[slot], *pending]
                node = data.draw(st.integers(-1, len(parents) - 1))
                path = paths_of(parents)[node] if node >= 0 else []
                right = [*text, *(draft[i] for i in path)]
                expected = plain_row(self.other, right)
                assert np.abs(logits[first + 1 + node] - expected).max() < CLOSE
                branch = branches_of(parents)[node] if node >= 0 else 0
                if branch:
                    self.target.adopt(slot, branch)
                assert self.target.truncate(slot, len(right))
                self.texts[slot] = right

        @precondition(lambda self: any(self.texts))
        @rule(slot=st.integers(0, SLOTS - 1), part=st.floats(0, 1))
        def cut(self, slot: int, part: float) -> None:
            length = int(part * len(self.texts[slot]))
            assert self.target.truncate(slot, length)
            del self.texts[slot][length:]

        @precondition(lambda self: self.texts[0])
        @rule()
        def copy(self) -> None:
            self.target.truncate(1, 0)
            self.target.copy(0, 1, len(self.texts[0]))
            self.texts[1] = list(self.texts[0])

        @invariant()
        def the_cache_holds_the_texts_and_no_more(self) -> None:
            for slot, text in enumerate(getattr(self, "texts", ())):
                assert self.target._context.pos_max(slot) == len(text) - 1

    Machine.TestCase.settings = settings(
        max_examples=examples(25), stateful_step_count=12, deadline=None
    )
    Machine.TestCase().runTest()


def test_cells_of_wrong_branches_are_free_again(open_target: Open) -> None:
    target = open_target(slots=1, context_size=256)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    length = 0
    for step in range(60):  # 60 * 9 tokens in 256 cells
        batch.clear()
        draft = tokens_of(step, 8)
        batch.add(0, length, draft[:1], draft, True, np.array([-1, 0, 1, 0, 3, -1, 5, 6], np.int32))
        target.decode(batch, rows)
        target.adopt(0, step % 2 + 1)
        length += 2
        assert target.truncate(0, length)
    assert target._context.pos_max(0) == 119


def test_a_shift_moves_a_text_whose_branches_hold_it_too(open_target: Open) -> None:
    target, other = open_target(slots=1), open_target(slots=1, branches=1)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    text = [int(t) for t in tokens_of(1, 20)]
    batch.add(0, 0, text, [3, 4], True, np.array([-1, -1], np.int32))
    target.decode(batch, rows)
    target.truncate(0, len(text))
    plain_row(other, text)
    for one in (target, other):
        assert one.shift(0, 4, 6)
        batch.clear()
        batch.add(0, len(text) - 6, [7], [5], True)
        one.decode(batch, rows)
        if one is target:
            logits = rows.copy(1)
    assert np.abs(logits - rows.copy(1)).max() < CLOSE


def test_what_is_saved_of_a_slot_is_its_text(open_target: Open) -> None:
    target = open_target(slots=1)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    text = [int(t) for t in tokens_of(2, 12)]
    batch.add(0, 0, text, [3, 4, 5], True, np.array([-1, -1, 1], np.int32))
    target.decode(batch, rows)
    target.adopt(0, 1)
    target.truncate(0, len(text) + 2)
    state = target.dump(0)
    target.truncate(0, 0)
    assert target.load(0, state, len(text) + 2)
    batch.clear()
    batch.add(0, len(text) + 2, [9])
    target.decode(batch, rows)
    logits = rows.copy(0)
    assert np.abs(logits - plain_row(target, [*text, 4, 5, 9])).max() < CLOSE


def test_what_making_branches_takes_is_told_apart_from_the_pass(open_target: Open) -> None:
    """Each branch that is made is a walk over all cells."""
    target = open_target(slots=1, context_size=1 << 17)
    batch, rows = Batch(64), Rows(target.vocab_size)
    batch.add(0, 0, tokens_of(1, 20))
    target.decode(batch, rows)
    took: dict[str, float] = {}
    for kind, parents in {"chain": [-1, 0], "tree": [-1, -1]}.items():
        taken = []
        for _ in range(5):
            batch.clear()
            batch.add(0, 20, tokens_of(2, 1), tokens_of(3, 2), True, np.array(parents, np.int32))
            started = time.perf_counter()
            target.decode(batch, rows)
            assert 0 <= target.aside < time.perf_counter() - started
            taken.append(target.aside)
            target.truncate(0, 0)
            batch.clear()
            batch.add(0, 0, tokens_of(1, 20))
            target.decode(batch, rows)
        took[kind] = min(taken)
    assert took["tree"] > 10 * took["chain"]


def test_a_failed_decode_leaves_no_branch_behind(open_target: Open) -> None:
    target = open_target(slots=1)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    batch.add(0, 0, [5, 6], [7, 8], True, np.array([-1, -1], np.int32))
    target.decode(batch, rows)
    target.truncate(0, 2)
    batch.clear()
    batch.add(0, 5, [1], [2, 3], True, np.array([-1, -1], np.int32))  # a gap: refused
    with pytest.raises(Exception, match="refuses the batch"):
        target.decode(batch, rows)
    assert target.truncate(0, 2)
    batch.clear()
    batch.add(0, 2, [1], [2, 3], True, np.array([-1, -1], np.int32))
    target.decode(batch, rows)
    assert np.abs(rows.copy(2) - plain_row(target, [5, 6, 1, 3])).max() < CLOSE


def test_errors_of_branches(open_target: Open) -> None:
    target = open_target(slots=1)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    batch.add(0, 0, [5], [1, 2, 3, 4], True, np.array([-1, -1, -1, -1], np.int32))
    with pytest.raises(InputError, match="at most 3 branches here"):
        target.decode(batch, rows)
    batch.clear()
    batch.add(0, 0, [5], [1, 2], True, np.array([-1, -1], np.int32))
    target.decode(batch, rows)
    for branch in (0, 2, 3):
        with pytest.raises(InputError, match=f"the last tree of sequence 0 had no branch {branch}"):
            target.adopt(0, branch)
    target.close()
    with pytest.raises(StateError, match="closed"):
        target.adopt(0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": 0}, r"branches must be in 1\.\.31 with 2 slots, got 0"),
        ({"branches": 32}, r"branches must be in 1\.\.31 with 2 slots, got 32"),
        ({"branches": 5, "slots": 60}, r"branches must be in 1\.\.4 with 60 slots, got 5"),
        ({"kv_unified": False}, "branches need kv_unified"),
    ],
)
def test_bad_settings_are_refused(open_target: Open, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_target(**options)
