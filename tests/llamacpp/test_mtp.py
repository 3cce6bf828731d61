"""MTP heads on llama.cpp: models whose weights say beforehand which drafts are right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec import LLM
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.hosts.llama import LlamaContext
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, MtpHeads, Request, Speculation
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.llamacpp import mtp, nextn
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import MtpSettings, open_mtp
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
FAMILIES = ("glm4moe", "step35", "qwen35", "qwen35moe", "gemma4")
BEGIN = 1
Open = Callable[..., Any]


class Opened:
    """A target with heads, and how to run requests on it."""

    def __init__(self, model: LlamaModel, target: LlamaTarget, heads: MtpHeads) -> None:
        self.model, self.target, self.heads = model, target, heads

    def engine(self, drafter: Any = None, **options: Any) -> Engine:
        """Return an engine that drafts with the heads, three tokens unless told otherwise."""
        settings = {"policy": AutoPolicy(fixed=3), "slots": self.target.num_sequences, **options}
        return Engine(self.target, drafter, draft_model=self.heads, **settings)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return a function that writes a model of a family and opens it with its heads."""
    with contextlib.ExitStack() as stack:

        def make(
            family: str = "glm4moe",
            wrong: Collection[int] = (),
            heads: MtpSettings | None = None,
            **settings: Any,
        ) -> Opened:
            path, own = written(family, tmp_path, wrong)
            model = stack.enter_context(LlamaModel(path, loading=Loading(mtp=True)))
            setup = {"slots": 1, "context_size": 1024, "kv_unified": True, "threads": 1, **settings}
            target = stack.enter_context(LlamaTarget(model, **setup))
            return Opened(
                model, target, open_mtp(replace(heads or own, path=own.path), target, stack)
            )

        yield make


def written(family: str, folder: Path, wrong: Collection[int] = ()) -> tuple[Path, MtpSettings]:
    """Write a model of a family; return its file, and where its heads are."""
    path = folder / f"{family}.gguf"
    if family != "gemma4":
        getattr(mtp_models, family)(path, wrong)
        return path, MtpSettings()
    mtp_models.gemma4(path)
    mtp_models.gemma4_assistant(folder / "assistant.gguf", wrong)
    return path, MtpSettings(path=folder / "assistant.gguf")


def prompt(letter: int, length: int) -> Any:
    """Return the begin token and `length` letters after a letter."""
    return np.array([BEGIN, *mtp_models.letters_after(letter, length)], dtype=np.int32)


def expected(request: Request) -> list[int]:
    """Return what the model writes."""
    last = int(request.prompt_ids[-1]) - mtp_models.FIRST_LETTER
    ids: list[int] = mtp_models.letters_after(last, request.max_tokens)
    return ids


def passes(letter: int, wrong: Collection[int], tokens: int, n_max: int = 3) -> tuple[int, int]:
    """Return how many drafted tokens are right, and how many passes a text takes.

    letter: The last one of the prompt. tokens: Of the answer.
    """
    right = emitted = count = 0
    before = letter
    emitted, count = 1, 1  # the prompt's pass gives the first token
    while emitted < tokens:
        count += 1
        room = min(n_max, tokens - emitted - 1)
        accepted, state = 0, before
        newest = (letter + emitted) % mtp_models.LETTERS
        before = (newest - 1) % mtp_models.LETTERS
        state = before
        for step in range(room):
            state = (state + (2 if state in wrong else 1)) % mtp_models.LETTERS
            if (state + 1) % mtp_models.LETTERS != (newest + 1 + step) % mtp_models.LETTERS:
                break
            accepted += 1
        right += accepted
        emitted += accepted + 1
    return right, count


