"""ngramspec bench calibrate on the embedded model."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")

from helpers.cli import assert_one_error, invoke
from ngramspec.cli.options import options_from
from ngramspec.cli.serve import serve
from ngramspec.cli.serve.options import ServeOptions
from ngramspec.cli.target import open_idle
from ngramspec.costs import CostTable, load_costs
from ngramspec.engine.exactness import Exactness, Setting
from ngramspec.llamacpp.saved_costs import find_costs
from ngramspec.models import embedded_model

QUICK = ("--max-batch", "9", "--rounds", "2", "--context", "40")
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9]
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run() -> Run:
    return partial(invoke, "bench", "calibrate")


def costs_of_server(*arguments: str) -> CostTable | None:
    """Return the costs for what `ngramspec serve` would run with these options."""
    with serve.make_context("serve", list(arguments), resilient_parsing=True) as context:
        options = options_from(ServeOptions, context.params)
    with open_idle(options, lambda model: 512, "off") as target:
        return find_costs(target.model, target.settings)


def test_json_and_the_file_that_the_server_finds(run: Run, cache_home: Path) -> None:
    result = run(*QUICK, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    assert set(report) == {"model", "saved", "complete", "context", "key", "costs"}
    assert report["complete"] is True
    assert report["context"] == 40
    assert [row["tokens"] for row in report["costs"]] == SIZES
    for row in report["costs"]:
        assert row["fastest_seconds"] <= row["seconds"] + 1e-9
        assert row["seconds"] <= row["slowest_seconds"] + 1e-9
        assert row["relative"] == row["seconds"] / report["costs"][0]["seconds"]
        assert row["seconds_per_token"] == row["seconds"] / row["tokens"]
        assert row["samples"] == 2
    path = Path(report["saved"])
    assert path.is_relative_to(cache_home)
    table = load_costs(path)
    assert table.name == embedded_model().stem
    assert dict(table.costs) == {row["tokens"]: row["seconds"] for row in report["costs"]}
    assert json.loads(path.read_text())["key"] == report["key"]
    assert costs_of_server("-np", "2", "-c", "512") == table
    assert costs_of_server("-fa", "off") is None


def test_the_server_finds_the_costs_of_its_own_placement(run: Run, cache_home: Path) -> None:
    placed = ("--n-cpu-moe", "2", "--no-repack", "--no-op-offload", "--poll", "0")
    result = run(*QUICK, *placed)
    assert result.exit_code == 0, result.output
    assert costs_of_server(*placed) is not None
    assert costs_of_server() is None
    assert costs_of_server(*placed, "-nkvo") is None


def test_the_table_and_a_file_of_its_own(run: Run, tmp_path: Path, cache_home: Path) -> None:
    path = tmp_path / "costs.json"
    result = run(*QUICK, "-fa", "off", "-b", "4", "-o", path)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].endswith("1 thread, 40 tokens in the cache, medians of 2")
    assert lines[-1] == f"saved: {path}"
    assert "relative to 1" in result.stdout
    assert [size for size, _ in load_costs(path).costs] == SIZES[:4]  # --batch-size bounds them
    assert not cache_home.exists()


def test_the_context_is_what_the_model_has_room_for(run: Run, tmp_path: Path) -> None:
    arguments = ("--context", "9999", "--max-batch", "2", "--rounds", "1", "--json")
    report = json.loads(run(*arguments, "-o", tmp_path / "x.json").stdout)
    assert report["context"] == 2048 - 2


def test_exact_settings_bound_the_batch(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exactness = Exactness(Setting(), {"alone": {1: 0, 2: 0, 3: 0, 4: 1}})
    monkeypatch.setattr("ngramspec.llamacpp.exact.find_exact", lambda *_: exactness)
    path = tmp_path / "x.json"
    result = run("--exact", "--rounds", "1", "-o", path)
    assert result.exit_code == 0, result.output
    assert [size for size, _ in load_costs(path).costs] == [1, 2, 3]
    key = json.loads(path.read_text())["key"]
    assert (key["flash_attn"], key["n_batch"]) == (True, 64)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_measured_before_ctrl_c_is_shown_and_not_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch, cache_home: Path, as_json: bool
) -> None:
    from ngramspec.engine.calibration import _Probe

    measured = _Probe.measured

    def interrupted(self: Any, size: int) -> float:
        if size == 3:
            signal.raise_signal(signal.SIGINT)
        return measured(self, size)

    monkeypatch.setattr(_Probe, "measured", interrupted)
    result = run(*QUICK, *(["--json"] if as_json else []))
    assert result.exit_code == 130, result.output
    assert not list(cache_home.rglob("*.json"))
    if as_json:
        report = json.loads(result.stdout)
        assert report["complete"] is False
        assert report["saved"] is None
        assert 3 in [row["tokens"] for row in report["costs"]]
    else:
        assert "not saved: incomplete" in result.stdout


def test_nothing_measured_before_ctrl_c(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from ngramspec.engine.calibration import _Probe

    seconds = _Probe.seconds

    def interrupted(self: Any, size: int) -> float:
        signal.raise_signal(signal.SIGINT)
        return seconds(self, size)

    monkeypatch.setattr(_Probe, "seconds", interrupted)
    result = run("--max-batch", "2", "--context", "0")
    assert result.exit_code == 130
    assert "Nothing was measured." in result.stdout


def test_wrong_command_lines(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_error(run("-o", tmp_path / "no" / "x.json"), "No such folder", 2)
    assert_one_error(run("-o", tmp_path), "is a folder", 2)
    assert_one_error(run("-m", "absent.gguf"), "absent.gguf: No such file", 2)
    assert_one_error(run("--max-batch", "0"), "0 is not in the range x>=1", 2)
    assert_one_error(run("--rounds", "0"), "0 is not in the range", 2)
    assert_one_error(run("-ctk", "q9"), "'q9' is not one of", 2)
    assert_one_error(run("-ngl", "few"), "--n-gpu-layers must be a number, all or auto", 2)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert_one_error(run(*QUICK), "Not a directory", 1)


def test_speed_ups_by_draft_length_for_given_rates(run: Run) -> None:
    result = run(*QUICK, "--synthetic", "0.8,0.4", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["costs"]
    for row, emitted in zip(rows, (1.0, 1.8, 2.2, 2.2), strict=False):
        assert row["speedup"] == pytest.approx(emitted / row["relative"], abs=1e-3)
    assert "speed-up" in run(*QUICK, "--synthetic-length", "2").output
