"""Where measured costs lie, and finding them again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")

from ngramspec.costs import CostTable, save_costs
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel, file_digest
from ngramspec.llamacpp.placement import Device, Placement
from ngramspec.llamacpp.saved_costs import (
    cost_key,
    costs_path,
    find_costs,
    known_costs,
    layers_note,
    other_costs,
)
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llamacpp.threads import ThreadPlan
from ngramspec.models import embedded_model

SETTINGS = ContextSettings(threads=1)
TABLE = CostTable(((1, 0.001), (8, 0.002)), "tiny")


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model(), vocab_only=True) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def saved(model: LlamaModel, settings: ContextSettings = SETTINGS) -> Path:
    path = costs_path(model, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_costs(TABLE, path)
    return path


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as on an idle machine, whatever other tests do: a busy one is sure of nothing."""
    monkeypatch.setattr("ngramspec.llamacpp.saved_costs._busy", lambda *_: "")
    monkeypatch.setattr("ngramspec.engine.calibration.AGREE", float("inf"))
    monkeypatch.setattr("ngramspec.llamacpp.saved_costs.DISAGREE", float("inf"))


def test_saved_costs_are_found(model: LlamaModel, cache_home: Path) -> None:
    assert find_costs(model, SETTINGS) is None
    assert saved(model).parent == cache_home / "ngramspec" / "costs"
    assert find_costs(model, SETTINGS) == TABLE


def test_slots_and_context_share_costs_but_what_changes_them_does_not(model: LlamaModel) -> None:
    saved(model)
    for same in ({"slots": 4}, {"context_size": 99}, {"max_outputs": 9}):
        assert find_costs(model, ContextSettings(threads=1, **same)) == TABLE
    others: tuple[dict[str, Any], ...] = (
        {"threads": 2}, {"threads": 1, "threads_batch": 2}, {"flash_attn": True},
        {"type_k": "q8_0"}, {"type_v": "q8_0"}, {"n_batch": 64}, {"n_ubatch": 64},
        {"pad": True, "kv_unified": True}, {"offload_kqv": False}, {"op_offload": False},
        {"thread_plans": (ThreadPlan(), ThreadPlan())},
        {"thread_plans": (ThreadPlan(cpus=frozenset({1, 0})), ThreadPlan())},
    )  # fmt: skip
    paths = {costs_path(model, ContextSettings(**{"threads": 1, **other})) for other in others}
    assert len(paths) == len(others)
    assert costs_path(model, SETTINGS) not in paths


@pytest.mark.parametrize(
    "other",
    [
        {"placement": Placement(cpu_experts=30)},
        {"placement": Placement(cpu_dense=-1)},
        {"placement": Placement(buffers=(("exps", "CPU"),))},
        {"placement": Placement(split="row")},
        {"placement": Placement(shares=(3.0, 1.0))},
        {"placement": Placement(main_gpu=1)},
        {"placement": Placement(devices=("none",))},
        {"loading": Loading(repack=False)},
        {"loading": Loading(host_buffers=False)},
        {"loading": Loading(lazy="on")},
        {"loading": Loading(mode="none")},
        {"loading": Loading(metadata={"llama.expert_used_count": 1})},
    ],
)
def test_costs_are_of_a_placement_and_a_way_of_loading(
    model: LlamaModel, other: dict[str, Any]
) -> None:
    saved(model)
    with LlamaModel(embedded_model(), vocab_only=True, **other) as placed:
        assert find_costs(placed, SETTINGS) is None


def test_what_no_pass_depends_on_shares_costs(model: LlamaModel) -> None:
    saved(model)
    loading = Loading(check_tensors=True, mtp=True)
    with LlamaModel(embedded_model(), vocab_only=True, loading=loading) as other:
        assert find_costs(other, SETTINGS) == TABLE


GPU = Device("CUDA0", "NVIDIA H100", 1 << 30, 1 << 30)


def on_gpu(layers: int) -> LlamaModel:
    return LlamaModel(embedded_model(), vocab_only=True, placement=Placement(layers))


def test_all_layers_are_found_whatever_number_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [GPU]
    monkeypatch.setattr("ngramspec.llamacpp.saved_costs.gpus", lambda placement: devices)
    with on_gpu(-1) as model:
        every = int(model.metadata[f"{model.architecture}.block_count"]) + 1  # with the output
        saved(model)
    for layers, hit in ((-1, True), (99, True), (every, True), (every - 1, False), (0, False)):
        with on_gpu(layers) as model:
            assert (find_costs(model, SETTINGS) is not None) == hit, layers
    devices.clear()
    with on_gpu(0) as model:
        saved(model)
    with on_gpu(99) as model:  # without a GPU it does nothing
        assert find_costs(model, SETTINGS) == TABLE