@pytest.mark.parametrize("wrong", [(), (3, 9), tuple(range(0, 26, 4)), tuple(range(26))])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_draft_what_their_weights_say(
    opened: Open, family: str, wrong: tuple[int, ...]
) -> None:
    loaded = opened(family, wrong)
    request = Request(prompt_ids=prompt(0, 5), max_tokens=100)
    engine = loaded.engine()
    (answer,) = engine.generate([request])
    assert list(answer.token_ids) == expected(request)
    right, count = passes(5, wrong, 100)
    stats = engine.source_stats()["draft-mtp"]
    assert stats.num_accepted_tokens == right
    assert engine.stats().num_steps == count
    assert not engine.source_failures()
    if not wrong:
        assert stats.num_draft_tokens == right
        start, each = loaded.heads.price()
        assert start >= 0 < each


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_share_passes_whatever_the_length_of_their_texts(
    opened: Open, family: str, unified: bool
) -> None:
    loaded = opened(family, (3, 9), slots=4, kv_unified=unified, n_batch=128, n_ubatch=64)
    requests = [
        Request(prompt_ids=prompt(letter, length), max_tokens=40)
        for letter, length in ((0, 1), (7, 40), (3, 200), (11, 700), (20, 9), (1, 33))
    ]
    engine = loaded.engine()
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert list(answer.token_ids) == expected(request)
    right = sum(passes((a + n) % 26, (3, 9), 40)[0] for a, n in
                ((0, 1), (7, 40), (3, 200), (11, 700), (20, 9), (1, 33)))  # fmt: skip
    assert engine.source_stats()["draft-mtp"].num_accepted_tokens == right
    assert not engine.source_failures()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_next_turn_and_a_copied_prompt_go_on_with_what_the_heads_have_read(
    opened: Open, family: str
) -> None:
    loaded = opened(family, slots=2)
    engine = loaded.engine()
    first = Request(prompt_ids=prompt(0, 300), max_tokens=20)
    (answer,) = engine.generate([first])
    text = np.concatenate([first.prompt_ids, np.array(answer.token_ids, np.int32)])
    turns = [Request(prompt_ids=text, max_tokens=30) for _ in range(2)]  # one is copied, if it can
    before = engine.source_stats()["draft-mtp"]
    for request, again in zip(turns, engine.generate(turns), strict=True):
        assert list(again.token_ids) == expected(request)
        assert again.timings.num_cached > 200 or loaded.target.min_copy is None
    after = engine.source_stats()["draft-mtp"]
    drafted = after.num_draft_tokens - before.num_draft_tokens
    assert after.num_accepted_tokens - before.num_accepted_tokens == drafted > 40


@pytest.mark.parametrize("family", ["qwen35", "qwen3next"])
def test_states_that_are_saved_and_brought_back(opened: Open, family: str) -> None:
    loaded = opened(family, tuple(range(0, 26, 4)), n_rs_seq=0)
    engine = loaded.engine()
    request = Request(prompt_ids=prompt(0, 9), max_tokens=100)
    (answer,) = engine.generate([request])
    assert list(answer.token_ids) == expected(request)
    stats = engine.source_stats()["draft-mtp"]
    assert stats.num_accepted_tokens > 0.6 * stats.num_draft_tokens > 30


@pytest.mark.parametrize("family", ["glm4moe", "gemma4"])
def test_the_cache_of_the_heads_is_emptied_with_that_of_the_target(
    opened: Open, family: str
) -> None:
    loaded = opened(family, slots=4, context_size=256, cells=512)
    engine = loaded.engine()
    requests = [Request(prompt_ids=prompt(n, 180), max_tokens=40) for n in range(12)]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert answer.finish_reason in ("length", "error")
        if answer.finish_reason == "length":
            assert list(answer.token_ids) == expected(request)
    assert not engine.source_failures()


@pytest.mark.parametrize("family", ["glm4moe", "gemma4"])
def test_heads_follow_a_shifting_context(opened: Open, family: str) -> None:
    loaded = opened(family, context_size=256)
    engine = loaded.engine(context_shift=True)
    request = Request(prompt_ids=prompt(0, 100), max_tokens=600)
    (answer,) = engine.generate([request])
    assert list(answer.token_ids) == expected(request)
    assert engine.stats().num_context_shifts > 2
    stats = engine.source_stats()["draft-mtp"]
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 400
    assert not engine.source_failures()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restored_slot_drafts_without_what_its_heads_had_read(opened: Open, family: str) -> None:
    loaded = opened(family)
    engine = loaded.engine()
    request = Request(prompt_ids=prompt(0, 100), max_tokens=20)
    engine.generate([request])
    saved = engine.save_slot(0)
    engine.step()
    engine.generate([Request(prompt_ids=prompt(9, 50), max_tokens=5)])
    restored = engine.restore_slot(0, saved.result())
    engine.step()
    assert restored.result() > 100
    before = engine.source_stats()["draft-mtp"].num_accepted_tokens
    longer = Request(prompt_ids=prompt(0, 110), max_tokens=20)
    (answer,) = engine.generate([longer])
    assert list(answer.token_ids) == expected(longer)
    assert engine.source_stats()["draft-mtp"].num_accepted_tokens > before
    assert not engine.source_failures()


