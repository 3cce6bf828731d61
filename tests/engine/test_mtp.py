"""MtpHeads beside a slow, obvious account of what the target holds and the heads may have read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine import MtpHeads
from ngramspec.engine.sources.mtp import Assistant, States
from ngramspec.errors import BackendError, CapacityError

VOCAB, SLOTS, SIZE = 7, 3, 200
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=70)
Entry = tuple[int, float]  # a token, and the state before it
UNKNOWN = 0.0


def state_after(tokens: list[int]) -> float:
    """Return a number that tells texts apart, the target's state after one."""
    value = 1.0
    for token in tokens:
        value = (value * 31 + token + 1) % 8191
    return value + 1.0


class NotedHeads:
    """Heads that note what they read and draft token 3, with a state of their own."""

    vocab_size, state_width, num_sequences, context_size, max_batch = VOCAB, 1, SLOTS, SIZE, 16

    def __init__(self, num_heads: int, copies: bool, shifts: bool) -> None:
        self.num_heads, self.copies, self.shifts = num_heads, copies, shifts
        self.cells: list[dict[int, list[Entry]]] = [{} for _ in range(SLOTS)]  # by position

    def decode(self, batch: Batch, states: States, rows: Rows, head: int) -> States:
        """Note the batch, a list of entries per position: one for each head that has read it."""
        tokens, positions, sequences, outputs = batch.arrays()
        for i, slot in enumerate(sequences):
            cells, position = self.cells[slot], int(positions[i])
            starts = not cells or min(cells) > position  # an empty sequence begins anywhere
            assert starts or position - 1 in cells, "a gap in the cache"
            assert head or position not in cells, "an entry is written twice"
            entry = int(tokens[i]), float(states[i, 0])
            cells[position] = [*cells.get(position, [])[:head], entry]
        logits = np.zeros((int(outputs.sum()), VOCAB), np.float32)
        logits[:, 3] = 9.0
        rows.set(logits)
        return np.full((int(outputs.sum()), 1), 0.5, np.float32)

    def truncate(self, sequence: int, length: int) -> None:
        """Remove entries; those of earlier heads stay written, as in llama.cpp's cells."""
        self.cells[sequence] = {p: e for p, e in self.cells[sequence].items() if p < length}

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Copy entries, if these heads can."""
        assert not self.cells[sequence]
        if self.copies:
            self.cells[sequence] = {p: e for p, e in self.cells[source].items() if p < length}
        return self.copies

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Move entries down, if these heads can."""
        if not self.shifts:
            return False
        end = first + count
        cells = self.cells[sequence]
        self.cells[sequence] = {p: e for p, e in cells.items() if p < first} | {
            p - count: e for p, e in cells.items() if p >= end
        }
        return True

    def is_end(self, token_id: int) -> bool:
        """Return False: no token ends a text."""
        return False

    def listen(self, follower: Any) -> None:
        """Do nothing: the machine tells."""