def test_costs_of_other_settings_are_told_by_what_differs(
    model: LlamaModel, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngramspec.llamacpp.saved_costs.gpus", lambda placement: [GPU])

    def save(llama: LlamaModel, settings: ContextSettings) -> None:
        path = costs_path(llama, settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_costs(TABLE, path, {"key": cost_key(llama, settings)})

    assert other_costs(model, SETTINGS) == ""
    for number, text in enumerate(("", "[]", "{}", '{"key": 5}')):  # tell nothing
        folder = costs_path(model, SETTINGS).parent
        folder.mkdir(parents=True, exist_ok=True)
        Path(folder, f"{cost_key(model, SETTINGS)['model'][:16]}-{number}.json").write_text(text)
    assert other_costs(model, SETTINGS) == ""
    with on_gpu(5) as partly, on_gpu(4) as less:
        save(less, ContextSettings(threads=2, flash_attn=True, type_k="q8_0", type_v="q8_0"))
        note = "costs are saved for threads [2, 2] instead of [1, 1], flash_attn true instead of"
        assert other_costs(less, SETTINGS).startswith(note)
        assert other_costs(less, SETTINGS).endswith(" and 1 more")
        save(less, SETTINGS)
        note = "costs are saved for placement n_gpu_layers 4 instead of 5"
        assert other_costs(partly, SETTINGS) == note


def test_costs_of_a_part_of_the_layers_say_how_to_have_them_found() -> None:
    for layers, note in ((-1, ""), (0, ""), (17, "start `serve` with -ngl 17")):
        assert note in layers_note({"placement": {"n_gpu_layers": layers}})
    assert layers_note({"placement": {"n_gpu_layers": -1}}) == ""


def test_a_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    data = bytes(3 << 20)
    path.write_bytes(data)
    plain = file_digest(path)
    assert file_digest(path.rename(tmp_path / "b.gguf")) == plain
    for changed in (b"x" + data[1:], data[:-1] + b"x", data + b"\0"):
        path.write_bytes(changed)
        assert file_digest(path) != plain
    path.write_bytes(b"short")
    assert len(file_digest(path)) == 32


def test_the_folder_is_that_of_the_user(
    model: LlamaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not valid, so it does not count
    assert costs_path(model, SETTINGS).parent == tmp_path / "home/.cache/ngramspec/costs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert costs_path(model, SETTINGS).parent == tmp_path / "home/.cache/ngramspec/costs"
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        costs_path(model, SETTINGS)
    assert find_costs(model, SETTINGS) is None


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"format": "ngramspec-costs"}', "\0"])
def test_a_damaged_file_is_reported_once_and_ignored(
    model: LlamaModel, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = saved(model)
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert find_costs(model, SETTINGS) is None
        assert find_costs(model, SETTINGS) is None
    (record,) = caplog.records
    assert f"the costs in {path} are ignored" in record.getMessage()


def test_a_folder_in_its_place_is_ignored(
    model: LlamaModel, caplog: pytest.LogCaptureFixture
) -> None:
    costs_path(model, SETTINGS).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert find_costs(model, SETTINGS) is None
    assert len(caplog.records) == 1


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaTarget]:
    with (
        LlamaModel(embedded_model()) as loaded,
        LlamaTarget(loaded, threads=1, context_size=512) as opened,
    ):
        yield opened


def test_costs_are_measured_once_and_kept(target: LlamaTarget) -> None:
    assert known_costs(target, 0) is None
    table = known_costs(target, 30)
    assert table is not None
    assert {1, 8} <= {size for size, _ in table.costs}
    path = costs_path(target.model, target.settings)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    written = path.stat().st_mtime_ns
    assert known_costs(target, 30) == known_costs(target, 0) == table
    assert path.stat().st_mtime_ns == written


def test_the_threads_that_measured_have_ended(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else OpenMP's helpers of theirs would slow down the passes of the engine's thread."""
    computing: set[threading.Thread] = set()
    decode = target.decode

    def noting(*arguments: Any) -> None:
        computing.add(threading.current_thread())
        decode(*arguments)

    monkeypatch.setattr(target, "decode", noting)
    assert known_costs(target, 30) is not None
    first = len(computing)
    assert known_costs(target, 30) is not None  # looks whether they still hold
    assert 0 < first < len(computing)
    assert not any(one.is_alive() for one in computing)


def test_another_build_is_measured_anew(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_costs(target, 30) is not None
    monkeypatch.setattr("llama_cpp.__version__", "9.9.9")
    assert known_costs(target, 0) is None


def test_costs_that_cannot_be_kept_are_used_all_the_same(
    target: LlamaTarget, cache_home: Path
) -> None:
    (cache_home / "ngramspec").write_text("a file where the folder should be")
    assert known_costs(target, 30) is not None


def test_a_target_that_fails_starts_without_costs(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise BackendError("broken")

    monkeypatch.setattr(target, "decode", broken)
    with caplog.at_level(logging.WARNING):
        assert known_costs(target, 30) is None
    (record,) = caplog.records
    assert record.getMessage() == "the costs of passes could not be measured: broken"


def test_a_start_without_its_costs_tells_of_others(
    target: LlamaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    assert known_costs(target, 30) is not None
    with (
        LlamaTarget(target.model, threads=2, context_size=512) as other,
        caplog.at_level(logging.INFO, logger="ngramspec"),
    ):
        assert known_costs(other, 0) is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "what passes cost is not known in this setting: "
        "costs are saved for threads [1, 1] instead of [2, 2]"
    )


def test_nothing_is_measured_in_too_little_time(target: LlamaTarget) -> None:
    assert known_costs(target, 1e-6) is None
    assert not costs_path(target.model, target.settings).exists()
