"""Placement: what llama.cpp makes of it on this machine, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.decoding import rows_of
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Placement, device_lines, device_names
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers.llama_library import function_of

IDS = [5, 9, 300, 41]
ACCEPTED: list[dict[str, Any]] = [
    {"n_gpu_layers": -1},
    {"devices": ("none",)},
    {"cpu_experts": -1, "cpu_dense": 2},
    {"cpu_experts": 3, "cpu_dense": -1},
    {"buffers": ((r"blk\.0\.ffn", "CPU"), ("token_embd", "CPU"))},
    {"split": "layer", "shares": (3.0, 1.0)},
    {"split": "row", "main_gpu": 0},
    {"split": "none"},
]


def last_logits(model: LlamaModel) -> list[float]:
    with LlamaTarget(model, slots=1, context_size=256, threads=1) as target:
        return [float(value) for value in rows_of(target, IDS)[-1]]


def test_a_placement_does_not_change_what_the_model_says() -> None:
    with LlamaModel(embedded_model()) as model:
        plain = last_logits(model)
    for options in ACCEPTED:
        with LlamaModel(embedded_model(), placement=Placement(**options)) as model:
            assert last_logits(model) == pytest.approx(plain, abs=0.05), options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_experts": -2}, "cpu_experts must be >= -1, got -2"),
        ({"cpu_dense": -2}, "cpu_dense must be >= -1, got -2"),
        ({"split": "half"}, "split must be one of none, layer, row, tensor, got 'half'"),
        ({"main_gpu": -1}, "main_gpu must be >= 0, got -1"),
        ({"shares": (1.0, -1.0)}, "shares must be numbers from 0 on"),
        ({"shares": (float("nan"),)}, "shares must be numbers from 0 on"),
        ({"buffers": (("blk.(", "CPU"),)}, "'blk.(' is not a regular expression"),
    ],
)
def test_values_out_of_their_bounds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Placement(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("CUDA7",)}, "llama.cpp has no device 'CUDA7'; there is: "),
        ({"devices": ("CPU",)}, "llama.cpp has no device 'CPU'; there is: "),
        ({"buffers": (("blk", "GPU9"),)}, "has no memory 'GPU9' for tensors; there is: CPU"),
        ({"shares": (1.0,) * 1000}, "devices, got 1000 shares"),
    ],
)
def test_what_this_machine_does_not_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        LlamaModel(embedded_model(), placement=Placement(**options))
    assert message in str(caught.value)


def test_devices_are_listed() -> None:
    lines = device_lines()
    assert [line.partition(":")[0] for line in lines] == device_names()
    assert all("MiB free)" in line for line in lines)


def test_a_build_without_a_function_is_told() -> None:
    with pytest.raises(BackendError, match="has no ggml_nothing"):
        function_of("ggml_nothing", None)