class FollowingMachine(RuleBasedStateMachine):
    """Decodes, rejections, copies and shifts of a target, and drafts in between.

    texts: What the target holds of each slot. before, after: The states around each token; a shift
    removes tokens, but those that are left keep the states that they came with.
    """

    @initialize(copies=st.booleans(), shifts=st.booleans())
    def start(self, copies: bool, shifts: bool) -> None:
        self.heads = NotedHeads(1, copies, shifts)
        self.source = MtpHeads(self.heads, n_max=3)
        self.texts: list[list[int]] = [[] for _ in range(SLOTS)]
        self.before: list[list[float]] = [[] for _ in range(SLOTS)]
        self.after: list[list[float]] = [[] for _ in range(SLOTS)]
        self.newest: list[int | None] = [None] * SLOTS

    def decode(self, work: dict[int, list[int]], drafted: dict[int, int]) -> None:
        batch, states = Batch(SLOTS * 70), []
        for slot, tokens in work.items():
            text, ids = self.texts[slot], np.array(tokens, np.int32)
            sure = len(tokens) - drafted[slot]
            batch.add(slot, len(text), ids[:sure], ids[sure:])
            for token in tokens:
                self.before[slot].append(self.after[slot][-1] if text else UNKNOWN)
                text.append(token)
                self.after[slot].append(state_after(text))
            states += self.after[slot][-len(tokens) :]
        self.source.decoded(batch, np.array(states, np.float32)[:, None])

    def cut(self, slot: int, length: int) -> None:
        for one in (self.texts, self.before, self.after):
            del one[slot][length:]  # type: ignore[attr-defined]
        self.source.truncated(slot, length)

    @rule(work=st.dictionaries(st.integers(0, SLOTS - 1), TOKENS, min_size=1), data=st.data())
    def read_and_emit(self, work: dict[int, list[int]], data: st.DataObject) -> None:
        """Decode tokens of several slots; drafted ones may be rejected, then one is emitted."""
        fits = {s: t for s, t in work.items() if len(self.texts[s]) + len(t) + 4 < SIZE}
        if not fits:
            return
        drafted = {s: data.draw(st.integers(0, min(len(t) - 1, 20))) for s, t in fits.items()}
        self.decode(fits, drafted)
        for slot in fits:
            rejected = data.draw(st.integers(0, drafted[slot]))
            if rejected:
                self.cut(slot, len(self.texts[slot]) - rejected)
            newest = data.draw(st.integers(0, VOCAB - 1))
            self.source.begin(slot, np.array(self.texts[slot], np.int32))
            self.source.accept(slot, np.array([newest], np.int32), 0)
            self.newest[slot] = newest

    @rule(slot=st.integers(0, SLOTS - 1), share=st.floats(0, 1))
    def begin_another_text(self, slot: int, share: float) -> None:
        """A next request keeps a part of the text."""
        self.cut(slot, int(share * len(self.texts[slot])))
        self.source.begin(slot, np.array([1], np.int32))
        self.newest[slot] = None

    @rule(slot=st.integers(0, SLOTS - 1), other=st.integers(0, SLOTS - 1), share=st.floats(0, 1))
    def copy(self, slot: int, other: int, share: float) -> None:
        length = int(share * len(self.texts[other]))
        if slot == other or length == 0:
            return
        self.cut(slot, 0)
        for one in (self.texts, self.before, self.after):
            one[slot] = one[other][:length]  # type: ignore[index]
        self.source.copied(other, slot, length)
        self.newest[slot] = None

    @rule(slot=st.integers(0, SLOTS - 1), first=st.integers(0, 20), count=st.integers(1, 20))
    def shift(self, slot: int, first: int, count: int) -> None:
        if first + count > len(self.texts[slot]) - 1:
            return
        for one in (self.texts, self.before, self.after):
            del one[slot][first : first + count]  # type: ignore[attr-defined]
        self.source.shifted(slot, first, count)
        self.source.shift(slot, first, count)

    @rule(slot=st.integers(0, SLOTS - 1), tokens=TOKENS)
    def load(self, slot: int, tokens: list[int]) -> None:
        """The target gets a text without a decode, such as a saved one."""
        self.cut(slot, 0)
        self.texts[slot] = list(tokens)
        self.after[slot] = [state_after(tokens[: i + 1]) for i in range(len(tokens))]
        self.before[slot] = [UNKNOWN, *self.after[slot][:-1]]
        self.source.truncated(slot, 0)
        self.newest[slot] = None

    @precondition(lambda self: any(newest is not None for newest in self.newest))
    @rule(limit=st.integers(1, 4))
    def propose(self, limit: int) -> None:
        """Every draft has the right length, after a cache that holds the text to its end."""
        slots = [slot for slot in range(SLOTS) if self.newest[slot] is not None]
        drafts = self.source.propose(slots, [limit] * len(slots))
        for slot, draft in zip(slots, drafts, strict=True):
            assert draft.tolist() == [3] * min(limit, 3)
            cells, text = self.heads.cells[slot], [*self.texts[slot], self.newest[slot]]
            assert max(cells) >= len(text) - 1
            assert sorted(cells) == list(range(min(cells), max(cells) + 1))
            assert self.is_right(slot, len(text) - 1)

    @invariant()
    def what_is_read_is_right(self) -> None:
        if not hasattr(self, "heads"):
            return
        for slot, text in enumerate(self.texts):
            seen = self.source._texts[slot]  # which has not looked at the last decode yet
            for position in self.heads.cells[slot]:
                if position < min(seen.read, seen.length, len(text)):
                    assert self.is_right(slot, position)

    def is_right(self, slot: int, position: int) -> bool:
        """Return whether the entry is of the right token, with the state before it or none."""
        text = [*self.texts[slot], self.newest[slot]]
        befores = [*self.before[slot], *(self.after[slot][-1:] or [UNKNOWN])]
        before = befores[position]
        ((token, state),) = self.heads.cells[slot][position]
        return token == text[position] and state in (before, UNKNOWN)


