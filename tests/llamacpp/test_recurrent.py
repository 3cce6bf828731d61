"""Recurrent and hybrid models: snapshots, saved states, and when they cannot be had."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from helpers.decoding import rows_of, tokens_of
from helpers.gguf_models import BOS, FIRST_LETTER
from ngramspec import LLM
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine import DraftModel, Engine
from ngramspec.engine.policy import make_policy
from ngramspec.errors import InputError, StateError
from ngramspec.llamacpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings, snapshots
from ngramspec.llamacpp.target import LlamaTarget

STATEFUL = {"mamba": {}, "lfm2": {}, "lfm2 without snapshots": {"n_rs_seq": 0}}
NEAR = 1e-3  # recurrent kernels round differently by batch size
Open = Callable[..., LlamaTarget]


@pytest.fixture
def open_target(model_path: Callable[[str], str]) -> Iterator[Open]:
    models: list[LlamaModel] = []

    def make(name: str, **settings: Any) -> LlamaTarget:
        models.append(LlamaModel(model_path(name.split()[0])))
        settings = {"context_size": 256, "slots": 2, "threads": 1, **settings}
        return LlamaTarget(models[-1], **{**STATEFUL.get(name, {}), **settings})

    yield make
    for model in models:
        model.close()


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_restored_state_goes_on_as_before(open_target: Open, name: str, pad: bool) -> None:
    target = open_target(name, pad=pad, kv_unified=pad)
    tokens, other = tokens_of(1, 60), tokens_of(2, 60)
    rows_of(target, tokens[:30])
    state = target.save(0)
    expected = rows_of(target, tokens[30:], start=30)
    for size in (1, 2, 7, 30):
        assert target.restore(0, state, 30)
        rows_of(target, other[:size], start=30)
        rows_of(target, other, sequence=1)  # another sequence moves the cells
        target.truncate(1, 0)
    assert target.restore(0, state, 30)
    assert np.abs(rows_of(target, tokens[30:], start=30) - expected).max() < NEAR


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_of_another_length_is_refused(open_target: Open, name: str) -> None:
    target = open_target(name)
    rows_of(target, tokens_of(1, 20))
    state = target.save(0)
    rows_of(target, tokens_of(1, 5), start=20)
    assert not target.restore(0, state, 15)
    assert not target.restore(0, state[:9], 20)
    assert rows_of(target, tokens_of(1, 20)).shape[0] == 20


def test_snapshots_take_back_what_the_last_decode_added_but_its_first_token(
    open_target: Open,
) -> None:
    target = open_target("lfm2", n_rs_seq=8)
    tokens, other = tokens_of(1, 60), tokens_of(2, 60)
    expected = rows_of(target, tokens, step=1)
    target.truncate(0, 0)
    assert target.max_rollback == 8
    position = 0
    for size in (12, 9, 5, 2, 1, 9, 7):
        right = max(1, size - 8)
        for length in range(right, size):
            if position + size > 60:
                break
            mixed = np.concatenate([tokens[position : position + length], other[: size - length]])
            logits = rows_of(target, mixed, start=position)
            assert np.abs(logits[:length] - expected[position : position + length]).max() < NEAR
            assert target.truncate(0, position + length)
            position += length
    assert position > 40


def test_older_snapshots_are_not_used(open_target: Open) -> None:
    """llama.cpp would go back to the state of other tokens without a word."""
    target = open_target("lfm2", n_rs_seq=8)
    tokens = tokens_of(1, 40)
    rows_of(target, tokens[:20])
    rows_of(target, tokens[20:22], start=20)
    assert not target.truncate(0, 20)  # both tokens: the state before them is gone
    assert not target.truncate(0, 13)
    rows_of(target, tokens[22:30], start=22)
    rows_of(target, tokens, sequence=1)  # the first sequence's snapshots may have moved
    assert not target.truncate(0, 27)
    assert target.truncate(1, 35)
    assert not target.truncate(1, 34)  # one rollback per decode
    expected = rows_of(target, tokens[30:], start=30)
    target.truncate(0, 0)
    assert np.abs(rows_of(target, tokens)[30:] - expected).max() < NEAR


def test_a_restored_state_has_no_snapshots(open_target: Open) -> None:
    target = open_target("lfm2", n_rs_seq=8)
    tokens = tokens_of(1, 40)
    rows_of(target, tokens[:20])
    state = target.save(0)
    rows_of(target, tokens[20:26], start=20)
    assert target.restore(0, state, 20)
    assert not target.truncate(0, 18)


def test_without_snapshots_only_the_whole_sequence_is_removed(open_target: Open) -> None:
    target = open_target("mamba")
    rows_of(target, tokens_of(1, 20), step=10)
    for length in (19, 10, 1):
        assert not target.truncate(0, length)
    assert rows_of(target, tokens_of(1, 5), start=20).shape[0] == 5
    assert target.truncate(0, 0)


def test_snapshots_of_several_slots_stay_apart(open_target: Open) -> None:
    target = open_target("lfm2", n_rs_seq=6)
    texts = [tokens_of(1, 40), tokens_of(2, 40)]
    wrong = tokens_of(3, 6)
    expected = []
    for tokens in texts:
        expected.append(rows_of(target, tokens, step=1))
        target.truncate(0, 0)
    batch, rows, lengths = Batch(64), Rows(target.vocab_size), [0, 0]
    for right in ((3, 1), (1, 3), (2, 2), (5, 1), (1, 5), (3, 4), (4, 3)):
        batch.clear()
        firsts = []
        for sequence in (0, 1):
            start = lengths[sequence]
            mixed = np.concatenate([texts[sequence][start : start + right[sequence]], wrong])[:6]
            firsts.append(batch.add(sequence, start, mixed[:1], mixed[1:]))
        target.decode(batch, rows)
        for sequence in (0, 1):
            start, count = lengths[sequence], right[sequence]
            for i in range(count):
                row = rows.copy(firsts[sequence] + i)
                assert np.abs(row - expected[sequence][start + i]).max() < NEAR
            lengths[sequence] += count
            assert target.truncate(sequence, lengths[sequence])
    assert lengths == [19, 19]


def test_attention_saves_nothing(open_target: Open) -> None:
    target = open_target("llama")
    rows_of(target, tokens_of(1, 5))
    assert not target.can_save
    with pytest.raises(StateError, match="cannot save"):
        target.save(0)
    with pytest.raises(StateError, match="cannot save"):
        target.restore(0, np.zeros(8, np.uint8), 5)


@pytest.mark.parametrize("sequence", [-1, 2])
def test_sequences_that_are_not_there_are_refused(open_target: Open, sequence: int) -> None:
    target = open_target("mamba")
    with pytest.raises(InputError, match=f"got {sequence}"):
        target.save(sequence)
    with pytest.raises(InputError, match=f"got {sequence}"):
        target.restore(sequence, np.zeros(8, np.uint8), 5)


def test_as_many_snapshots_as_their_size_allows(open_target: Open) -> None:
    model = open_target("lfm2").model
    vars(model)["state_bytes"] = 16 << 20
    auto = ContextSettings()
    assert snapshots(model, auto, 1, 512) == 16
    assert snapshots(model, auto, 8, 512) == 2
    assert snapshots(model, auto, 64, 512) == 0
    vars(model)["state_bytes"] = 1 << 10
    assert snapshots(model, auto, 8, 512) == 64
    assert snapshots(open_target("llama").model, ContextSettings(n_rs_seq=9), 1, 512) == 0


@pytest.mark.parametrize(
    ("name", "settings", "rollback", "longest"),
    [
        ("llama", {}, "cache", 64),
        ("lfm2", {}, "snapshots", 64),
        ("lfm2", {"n_rs_seq": 6}, "snapshots", 6),
        ("lfm2", {"n_rs_seq": 0}, "saved", 64),
        ("mamba", {}, "saved", 64),
    ],
)
def test_the_engine_tells_what_drafts_cost(
    open_target: Open, name: str, settings: dict[str, Any], rollback: str, longest: int
) -> None:
    target = open_target(name, **settings)
    policy = make_policy("auto", 64, max_rollback=target.max_rollback)
    drafting = Engine(target, "ngram-mod", slots=2, policy=policy).drafting()
    assert (drafting.rollback, drafting.longest) == (rollback, longest)
    assert drafting.state_bytes == target.state_bytes
    assert drafting.policy == ("auto" if rollback == "cache" else "gate")
    bound = ("longer drafts would need memory for more than 6 states of each slot",)
    assert drafting.notes == (bound if longest == 6 else ())


def test_snapshots_do_not_bound_what_a_draft_model_drafts(open_target: Open) -> None:
    target = open_target("lfm2", n_rs_seq=6)
    settings = DraftModelSettings(path=target.model.path, n_max=100, n_min=80)
    with contextlib.ExitStack() as stack:
        small = open_draft_model(settings, target, stack)
        assert (small.info.n_max, small.info.n_min) == (100, 80)
        drafting = Engine(target, None, slots=2, draft_model=small).drafting()
    assert drafting.longest == 6
    assert drafting.draft_model is not None
    assert drafting.draft_model.name == "lfm2.gguf"
    assert drafting.draft_model.nbytes > target.model.size_bytes  # and its context


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("mamba", 2 * (128 * 16 + 3 * 128)), ("lfm2", 64 * 2), ("llama", 0)],  # of 4 bytes
)
def test_the_size_of_a_state_is_measured(open_target: Open, name: str, numbers: int) -> None:
    target = open_target(name)
    assert target.state_bytes == target.model.state_bytes
    assert 4 * numbers <= target.state_bytes <= 4 * numbers + (numbers and 128)  # and a head
    if numbers:
        rows_of(target, tokens_of(1, 9))
        assert target.save(0).size == target.state_bytes


@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_a_recurrent_draft_model_reads_no_text_twice(
    model_path: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It drafts for itself, so nearly all is right, and goes back to a saved state where not."""
    prompts = [[BOS, *range(FIRST_LETTER + n, FIRST_LETTER + n + 9)] * 8 for n in (0, 5, 9)]
    settings: dict[str, Any] = {"slots": 3, "context_size": 512, "threads": 1, "calibrate": 0}
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0.7, "seed": 3}
    with LLM(model_path(name), None, **settings) as plain:
        expected = [answer.token_ids for answer in plain.generate(prompts, **options)]
    decoded = 0
    decode = DraftModel._read_to

    def counting(self: DraftModel, slot: int, end: int) -> None:
        nonlocal decoded
        decoded += max(end - self._sequences[slot].num_past, 0)
        decode(self, slot, end)

    monkeypatch.setattr(DraftModel, "_read_to", counting)
    draft = DraftModelSettings(path=model_path(name), n_max=4, p_min=0.0)
    with LLM(model_path(name), None, draft_model=draft, policy="fixed", **settings) as llm:
        texts = [one.token_ids for one in llm.generate(prompts, **options)]
        stats = llm.engine.source_stats()["draft-simple"]
        assert not llm.engine.source_failures()
    assert sum(one == other for one, other in zip(texts, expected, strict=True)) >= 2
    assert stats.num_accepted_tokens > 20
    assert decoded < sum(map(len, prompts)) + 3 * 60 + 50, "each token about once"
