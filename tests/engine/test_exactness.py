"""Exact settings are found by measuring, and refused where there are none."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import exact_settings
from helpers.cli import invoke
from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.exactness import WAYS, Setting, measure
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp import exact, saved_costs
from ngramspec.llamacpp.exact import check_exact, find_exact, open_exact, open_tested
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import Device, Placement
from ngramspec.llamacpp.rope import Rope
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llamacpp.threads import ThreadPlan

IDS = (np.arange(100) % 90 + 1).astype(np.int32)


class RoundingTarget(FakeTarget):
    """A target whose logits move by a bit from a batch size on, or beside other sequences."""

    limit = 64
    alone = False

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        others = len(set(batch.arrays()[2].tolist())) > 1
        if len(batch) > self.limit or (self.alone and others):
            moved = np.array([rows.copy(i) for i in range(len(rows))], np.float32)
            rows.set(np.nextafter(moved, np.float32(9)).reshape(-1, self.vocab_size))


def found_in(target: FakeTarget, **options: object) -> dict[str, int]:
    @contextmanager
    def open_target(setting: Setting, sequences: int) -> Iterator[FakeTarget]:
        yield target

    exactness = measure(open_target, Setting(), IDS, **options)  # type: ignore[arg-type]
    return {way: exactness.limit(way) for way in exactness.differing} | {"all": exactness.limit()}


def test_a_target_that_never_rounds_is_exact_in_all_sizes() -> None:
    assert found_in(FakeTarget()) == {**dict.fromkeys(WAYS, 64), "all": 64}


@pytest.mark.parametrize("limit", [8, 40, 56])  # more than the compared rows, too
def test_one_bit_in_large_batches_is_seen(limit: int) -> None:
    target = RoundingTarget()
    target.limit = limit
    sizes = (2, 4, 8, 33, 40, 56, 63)
    assert found_in(target, sizes=sizes)["all"] == limit
    assert (
        found_in(target, sizes=sizes, stop_early=True, ways=WAYS[2:], num_rows=32)["all"] == limit
    )


def test_one_bit_beside_other_sequences_is_seen() -> None:
    target = RoundingTarget()
    target.alone = True
    limits = found_in(target)
    assert limits["alone"] == 64
    assert limits["all"] < 5


def test_the_embedded_model_has_an_exact_setting_for_several_slots(
    model_path: Callable[[str], str],
) -> None:
    with LlamaModel(model_path("embedded")) as model:
        exactness = exact_settings.find_once(model, threads=2, slots=3)
        assert exactness.setting == Setting(threads=1, unified=False)
        assert exactness.limit() >= 50
        with open_exact(model, exactness, 3, 256) as target:
            assert target.exact_batch == exactness.limit()


@pytest.fixture
def quick_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a setting anew, with so little text that it takes no time."""
    monkeypatch.setattr(exact, "ENOUGH_TOKENS", 60)
    monkeypatch.setattr(exact, "QUICK_SIZES", (2, 3, 7))
    monkeypatch.setattr(exact_settings, "MEASURED", {})
    monkeypatch.setattr(exact_settings, "FOLDER", None)


@pytest.mark.usefixtures("quick_search")
def test_what_cannot_change_a_bit_is_kept(model_path: Callable[[str], str]) -> None:
    asked = ContextSettings(
        slots=2, context_size=256, n_batch=12, n_ubatch=8, threads=1, offload_kqv=False,
        op_offload=False, rope=Rope(freq_base=300.0), thread_plans=(ThreadPlan(poll=0),) * 2,
    )  # fmt: skip
    with LlamaModel(model_path("embedded")) as model:
        target, exactness = open_tested(model, asked)
        with target:
            settings = target.settings
    same = ("slots", "context_size", "n_batch", "n_ubatch", "offload_kqv", "op_offload", "rope")
    for name in (*same, "thread_plans"):
        assert getattr(settings, name) == getattr(asked, name), name
    assert (settings.flash_attn, settings.kv_unified, settings.num_threads) == (True, False, (1, 1))
    assert target.exact_batch == exactness.limit() >= 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_search: None) -> Path:
    """Keep what was found, as commands do; return where."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(exact, "path_of", saved_costs.path_of)
    return tmp_path / "ngramspec" / "costs"


ALONE = ContextSettings(context_size=256, n_batch=12, n_ubatch=8, threads=1, branches=4,
                        kv_unified=True)  # fmt: skip


def test_what_was_found_is_kept_for_later_starts(
    model_path: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = (replace(ALONE, type_k="f32", type_v="f32"), replace(ALONE, n_batch=11))
    with LlamaModel(model_path("embedded")) as model:
        target, exactness = open_tested(model, ALONE)
        with target:
            asked = target.settings, target.exact_batch
        (file,) = folder.iterdir()
        if os.name == "posix":
            assert [path.stat().st_mode & 0o77 for path in (file, folder)] == [0, 0]
        monkeypatch.setattr(exact, "find_exact", lambda *_: pytest.fail("it is looked for again"))
        monkeypatch.setattr(exact, "trees_differ", lambda *_: pytest.fail("it is tested again"))
        for _ in range(2):
            target, again = open_tested(model, ALONE)
            with target:
                assert (target.settings, target.exact_batch) == asked
            assert again == exactness
        for other in others:
            with pytest.raises(pytest.fail.Exception):
                open_tested(model, other)


def test_the_threads_that_searched_have_ended(
    model_path: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else OpenMP's helpers of theirs would slow down the passes of the engine's thread."""
    computing: set[threading.Thread] = set()
    decode = LlamaTarget.decode

    def noting(*arguments: Any) -> None:
        computing.add(threading.current_thread())
        decode(*arguments)

    monkeypatch.setattr(LlamaTarget, "decode", noting)
    with LlamaModel(model_path("embedded")) as model:
        open_tested(model, ALONE)[0].close()
    assert computing
    assert not any(one.is_alive() for one in computing)


