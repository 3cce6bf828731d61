"""LlamaContext over a llama.cpp made of Python callbacks: what is called, and every error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.hosts.llama import LlamaContext
from ngramspec.errors import BackendError, InputError, StateError

VOCAB, CONTEXT, MEMORY = 7, 0x1000, 0x2000
INT, POINTER = ctypes.c_int32, ctypes.POINTER


class LlamaBatch(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = (
        ("n_tokens", INT),
        ("token", POINTER(INT)),
        ("embd", POINTER(ctypes.c_float)),
        ("pos", POINTER(INT)),
        ("n_seq_id", POINTER(INT)),
        ("seq_id", POINTER(POINTER(INT))),
        ("logits", POINTER(ctypes.c_int8)),
    )


class FakeLlama:
    """Functions with llama.cpp's signatures that note their calls.

    status: What llama_decode returns. ends: What the cache holds, last position by sequence.
    """

    def __init__(self) -> None:
        self.status = 0
        self.ends: dict[int, int] = {}
        self.batches: list[list[tuple[int, int, int, int]]] = []
        self.removed: list[tuple[int, int, int]] = []
        self.copied: list[tuple[int, ...]] = []
        self.moved: list[tuple[int, ...]] = []
        self.can_shift = True
        self.num_cleared = 0
        self.can_remove: Callable[[int, int], bool] = lambda sequence, first: True
        self.logits = np.arange(16 * VOCAB, dtype=np.float32)
        self.memory: int | None = MEMORY
        self._keep = [
            ("llama_decode", ctypes.CFUNCTYPE(INT, ctypes.c_void_p, LlamaBatch)(self.decode)),
            ("llama_get_logits", _maker(ctypes.c_void_p)(lambda _: self.logits.ctypes.data)),
            ("llama_get_memory", _maker(ctypes.c_void_p)(lambda _: self.memory)),
            ("llama_memory_seq_rm", _maker(ctypes.c_bool, INT, INT, INT)(self.remove)),
            ("llama_memory_seq_cp", _maker(None, INT, INT, INT, INT)(self.copy)),
            ("llama_memory_seq_add", _maker(None, INT, INT, INT, INT)(self.move)),
            ("llama_memory_can_shift", _maker(ctypes.c_bool)(lambda _: self.can_shift)),
            ("llama_memory_seq_pos_min", _maker(INT, INT)(lambda _, s: min(0, self.last(s)))),
            ("llama_memory_seq_pos_max", _maker(INT, INT)(lambda _, s: self.last(s))),
            ("llama_memory_clear", _maker(None, ctypes.c_bool)(self.clear)),
        ]

    @property
    def calls(self) -> dict[str, int]:
        return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in self._keep}

    def decode(self, context: int, batch: Any) -> int:
        assert context == CONTEXT
        entries = []
        for i in range(batch.n_tokens):
            assert batch.n_seq_id[i] == 1
            entries.append((batch.token[i], batch.pos[i], batch.seq_id[i][0], batch.logits[i]))
        self.batches.append(entries)
        return self.status

    def remove(self, memory: int, sequence: int, first: int, end: int) -> bool:
        assert memory == MEMORY
        self.removed.append((sequence, first, end))
        return self.can_remove(sequence, first)

    def copy(self, memory: int, *arguments: int) -> None:
        self.copied.append(arguments)

    def move(self, memory: int, *arguments: int) -> None:
        self.moved.append(arguments)

    def clear(self, memory: int, data: bool) -> None:
        self.num_cleared += 1

    def last(self, sequence: int) -> int:
        return self.ends.get(sequence, -1)


def _maker(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)


@pytest.fixture
def fake() -> FakeLlama:
    return FakeLlama()


def context_of(fake: FakeLlama, **settings: Any) -> LlamaContext:
    options = {"num_sequences": 3, "context_size": 20, **settings}
    return LlamaContext(fake.calls, CONTEXT, VOCAB, settings.pop("max_batch", 8), **options)


def batch_of(*adds: tuple[Any, ...]) -> Batch:
    batch = Batch(32)
    for add in adds:
        batch.add(*add)
    return batch


def test_a_batch_reaches_llama_and_the_logits_are_shown_in_place(fake: FakeLlama) -> None:
    context, rows = context_of(fake), Rows(VOCAB)
    batch = batch_of((2, 5, [1, 2], None, False), (0, 0, [3], [4]))
    assert context.decode(batch, rows) == 0
    assert fake.batches == [[(1, 5, 2, 0), (2, 6, 2, 0), (3, 0, 0, 1), (4, 1, 0, 1)]]
    assert len(rows) == 2
    fake.logits[VOCAB] = 99.0
    assert rows.copy(1)[0] == 99.0
    assert [context.last_count(s) for s in range(3)] == [2, 0, 2]


def test_without_outputs_there_are_no_rows(fake: FakeLlama) -> None:
    context, rows = context_of(fake), Rows(VOCAB)
    rows.set(np.zeros((2, VOCAB), np.float32))
    assert context.decode(batch_of((0, 0, [1], None, False)), rows) == 0
    assert len(rows) == 0


def test_rows_of_an_earlier_batch_are_empty_after_the_next(fake: FakeLlama) -> None:
    context, earlier, rows = context_of(fake), Rows(VOCAB), Rows(VOCAB)
    context.decode(batch_of((0, 0, [1])), earlier)
    context.decode(batch_of((0, 1, [2])), rows)
    assert (len(earlier), len(rows)) == (0, 1)
    with pytest.raises(InputError, match="row"):
        earlier.argmax(0)
    own = Rows(VOCAB)
    own.set(np.zeros((2, VOCAB), np.float32))  # an array of one's own stays
    context.decode(batch_of((0, 2, [3])), own)
    own.set(np.zeros((2, VOCAB), np.float32))
    context.decode(batch_of((0, 3, [4])), rows)
    assert len(own) == 2


def test_a_single_token_is_padded_and_the_padding_removed(fake: FakeLlama) -> None:
    context, rows = context_of(fake, pad_sequence=3), Rows(VOCAB)
    assert context.decode(batch_of((1, 9, [5])), rows) == 0
    assert fake.batches == [[(5, 9, 1, 1), (5, 0, 3, 0)]]
    assert fake.removed == [(3, 0, -1)]
    assert len(rows) == 1
    context.decode(batch_of((1, 10, [5, 6])), rows)
    assert fake.batches[1] == [(5, 10, 1, 0), (6, 11, 1, 1)]
    assert len(fake.removed) == 1


@pytest.mark.parametrize("status", [1, -1])
def test_a_refused_batch_removes_nothing(fake: FakeLlama, status: int) -> None:
    context, rows = context_of(fake), Rows(VOCAB)
    context.decode(batch_of((0, 0, [1, 2])), rows)
    fake.status = status
    assert context.decode(batch_of((0, 2, [1])), rows) == status
    assert fake.removed == []
    assert len(rows) == 0
    assert context.last_count(0) == 2


@pytest.mark.parametrize("status", [2, -2, -3])
def test_a_failed_batch_is_taken_back(fake: FakeLlama, status: int) -> None:
    context = context_of(fake)
    fake.status = status
    fake.can_remove = lambda sequence, first: sequence == 0 or first == 0
    batch = batch_of((2, 5, [1, 2]), (0, 3, [3]))
    assert context.decode(batch, Rows(VOCAB)) == status
    assert fake.removed == [(0, 3, -1), (2, 5, -1), (2, 0, -1)]


def test_logits_that_are_not_there_are_a_failure(fake: FakeLlama) -> None:
    fake._keep[1] = ("llama_get_logits", _maker(ctypes.c_void_p)(lambda _: None))
    rows = Rows(VOCAB)
    assert context_of(fake).decode(batch_of((0, 4, [1])), rows) not in (0, 1, -1)
    assert fake.removed == [(0, 4, -1)]
    assert len(rows) == 0


def test_the_cache_is_edited_as_asked(fake: FakeLlama) -> None:
    context = context_of(fake)
    fake.ends = {0: 9}
    assert context.truncate(0, 4)
    fake.can_remove = lambda sequence, first: False
    assert not context.truncate(0, 3)
    context.copy(0, 2, 6)
    context.clear(1)
    context.clear()
    assert fake.removed == [(0, 4, -1), (0, 3, -1), (1, 0, -1)]
    assert fake.copied == [(0, 2, 0, 6)]
    context.copy(0, 2, 6, whole=True)
    context.copy(0, 2, 10, whole=True)
    assert fake.copied[1:] == [(0, 2, -1, -1)] * 2
    assert fake.removed[3:] == [(2, 6, -1)]
    assert fake.num_cleared == 1
    assert (context.pos_min(0), context.pos_max(0), context.pos_max(1)) == (0, 9, -1)


def test_what_the_last_decode_left_is_forgotten(fake: FakeLlama) -> None:
    context = context_of(fake)
    for forget in (context.forget_last, context.clear, lambda _: context.clear()):
        context.decode(batch_of((1, 0, [1, 2])), Rows(VOCAB))
        assert context.last_count(1) == 2
        forget(1)
        assert context.last_count(1) == 0


BAD_BATCHES = {
    "empty": ([], r"1\.\.8 tokens .* got 0 and 0"),
    "large": ([(0, 0, list(range(5)) + [0] * 4)], r"got 9 and 1"),
    "outputs": ([(0, 0, [1], [2, 3, 4])], "at most 3 outputs, got 4 and 4"),
    "token": ([(0, 0, [1, VOCAB])], r"tokens must be in 0\.\.6, .* got 7, 0, 1"),
    "sequence": ([(0, 0, [1]), (3, 0, [1])], r"sequences in 0\.\.2, .* got 1, 3, 0"),
    "position": ([(0, 20, [1])], r"0\.\.19, got 1, 0, 20"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches_never_reach_llama(fake: FakeLlama, name: str) -> None:
    adds, message = BAD_BATCHES[name]
    context, rows = context_of(fake, max_outputs=3), Rows(VOCAB)
    rows.set(np.zeros((2, VOCAB), np.float32))
    with pytest.raises(InputError, match=message):
        context.decode(batch_of(*adds), rows)
    assert fake.batches == []
    assert len(rows) == 2


def test_rows_of_another_width_are_refused(fake: FakeLlama) -> None:
    with pytest.raises(InputError, match="rows must have 7 columns, got 8"):
        context_of(fake).decode(batch_of((0, 0, [1])), Rows(8))
    assert fake.batches == []


BAD_EDITS: dict[str, tuple[Callable[[LlamaContext], Any], str]] = {
    "truncate": (lambda c: c.truncate(3, 0), r"sequence must be in 0\.\.2, got 3"),
    "negative": (lambda c: c.truncate(-1, 0), "got -1"),
    "length": (lambda c: c.truncate(0, -1), "length must be >= 0, got -1"),
    "pos_min": (lambda c: c.pos_min(3), "got 3"),
    "pos_max": (lambda c: c.pos_max(3), "got 3"),
    "last_count": (lambda c: c.last_count(3), "got 3"),
    "forget_last": (lambda c: c.forget_last(-2), "got -2"),
    "clear": (lambda c: c.clear(3), "got 3"),
    "source": (lambda c: c.copy(3, 1, 1), "got 3"),
    "target": (lambda c: c.copy(0, 3, 1), "got 3"),
    "to itself": (lambda c: c.copy(0, 0, 1), "an empty sequence"),
    "too long": (lambda c: c.copy(0, 1, 6), "the source, which has 5"),
    "nothing": (lambda c: c.copy(0, 1, 0), "copying 0 tokens"),
    "not empty": (lambda c: c.copy(0, 2, 1), "an empty sequence, which has 1"),
}


@pytest.mark.parametrize("name", BAD_EDITS)
def test_bad_edits_never_reach_llama(fake: FakeLlama, name: str) -> None:
    fake.ends = {0: 4, 2: 0}
    call, message = BAD_EDITS[name]
    with pytest.raises(InputError, match=message):
        call(context_of(fake))
    assert fake.removed == fake.copied == []


def test_a_closed_context_is_used_no_more_and_its_rows_are_empty(fake: FakeLlama) -> None:
    context, rows = context_of(fake), Rows(VOCAB)
    context.decode(batch_of((0, 0, [1])), rows)
    context.close()
    context.close()
    assert len(rows) == 0
    for call in (lambda: context.truncate(0, 0), context.clear, lambda: context.pos_max(0)):
        with pytest.raises(StateError, match="the context is closed"):
            call()
    with pytest.raises(StateError):
        context.decode(batch_of((0, 0, [1])), rows)


def test_rows_that_show_an_array_by_now_survive_the_close(fake: FakeLlama) -> None:
    context, rows = context_of(fake), Rows(VOCAB)
    context.decode(batch_of((0, 0, [1])), rows)
    rows.set(np.ones((3, VOCAB), np.float32))
    context.close()
    assert len(rows) == 3


BAD_SETTINGS = [
    {"vocab_size": 0},
    {"max_batch": 0},
    {"max_batch": 1, "pad_sequence": 3},
    {"context_size": 0},
    {"num_sequences": 0},
    {"num_sequences": 257},
    {"max_outputs": -1},
    {"pad_sequence": 2},
    {"context_address": 0},
]


@pytest.mark.parametrize("settings", BAD_SETTINGS, ids=str)
def test_settings_out_of_bounds_are_refused(fake: FakeLlama, settings: dict[str, int]) -> None:
    options = {"context_address": CONTEXT, "vocab_size": VOCAB, "max_batch": 8, "num_sequences": 3}
    with pytest.raises(InputError):
        LlamaContext(fake.calls, **{**options, **settings})


def test_a_library_without_a_function_or_a_cache_is_refused(fake: FakeLlama) -> None:
    with pytest.raises(BackendError, match="no function llama_get_memory"):
        LlamaContext({}, CONTEXT, VOCAB, 8)
    fake.memory = None
    with pytest.raises(BackendError, match="the model keeps no cache"):
        context_of(fake)
