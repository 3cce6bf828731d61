"""MTP heads in a file of their own: what an assistant sees of the target, and which are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec import LLM
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine import AutoPolicy, Engine, Request
from ngramspec.errors import BackendError, FormatError, InputError, StateError
from ngramspec.llamacpp import nextn
from ngramspec.llamacpp.assistant import (
    LlamaAssistant,
    assistant_placement,
    check_assistant,
)
from ngramspec.llamacpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import MtpSettings, open_mtp
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

gguf_models = pytest.importorskip("helpers.gguf_models", reason="needs gguf")
mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
BEGIN = 1
OWN = "gemma4-assistant"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write a target and its assistant; return their files."""
    target, assistant = tmp_path / "target.gguf", tmp_path / "assistant.gguf"
    mtp_models.gemma4(target)
    mtp_models.gemma4_assistant(assistant)
    return target, assistant


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as exits:
        yield exits


def opened(stack: contextlib.ExitStack, path: Path, **settings: Any) -> LlamaTarget:
    """Return a target without its assistant."""
    model = stack.enter_context(LlamaModel(path))
    options = {"context_size": 512, "kv_unified": True, "threads": 1, **settings}
    return stack.enter_context(LlamaTarget(model, **options))


def text(*tokens: int) -> Any:
    return np.array([BEGIN, *tokens], dtype=np.int32)


@pytest.mark.parametrize("settings", [
    {}, {"kv_unified": False}, {"flash_attn": False}, {"flash_attn": False, "kv_unified": False},
    {"type_k": "q8_0", "type_v": "q8_0"}, {"swa_full": False, "n_ubatch": 16}, {"pad": True},
    {"shared": 2}, {"shared": 4, "kv_unified": False},
])  # fmt: skip
@pytest.mark.parametrize("window", [True, False])
def test_an_assistant_sees_what_the_targets_cache_holds_of_its_own_slot(
    files: tuple[Path, Path],
    stack: contextlib.ExitStack,
    window: bool,
    settings: dict[str, Any],
) -> None:
    settings = dict(settings)
    shared = settings.pop("shared", 0)
    mtp_models.gemma4(files[0], layers=2 + 2 * shared, shared=shared)
    target = opened(stack, files[0], slots=3, **settings)
    mtp_models.gemma4_assistant(files[1], sees=window)
    heads = open_mtp(MtpSettings(path=files[1]), target, stack)
    letters = mtp_models.letters_after
    prompts = [text(*letters(0, 9)), text(mtp_models.MARK, *letters(0, 8)), text(*letters(4, 30))]
    engine = Engine(target, None, slots=3, draft_model=heads, policy=AutoPolicy(fixed=3))
    requests = [Request(prompt_ids=one, max_tokens=150) for one in prompts]
    plain, marked, other = engine.generate(requests)
    for request, answer in zip(requests, (plain, marked, other), strict=True):
        last = int(request.prompt_ids[-1]) - mtp_models.FIRST_LETTER
        assert list(answer.token_ids) == letters(last, 150)
    for answer in (plain, other):
        assert answer.timings.num_accepted_tokens == answer.timings.num_draft_tokens > 100
    # "r" again and again: right once in the alphabet
    near = sum(marked.accepted[:50])
    assert near <= 3
    assert sum(marked.accepted[70:]) == pytest.approx(3 if not window else 60, abs=3)
    assert not engine.source_failures()


