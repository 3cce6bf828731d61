"""DryModel: what contexts are planned to take, against real ones, a formula and this system."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ngramspec.errors import BackendError, FormatError
from ngramspec.llamacpp import nextn
from ngramspec.llamacpp.assistant import LlamaAssistant
from ngramspec.llamacpp.contexts import Buffers, buffers_in
from ngramspec.llamacpp.fit.dry import MOST_PLANNED, DryModel, trained_context
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import LlamaHeads
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.tokenizers.gguf import read_tensors

ModelPath = Callable[[str], str]
MIB = 1 << 20
PROGRAM = Path(__file__).with_name("resident.py")
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "shared": {"slots": 4, "kv_unified": True, "cells": 3000, "context_size": 2000},
    "apart": {"slots": 3, "context_size": 1000},
    "quantised": {"context_size": 4096, "type_k": "q8_0", "type_v": "q4_0", "flash_attn": True},
    "without flash attention": {"context_size": 4096, "flash_attn": False},
    "small batches": {"context_size": 2048, "n_batch": 64, "n_ubatch": 32},
    "part of the window": {"context_size": 2048, "swa_full": False},
}
WIDE = ("embedded", "llama", "gemma3")  # their heads fill blocks of quantised types
MODELS = ("embedded", "llama", "gemma3", "mamba", "lfm2", "big-vocab")


def dry(path: str) -> DryModel:
    return DryModel(path, Placement(), Loading())


@pytest.mark.parametrize(
    ("name", "settings"),
    [pair for pair in itertools.product(MODELS, SETTINGS)
     if pair[1] != "quantised" or pair[0] in WIDE],
)  # fmt: skip
def test_a_plan_is_what_the_real_context_takes(
    model_path: ModelPath, name: str, settings: str
) -> None:
    setup = ContextSettings(**SETTINGS[settings])
    with dry(model_path(name)) as model:
        need = model.need(setup)
        about = (model.n_ctx_train, model.size_bytes, model.num_layers, model.is_stateful)
    with LlamaModel(model_path(name)) as real, LlamaTarget(real, setup) as target:
        assert need.context == target.buffers.context
        assert need.host_compute == sum(target.buffers.compute.values())
        assert need.outputs >= target.buffers.outputs
        assert about == (real.n_ctx_train, real.size_bytes, real.num_layers, real.is_stateful)


BESIDE: dict[str, dict[str, Any]] = {
    "default": {"context_size": 1024},
    "shared": {"slots": 4, "kv_unified": True, "cells": 3000, "context_size": 2000},
    "apart": {"slots": 3, "context_size": 1000, "flash_attn": False},
}


@pytest.mark.parametrize("settings", BESIDE)
@pytest.mark.parametrize("family", ["glm4moe", "step35", "qwen35", "qwen35moe", "qwen3next"])
def test_heads_are_planned_as_their_real_context(
    tmp_path: Path, family: str, settings: str
) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    path, setup = tmp_path / "model.gguf", ContextSettings(**BESIDE[settings])
    loading = Loading(mtp=True)
    getattr(mtp_models, family)(path)
    with DryModel(path, Placement(), loading) as model:
        need, own = model.need_of_heads(setup, 5), model.need(setup)
    with LlamaModel(path, loading=loading) as real, LlamaTarget(real, setup) as target:
        heads = LlamaHeads(target, 5)
        assert own.context == target.buffers.context
        assert need.context == heads.buffers.context > 0
        assert need.host_compute == sum(heads.buffers.compute.values())
        assert need.outputs >= heads.buffers.outputs + 4 * heads.state_width * setup.n_batch


@pytest.mark.parametrize("settings", BESIDE)
def test_an_assistant_is_planned_as_its_real_context(tmp_path: Path, settings: str) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    path, other = tmp_path / "model.gguf", tmp_path / "assistant.gguf"
    setup = ContextSettings(**BESIDE[settings])
    mtp_models.gemma4(path)
    mtp_models.gemma4_assistant(other)
    with dry(str(path)) as model, DryModel(other, Placement(), Loading(mtp=True)) as assistant:
        need = model.need_of_assistant(assistant, setup)
        assert assistant.num_layers == 2
        assert assistant.weights.total >= assistant.size_bytes
    with (
        LlamaModel(path) as real,
        LlamaTarget(real, setup) as target,
        LlamaModel(other, loading=Loading(mtp=True)) as own,
    ):
        context = LlamaAssistant(target, own)
        assert need.context == 0  # the cache is the target's
        assert need.host_compute == sum(context.buffers.compute.values()) > 0
        assert need.outputs >= context.buffers.outputs + 4 * context.state_width * setup.n_batch


def test_heads_that_are_not_there_are_told(model_path: ModelPath) -> None:
    with dry(model_path("llama")) as model, pytest.raises(BackendError, match="has no MTP heads"):
        model.need_of_heads(ContextSettings(context_size=1024), 3)


def test_a_release_that_runs_no_heads_is_told(
    model_path: ModelPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nextn, "PUBLIC", ("llama_model_n_layer_nextn", "no_such_function"))
    settings = ContextSettings(context_size=1024)
    with dry(model_path("llama")) as model:
        with pytest.raises(BackendError, match="cannot run MTP heads, it lacks no_such_function"):
            model.need_of_heads(settings, 3)
        with pytest.raises(BackendError, match="cannot run MTP heads, it lacks no_such_function"):
            model.need_of_assistant(model, settings)


def test_keys_and_values_are_those_of_the_formula(model_path: ModelPath) -> None:
    layers, heads, size = 2, 2, 96  # as tests/helpers/gguf_models.py makes it
    with dry(model_path("llama")) as model:
        for tokens in (1024, 65536):
            nbytes = layers * heads * size * 2 * tokens * 2  # of two bytes
            assert model.need(ContextSettings(context_size=tokens)).context == nbytes


def test_states_are_those_that_are_measured(model_path: ModelPath) -> None:
    for name in ("mamba", "lfm2"):
        with dry(model_path(name)) as model, LlamaModel(model_path(name)) as real:
            assert model.state_bytes == pytest.approx(real.state_bytes, rel=0.1, abs=0.02 * MIB)
    with dry(model_path("llama")) as model:
        assert model.state_bytes == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("embedded", {"context_size": 2048, "slots": 64, "n_batch": 512, "threads": 1}),
        ("llama", {"context_size": 262144, "threads": 1}),
        ("gemma3", {"context_size": 16384, "slots": 4, "threads": 1}),
        ("lfm2", {"context_size": 131072, "slots": 2, "threads": 1}),
        ("big-vocab", {"context_size": 2048, "slots": 4, "threads": 1}),
    ],
)
def test_a_process_grows_by_what_was_planned(
    model_path: ModelPath, name: str, settings: dict[str, Any]
) -> None:
    run = (sys.executable, PROGRAM, model_path(name), json.dumps(settings))
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=120)
    figures = json.loads(done.stdout)
    assert figures["planned"] == figures["real"]
    planned = figures["planned"] + figures["outputs"]
    # Graphs and tables of llama.cpp's take some more, whatever the context.
    assert 0.9 * planned <= figures["allocated"] <= 1.1 * planned + 32 * MIB
    assert figures["used"] <= 1.1 * planned


def test_very_long_contexts_are_not_planned_but_computed(model_path: ModelPath) -> None:
    with dry(model_path("llama")) as model:
        for shared in (True, False):
            sizes = [
                model.need(
                    ContextSettings(
                        slots=2,
                        context_size=tokens // 2,
                        kv_unified=shared,
                        cells=tokens if shared else 0,
                    )
                )
                for tokens in (MOST_PLANNED // 2, MOST_PLANNED, 512 * MOST_PLANNED)
            ]
            each = (sizes[1].context - sizes[0].context) / (MOST_PLANNED // 2)
            assert sizes[2].context == pytest.approx(each * 512 * MOST_PLANNED, rel=1e-3)


@pytest.mark.parametrize("name", ["embedded", "llama", "gemma3", "mamba", "lfm2"])
def test_weights_are_counted_by_where_they_can_lie(model_path: ModelPath, name: str) -> None:
    with dry(model_path(name)) as model:
        weights = model.weights
        assert weights.total == pytest.approx(model.size_bytes, rel=0.02)
        assert len(weights.layers) == model.num_layers
        assert all(size > 0 for size in weights.layers)
        assert (weights.tied > 0) == ("output.weight" not in read_tensors(model.path))


def test_what_a_placement_keeps_with_the_cpu_stays_on_the_host(model_path: ModelPath) -> None:
    path = model_path("llama")
    with DryModel(path, Placement(cpu_dense=1, buffers=(("attn_q", "CPU"),)), Loading()) as model:
        nbytes = sum(
            size
            for tensor, size in read_tensors(path).items()
            if "attn_q" in tensor or (tensor.startswith("blk.0.ffn_") and "norm" not in tensor)
        )
        host = model.weights.host
    with dry(path) as model:
        assert host == model.weights.host + nbytes


def test_metadata_of_the_options_count(model_path: ModelPath) -> None:
    longer = Loading(metadata={"llama.context_length": 100_000})
    with DryModel(model_path("llama"), Placement(), longer) as model:
        assert model.n_ctx_train == 100_000
    assert trained_context(model_path("llama")) == 8192
    assert trained_context(model_path("llama"), longer) == 100_000


def test_files_that_cannot_be_planned(tmp_path: Path, model_path: ModelPath) -> None:
    other = tmp_path / "text.gguf"
    other.write_text("a text")
    with pytest.raises(FormatError, match="not a GGUF file"):
        dry(str(other))
    with pytest.raises(OSError, match="missing"):
        dry(str(tmp_path / "missing.gguf"))
    bare = tmp_path / "bare.gguf"
    bare.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    with pytest.raises(FormatError, match="how long a context can be"):
        trained_context(bare)
    with pytest.raises(BackendError, match="cannot load"):
        dry(str(bare))


def test_sizes_in_llama_cpps_log() -> None:
    lines = """\
llama_context:  CUDA_Host  output buffer size =     1.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   128.00 MiB
llama_kv_cache: size =  128.00 MiB (  1024 cells,  32 layers,  1/1 seqs), K (f16):   64.00 MiB
llama_memory_recurrent: size =    2.50 MiB (     1 cells,  24 layers,  1 seqs  0 rs_seq)
llama_dsv4_comp_state: csa ratio = 4, state = 8 x 512, streams = 1, layers = 4, size =    3.00 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells
sched_reserve:      CUDA0 compute buffer size =   300.25 MiB
sched_reserve:  CUDA_Host compute buffer size =    10.00 MiB
load_tensors:        CUDA0 model buffer size =  4096.00 MiB
""".splitlines()
    assert buffers_in(lines) == Buffers(
        cache=128 * MIB,
        states=5 * MIB + MIB // 2,
        outputs=MIB,
        compute={"CUDA0": 300 * MIB + MIB // 4, "CUDA_Host": 10 * MIB},
    )
