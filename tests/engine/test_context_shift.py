"""Context shift: an answer goes on past a full context, and drafts still change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.workload import Garbage as ModelGarbage
from helpers.backends import int32
from helpers.exact_settings import find_once
from helpers.fake_target import FakeTarget, Garbage, Oracle
from helpers.machines import SETTINGS
from ngramspec.engine import (
    AutoPolicy,
    DraftModel,
    Engine,
    Generation,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.engine.sequences import discarded
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.exact import open_exact
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

CONTEXT = 64
SMALL_CONTEXT = 32
TEN = 10 * SMALL_CONTEXT
SMALL = {"ngram-map-k": {"size_n": 2, "size_m": 6}, "ngram-mod": {"n_match": 2, "n_min": 1}}


class EndlessOracle(Oracle):
    """A drafter that knows the target, whose text it follows as the context holds it."""

    def shift(self, slot: int, first: int, count: int) -> None:
        del self.texts[slot][first : first + count]


def request(size: int, max_tokens: int, seed: int = 0, **options: Any) -> Request:
    chance = random.Random(seed)
    prompt = int32([chance.randrange(1, 31) for _ in range(size)])
    return Request(prompt_ids=prompt, max_tokens=max_tokens, **options)


@pytest.mark.parametrize(
    ("held", "size", "num_prompt", "fields", "expected"),
    [
        (63, 64, 10, {}, (0, 31)),
        (63, 64, 10, {"num_keep": 5}, (5, 29)),
        (63, 64, 10, {"num_keep": -1}, (10, 26)),
        (63, 64, 10, {"num_keep": 5, "num_discard": 7}, (5, 7)),
        (63, 64, 10, {"num_discard": 1000}, (0, 62)),
        (63, 64, 63, {"num_keep": -1}, (60, 1)),
        (63, 64, 10, {"num_keep": 1000, "num_discard": 3}, (60, 2)),
        (7, 8, 7, {"num_keep": -1}, (4, 1)),
    ],
)
def test_what_a_shift_discards_is_what_llama_server_discards(
    held: int, size: int, num_prompt: int, fields: dict[str, int], expected: tuple[int, int]
) -> None:
    asked = Request(prompt_ids=int32([1]), **fields)
    assert discarded(held, size, num_prompt, asked) == expected


@settings(SETTINGS)
@given(seed=st.integers(0, (1 << 32) - 1))
def test_texts_are_those_of_plain_decoding_in_contexts_that_shift(seed: int) -> None:
    chance = random.Random(seed)
    slots = chance.randint(1, 4)
    target = FakeTarget(
        vocab_size=31,
        sequences=slots,
        context_size=chance.choice([8, 9, 21, 40]),
        max_batch=slots + chance.choice([0, 3, 30]),
        period=chance.choice([0, 2, 11]),
        end_every=chance.choice([0, 0, 0, 401]),
        refusal=0.0,
        min_copy=chance.choice([None, 4]),
    )
    drafters: list[Any] = [
        None,
        "suffix",
        "ngram-map-k,ngram-mod",
        EndlessOracle(target, 0.9, seed),
        Garbage(31, seed),
    ]
    drafter = chance.choice(drafters)
    params = SMALL if isinstance(drafter, str) and "map" in drafter else None
    engine = Engine(
        target,
        drafter,
        slots=slots,
        params=params,
        policy=chance.choice([None, AutoPolicy(fixed=5), AutoPolicy(fixed=64)]),
        context_shift=True,
    )
    asked = [
        request(
            chance.randint(1, target.context_size - 1),
            chance.choice([1, 30, 200]),
            seed + index,
            num_keep=chance.choice([0, 0, 1, 5, -1, 999]),
            num_discard=chance.choice([0, 0, 1, 3, 999]),
        )
        for index in range(chance.randint(1, 6))
    ]
    answers = engine.generate(asked)
    for one in answers:
        query = one.request
        expected = target.endless(
            query.prompt_ids.tolist(), query.max_tokens, query.num_keep, query.num_discard
        )
        assert one.token_ids == expected
        full = query.prompt_ids.size + len(expected) - one.timings.num_discarded
        assert full <= target.context_size
    assert getattr(drafter, "complaints", []) == []


def test_a_request_without_a_limit_goes_on_until_it_is_cancelled() -> None:
    target = FakeTarget(context_size=32)
    engine = Engine(target, "suffix", context_shift=True)
    answer = engine.submit(request(5, -1))
    while answer.num_tokens < 50 * 32:
        engine.step()
    answer.cancel()
    engine.step()
    assert answer.finish_reason == "cancelled"
    assert answer.token_ids == target.endless(answer.request.prompt_ids.tolist(), answer.num_tokens)
    assert engine.stats().num_context_shifts == -(-answer.timings.num_discarded // 15)


def test_a_full_context_ends_the_answer_where_it_does_not_shift() -> None:
    engine = Engine(FakeTarget(context_size=32), None)
    answer = engine.generate([request(5, 100)])[0]
    assert (answer.finish_reason, answer.num_tokens) == ("length", 27)
    assert (answer.timings.num_discarded, engine.stats().num_context_shifts) == (0, 0)


def test_a_shift_waits_for_the_next_decode_and_is_left_out_when_there_is_none() -> None:
    target = FakeTarget(context_size=32)
    engine = Engine(target, None, context_shift=True)
    answer = engine.submit(request(5, -1))
    while answer.num_tokens < 27:
        engine.step()
    answer.cancel()
    engine.step()
    assert len(target.held[0]) == 31
    assert engine.stats().num_context_shifts == 0


def test_only_what_no_shift_has_touched_is_reused() -> None:
    target = FakeTarget(context_size=32, period=0)
    engine = Engine(target, None, context_shift=True)
    first = engine.generate([request(5, 45, num_keep=4)])[0]
    assert first.timings.num_discarded > 0
    held = int32([*target.held[0], 7])
    again = engine.generate([Request(prompt_ids=held, max_tokens=1)])[0]
    assert again.timings.num_cached == 4
    third = engine.generate([Request(prompt_ids=held, max_tokens=1)])[0]
    assert third.timings.num_cached == held.size - 1  # computed anew, so all of it


def test_a_target_that_cannot_shift_is_refused_with_its_reason() -> None:
    with pytest.raises(BackendError, match="cannot shift: it is recurrent"):
        Engine(FakeTarget(no_shift="it is recurrent"), None, context_shift=True)
    with pytest.raises(InputError, match="contexts of 8 tokens or more shift, got 7"):
        Engine(FakeTarget(context_size=7), None, context_shift=True)


def test_a_refused_shift_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget(context_size=32)
    engine = Engine(target, None, slots=2, context_shift=True)
    monkeypatch.setattr(target, "shift", lambda sequence, first, count: False)
    long, short = engine.generate([request(5, 100, 1), request(5, 20, 2)])
    assert (long.finish_reason, long.num_tokens) == ("error", 27)
    assert "does not shift" in str(long.error)
    assert (short.finish_reason, short.num_tokens) == ("length", 20)


@pytest.mark.parametrize("small", [8, 20, 32, 60])
@pytest.mark.parametrize("no_shift", ["", "it cannot"])
def test_a_draft_model_follows_the_context(small: int, no_shift: str) -> None:
    target = FakeTarget(context_size=32, sequences=2, period=0)
    own = FakeTarget(context_size=small, sequences=2, period=0, no_shift=no_shift)
    engine = Engine(
        target,
        None,
        slots=2,
        draft_model=DraftModel(own, 3),
        policy=AutoPolicy(fixed=3),
        context_shift=True,
    )
    for answer in engine.generate([request(5, 300, 1, num_keep=3), request(9, 200, 2)]):
        query = answer.request
        expected = target.endless(query.prompt_ids.tolist(), query.max_tokens, query.num_keep)
        assert answer.token_ids == expected
        if small >= 32:  # its text is the context's, so the same model is right to the end
            assert answer.timings.num_accepted_tokens > 0.6 * query.max_tokens
            drafted = answer.timings.num_draft_tokens
            assert answer.timings.num_accepted_tokens == drafted


@pytest.mark.parametrize("field", ["num_keep", "num_discard"])
@pytest.mark.parametrize("value", [-2, 1.5, True, 1 << 31, None])
def test_wrong_numbers_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        Request(prompt_ids=int32([1]), **{field: value})


# -- the embedded model, in the exact setting ------------------------------------------------------


def texts(
    model: LlamaModel,
    exactness: Any,
    drafter: Any,
    slots: int,
    asked: Sequence[Request],
    context_size: int = CONTEXT,
) -> list[Generation]:
    with open_exact(model, exactness, slots, context_size) as target:
        options = {"exact": True, "context_shift": True}
        policy = AutoPolicy(fixed=12)
        return Engine(target, drafter, slots=slots, policy=policy, **options).generate(asked)


def prompts(model: LlamaModel, num_tokens: Sequence[int], **options: Any) -> list[Request]:
    written = [
        "import os\n\ndef main():\n    ",
        "class Shape:\n    def __init__",
        "for i in range(",
    ]
    return [
        Request(
            prompt_ids=model.tokenize(written[index % len(written)]),
            max_tokens=most,
            sampling=Sampling(
                temperature=0.0 if index % 2 else 0.7,
                seed=index,
                ignore_eos=True,
                repeat_penalty=1.1,
            ),
            num_keep=(0, 4, -1)[index % 3],
            num_discard=(0, 0, 17)[index % 3],
            **options,
        )
        for index, most in enumerate(num_tokens)
    ]


@pytest.mark.parametrize("slots", [1, 3])
def test_ten_contexts_are_the_same_with_any_drafts(model: LlamaModel, slots: int) -> None:
    exactness = find_once(model, 1, slots)
    lengths = [TEN] if slots == 1 else [TEN // 2, TEN // 3, TEN // 4, 100]
    off = prompts(model, lengths, speculation=Speculation(enabled=False))
    plain = [one.token_ids for one in texts(model, exactness, None, slots, off, SMALL_CONTEXT)]
    assert [len(tokens) for tokens in plain] == lengths
    drafters = ["suffix", "ngram-simple,ngram-map-k4v,ngram-mod,ngram-cache"]
    for drafter in [*drafters, ModelGarbage(model.vocab_size)]:
        answers = texts(model, exactness, drafter, slots, prompts(model, lengths), SMALL_CONTEXT)
        assert [one.token_ids for one in answers] == plain
        assert all(
            one.timings.num_discarded >= len(one.token_ids) - SMALL_CONTEXT for one in answers
        )
        assert sum(one.timings.num_draft_tokens for one in answers) > 0


def test_alone_or_beside_others_the_text_is_the_same(model: LlamaModel) -> None:
    exactness = find_once(model, 1, 3)
    lengths = [3 * CONTEXT, 2 * CONTEXT, 5 * CONTEXT // 2]
    together = texts(model, exactness, "suffix", 3, prompts(model, lengths))
    for index, answer in enumerate(together):
        alone = texts(model, exactness, None, 3, [prompts(model, lengths)[index]])[0]
        assert answer.token_ids == alone.token_ids


def test_in_a_unified_cache_a_shift_moves_no_other_slot(model: LlamaModel) -> None:
    """Slots would share the cells of a common prompt, and a shift would move them for both."""
    code = model.tokenize("def area(width, height):\n    return width * height\n" * 12)
    text, tail = code[:50], code[50:140]  # the same tokens, whichever is the likeliest
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in tail)

    def run(*keeps: int) -> list[np.ndarray]:
        slots = len(keeps)
        options = {"slots": slots, "context_size": CONTEXT, "kv_unified": True, "threads": 1}
        with LlamaTarget(model, flash_attn=False, **options) as target:
            engine = Engine(target, None, slots=slots, context_shift=True)
            engine.generate([Request(prompt_ids=text, max_tokens=1, slot=0)])
            sampling = Sampling(temperature=0, grammar=grammar)
            asked = [
                Request(
                    prompt_ids=text,
                    max_tokens=tail.size,
                    sampling=sampling,
                    num_keep=keep,
                    logprobs=0,
                    slot=slot,
                )
                for slot, keep in enumerate(keeps)
            ]
            answers = engine.generate(asked)
            assert all(one.timings.num_discarded for one in answers)
            for slot, one in enumerate(answers):
                held = text.size + one.num_tokens - one.timings.num_discarded
                assert target._context.pos_max(slot) + 1 == held - 1
            return [np.array([entry.logprob for entry in one.logprobs]) for one in answers]

    for beside, alone in zip(run(5, 30), [*run(5), *run(30)], strict=True):
        # Rows of a batch are rounded in another way than one alone; a wrong shift moves them more,
        # on average by 0.28 where other tokens are kept.
        assert np.abs(beside - alone).mean() < 0.05


@pytest.mark.parametrize(("name", "reason"), [("mamba", "recurrent"), ("lfm2", "recurrent")])
def test_recurrent_models_are_refused(
    model_path: Callable[[str], str], name: str, reason: str
) -> None:
    with LlamaModel(model_path(name)) as model, LlamaTarget(model, context_size=CONTEXT) as target:
        assert reason in target.no_shift
        with pytest.raises(BackendError, match="cannot shift"):
            Engine(target, None, context_shift=True)


def test_a_shifted_context_holds_what_was_kept(model: LlamaModel) -> None:
    """The cache after a shift is that of llama.cpp's own calls: positions without a gap."""
    with LlamaTarget(model, context_size=CONTEXT, threads=1) as target:
        engine = Engine(target, None, context_shift=True)
        ids = np.asarray(model.tokenize("import os\n"), np.int32)
        sampling = Sampling(temperature=0, ignore_eos=True)
        answer = engine.generate(
            [Request(prompt_ids=ids, max_tokens=3 * CONTEXT, sampling=sampling, num_keep=3)]
        )[0]
        assert answer.num_tokens == 3 * CONTEXT
        held = ids.size + answer.num_tokens - answer.timings.num_discarded
        assert target._context.pos_max(0) + 1 == held - 1
        assert target._context.pos_min(0) == 0