def test_an_assistant_follows_requests_that_fill_the_cache(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    target = opened(stack, files[0], slots=4, context_size=256, cells=256)
    heads = open_mtp(MtpSettings(path=files[1]), target, stack)
    engine = Engine(target, None, slots=4, draft_model=heads, policy=AutoPolicy(fixed=3))
    requests = [
        Request(prompt_ids=text(*mtp_models.letters_after(n, 40)), max_tokens=150) for n in range(8)
    ]
    answers = engine.generate(requests)
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert engine.stats().num_preempted > 0
    for request, answer in zip(requests, answers, strict=True):
        last = int(request.prompt_ids[-1]) - mtp_models.FIRST_LETTER
        assert list(answer.token_ids) == mtp_models.letters_after(last, len(answer.token_ids))
    assert engine.source_stats()["draft-mtp"].num_accepted_tokens > 100
    assert not engine.source_failures()


def test_what_is_told_about_an_assistant(files: tuple[Path, Path]) -> None:
    with LLM(files[0], draft_model=MtpSettings(path=files[1], n_max=2), calibrate=0) as llm:
        info = llm.engine.drafting().draft_model
        assert info is not None
        assert (info.name, info.kind) == ("MTP assistant assistant.gguf", "draft-mtp")
        assert (info.path, info.n_max) == (str(files[1]), 2)
        assert info.nbytes > files[1].stat().st_size // 2
        answer = llm.generate(text(*mtp_models.letters_after(0, 9)).tolist(), max_tokens=40)
        assert answer.token_ids == mtp_models.letters_after(9, 40)


def test_an_assistant_opens_after_costs_were_measured(files: tuple[Path, Path]) -> None:
    with LLM(files[0], draft_model=MtpSettings(path=files[1]), calibrate=0.3) as llm:
        answer = llm.generate(text(*mtp_models.letters_after(0, 9)).tolist(), max_tokens=40)
        assert answer.token_ids == mtp_models.letters_after(9, 40)


SMALL = {
    f"{OWN}.attention.key_length": 96,
    f"{OWN}.attention.value_length": 96,
    f"{OWN}.rope.dimension_count": 96,
}
SMALL_WINDOW = {
    f"{OWN}.attention.key_length_swa": 32,
    f"{OWN}.attention.value_length_swa": 32,
    f"{OWN}.rope.dimension_count_swa": 32,
}
NO_FIT: list[tuple[dict[str, Any], str]] = [
    ({f"{OWN}.nextn_predict_layers": 1}, "it names 1 MTP layers of 2, and all of them must be"),
    ({f"{OWN}.nextn_predict_layers": None}, "it names 0 MTP layers of 2"),
    ({f"{OWN}.nextn_predict_layers": 3}, "it names 3 MTP layers of 2"),
    (
        {f"{OWN}.attention.sliding_window_pattern": [False, False]},
        "none of its layers has a window",
    ),
    ({f"{OWN}.attention.sliding_window_pattern": [True]}, "it has no list gemma4-assistant.attent"),
    ({f"{OWN}.attention.sliding_window_pattern": None}, "sliding_window_pattern of 2 layers"),
    (
        {f"{OWN}.embedding_length_out": 383},
        "it takes states of 383 numbers, those of target.gguf h",
    ),
    ({f"{OWN}.embedding_length_out": None}, "it takes states of 0 numbers"),
    ({f"{OWN}.attention.key_length": 48}, "heads have 48 numbers for keys and 128 for values"),
    (SMALL, "heads without a window have 96 numbers, those of target.gguf 128"),
    (SMALL_WINDOW, "its heads with a window have 32 numbers"),
    ({f"{OWN}.attention.value_length_swa": 32}, "heads have 64 numbers for keys and 32 for values"),
    ({f"{OWN}.attention.key_length": None}, "it has no number gemma4-assistant.attention.key_len"),
    (
        {f"{OWN}.attention.head_count_kv": 1},
        "its layer 0 looks at 1 heads of keys, layer 0 of targ",
    ),
    (
        {f"{OWN}.attention.head_count_kv": [2, 4]},
        "its layer 1 looks at 4 heads of keys, layer 1 of",
    ),
    ({f"{OWN}.attention.head_count": 3}, "3 heads cannot look at 2 heads of keys"),
    ({f"{OWN}.attention.head_count_kv": 0}, "4 heads cannot look at 0 heads of keys"),
    ({f"{OWN}.rope.dimension_count": 97}, "it turns 97 of the 128 numbers of a head"),
    ({f"{OWN}.rope.dimension_count_swa": 33}, "it turns 33 of the 64 numbers of a head"),
    ({f"{OWN}.expert_count": 4}, "it has experts"),
    ({f"{OWN}.expert_group_count": 2}, "it has experts"),
    ({f"{OWN}.rope.scaling.type": "odd"}, "it scales positions as 'odd', known are none, linear"),
    ({f"{OWN}.block_count": 0}, "it names 2 MTP layers of 0"),
]


@pytest.mark.parametrize(("facts", "reason"), NO_FIT)
def test_assistants_that_do_not_fit_are_refused_before_they_are_loaded(
    files: tuple[Path, Path], stack: contextlib.ExitStack, facts: dict[str, Any], reason: str
) -> None:
    target = opened(stack, files[0])
    mtp_models.gemma4_assistant(files[1], facts=facts)
    with pytest.raises(InputError, match=reason):
        open_mtp(MtpSettings(path=files[1]), target, stack)
    engine = Engine(target, None)  # it goes on without
    request = Request(prompt_ids=text(*mtp_models.letters_after(0, 9)), max_tokens=5)
    (answer,) = engine.generate([request])
    assert list(answer.token_ids) == mtp_models.letters_after(9, 5)


def test_files_that_are_no_assistants_are_refused(
    files: tuple[Path, Path], stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    target, assistant = files
    for path in (embedded_model(), target):
        with pytest.raises(InputError, match=f"{path.name} is not an assistant but a model of the"):
            check_assistant(path, target)
    with pytest.raises(InputError, match=r"for models of the family gemma4, and tiny.* llama"):
        check_assistant(assistant, embedded_model())
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(b"odd")
    with pytest.raises(FormatError, match="not a GGUF file"):
        check_assistant(odd, target)
    with pytest.raises(FileNotFoundError):
        open_mtp(MtpSettings(path=tmp_path / "absent.gguf"), opened(stack, target), stack)


def test_targets_whose_last_layers_have_no_such_keys_are_refused(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    odd = tmp_path / "odd.gguf"
    mtp_models.gemma4(odd, layers=3)
    with pytest.raises(InputError, match=r"the last two layers of odd.gguf must be one with a win"):
        check_assistant(files[1], odd)
    with pytest.raises(InputError, match=r"those of target.gguf have 500"):  # as it will be loaded
        check_assistant(files[1], files[0], {"gemma4.embedding_length": 500})


def test_another_vocabulary_is_refused(
    files: tuple[Path, Path], stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    larger = tmp_path / "larger.gguf"
    mtp_models.gemma4(larger, vocab=380)
    with pytest.raises(InputError, match="it has 356 tokens, the model 380"):
        open_mtp(MtpSettings(path=files[1]), opened(stack, larger), stack)
    other = list(gguf_models.vocabulary()[0])
    other[300], other[301] = other[301], other[300]
    mtp_models.gemma4_assistant(files[1], facts={"tokenizer.ggml.tokens": other})
    with pytest.raises(InputError, match="the assistant's token 300 is"):
        open_mtp(MtpSettings(path=files[1]), opened(stack, files[0]), stack)


def test_a_file_without_its_weights_is_refused(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    mtp_models.gemma4_assistant(files[1], without="nextn.pre_projection.weight")
    with pytest.raises(BackendError, match=r"nextn.pre_projection.weight"):
        open_mtp(MtpSettings(path=files[1]), opened(stack, files[0]), stack)


def test_masked_embeddings_are_named_where_llama_cpp_cannot_read_them(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    masked = {"masked_embd_centroids.weight": np.zeros((16, mtp_models.ASSISTANT))}
    without = "nextn.pre_projection.weight"  # no release can read the file then
    mtp_models.gemma4_assistant(files[1], more=masked, without=without)
    with pytest.raises(BackendError, match="it has masked embeddings, which some releases of llam"):
        open_mtp(MtpSettings(path=files[1]), opened(stack, files[0]), stack)


def test_an_assistant_of_four_layers_drafts(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    for windows in ((True, True, True, False), (True, False, True, False)):
        mtp_models.gemma4_assistant(files[1], windows=windows)
        target = opened(stack, files[0])
        heads = open_mtp(MtpSettings(path=files[1]), target, stack)
        engine = Engine(target, None, draft_model=heads, policy=AutoPolicy(fixed=3))
        request = Request(prompt_ids=text(*mtp_models.letters_after(0, 9)), max_tokens=40)
        (answer,) = engine.generate([request])
        assert list(answer.token_ids) == mtp_models.letters_after(9, 40)
        assert answer.timings.num_accepted_tokens == answer.timings.num_draft_tokens > 20


def test_a_release_that_shares_no_cache_is_told(
    files: tuple[Path, Path], stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(stack, files[0])
    with monkeypatch.context() as patched:
        patched.setitem(nextn.STAGING, "llama_get_ctx_other", "_Z9no_such_fv")
        with pytest.raises(BackendError, match="it lacks llama_get_ctx_other: llama-cpp"):
            open_mtp(MtpSettings(path=files[1]), target, stack)
    with monkeypatch.context() as patched:
        patched.setattr(LlamaTarget, "address", None)
        with pytest.raises(BackendError, match="Gemma4Assistant requires ctx_other"):
            open_mtp(MtpSettings(path=files[1]), target, stack)


def test_an_assistant_does_not_empty_a_cache_that_is_in_use(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    target = opened(stack, files[0])
    batch, rows = Batch(4), Rows(target.vocab_size)
    batch.add(0, 0, text(*mtp_models.letters_after(0, 2)))
    target.decode(batch, rows)
    with pytest.raises(StateError, match=r"assistant.gguf would empty the target's cache: open"):
        open_mtp(MtpSettings(path=files[1]), target, stack)


def test_an_assistant_may_be_closed_after_its_target(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    target = opened(stack, files[0])
    heads = open_mtp(MtpSettings(path=files[1]), target, stack)
    target.close()
    batch, rows = Batch(1), Rows(target.vocab_size)
    batch.add(0, 0, text())
    with pytest.raises(StateError, match="the target is closed"):
        heads._heads.decode(batch, np.zeros((1, 384), np.float32), rows, 0)
    target.model.close()
    with pytest.raises(StateError, match="closed"):
        heads._heads.decode(batch, np.zeros((1, 384), np.float32), rows, 0)


def test_an_assistant_is_neither_a_draft_model_nor_a_target(
    files: tuple[Path, Path], stack: contextlib.ExitStack
) -> None:
    with pytest.raises(BackendError, match=r"is an MTP assistant.*--spec-type draft-mtp"):
        open_draft_model(DraftModelSettings(path=files[1]), opened(stack, files[0]), stack)
    with pytest.raises(BackendError, match="requires ctx_other"):
        opened(stack, files[1])


@pytest.mark.parametrize(("asked", "of_target", "layers"), [
    ("auto", -1, -1), ("auto", 3, -1), ("auto", 2, 0), ("auto", 0, 0), (0, -1, 0), (-1, 0, -1),
])  # fmt: skip
def test_an_assistant_lies_on_the_targets_devices(asked: Any, of_target: int, layers: int) -> None:
    target = Placement(of_target, devices=("none",), split="none", main_gpu=1, shares=(1.0,))
    placement = assistant_placement(Placement(asked, cpu_experts=1), target, 2)
    same = {"devices": ("none",), "split": "none", "main_gpu": 1, "shares": (1.0,)}
    assert placement == Placement(layers, cpu_experts=1, **same)


def test_a_context_of_another_layout_shares_nothing(files: tuple[Path, Path]) -> None:
    with contextlib.ExitStack() as stack:
        target = opened(stack, files[0], flash_attn=False, slots=2)
        model = stack.enter_context(LlamaModel(files[1], loading=Loading(mtp=True)))
        with contextlib.closing(LlamaAssistant(target, model)) as context:
            assert context.num_heads == 1
            assert context.copy(0, 1, 5)
            assert context.shift(0, 1, 2)
