"""fit: context and layers for models and machines, what it tells, and what it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.fit import (
    Fitted,
    Limits,
    Machine,
    Words,
    find_machine,
    fit,
)
from ngramspec.llamacpp.fit.machine import Hardware, HostSpace
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import MtpSettings, open_mtp
from ngramspec.llamacpp.placement import Device, Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget

ModelPath = Callable[[str], str]
MB, GB = 10**6, 10**9
CLI = Words("-c", "-np", "-ngl", "-ub", "--fit off", total=True)
GPU = Device("CUDA0", "NVIDIA H100", 70 * MB, 80 * MB)
H100 = Hardware("cuda", "NVIDIA H100")


@pytest.fixture
def fitted(model_path: ModelPath) -> Callable[..., Fitted]:
    """Return a function that fits a model with a context of 8,192 tokens into free memory."""

    def run(free: int, *, name: str = "gemma3", limits: Any = None, **more: Any) -> Fitted:
        machine = {"devices": (), "hardware": (), **more.pop("machine", {})}
        settings = ContextSettings(**{"slots": 4, "kv_unified": True, **more.pop("settings", {})})
        layers = more.pop("layers", "auto")
        return fit(
            model_path(name),
            settings,
            Placement(layers),
            more.pop("loading", Loading()),
            limits=replace(limits or Limits(least=512), reserved=0),
            machine=Machine(HostSpace(free, free, limit=more.pop("limit", "")), **machine),
            **more,
        )

    return run


def test_a_context_that_fits_is_the_trained_one(fitted: Any) -> None:
    shared = fitted(GB)
    assert (shared.settings.context_size, shared.settings.cells) == (8192, 8192)
    apart = fitted(GB, settings={"kv_unified": False})
    assert (apart.settings.context_size, apart.settings.cells) == (8192, 0)
    assert (shared.notes, apart.notes) == ((), ())
    assert shared.placement == Placement(0)


def test_a_context_is_cut_to_what_is_free_and_a_line_tells(fitted: Any) -> None:
    cut = fitted(50 * MB)
    assert cut.settings.cells == cut.settings.context_size == cut.plan.tokens
    assert 512 < cut.plan.tokens < 8192
    assert cut.plan.use.host + cut.plan.use.host_weights <= 50 * MB * 3 // 4  # a quarter is left
    tokens = f"{cut.plan.tokens:,}"
    assert cut.notes == (
        f"Context {tokens} of 8,192 tokens fit in 47.7 MiB of free memory; context_size changes it",
    )
    apart = fitted(50 * MB, settings={"kv_unified": False}, limits=Limits(least=512, words=CLI))
    assert apart.settings.context_size * 4 <= cut.settings.cells + 1024
    note = "tokens for each of 4 slots fit in 47.7 MiB of free memory; -c changes it"
    assert note in apart.notes[0]
    limited = fitted(50 * MB, limit="the container")
    assert "fit in 47.7 MiB (limit: the container) of free memory" in limited.notes[0]


def test_margins_and_the_least_context_are_kept(fitted: Any) -> None:
    whole = fitted(50 * MB, limits=Limits(margins=(0,), least=512)).plan.tokens
    part = fitted(50 * MB, limits=Limits(margins=(20 * MB,), least=512)).plan.tokens
    assert whole > fitted(50 * MB).plan.tokens > part > 512
    assert fitted(35 * MB, limits=Limits(least=4096)).plan.tokens == 4096
    assert fitted(63 * MB, limits=Limits(least=1 << 31)).plan.tokens == 8192


def test_what_was_asked_for_is_kept_where_it_can_work(fitted: Any) -> None:
    outcome = fitted(63 * MB, settings={"cells": 8192, "context_size": 8192})
    assert outcome.settings.cells == 8192
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("settings", "words", "asked", "fits"),
    [
        ({"cells": 100_000, "context_size": 100_000}, CLI, "-c 100000 with -np 4", "-c "),
        ({"kv_unified": False, "context_size": 25_000}, CLI, "-c 100000 with -np 4", "-c "),
        ({"kv_unified": False, "context_size": 25_000}, Words(), "context_size 25000 with slots 4",
         "context_size "),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_with_what_can(
    fitted: Any, settings: dict[str, Any], words: Words, asked: str, fits: str
) -> None:
    with pytest.raises(InputError) as caught:
        fitted(100 * MB, settings=settings, limits=Limits(words=words))
    text = str(caught.value)
    assert text.startswith(f"{asked} needs ")
    assert "and 95.4 MiB are free: " in text
    assert text.endswith(f" fits; {words.unchecked} tries it anyway")
    size = int(text.partition(f"free: {fits}")[2].split()[0])
    if words.total:
        changed = {"cells": size, "context_size": size}
    else:
        changed = {"context_size": size, "kv_unified": False}
    if settings.get("kv_unified") is False and words.total:
        changed = {"context_size": size // 4, "kv_unified": False}
    assert fitted(100 * MB, settings=changed).notes == ()


def test_fewer_slots_are_named_where_they_help(fitted: Any) -> None:
    settings = {"kv_unified": False, "slots": 64, "context_size": 256, "n_batch": 512}
    with pytest.raises(InputError, match=r"context_size 256 with slots 32 fits; fit=False"):
        fitted(70 * MB, settings=settings, limits=Limits(margins=(0,)))


def test_where_no_context_fits(fitted: Any) -> None:
    asked = r"^a context of \d+ tokens for 4 slots needs .* are free: no context fits; fewer tokens"
    with pytest.raises(BackendError, match=rf"{asked} at once \(-ub\) or a smaller model may;"):
        fitted(100 * MB, name="big-vocab", limits=Limits(words=CLI))
    outcome = fitted(
        400 * MB, name="big-vocab", limits=Limits(least=512),
        settings={"n_ubatch": 64, "n_batch": 64},
    )  # fmt: skip
    assert outcome.settings.cells == 8192


def test_mapped_weights_may_be_read_again_but_others_must_fit(fitted: Any) -> None:
    options = {"name": "big-vocab", "settings": {"slots": 1, "n_ubatch": 16, "n_batch": 16}}
    use = fitted(GB, **options).plan.use
    assert use.host_weights == 20_455_680
    free = use.host + 10 * MB
    slow = fitted(free, **options, limits=Limits(least=8192))
    assert slow.notes[-1].startswith("weights of 19.5 MiB and ")
    assert slow.notes[-1].endswith("weights are read from the file again and again, which is slow")
    with pytest.raises(InputError, match=r"needs .* are free"):
        fitted(free, **options, limits=Limits(least=8192), loading=Loading(mode="none"))


def test_nothing_is_checked_where_it_is_off(fitted: Any) -> None:
    outcome = fitted(MB, limits=Limits(enabled=False))
    assert outcome.plan is None
    assert outcome.settings.context_size == 0


@pytest.mark.parametrize(
    ("layers", "hardware", "note"),
    [
        ("auto", (), None),
        (0, (H100,), None),
        ("auto", (H100,), "NVIDIA H100 is not used: this build of llama.cpp cannot."),
        (99, (H100,), "NVIDIA H100 is not used: this build of llama.cpp cannot."),
        (-1, (), "n_gpu_layers does nothing: this build of llama.cpp sees no GPU"),
    ],
)
def test_a_build_without_gpus(fitted: Any, layers: Any, hardware: Any, note: str | None) -> None:
    for enabled in (True, False):
        outcome = fitted(
            GB, layers=layers, machine={"hardware": hardware}, limits=Limits(enabled=enabled)
        )
        assert [text.startswith(note) for text in outcome.notes] == ([True] if note else [])
        if hardware and note:
            assert outcome.notes[0].endswith(H100.install_line)
    assert fitted(GB, layers=layers).placement.n_gpu_layers == 0


def test_a_placement_without_devices_says_nothing(model_path: ModelPath) -> None:
    outcome = fit(
        model_path("llama"),
        ContextSettings(),
        Placement("auto", devices=("none",)),
        Loading(),
        machine=Machine(HostSpace(GB, GB), hardware=(H100,)),
    )
    assert outcome.notes == ()


def test_layers_go_to_a_gpu_as_many_as_fit(fitted: Any) -> None:
    """The GPU is a fact only: llama.cpp plans on the CPU what it would plan there."""
    all_of_them = fitted(GB, machine={"devices": (Device("CUDA0", "H100", GB, GB),)})
    assert all_of_them.placement.n_gpu_layers == -1
    assert all_of_them.notes == ()
    small = Device("CUDA0", "GTX 1", 2 * MB, 4 * MB)
    some = fitted(GB, machine={"devices": (small,)}, limits=Limits(margins=(0,), least=512))
    assert 0 < some.placement.n_gpu_layers < 7
    assert some.notes[0] == (
        f"{some.placement.n_gpu_layers} of 7 layers fit in the free memory of CUDA0 (GTX 1); "
        "n_gpu_layers changes it"
    )
    none = Device("CUDA0", "GTX 0", 10_000, 10_000)
    assert fitted(GB, machine={"devices": (none,)}).placement.n_gpu_layers == 0


def test_a_draft_model_takes_memory_too(fitted: Any, model_path: ModelPath) -> None:
    alone = fitted(60 * MB)
    draft = DraftModelSettings(path=model_path("gemma3"))
    both = fitted(60 * MB, draft=draft, limits=Limits(least=512, margins=(0,)))
    assert both.plan.tokens < alone.plan.tokens
    assert both.draft == DraftModelSettings(path=model_path("gemma3"), placement=Placement(0))
    gpu = {"devices": (Device("CUDA0", "H100", GB, GB),)}
    outcome = fitted(GB, draft=draft, machine=gpu)
    assert outcome.draft.placement.n_gpu_layers == -1


BESIDE: dict[str, Any] = {"slots": 4, "context_size": 2048, "kv_unified": True}


def with_heads(path: Path, heads: MtpSettings | None, *devices: Device) -> Fitted:
    """Return how a model fits with its MTP heads."""
    return fit(
        path,
        ContextSettings(**BESIDE),
        Placement("auto"),
        Loading(mtp=heads is not None and heads.path is None),
        draft=heads,
        limits=Limits(reserved=0),
        machine=Machine(HostSpace(GB, GB), devices),
    )


@pytest.fixture
def heads_by_file(tmp_path: Path) -> dict[Path, MtpSettings]:
    """Write a model with heads of its own, and one with an assistant."""
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    own, target, assistant = (tmp_path / f"{name}.gguf" for name in ("own", "target", "assistant"))
    mtp_models.glm4moe(own)
    mtp_models.gemma4(target)
    mtp_models.gemma4_assistant(assistant)
    return {own: MtpSettings(), target: MtpSettings(path=assistant)}


def test_mtp_heads_take_memory_too(heads_by_file: dict[Path, MtpSettings]) -> None:
    for path, heads in heads_by_file.items():
        alone, both = with_heads(path, None).plan, with_heads(path, heads).plan
        assert alone is not None
        assert both is not None
        more = both.use.host - alone.use.host
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(LlamaModel(path, loading=Loading(mtp=True)))
            target = stack.enter_context(LlamaTarget(model, **BESIDE))
            nbytes = open_mtp(heads, target, stack).info.nbytes
        assert nbytes < more < nbytes + 16 * MB  # logits and states of a full decode


def test_mtp_heads_lie_beside_the_last_layers(heads_by_file: dict[Path, MtpSettings]) -> None:
    gpu = Device("CUDA0", "H100", GB, GB)
    for path, heads in heads_by_file.items():
        alone, both = with_heads(path, None, gpu).plan, with_heads(path, heads, gpu)
        assert alone is not None
        assert both.plan is not None
        assert both.plan.use.gpus > alone.use.gpus
        assert both.draft is not None
        assert both.draft.placement.n_gpu_layers == ("auto" if heads.path is None else -1)


def test_heads_that_cannot_be_opened_are_left_to_who_opens_them(
    heads_by_file: dict[Path, MtpSettings], tmp_path: Path
) -> None:
    own, target = heads_by_file
    for heads in (MtpSettings(path=own), MtpSettings(path=tmp_path / "absent.gguf"), MtpSettings()):
        assert with_heads(target, heads).plan == with_heads(target, None).plan


def test_a_draft_model_that_cannot_be_read_is_left_to_who_opens_it(
    fitted: Any, tmp_path: Path
) -> None:
    for text in (b"a text", b"GGUF"):
        (tmp_path / "odd.gguf").write_bytes(text)
        draft = DraftModelSettings(path=tmp_path / "odd.gguf")
        assert fitted(GB, draft=draft).plan == fitted(GB).plan
    assert fitted(GB, draft=DraftModelSettings(path="absent.gguf")).notes == ()


def test_this_machine(tmp_path: Path) -> None:
    machine = find_machine()
    assert machine.host.free > 0
    assert find_machine(root=tmp_path).host.total > 0  # as llama.cpp knows it