TestFollowing = FollowingMachine.TestCase


class NotedAssistant(NotedHeads):
    """An assistant that notes what it is asked; the target changes the cache that it looks at."""

    def __init__(self) -> None:
        super().__init__(1, copies=False, shifts=False)
        self.asked: dict[int, list[tuple[int, int, float]]] = {}  # position, token and state
        self.full = False

    def decode(self, batch: Batch, states: States, rows: Rows, head: int) -> States:
        """Note the batch: a token of each slot."""
        if self.full:
            raise CapacityError("the cache has no room")
        tokens, positions, sequences, outputs = batch.arrays()
        assert outputs.all()
        assert len(set(sequences.tolist())) == len(sequences)
        for i, slot in enumerate(sequences.tolist()):
            entry = int(positions[i]), int(tokens[i]), float(states[i, 0])
            self.asked.setdefault(slot, []).append(entry)
        logits = np.zeros((len(batch), VOCAB), np.float32)
        logits[:, 3] = 9.0
        rows.set(logits)
        return np.full((len(batch), 1), 0.5, np.float32)

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Fail: nothing asks for it."""
        raise AssertionError

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Fail: nothing asks for it."""
        raise AssertionError


class AssistantMachine(FollowingMachine):
    """The same beside an assistant."""

    @initialize()
    def start(self) -> None:  # type: ignore[override]
        super().start(False, False)
        self.heads = NotedAssistant()
        self.source = Assistant(self.heads, n_max=3)

    @precondition(lambda self: any(newest is not None for newest in self.newest))
    @rule(limit=st.integers(1, 4))
    def propose(self, limit: int) -> None:
        """A draft begins with the newest token and the state before it, at one position."""
        slots = [slot for slot in range(SLOTS) if self.newest[slot] is not None]
        self.heads.asked = {}
        drafts = self.source.propose(slots, [limit] * len(slots))
        for slot, draft in zip(slots, drafts, strict=True):
            assert draft.tolist() == [3] * min(limit, 3)
            position, newest = len(self.texts[slot]), self.newest[slot]
            first = (position, newest, float(np.float32(self.after[slot][-1])))
            own = [(position, 3, 0.5)] * (min(limit, 3) - 1)
            assert self.heads.asked[slot] == [first, *own]

    @invariant()
    def what_is_read_is_right(self) -> None:
        """It reads nothing."""


TestAssistant = AssistantMachine.TestCase


