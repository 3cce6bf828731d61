"""LlamaTarget: many sequences at once, rollback, copies, errors and freeing."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.decoding import rows_of, tokens_of
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.sampling import Sampling
from ngramspec.errors import BackendError, CapacityError, InputError, StateError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

EXACT = {"threads": 1, "flash_attn": True}
ATTENTION = ["llama", "gemma3", "big-vocab", "embedded"]
Open = Callable[..., LlamaTarget]


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("name", ATTENTION)
def test_many_sequences_in_one_batch_give_the_rows_of_each_alone(
    open_target: Open, name: str, unified: bool
) -> None:
    target = open_target(name, slots=4, kv_unified=unified)
    texts = [tokens_of(seed, 12 + seed) for seed in range(4)]  # of 64 tokens on, rounding differs
    alone = []
    for tokens in texts:
        alone.append(rows_of(target, tokens, step=5))
        target.truncate(0, 0)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    firsts = [batch.add(s, 0, texts[s][:1], texts[s][1:]) for s in (2, 0, 3, 1)]
    target.decode(batch, rows)
    assert firsts == [0, 14, 26, 41]
    for first, sequence in zip(firsts, (2, 0, 3, 1), strict=True):
        logits = [rows.copy(first + i) for i in range(texts[sequence].size)]
        assert np.array_equal(logits, alone[sequence])


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_recurrent_sequences_of_unequal_length_share_a_batch(open_target: Open, name: str) -> None:
    target = open_target(name, slots=3)
    texts = [tokens_of(seed, 9 * seed + 3) for seed in range(3)]
    alone = []
    for tokens in texts:
        alone.append(rows_of(target, tokens))
        target.truncate(0, 0)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)
    firsts = [batch.add(s, 0, texts[s][:1], texts[s][1:]) for s in range(3)]
    target.decode(batch, rows)
    for sequence, first in enumerate(firsts):
        logits = np.array([rows.copy(first + i) for i in range(texts[sequence].size)])
        assert np.abs(logits - alone[sequence]).max() < 1e-3


@pytest.mark.parametrize("name", ATTENTION)
def test_after_a_rollback_of_any_length_rows_are_as_before(open_target: Open, name: str) -> None:
    target = open_target(name)
    tokens, other = tokens_of(1, 24), tokens_of(2, 24)
    expected = rows_of(target, tokens, step=1)
    for length in range(1, 24):
        assert target.truncate(0, length)
        rows_of(target, other[length:], start=length)
        assert target.truncate(0, length)
        assert np.array_equal(rows_of(target, tokens[length:], start=length), expected[length:])


def test_removing_nothing_and_removing_all_always_works(open_target: Open) -> None:
    for name in ("llama", "mamba", "lfm2", "gemma3"):
        target = open_target(name, slots=2)
        rows_of(target, tokens_of(1, 10), sequence=1)
        assert target.truncate(1, 10)
        assert target.truncate(1, 99)
        assert target.truncate(0, 5)
        assert target.truncate(1, 0)
        assert rows_of(target, tokens_of(1, 10), sequence=1).shape == (10, target.vocab_size)


@pytest.mark.parametrize("length", [200, 300, 700])
def test_a_sliding_window_that_is_gone_is_not_taken_back_to(open_target: Open, length: int) -> None:
    """Windows of 64: what was overwritten behind them is missing, and truncate says so."""
    target = open_target("gemma3", slots=1, swa_full=False, n_ubatch=32, context_size=1024)
    tokens = tokens_of(1, length)
    expected = rows_of(target, tokens, step=32)
    first = target._context.pos_min(0)
    assert (first > 0) == (length > 256)  # of a cache of 256 cells
    least = first + 63 if first else 1  # the next token looks back on 63 others
    for end in {1, 10, least - 1} - {0} if first else ():
        assert not target.truncate(0, end)
    assert target.truncate(0, length - 1)
    assert target.truncate(0, least)
    logits = rows_of(target, tokens[least : least + 20], start=least)
    moved = np.abs(logits - expected[least : least + 20]).max()
    assert moved < 1.0  # cells are in another order now, so the rounding differs
    assert target.truncate(0, 0)


@pytest.mark.parametrize("swa_full", [True, False])
def test_a_sliding_window_that_was_saved_is_brought_back(open_target: Open, swa_full: bool) -> None:
    """A dump has the window before the end only."""
    target = open_target("gemma3", slots=2, swa_full=swa_full, context_size=512, kv_unified=True)
    tokens = tokens_of(1, 300)
    expected = rows_of(target, tokens[:200], step=50)
    rows_of(target, tokens[200:], start=200)
    whole = target.dump(0)
    assert target.truncate(0, 180)
    window = target.save(0)
    assert window.size < whole.size
    rows_of(target, tokens_of(2, 40), sequence=0, start=180)  # cells lie elsewhere
    for sequence in (0, 1):
        target.truncate(sequence, 0)
        assert target.load(sequence, whole, 300)
        assert not target.truncate(sequence, 180)
        assert target.restore(sequence, window, 180)
        logits = rows_of(target, tokens[180:200], sequence=sequence, start=180)
        assert np.abs(logits - expected[180:]).max() < 1.0
        assert not target.truncate(sequence, 100)


@pytest.mark.parametrize("unified", [True, False])
def test_a_copy_goes_on_like_its_source(open_target: Open, unified: bool) -> None:
    target = open_target(slots=3, kv_unified=unified)
    assert target.min_copy == 32
    tokens = tokens_of(3, 40)
    expected = rows_of(target, tokens, step=10)
    target.copy(0, 2, 25)
    assert np.array_equal(rows_of(target, tokens[25:], sequence=2, start=25), expected[25:])
    target.truncate(0, 0)
    target.truncate(2, 20)
    assert np.array_equal(rows_of(target, tokens[20:], sequence=2, start=20), expected[20:])


def test_a_copy_is_of_what_its_source_held_then(open_target: Open) -> None:
    """A cache of its own is copied in the next decode, after the source may have changed."""
    target = open_target(slots=2, kv_unified=False)
    tokens = tokens_of(3, 40)
    expected = rows_of(target, tokens, step=10)
    target.copy(0, 1, 25)
    target.truncate(0, 0)
    rows_of(target, tokens_of(7, 30))
    assert np.array_equal(rows_of(target, tokens[25:], sequence=1, start=25), expected[25:])


def test_copying_a_whole_cache_must_pay(open_target: Open) -> None:
    sizes = [open_target(slots=2, context_size=n, kv_unified=False).min_copy for n in (256, 2048)]
    assert sizes == [32, 128]
    assert open_target(slots=2, context_size=2048, kv_unified=True).min_copy == 32


def test_only_caches_of_plain_attention_copy(open_target: Open) -> None:
    for name in ("mamba", "gemma3"):
        target = open_target(name, slots=2)
        rows_of(target, tokens_of(1, 5))
        assert target.min_copy is None
        with pytest.raises(StateError, match="cannot copy"):
            target.copy(0, 1, 3)


def test_a_padded_single_token_has_the_bits_of_a_batch(open_target: Open) -> None:
    """With two threads llama.cpp divides the attention of a lone token, from 512 cells on."""
    tokens = tokens_of(4, 620)
    for pad, exact in ((True, True), (False, False)):
        target = open_target("llama", context_size=700, threads=2, pad=pad, kv_unified=True)
        rows_of(target, tokens[:600], step=50)
        alone = rows_of(target, tokens[600:], start=600, step=1)
        target.truncate(0, 600)
        batched = rows_of(target, tokens[600:], start=600)
        assert np.array_equal(alone, batched) == exact
        assert target.num_sequences == 1


def test_every_sequence_can_be_full_at_the_same_time(open_target: Open) -> None:
    unified = {"kv_unified": True}
    for settings in ({}, unified, unified | {"pad": True}):
        target = open_target(slots=3, context_size=100, **settings)
        assert target.context_size == 100
        for sequence in range(3):
            rows_of(target, tokens_of(sequence, 100), sequence=sequence, step=33)
        batch = Batch(4)
        batch.add(1, 100, [5])
        with pytest.raises(InputError, match=r"positions in 0\.\.99, got 5, 1, 100"):
            target.decode(batch, Rows(target.vocab_size))


def test_a_full_cache_is_a_capacity_error_and_changes_nothing(open_target: Open) -> None:
    target = open_target(slots=2, context_size=512, kv_unified=True, cells=512)
    tokens = tokens_of(5, 300)
    rows_of(target, tokens[:250], step=50)
    rows_of(target, tokens[:250], sequence=1, step=50)
    with pytest.raises(CapacityError, match="no room for a batch of 30 tokens"):
        rows_of(target, tokens[250:280], start=250)
    expected = rows_of(target, tokens[250:262], start=250)
    target.truncate(1, 0)
    target.truncate(0, 250)
    assert np.array_equal(rows_of(target, tokens[250:262], start=250), expected)


def test_a_gap_in_the_positions_is_a_backend_error_and_changes_nothing(open_target: Open) -> None:
    target = open_target()
    expected = rows_of(target, tokens_of(6, 20), step=10)
    target.truncate(0, 10)
    for start in (12, 3):
        with pytest.raises(BackendError, match=r"refuses the batch \(status -1\): .*positions"):
            rows_of(target, [300], start=start)
    assert np.array_equal(rows_of(target, tokens_of(6, 20)[10:], start=10), expected[10:])


def test_a_closed_target_says_so(open_target: Open) -> None:
    target = open_target("lfm2")
    rows = Rows(target.vocab_size)
    batch = Batch(4)
    batch.add(0, 0, [300])
    target.decode(batch, rows)
    target.close()
    target.close()
    assert len(rows) == 0
    calls = (lambda: target.decode(batch, rows), lambda: target.truncate(0, 0))
    more = (lambda: target.save(0), lambda: target.restore(0, np.zeros(4, np.uint8), 1))
    for call in (*calls, *more, lambda: target.sampler(Sampling(), 1)):
        with pytest.raises(StateError, match="closed"):
            call()


def test_a_model_closes_its_targets_first(model_path: Callable[[str], str]) -> None:
    model = LlamaModel(model_path("llama"))
    with LlamaTarget(model, context_size=256) as first:
        second = LlamaTarget(model, ContextSettings(context_size=256, slots=2))
        model.close()
        for target in (first, second):
            with pytest.raises(StateError):
                target.truncate(0, 0)
    with pytest.raises(StateError, match="the model is closed"):
        LlamaTarget(model, context_size=256)


def test_a_vocabulary_makes_no_target(model_path: Callable[[str], str]) -> None:
    with (
        LlamaModel(model_path("llama"), vocab_only=True) as model,
        pytest.raises(StateError, match="only the vocabulary is loaded"),
    ):
        LlamaTarget(model)


@pytest.mark.skipif(sys.platform == "win32", reason="measures as Unix does")
def test_targets_come_and_go_without_leaking(model_path: Callable[[str], str]) -> None:
    dead: list[LlamaTarget] = []  # closed: an object that is still there, but nothing of llama.cpp

    def use(closed: bool) -> None:
        with LlamaModel(model_path("embedded")) as model:
            for _ in range(10):
                target = LlamaTarget(model, context_size=512, slots=2, **EXACT)
                rows_of(target, tokens_of(1, 20))
                for settings in ({}, {"grammar": "root ::= [a-z]+"}, {"dry_multiplier": 1.0}):
                    target.sampler(Sampling(**settings), 1)
                if closed:
                    target.close()
                    dead.append(target)
            gc.collect()

    use(True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for round_number in range(4):
        use(bool(round_number % 2))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(dead) == 30
    assert grown < 40_000  # KiB; a target that stays takes 4 MB


def test_the_bytes_of_a_context_grow_with_its_cache() -> None:
    """A token of the embedded model takes 256 numbers of keys and of values in nine layers."""
    with LlamaModel(embedded_model()) as model:
        sizes = [
            LlamaTarget(model, context_size=size, slots=slots, threads=1, flash_attn=True)
            .buffers.total
            for size, slots in ((1024, 1), (4096, 1), (4096, 4))
        ]  # fmt: skip
    token = 9 * 2 * 256 * 2
    assert sizes[0] > 1024 * token
    for less, more, tokens in ((0, 1, 3 * 1024), (1, 2, 3 * 4096)):
        assert 1.0 <= (sizes[more] - sizes[less]) / (tokens * token) < 1.5


@pytest.mark.parametrize("call", ["decoded", "truncated", "copied", "shifted"])
def test_a_follower_that_raises_is_told_no_more(open_target: Open, call: str) -> None:
    calls: list[str] = []
    follows: list[bool] = []

    class Failing:
        def follow(self, active: bool) -> None:
            follows.append(active)
            raise RuntimeError("follow")

        def __getattr__(self, name: str) -> Callable[..., None]:
            def note(*_: Any) -> None:
                calls.append(name)
                if name == call:
                    raise RuntimeError(name)

            return note

    with open_target(slots=2) as target:
        target.follow(Failing(), lambda count: np.zeros((count, 1), np.float32))  # type: ignore[arg-type]
        batch, rows = Batch(64), Rows(target.vocab_size)
        batch.add(0, 0, np.arange(1, 33, dtype=np.int32))
        target.decode(batch, rows)
        target.copy(0, 1, 32)
        assert target.shift(0, 4, 8)
        assert target.truncate(0, 20)
        assert target.truncate(0, 10)
        assert calls.count(call) == 1
        assert calls[-1] == call
        assert follows == [False]


def test_what_a_follower_takes_is_told_apart_from_the_pass(open_target: Open) -> None:
    class Slow:
        def decoded(self, *_: Any) -> None:
            time.sleep(0.03)

    with open_target(slots=1) as target:
        batch, rows = Batch(64), Rows(target.vocab_size)
        batch.add(0, 0, np.arange(1, 9, dtype=np.int32))
        target.decode(batch, rows)
        assert target.aside < 0.01
        target.truncate(0, 0)
        target.follow(Slow(), lambda count: np.zeros((count, 1), np.float32))  # type: ignore[arg-type]
        target.decode(batch, rows)
        assert target.aside >= 0.03
