"""Rows that move, end, begin and come back, against requests that are kept by their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from helpers.machines import SETTINGS
from ngramspec import Drafter, create_drafter
from ngramspec.hosts import rows as rows_module
from ngramspec.hosts.rows import BatchDrafts, Rows, RowSlots

ROWS, WIDTH, MOST = 5, 400, 4
MARK_EVERY = 8  # a token of the request's own, so that no two texts end alike


def make(spec: str, slots: int) -> Drafter:
    return create_drafter(spec, slots=slots, size_n=2, size_m=6)


class SlowRequest:
    """One request with a drafter to itself."""

    def __init__(self, spec: str, mark: int, prompt: list[int]) -> None:
        self.drafter = make(spec, 1)
        self.mark, self.text = mark, list(prompt)
        self.num_seen = 0  # tokens that the drafter has seen
        self.last: list[int] = []  # its pending draft
        self.draft: list[int] = []  # the same, if the engine will verify it
        self.active = False

    def catch_up(self, count: int) -> None:
        """What a drafter is told that knows whose text it is."""
        if not self.active:
            self.num_seen = len(self.text) - count
            self.drafter.begin(0, self.text[: self.num_seen])
            self.active = True
        new = self.text[self.num_seen :]
        pending = self.last[: len(new) - 1] if self.num_seen else []
        right = 0
        while right < len(pending) and pending[right] == new[right]:
            right += 1
        self.drafter.accept(0, new, right)
        self.num_seen = len(self.text)

    def propose(self, most: int) -> list[int]:
        self.last = self.drafter.propose(0, most).tolist()
        return self.last

    def leave(self) -> None:
        if self.active:
            self.drafter.end(0)
            self.active = False
        self.last = []
        self.draft = []


class Batches(RuleBasedStateMachine):
    spec = "ngram-simple"
    keyed = False

    def __init__(self) -> None:
        super().__init__()
        self.drafts = BatchDrafts(make(self.spec, ROWS), MOST, WIDTH)
        self.table = np.zeros((ROWS, WIDTH), np.int32)
        self.rows: list[SlowRequest] = []
        self.away: list[SlowRequest] = []
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40), loops=st.integers(1, 3))
    def add(self, tokens: list[int], loops: int) -> None:
        if len(self.rows) < ROWS:
            self.count += 1
            mark = 100 + self.count
            prompt = [mark if i % MARK_EVERY == 0 else t for i, t in enumerate(tokens * loops)]
            self.rows.append(SlowRequest(self.spec, mark, prompt))

    @rule(row=st.integers(0, ROWS - 1), back=st.booleans())
    def remove(self, row: int, back: bool) -> None:
        """End or preempt a request; the last row slides into the hole."""
        if row < len(self.rows):
            gone = self.rows[row]
            last = self.rows.pop()
            if row < len(self.rows):
                self.rows[row] = last
            gone.leave()
            if back:
                self.away.append(gone)

    @rule(which=st.integers(0, 9))
    def resume(self, which: int) -> None:
        if which < len(self.away) and len(self.rows) < ROWS:
            self.rows.append(self.away.pop(which))

    @rule(a=st.integers(0, ROWS - 1), b=st.integers(0, ROWS - 1))
    def swap(self, a: int, b: int) -> None:
        if a < len(self.rows) and b < len(self.rows):
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]

    @rule(data=st.data(), shown=st.sampled_from([True, True, True, False]))
    def step(self, data: st.DataObject, shown: bool) -> None:
        """Emit tokens; where the step is not shown, its drafts are not asked for."""
        counts = np.zeros(len(self.rows), np.int32)
        for row, request in enumerate(self.rows):
            chunked = not request.active and data.draw(st.integers(0, 3)) == 0
            if chunked or len(request.text) > WIDTH - 60:
                request.leave()
                continue
            counts[row] = self.emit(request, data)
        if not shown:
            for request in self.rows:
                request.draft = []
            return
        lengths = np.array([len(request.text) for request in self.rows], np.int32)
        self.table[:] = 7  # rows hold nothing of use behind their texts
        for row, request in enumerate(self.rows):
            self.table[row, : len(request.text)] = request.text
        keys = [request.mark for request in self.rows] if self.keyed else None
        by_row = self.drafts.draft(Rows(self.table, lengths, counts, keys), MOST)
        for row, request in enumerate(self.rows):
            if counts[row]:
                request.catch_up(int(counts[row]))
                request.draft = request.propose(MOST)
            assert by_row[row] == request.draft, row
        assert self.drafts.drafter.check() == ""

    @staticmethod
    def emit(request: SlowRequest, data: st.DataObject) -> int:
        """Follow the draft for a while, then say something else."""
        before = len(request.text)
        for token in request.draft[: data.draw(st.integers(0, MOST))]:
            if (len(request.text) % MARK_EVERY == 0) != (token == request.mark) or token >= 7:
                break
            request.text.append(token)
        own = len(request.text) % MARK_EVERY == 0
        request.text.append(request.mark if own else data.draw(st.integers(0, 3)))
        return len(request.text) - before


class MapBatches(Batches):
    spec = "ngram-map-k4v"  # learns from what is accepted, unlike ngram-simple


class KeyedBatches(Batches):
    keyed = True


Batches.TestCase.settings = SETTINGS
MapBatches.TestCase.settings = SETTINGS
KeyedBatches.TestCase.settings = SETTINGS
TestBatches = Batches.TestCase
TestMapBatches = MapBatches.TestCase
TestKeyedBatches = KeyedBatches.TestCase


class Table:
    """Rows of a table, written by hand."""

    def __init__(self, rows: RowSlots) -> None:
        self.rows = rows
        self.ids = np.zeros((4, 100), np.int32)

    def show(self, texts: list[list[int]], counts: list[int], keys: Any = None) -> list[int]:
        for row, text in zip(self.ids, texts, strict=False):
            row[: len(text)] = text
        lengths = np.array(list(map(len, texts)), np.int32)
        rows = Rows(self.ids, lengths, np.array(counts, np.int32), keys)
        return self.rows.follow(rows).tolist()


@pytest.fixture
def drafter() -> Drafter:
    return make("ngram-simple", 3)


@pytest.fixture
def table(drafter: Drafter) -> Table:
    return Table(RowSlots(drafter))


def test_the_usual_step_begins_and_ends_nothing(table: Table, drafter: Drafter) -> None:
    texts = [[1, 2, 3], [4, 5, 6]]
    slots = table.show(texts, [1, 1])
    for _ in range(5):
        texts = [[*text, 9] for text in texts]
        assert table.show(texts, [1, 1]) == slots
        assert table.rows.steady
    assert drafter.stats()["ngram-simple"].begin_calls == 2


def test_a_moved_row_keeps_its_slot_and_is_not_begun_anew(table: Table, drafter: Drafter) -> None:
    a, b = [1, 2, 3], [4, 5, 6]
    first, second = table.show([a, b], [1, 1])
    assert table.show([[*b, 7]], [1]) == [second]  # the other one has ended
    assert not table.rows.steady
    assert drafter.stats()["ngram-simple"].begin_calls == 2
    assert drafter.history(second).tolist() == [4, 5, 6, 7]
    assert table.show([[*b, 7, 8], [*a, 1]], [1, 1]) == [second, first]  # it is back
    assert drafter.history(first).tolist() == [1, 2, 3, 1]


def test_the_next_turn_of_an_ended_request_begins(table: Table, drafter: Drafter) -> None:
    (slot,) = table.show([[1, 2, 3, 4]], [1])
    assert table.show([[1, 2, 3, 4, 5, 6, 7, 8]], [1]) == [slot]  # 3 tokens more than emitted
    moved = table.show([[9], [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]], [1, 1])
    assert moved[1] == slot
    assert drafter.stats()["ngram-simple"].begin_calls == 3
    assert drafter.history(slot).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]


def test_a_row_that_lost_tokens_begins_anew(table: Table, drafter: Drafter) -> None:
    (slot,) = table.show([[1, 2, 3, 4, 5]], [1])
    (again,) = table.show([[1, 2, 3]], [1])
    assert drafter.history(again).tolist() == [1, 2, 3]
    assert drafter.check() == ""
    assert table.show([[1, 2, 3, 8]], [1]) == [again]
    assert slot in range(3)


def test_equal_prompts_have_slots_of_their_own(table: Table, drafter: Drafter) -> None:
    slots = table.show([[1, 2, 3]] * 3, [1] * 3)
    assert sorted(slots) == [0, 1, 2]
    texts = [[1, 2, 3, n] for n in (4, 5, 6)]
    assert table.show(texts, [1] * 3) == slots
    assert table.show(texts[::-1], [0] * 3) == [-1] * 3
    assert [drafter.history(slot).tolist() for slot in slots] == texts


def test_rows_without_a_slot_have_no_drafts(table: Table) -> None:
    slots = table.show([[1], [2], [3], [4]], [1] * 4)
    assert slots[3] == -1
    assert sorted(slots[:3]) == [0, 1, 2]


def test_a_key_names_a_request_whatever_its_text(table: Table, drafter: Drafter) -> None:
    slots = table.show([[1, 2, 3], [1, 2, 3]], [1, 1], ["a", "b"])
    texts = [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert table.show(texts, [1, 1], ["b", "a"]) == slots[::-1]
    assert table.show([[9, 9, 9]], [1], ["a"]) == [slots[0]]  # another text under its name
    assert drafter.history(slots[0]).tolist() == [9, 9, 9]


def test_the_slot_that_ended_first_is_taken_first(table: Table) -> None:
    (first,) = table.show([[1, 2]], [1])
    (second,) = table.show([[5, 6]], [1])
    (third,) = table.show([[7, 8]], [1])
    assert len({first, second, third}) == 3
    assert table.show([[3, 3]], [1]) == [first]


def test_a_text_with_ids_below_zero_has_no_slot_and_harms_no_other(
    table: Table, drafter: Drafter, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [[1, -1, 2], [4, 5, 6]]
    for _ in range(3):
        texts = [[*text, 9] for text in texts]
        bad, good = table.show(texts, [1, 1])
        assert bad == -1
        assert drafter.history(good).tolist() == texts[1]
    assert table.show([[1, 2, 3], texts[1]], [1, 1])[0] >= 0  # another request in its row
    assert len(caplog.records) == 1
    assert drafter.stats()["ngram-simple"].begin_calls == 2


def show_long(rows: RowSlots, length: int, keys: Any) -> None:
    """Show a step with one request whose text nobody else has, and that has emitted a token."""
    text = np.random.default_rng(rows._step).integers(0, 150_000, (1, length), np.int32)
    rows.follow(Rows(text, np.array([length], np.int32), np.array([1], np.int32), keys))


@pytest.mark.parametrize("keyed", [True, False])
def test_ended_texts_take_bounded_memory(keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "IDLE", 50_000)
    drafter = create_drafter("suffix", slots=16, capacity=4096)
    rows, new = RowSlots(drafter), drafter.nbytes
    show_long(rows, 10_000, [0] if keyed else None)
    one = drafter.nbytes - new
    for key in range(1, 40):
        show_long(rows, 10_000, [key] if keyed else None)
        held = [drafter.length(slot) for slot in range(16)]
        assert held.count(10_000) == min(key + 1, 6)  # the one that runs, and 50,000 tokens
        assert held.count(0) == 16 - held.count(10_000)
        assert drafter.nbytes - new <= 6 * one
    show_long(rows, 60_000, [40] if keyed else None)
    show_long(rows, 10_000, [41] if keyed else None)
    assert drafter.nbytes - new <= 6 * one
    assert drafter.check() == ""


def test_the_ended_texts_that_are_kept_are_those_that_ended_last(
    monkeypatch: pytest.MonkeyPatch, table: Table, drafter: Drafter
) -> None:
    monkeypatch.setattr(rows_module, "IDLE", 4)
    (first,) = table.show([[1, 2, 3]], [1])
    (second,) = table.show([[4, 5, 6]], [1])
    table.show([[7, 8, 9]], [1])
    assert drafter.length(first) == 0
    (again,) = table.show([[4, 5, 6, 7]], [1])  # it is back, and goes on where it was
    assert again == second
    assert drafter.history(again).tolist() == [4, 5, 6, 7]


def test_a_short_text_does_not_keep_the_memory_of_a_long_one() -> None:
    sizes = []
    for lengths in ([20_000, 10], [10]):
        drafter = create_drafter("suffix", slots=1, capacity=4096)
        rows = RowSlots(drafter)
        for key, length in enumerate(lengths):
            show_long(rows, length, [key])
        sizes.append(drafter.nbytes)
    assert sizes[0] == sizes[1]


def test_drafts_end_before_ids_that_the_model_does_not_have(drafter: Drafter) -> None:
    drafts = BatchDrafts(drafter, 4, 100, vocab_size=50)
    ids = np.zeros((1, 100), np.int32)
    ids[0, :8] = [1, 2, 3, 60, 4, 5, 1, 2]
    by_row = drafts.draft(Rows(ids, np.array([8], np.int32), np.array([1], np.int32)), 4)
    assert by_row == [[3]]
    assert drafts.num_tokens == 2
    ids[0, 8:10] = [3, 9]
    drafts.draft(Rows(ids, np.array([10], np.int32), np.array([2], np.int32)), 4)
    assert drafter.stats()["ngram-simple"].num_draft_tokens == 1


def test_drafts_leave_room_for_one_token_more(drafter: Drafter) -> None:
    ids = np.array([[1, 2, 3, 4, 5, 1, 2, 0, 0, 0]], np.int32)
    for longest, size in ((10, 2), (9, 1), (8, 0), (7, 0)):
        drafts = BatchDrafts(make("ngram-simple", 1), 4, longest)
        by_row = drafts.draft(Rows(ids, np.array([7], np.int32), np.array([1], np.int32)), 4)
        assert by_row == [[3, 4, 5, 1][:size]]