def test_branches_that_were_not_exact_are_not_tried_again(
    model_path: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "trees_differ", lambda *_: True)
    with LlamaModel(model_path("embedded")) as model:
        for _ in range(2):
            with open_tested(model, ALONE)[0] as target:
                assert target.settings.branches == 1
            monkeypatch.setattr(exact, "trees_differ", lambda *_: False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: "[1]",
        lambda text: text.replace('"threads": 1', '"threads": 3'),
        lambda text: text.replace('"cache_type"', '"cache_kind"'),
        lambda text: text.replace('": 0', '": 7'),
        lambda text: text.replace('"branches": 4', '"branches": 0'),
    ],
)
def test_a_damaged_file_is_written_anew(
    model_path: Callable[[str], str],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[str], str],
) -> None:
    with LlamaModel(model_path("embedded")) as model:
        open_tested(model, ALONE)[0].close()
        (file,) = folder.iterdir()
        text = file.read_text()
        file.write_text(damage(text))
        open_tested(model, ALONE)[0].close()
    assert f"the exact setting in {file} is ignored: " in caplog.text
    assert file.read_text() == text


def test_what_cannot_be_kept_is_no_error(
    model_path: Callable[[str], str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", exact.__name__)
    folder.parent.write_text("a file where the folder is to be")
    with LlamaModel(model_path("embedded")) as model:
        open_tested(model, ALONE)[0].close()
    assert "the exact setting is not kept: " in caplog.text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"flash_attn": False}, "exact needs flash attention: leave out flash_attn"),
        (
            {"threads": 2, "threads_batch": 4},
            "as many threads for batches as for single tokens, got 4 and 2: leave out threads_b",
        ),
        ({"type_k": "q8_0"}, "keys and values, got q8_0 and f16: leave out type_k and type_v"),
        ({"slots": 2, "kv_unified": True}, "a cache for each slot: leave out kv_unified"),
        ({"swa_full": False}, "leave out swa_full"),
        ({"max_outputs": 8}, "the logits of whole batches: leave out max_outputs"),
        ({"kv_unified": True, "pad": True}, "leave out pad"),
    ],
)
def test_what_contradicts_an_exact_setting_is_refused_by_name(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_exact(ContextSettings(**asked), Placement())


def test_one_slot_may_have_the_shared_cache_for_itself() -> None:
    for asked in ({}, {"kv_unified": True, "branches": 4}, {"flash_attn": True, "threads": 3}):
        check_exact(ContextSettings(**asked), Placement())


def test_layers_on_a_gpu_are_refused_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Device] = []
    monkeypatch.setattr("ngramspec.llamacpp.exact.gpus", lambda placement: devices)
    check_exact(ContextSettings(), Placement(99))
    devices.append(Device("CUDA0", "NVIDIA H100", 1 << 30, 1 << 30))
    check_exact(ContextSettings(), Placement(0))
    names = {"exact": "--exact", "n_gpu_layers": "--n-gpu-layers"}
    message = "^--exact needs all layers on the CPU: leave out --n-gpu-layers$"
    with pytest.raises(InputError, match=message):
        check_exact(ContextSettings(), Placement(1), names)


def test_a_model_that_cannot_take_tokens_back_is_refused(model_path: Callable[[str], str]) -> None:
    with (
        LlamaModel(model_path("lfm2")) as model,
        pytest.raises(BackendError, match="no setting is exact"),
    ):
        find_exact(model, threads=1, slots=2)


def test_the_command_tells_each_settings_limit(model_path: Callable[[str], str]) -> None:
    options = ["bench", "exactness", "--threads", "1", "--tokens", "100"]
    options += ["--model", model_path("llama")]
    output = invoke(*options, "--flash-attn", "on", "--json")
    assert output.exit_code == 0
    rows = json.loads(output.stdout)
    assert [row["unified"] for row in rows] == [True, False]
    assert rows[1]["exact_batch"] >= 50
    assert not any(rows[0]["differing"]["alone"][str(size)] for size in (1, 2, 33, 50))
    assert set(rows[0]["differing"]) == set(WAYS)
    table = invoke(*options, "--flash-attn", "off")
    assert "none" in table.stdout or "1 to" in table.stdout
    assert invoke("bench", "exactness", "--threads", "x").exit_code == 2