def test_a_full_cache_ends_an_assistants_draft_and_is_no_failure() -> None:
    heads = NotedAssistant()
    source = Assistant(heads, n_max=3)
    batch = Batch(16)
    batch.add(0, 0, np.array([1, 2, 4], np.int32))
    source.decoded(batch, np.ones((3, 1), np.float32))
    source.begin(0, np.array([1, 2, 4], np.int32))
    source.accept(0, np.array([3], np.int32), 0)
    heads.full = True
    assert source.propose([0], [3])[0].size == 0
    heads.full = False
    assert source.propose([0], [3])[0].tolist() == [3, 3, 3]


def test_the_state_before_a_token_is_known_wherever_decodes_follow_one_another() -> None:
    heads = NotedHeads(1, True, True)
    source = MtpHeads(heads, n_max=3)
    text = [1, 2, 4, 5, 6, 2, 1, 0]
    for start, size in ((0, 3), (3, 1), (4, 4)):
        batch = Batch(16)
        batch.add(0, start, np.array(text[start : start + size], np.int32))
        states = [state_after(text[: start + i + 1]) for i in range(size)]
        source.decoded(batch, np.array(states, np.float32)[:, None])
    source.truncated(0, 6)  # two of the last four were rejected
    source.begin(0, np.array(text[:3], np.int32))
    source.accept(0, np.array([*text[3:6], 5], np.int32), 2)
    source.propose([0], [1])
    expected = [(t, state_after(text[:i]) if i else UNKNOWN) for i, t in enumerate(text[:6])]
    expected.append((5, state_after(text[:6])))
    assert [heads.cells[0][p] for p in range(7)] == [[entry] for entry in expected]


@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("pieces", [(100, 60), (20, 20, 20, 100), (100, 1, 59)])
def test_a_prompt_is_read_while_the_target_has_its_states(
    num_heads: int, pieces: tuple[int, ...]
) -> None:
    heads = NotedHeads(num_heads, True, True)
    source = MtpHeads(heads, n_max=3)
    rng = np.random.default_rng(0)
    text = rng.integers(0, VOCAB, 160).tolist()
    start = 0
    for size in pieces:
        batch = Batch(128)
        whole = start + size == len(text)
        batch.add(0, start, np.array(text[start : start + size], np.int32), None, whole)
        states = [state_after(text[: start + i + 1]) for i in range(size)]
        memory = np.array(states, np.float32)[:, None]
        source.decoded(batch, memory)
        memory[:] = -1.0  # it is the target's
        start += size
    assert len(heads.cells[0]) == len(text) - 1, "the last token may be read with a draft"
    slot = source._texts[0]
    held = [states for _, states in slot.unread]
    held += [slot.verified.states] if slot.verified else []
    assert sum(map(len, held)) <= 1
    source.begin(0, np.array(text, np.int32))
    source.accept(0, np.array([5], np.int32), 0)
    assert source.propose([0], [1])[0].tolist() == [3]
    expected = [(t, state_after(text[:i]) if i else UNKNOWN) for i, t in enumerate(text)]
    assert [heads.cells[0][p] for p in range(160)] == [[entry] for entry in expected]
    assert heads.cells[0][160] == [(5, state_after(text))]


@pytest.mark.parametrize("assistant", [False, True])
def test_slots_hold_nothing_of_a_prompts_size(assistant: bool) -> None:
    heads = NotedAssistant() if assistant else NotedHeads(1, True, True)
    source = Assistant(heads) if assistant else MtpHeads(heads)
    batch = Batch(300)
    for slot in range(SLOTS):
        batch.add(slot, 0, np.ones(100, np.int32))
    source.decoded(batch, np.ones((300, 1), np.float32))
    for text in source._texts:
        assert text.verified is not None
        assert len(text.verified.states) == 1
        assert not text.unread


