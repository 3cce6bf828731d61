"""Slots saved and restored: cache and drafters go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.engine import (
    AutoPolicy,
    Engine,
    EngineThread,
    Generation,
    Request,
    Sampling,
    SavedSlot,
    Speculation,
)
from ngramspec.errors import CapacityError, InputError, StateError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

DRAFTERS = ("suffix", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def done(engine: Engine, future: Any) -> Any:
    """Return what came of work on a slot; the caller runs the engine."""
    while not future.done():
        engine.step()
    return future.result()


def request(size: int, max_tokens: int, seed: int = 0, **options: Any) -> Request:
    chance = random.Random(seed)
    prompt = int32([chance.randrange(1, 31) for _ in range(size)])
    return Request(prompt_ids=prompt, max_tokens=max_tokens, **options)


def test_a_restored_slot_goes_on_where_it_was() -> None:
    engine = Engine(FakeTarget(), "suffix", slots=2)
    first = engine.generate([request(20, 30, slot=1)])[0]
    saved = done(engine, engine.save_slot(1))
    assert saved.tokens.size == 49  # all but the newest token
    assert done(engine, engine.erase_slot(1)) == 49
    assert engine.slots()[1].num_past == 0
    assert done(engine, engine.restore_slot(0, saved)) == 49
    (drafter,) = engine.drafters.of_namespace("")
    assert drafter.history(0).tolist() == saved.history.tolist()
    text = int32([*first.request.prompt_ids.tolist(), *first.token_ids])
    again = engine.generate([Request(prompt_ids=text, max_tokens=30, slot=0)])[0]
    assert again.timings.num_cached == 49
    assert again.token_ids == FakeTarget().expected(text.tolist(), 30)


def test_an_empty_slot_is_saved_and_restored_as_empty() -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    saved = done(engine, engine.save_slot(0))
    assert (saved.tokens.size, saved.state.size, saved.history.size) == (0, 0, 0)
    engine.generate([request(20, 3, slot=1)])
    assert done(engine, engine.restore_slot(1, saved)) == 0
    assert engine.slots()[1].num_past == 0


def read_by(generation: Generation) -> list[int]:
    """Return the tokens of a text that its slot has read."""
    return [*generation.request.prompt_ids.tolist(), *generation.token_ids[:-1]]


def test_work_waits_for_its_slot_and_comes_before_waiting_requests() -> None:
    engine = Engine(FakeTarget(), None)
    running = engine.submit(request(5, 20, 1))
    engine.step()
    saving = engine.save_slot(0)
    waiting = engine.submit(request(5, 20, 2))
    while not running.finish_reason:
        assert not saving.done()
        engine.step()
    engine.step()
    assert saving.result(0).tokens.tolist() == read_by(running)
    while engine.step():
        pass
    assert waiting.finish_reason == "length"


def test_work_comes_before_waiting_requests_where_one_is_cancelled_too() -> None:
    engine = Engine(FakeTarget(), None)
    running = engine.submit(request(5, 20, 1))
    engine.step()
    engine.step()
    saving = engine.save_slot(0)
    engine.submit(request(5, 20, 2))
    running.cancel()
    engine.step()
    assert saving.result(0).tokens.tolist() == read_by(running)


def test_work_that_nobody_waits_for_is_dropped() -> None:
    engine = Engine(FakeTarget(), None)
    engine.generate([request(5, 5)])
    erasing = engine.erase_slot(0)
    assert erasing.cancel()
    engine.step()
    assert engine.slots()[0].num_past == 9


def test_a_thread_that_waits_for_work_does_it_at_once() -> None:
    engine = Engine(FakeTarget(), None)
    with EngineThread(engine):
        assert engine.erase_slot(0).result(10) == 0


def test_a_closed_engine_ends_waiting_work() -> None:
    engine = Engine(FakeTarget(), None)
    running = engine.submit(request(5, 100))
    engine.step()
    saving = engine.save_slot(0)
    engine.close()
    assert running.finish_reason == "cancelled"
    with pytest.raises(StateError, match="closed"):
        saving.result(0)
    with pytest.raises(StateError, match="closed"):
        engine.save_slot(0)


@pytest.mark.parametrize("slot", [-1, 2, 1 << 40, 0.0, "0", None])
def test_unknown_slots_are_refused(slot: Any) -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    with pytest.raises(InputError, match=r"slot must be in 0..1"):
        engine.save_slot(slot)


def test_what_is_another_owners_is_neither_saved_nor_erased_nor_restored() -> None:
    engine = Engine(FakeTarget(), "suffix", slots=2)
    own = Speculation(namespace="one:x")
    engine.generate([request(20, 9, slot=0, speculation=own)])
    assert done(engine, engine.save_slot(0, "two:")).tokens.size == 0
    assert done(engine, engine.erase_slot(0, "two:")) == 0
    saved = done(engine, engine.save_slot(0, "one:"))
    assert saved.tokens.size == 28
    with pytest.raises(InputError, match="another key"):
        done(engine, engine.restore_slot(1, saved, "two:"))
    assert done(engine, engine.restore_slot(1, saved, "one:")) == 28
    assert engine.slots()[0].num_past == 28


def test_an_erased_slot_leaves_none_of_its_texts_in_drafters() -> None:
    engine = Engine(FakeTarget(cells=60), "suffix", slots=2)
    for namespace in ("one:x", "two:x", "one:y"):
        speculation = Speculation(namespace=namespace)
        engine.generate([request(20, 9, slot=0, speculation=speculation)])
    engine.generate([request(40, 9, slot=1)])  # which has emptied the cache of slot 0
    assert engine.slots()[0].num_past == 0

    def lengths() -> list[int]:
        names = ("one:x", "two:x", "one:y")
        return [one.length(0) for name in names for one in engine.drafters.of_namespace(name)]

    assert lengths() == [29, 29, 29]
    assert done(engine, engine.erase_slot(0, "one:")) == 0
    assert lengths() == [0, 29, 0]
    assert engine.slots()[0].num_tokens == 0
    done(engine, engine.erase_slot(0))
    assert lengths() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": bytes(16)}, "another model, or with other settings"),
        ({"vocab_size": 96}, "another model, or with other settings"),
        ({"tokens": np.ones(1000, np.int32)}, "the slot has 256 tokens, 1000 were saved"),
    ],
)
def test_what_does_not_fit_changes_nothing(change: dict[str, Any], message: str) -> None:
    engine = Engine(FakeTarget(), None)
    engine.generate([request(5, 5)])
    saved = done(engine, engine.save_slot(0))
    with pytest.raises(InputError, match=message):
        done(engine, engine.restore_slot(0, SavedSlot(**{**vars(saved), **change})))
    assert engine.slots()[0].num_past == 9


def test_what_is_restored_waits_for_room_in_the_cache() -> None:
    engine = Engine(FakeTarget(cells=60), None, slots=3)
    engine.generate([request(20, 20, slot=0)])
    saved = done(engine, engine.save_slot(0))
    done(engine, engine.erase_slot(0))
    engine.generate([request(30, 20, 1, slot=1)])  # idle: it gives its room away
    assert done(engine, engine.restore_slot(2, saved)) == 39
    assert engine.slots()[1].num_past == 0
    done(engine, engine.erase_slot(2))
    running = engine.submit(request(10, 50, 2, slot=1))
    while running.num_tokens < 20:
        engine.step()
    given_up, waiting = engine.restore_slot(0, saved), engine.restore_slot(2, saved)
    later = engine.submit(request(10, 5, 3))
    engine.step()
    assert not waiting.done()  # what runs needs the cells
    given_up.cancel()
    assert done(engine, waiting) == 39
    assert running.finish_reason == "length"
    while engine.step():
        pass
    assert later.finish_reason == "length"


def test_a_shifted_slot_comes_back_with_what_may_be_reused() -> None:
    engine = Engine(FakeTarget(context_size=32), "suffix", context_shift=True)
    first = engine.generate([request(5, 45, num_keep=4)])[0]
    saved = done(engine, engine.save_slot(0))
    assert saved.num_reusable == 4
    assert saved.history.tolist() == [*first.request.prompt_ids.tolist(), *first.token_ids]
    assert done(engine, engine.restore_slot(0, saved)) == saved.tokens.size
    text = int32([*saved.tokens.tolist(), 3])
    again = engine.generate([Request(prompt_ids=text, max_tokens=1)])[0]
    assert again.timings.num_cached == 4


@pytest.mark.parametrize("restored", [False, True])
def test_a_slot_with_a_sliding_window_reuses_its_prompt_after_it_was_saved(restored: bool) -> None:
    engine = Engine(FakeTarget(window=8), None, slots=2)
    first = engine.generate([request(40, 30, slot=0)])[0]
    saved = done(engine, engine.save_slot(0))
    if restored:
        done(engine, engine.restore_slot(1, saved))
    slot = int(restored)
    longer = int32([*first.request.prompt_ids.tolist(), *first.token_ids, 5])
    other = int32([*longer[:60].tolist(), 5])  # as it is after an edit of the answer
    for prompt, num_cached in ((longer, 69), (other, 39), (longer[:40], 39), (longer, 40)):
        again = engine.generate([Request(prompt_ids=prompt, max_tokens=1, slot=slot)])[0]
        assert again.timings.num_cached == num_cached
        assert again.token_ids == FakeTarget().expected(prompt.tolist(), 1)


def test_what_was_saved_of_a_window_is_saved_again() -> None:
    engine = Engine(FakeTarget(window=8), None, slots=2)
    engine.generate([request(40, 30, slot=0)])
    saved = done(engine, engine.save_slot(0))
    done(engine, engine.restore_slot(1, saved))
    again = done(engine, engine.save_slot(1))
    assert saved.num_window == again.num_window == 39
    assert again.window.tolist() == saved.window.tolist()


def test_a_window_is_not_used_for_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget(window=8)
    engine = Engine(target, None)
    first = engine.generate([request(40, 30)])[0].request.prompt_ids
    done(engine, engine.save_slot(0))
    other = int32([*first[:30].tolist(), *request(30, 1, 1).prompt_ids.tolist()])
    assert engine.generate([Request(prompt_ids=other, max_tokens=9)])[0].timings.num_cached == 0
    truncate = target.truncate
    monkeypatch.setattr(target, "truncate", lambda slot, length: not length and truncate(slot, 0))
    again = engine.generate([Request(prompt_ids=other[:50], max_tokens=1)])[0]
    assert again.timings.num_cached == 0
    assert again.token_ids == target.expected(other[:50].tolist(), 1)


def test_a_text_within_the_window_needs_no_copy_of_it() -> None:
    engine = Engine(FakeTarget(window=80), None)
    engine.generate([request(40, 30)])
    saved = done(engine, engine.save_slot(0))
    assert (saved.window.size, saved.num_window) == (0, 0)
    done(engine, engine.restore_slot(0, saved))
    assert engine.generate([request(40, 1)])[0].timings.num_cached == 39


def test_a_copy_that_the_cache_has_not_made_yet_is_not_saved() -> None:
    target = FakeTarget(min_copy=4)
    engine = Engine(target, None, slots=2)
    engine.generate([request(20, 1, slot=0)])
    answer = engine.submit(request(20, 9, slot=1))
    engine._stepper._schedule()  # copied from slot 0, as a cancel can hit it
    assert len(target.held[1]) == 19
    answer.cancel()
    engine.step()
    assert done(engine, engine.save_slot(1)).tokens.size == 0
    assert done(engine, engine.save_slot(0)).tokens.size == 20


# -- llama.cpp -------------------------------------------------------------------------------------


def chats(model: LlamaModel, seed: int = 0) -> Request:
    """Return a request to repeat code, which is not done when the answer ends."""
    code = f"# {seed}\ndef area(width, height):\n    return width * height\n\n\n"
    code += "def total(items):\n    return sum(item.price for item in items)\n"
    asked = f"<|im_start|>user\nRepeat this code:\n\n```python\n{code}```<|im_end|>\n"
    prompt_ids = model.tokenize_prompt(f"{asked}<|im_start|>assistant\n")
    sampling = Sampling(temperature=0, ignore_eos=True)
    return Request(prompt_ids=prompt_ids, max_tokens=40, sampling=sampling)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("unified", [False, True])
def test_a_restored_slot_drafts_as_before(model: LlamaModel, name: str, unified: bool) -> None:
    """The next turn of a chat, in the engine that had the first and in one that restored it."""
    settings = {"slots": 2, "context_size": 512, "threads": 1, "kv_unified": unified}

    def turn(answer: Any) -> Request:
        ids = [*answer.request.prompt_ids.tolist(), *answer.token_ids]
        ids += model.tokenize("\n\n\ndef area(width", add_special=False).tolist()
        return Request(
            prompt_ids=int32(ids), max_tokens=60, sampling=answer.request.sampling, slot=0
        )

    def figures(answer: Any) -> tuple[Any, ...]:
        timings = answer.timings
        return (
            answer.token_ids,
            timings.num_cached,
            timings.num_draft_tokens,
            timings.num_accepted_tokens,
        )

    with LlamaTarget(model, **settings) as target:
        engine = Engine(target, name, slots=2, policy=AutoPolicy(fixed=8))
        first = engine.generate([chats(model)])[0]
        saved = done(engine, engine.save_slot(0))
        assert saved.history.tolist() == [*first.request.prompt_ids.tolist(), *first.token_ids]
        before = figures(engine.generate([turn(first)])[0])
    with LlamaTarget(model, **settings) as target:
        engine = Engine(target, name, slots=2, policy=AutoPolicy(fixed=8))
        engine.generate([chats(model, 5)])  # something else is there
        assert done(engine, engine.restore_slot(0, saved)) == saved.tokens.size
        after = figures(engine.generate([turn(first)])[0])
    assert after[:2] == before[:2]
    assert after[1] >= saved.tokens.size
    if name in ("ngram-mod", "ngram-cache", "suffix"):  # these learn from others too: as good
        assert after[3] >= 0.8 * before[3]
    else:
        assert after == before
    assert name == "ngram-mod" or before[3] > 0


@pytest.mark.parametrize("family", ["mamba", "lfm2", "gemma3"])
def test_other_kinds_of_memory_can_be_saved_too(
    model_path: Callable[[str], str], family: str
) -> None:
    with LlamaModel(model_path(family)) as model:
        ids = model.tokenize("abc def ghi " * 4)
        sampling = Sampling(temperature=0, ignore_eos=True)
        texts = []
        with LlamaTarget(model, slots=2, context_size=256, threads=1) as target:
            engine = Engine(target, "suffix", slots=2)
            first = engine.generate(
                [Request(prompt_ids=ids, max_tokens=20, sampling=sampling, slot=0)]
            )[0]
            saved = done(engine, engine.save_slot(0))
            text = int32([*ids.tolist(), *first.token_ids, 70])
            for slot in (1, 0):
                if slot == 1:
                    assert done(engine, engine.restore_slot(1, saved)) == saved.tokens.size
                again = Request(prompt_ids=text, max_tokens=20, sampling=sampling, slot=slot)
                texts.append(engine.generate([again])[0])
        assert texts[0].token_ids == texts[1].token_ids
        assert texts[0].timings.num_cached == texts[1].timings.num_cached == saved.tokens.size


def test_a_restored_slot_of_a_sliding_window_reuses_its_prompt(
    model_path: Callable[[str], str],
) -> None:
    """Of windows of 64 tokens, llama.cpp saves the one before the end only."""
    with LlamaModel(model_path("gemma3")) as model:
        ids = model.tokenize("abc def ghi " * 30)
        sampling = Sampling(temperature=0, ignore_eos=True)
        asked = Request(prompt_ids=ids, max_tokens=90, sampling=sampling, slot=0)
        with LlamaTarget(model, slots=2, context_size=1024, threads=1) as target:
            engine = Engine(target, None, slots=2)
            first = engine.generate([asked])[0]
            saved = done(engine, engine.save_slot(0))
            assert done(engine, engine.restore_slot(1, saved)) == saved.tokens.size
            assert target._context.pos_min(1) > ids.size  # of what was loaded
            for slot in (0, 1, 1):
                again = engine.generate([dataclasses.replace(asked, slot=slot)])[0]
                assert again.timings.num_cached == ids.size - 1
                assert again.token_ids[:20] == first.token_ids[:20]  # then rounding decides


def test_other_settings_of_the_cache_are_another_identity(model: LlamaModel) -> None:
    seen = set()
    for settings in ({}, {"type_k": "q8_0"}, {"slots": 2}, {"slots": 2, "kv_unified": True}):
        options = {"context_size": 64, "threads": 1, "flash_attn": True, **settings}
        with LlamaTarget(model, **options) as target:
            seen.add(target.identity)
    assert len(seen) == 3  # a unified cache is one stream for any number of slots
    with LlamaTarget(model, context_size=128, threads=1, flash_attn=True) as target:
        assert target.identity in seen


def test_a_damaged_state_is_refused_by_llama_cpp(model: LlamaModel) -> None:
    with LlamaTarget(model, context_size=256, threads=1) as target:
        engine = Engine(target, None)
        engine.generate([chats(model)])
        saved = done(engine, engine.save_slot(0))
        for state in (saved.state[:-9], saved.state[:40], np.zeros(100, np.uint8)):
            broken = SavedSlot(**{**vars(saved), "state": state})
            with pytest.raises(CapacityError):
                done(engine, engine.restore_slot(0, broken))
            assert target._context.pos_max(0) == -1
        assert done(engine, engine.restore_slot(0, saved)) == saved.tokens.size
