"""Where measured costs lie, and finding them again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.saved_costs import costs_path, file_digest, find_costs
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.costs import CostTable, save_costs
from ngramspec.errors import InputError
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
        {"pad": True, "kv_unified": True},
    )  # fmt: skip
    paths = {costs_path(model, ContextSettings(**{"threads": 1, **other})) for other in others}
    assert len(paths) == len(others)
    assert costs_path(model, SETTINGS) not in paths


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