def test_heads_that_fail_to_read_a_prompt_draft_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = NotedHeads(1, True, True)
    source = MtpHeads(heads, n_max=3)

    def fail(*_: Any) -> Any:
        raise CapacityError("no room")

    text = [*range(VOCAB)] * 10
    batch = Batch(128)
    batch.add(0, 0, np.array(text, np.int32))
    states = np.array([state_after(text[: i + 1]) for i in range(70)], np.float32)[:, None]
    with monkeypatch.context() as broken:
        broken.setattr(heads, "decode", fail)
        source.decoded(batch, states)
    source.begin(0, np.array(text, np.int32))
    source.accept(0, np.array([5], np.int32), 0)
    with pytest.raises(CapacityError):
        source.propose([0], [3])
    assert source.propose([0], [3])[0].tolist() == [3, 3, 3]
    read = {position: heads.cells[0][position] for position in (69, 70)}
    assert read == {69: [(text[69], state_after(text[:69]))], 70: [(5, state_after(text))]}


def test_heads_that_rest_are_not_asked() -> None:
    source = MtpHeads(NotedHeads(1, True, True), n_max=3)
    assert source.max_draft == 3
    source.follow(False)
    assert source.max_draft == 0
    source.follow(True)
    assert source.max_draft == 3


def test_a_state_that_was_brought_back_gets_no_draft() -> None:
    """The target has said more than it holds: its accepted tokens are decoded again."""
    heads = NotedHeads(1, True, True)
    source = MtpHeads(heads, n_max=3)
    batch = Batch(16)
    batch.add(0, 0, np.array([1, 2, 4], np.int32))
    source.decoded(batch, np.ones((3, 1), np.float32))
    source.begin(0, np.array([1, 2, 4], np.int32))
    source.accept(0, np.array([3], np.int32), 0)
    assert source.propose([0], [3])[0].tolist() == [3, 3, 3]
    batch.clear()
    batch.add(0, 3, np.array([3, 3, 3, 3], np.int32))
    source.decoded(batch, np.ones((4, 1), np.float32))
    source.truncated(0, 3)
    source.accept(0, np.array([3, 3, 5], np.int32), 2)
    assert source.propose([0], [3])[0].size == 0
    batch.clear()
    batch.add(0, 3, np.array([3, 3, 3, 5], np.int32))
    source.decoded(batch, np.ones((4, 1), np.float32))
    source.accept(0, np.array([6], np.int32), 0)
    assert source.propose([0], [3])[0].size == 3


@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize(("n_min", "size"), [(0, 2), (3, 3)])
def test_drafts_end_where_another_token_does_not_pay(num_heads: int, n_min: int, size: int) -> None:
    source = MtpHeads(NotedHeads(num_heads, False, False), n_min=n_min)
    batch = Batch(SLOTS * 64)
    for slot in range(2):
        batch.add(slot, 0, np.array([1, 2], np.int32))
    source.decoded(batch, np.ones((4, 1), np.float32))
    for slot in range(2):
        source.begin(slot, np.array([1, 2], np.int32))
        source.accept(slot, np.array([4], np.int32), 0)
    source.bound(0, lambda claims: len(claims) < 2)
    assert [draft.size for draft in source.propose([0, 1], [9, 9])] == [size, 3]


@pytest.mark.parametrize("error", [CapacityError("no room"), BackendError("it failed")])
def test_heads_draft_again_after_a_failed_decode(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = NotedHeads(1, True, True)
    source = MtpHeads(heads, n_max=3)

    def decode(first: int, tokens: list[int]) -> None:
        batch = Batch(64)
        batch.add(0, first, np.array(tokens, np.int32))
        source.decoded(batch, np.full((len(tokens), 1), 2.0, np.float32))

    decode(0, [1, 2, 3, 4])
    source.begin(0, np.array([1, 2, 3, 4], np.int32))
    source.accept(0, np.array([5], np.int32), 0)
    assert source.propose([0], [3])[0].size == 3
    decode(4, [5, 6, 1])
    source.accept(0, np.array([6, 1, 2], np.int32), 0)

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(heads, "decode", fail)
        with pytest.raises(type(error)):
            source.propose([0], [3])
    assert source.propose([0], [3])[0].size == 3  # the heads have checked their positions