def test_trees_of_another_drafter_go_with_heads(opened: Open) -> None:
    loaded = opened(wrong=(3, 9), context_size=512, branches=4)
    flat = AutoPolicy(62, CostTable(((1, 1.0), (63, 1.05))))
    engine = loaded.engine("suffix", policy=flat, tree=4)
    requests = [Request(prompt_ids=prompt(n, 90), max_tokens=100) for n in range(3)]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert list(answer.token_ids) == expected(request)
    stats = engine.source_stats()
    assert stats["suffix"].num_accepted_tokens > 0
    assert not engine.source_failures()


@pytest.mark.parametrize("family", ["glm4moe", "step35", "gemma4"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_in_the_exact_setting_text_and_logprobs_are_those_without_heads(
    tmp_path: Path, family: str, temperature: float
) -> None:
    path, heads = written(family, tmp_path, (3, 9))
    settings: dict[str, Any] = {"context_size": 512, "exact": True, "calibrate": 0}
    asked = [prompt(n, 5 + 40 * n).tolist() for n in range(4)]
    options = {"max_tokens": 60, "temperature": temperature, "seed": 5, "logprobs": 2}
    with LLM(path, None, **settings) as plain:
        expected = plain.generate(asked, **options)
    with LLM(path, None, draft_model=heads, policy="fixed", slots=2, **settings) as llm:
        answers = llm.generate(asked, **options)
        assert llm.engine.source_stats()["draft-mtp"].num_accepted_tokens > 20
    for one, other in zip(answers, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs


@pytest.mark.parametrize("family", ["glm4moe", "gemma4"])
def test_a_request_may_do_without_and_set_its_own_bounds(opened: Open, family: str) -> None:
    loaded = opened(family)
    engine = loaded.engine()
    none = Speculation(enabled=False)
    sure = Speculation(p_min=0.9999999)
    asked = prompt(0, 5)
    for speculation in (none, sure):
        request = Request(prompt_ids=asked, max_tokens=30, speculation=speculation)
        (answer,) = engine.generate([request])
        assert list(answer.token_ids) == expected(request)
        assert engine.stats().num_draft_tokens == 0
    (answer,) = engine.generate([Request(prompt_ids=asked, max_tokens=30)])
    assert engine.source_stats()["draft-mtp"].num_accepted_tokens > 15


@pytest.mark.parametrize("family", ["glm4moe", "gemma4"])
def test_heads_that_rest_cost_nothing_and_go_on_later(opened: Open, family: str) -> None:
    loaded = opened(family)
    request = Request(prompt_ids=prompt(0, 5), max_tokens=30)
    loaded.heads.follow(False)
    (answer,) = Engine(loaded.target, None).generate([request])
    assert list(answer.token_ids) == expected(request)
    loaded.heads.follow(True)
    engine = loaded.engine()
    (answer,) = engine.generate([request])
    assert list(answer.token_ids) == expected(request)
    assert engine.source_stats()["draft-mtp"].num_accepted_tokens > 15


@pytest.mark.parametrize("family", ["glm4moe", "gemma4"])
def test_a_failed_decode_of_the_heads_ends_their_drafts_and_no_request(
    opened: Open, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened(family)

    def fail(*_: Any) -> Any:
        raise BackendError("no memory")

    monkeypatch.setattr(nextn.NextnContext, "decode", fail)
    engine = loaded.engine()
    requests = [Request(prompt_ids=prompt(n, 100), max_tokens=30) for n in range(2)]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert list(answer.token_ids) == expected(request)
    assert engine.source_failures() == {"draft-mtp": 2}


def test_states_that_llama_cpp_does_not_give_end_no_request(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened()
    engine = loaded.engine()
    asked: list[bool] = []

    def fail(*_: Any) -> Any:
        raise BackendError("no states")

    def note(heads: Any, address: Any, value: bool, *, masked: bool) -> None:
        asked.append(value)

    monkeypatch.setattr(nextn.NextnContext, "_view", fail)
    monkeypatch.setattr(nextn.NextnContext, "_set_states", note)
    request = Request(prompt_ids=prompt(0, 9), max_tokens=20)
    for answer in engine.generate([request] * 2):
        assert list(answer.token_ids) == expected(request)
    assert asked == [False], "llama.cpp goes on writing states that nobody reads"
    assert engine.source_stats()["draft-mtp"].propose_calls == 0
    assert not engine.source_failures()


def test_heads_may_be_closed_after_their_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    mtp_models.glm4moe(path)
    with contextlib.ExitStack() as stack:
        model = LlamaModel(path, loading=Loading(mtp=True))
        target = LlamaTarget(model, context_size=256)
        heads = open_mtp(MtpSettings(), target, stack)
        model.close()
        heads.accept(0, prompt(0, 1), 0)
        with pytest.raises(StateError, match="closed"):
            heads._heads.decode(Batch(1), np.zeros((1, 384), np.float32), Rows(5), 0)
        with pytest.raises(StateError, match="closed"):
            heads.follow(True)


def test_bounds_are_checked(opened: Open) -> None:
    for settings in (MtpSettings(n_max=0), MtpSettings(n_min=4), MtpSettings(p_min=1.5)):
        with pytest.raises(InputError, match="MTP heads need 1 <= n_max"):
            opened(heads=settings)
    assert opened("step35", heads=MtpSettings(n_max=9, n_min=5)).heads.info.n_max == 3


def refusal(path: Path, loading: Loading | None = None) -> str:
    """Return why the heads of a model are refused."""
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(LlamaModel(path, loading=loading or Loading(mtp=True)))
        target = stack.enter_context(LlamaTarget(model, context_size=256))
        with pytest.raises(BackendError) as raised:
            open_mtp(MtpSettings(), target, stack)
    return str(raised.value)


def test_models_whose_heads_cannot_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no MTP heads: its file has no layers for them" in refusal(embedded_model())
    path = tmp_path / "model.gguf"
    mtp_models.glm4moe(path)
    assert "was loaded without its MTP heads" in refusal(path, Loading())
    with monkeypatch.context() as patched:
        patched.setattr(mtp, "SINGLE", ("qwen35",))
        assert "MTP heads of glm4moe models are not supported, only of qwen35" in refusal(path)
    with monkeypatch.context() as patched:
        patched.setitem(nextn.STAGING, "llama_get_embeddings_nextn", "_Z9no_such_fv")
        why = refusal(path)
        assert "it lacks llama_get_embeddings_nextn: llama-cpp-python 0.3.36 has them" in why
    mtp_models.glm4moe(path, heads=2)
    assert "has 2 MTP heads, llama.cpp runs one of glm4moe models" in refusal(path)
    mtp_models.glm4moe(path, dense=2)
    assert "its MTP head has no experts" in refusal(path)
    mtp_models.glm4moe(path, weights=False)
    assert "it was converted without them" in refusal(path)


def test_states_go_with_tokens_in_contexts_that_take_them(opened: Open) -> None:
    loaded = opened()
    batch, rows = Batch(4), Rows(loaded.target.vocab_size)
    batch.add(0, 0, prompt(0, 2))
    heads = mtp.LlamaHeads(loaded.target)
    with contextlib.closing(heads):
        for states in (None, np.zeros((2, heads.state_width)), np.zeros((3, 5))):
            floats = None if states is None else states.astype(np.float32)
            with pytest.raises(InputError, match=r"come with states|states must have the shape"):
                heads._context.decode(batch, rows, floats)
        states = np.zeros((3, heads.state_width), np.float32)
        assert heads._context.decode(batch, rows, states) == 0
    with pytest.raises(InputError, match="tokens of this context come without states"):
        loaded.target._context.decode(batch, rows, states)
    calls, address = loaded.model.library.calls, loaded.target.address
    for wrong in ({"state_width": -1}, {"state_width": 4, "pad_sequence": 1}):
        with pytest.raises(InputError, match="state_width must be >= 0, and 0 with a pad_sequence"):
            LlamaContext(calls, address, 10, 4, **wrong)
