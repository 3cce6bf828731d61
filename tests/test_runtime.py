"""Costs, second source and policy of a target, in the order in which they may be opened."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")

from ngramspec.costs import CostTable
from ngramspec.engine import MtpHeads
from ngramspec.engine.calibration import Calibration
from ngramspec.errors import BackendError, FormatError, InputError
from ngramspec.llamacpp import saved_costs
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.mtp import MtpSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model
from ngramspec.runtime import DraftSetup, set_up_drafts

MEASURED = Calibration({1: (0.001,), 8: (0.002,)}, 0, True)


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaTarget]:
    with (
        LlamaModel(embedded_model()) as model,
        LlamaTarget(model, threads=1, context_size=256) as opened,
    ):
        yield opened


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let measuring take no time; return whether somebody followed the target, each time."""
    seen: list[bool] = []

    def calibrate(target: LlamaTarget, seconds: float) -> Calibration:
        seen.append(target._follower is not None)
        return MEASURED

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(saved_costs, "calibrate_within", calibrate)
    return seen


def test_costs_are_of_passes_that_no_heads_follow(tmp_path: Path, measured: list[bool]) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.glm4moe(tmp_path / "model.gguf")
    with contextlib.ExitStack() as stack:
        loaded = LlamaModel(tmp_path / "model.gguf", loading=Loading(mtp=True))
        model = stack.enter_context(loaded)
        target = stack.enter_context(LlamaTarget(model, context_size=256, threads=1))
        setup = set_up_drafts(target, MtpSettings(), stack, ["auto"], calibrate=30)
        assert measured == [False]
        assert isinstance(setup.second, MtpHeads)
        assert target._follower is setup.second
        assert setup.costs == MEASURED.table("model")
    assert target.closed


def test_only_the_policy_auto_asks_for_costs(target: LlamaTarget, measured: list[bool]) -> None:
    with contextlib.ExitStack() as stack:
        for policies in ((), ("fixed", "gate")):
            setup = set_up_drafts(target, None, stack, policies, calibrate=30)
            assert setup == DraftSetup(None, None, None, target.max_rollback)
        assert not measured
        setup = set_up_drafts(target, None, stack, ("fixed", "auto"), calibrate=30)
        assert setup.costs is not None
        assert len(measured) == 1


@pytest.mark.parametrize("sign", ["scattered", "load", "stolen", ""])
def test_costs_of_a_busy_machine_are_not_kept(
    sign: str,
    target: LlamaTarget,
    measured: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", saved_costs.__name__)
    stolen = itertools.count()
    monkeypatch.setattr(saved_costs, "_stolen", lambda: next(stolen) * (sign == "stolen"))
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3 * (sign == "load"), 0.0, 0.0))
    share = 0.5 * (sign == "scattered")
    calibration = dataclasses.replace(MEASURED, scattered=share)
    monkeypatch.setattr(saved_costs, "calibrate_within", lambda *_: calibration)
    costs = saved_costs.known_costs(target, 30)
    assert costs == MEASURED.table(target.model.path.stem)  # this process has them
    table = saved_costs.find_costs(target.model, target.settings)
    assert table == (None if sign else costs)
    assert ("as the machine is busy" in caplog.text) == bool(sign)
    assert "roughly" in caplog.text


@pytest.mark.parametrize(
    ("now", "rough", "load", "replaced"),
    [
        ((1.1, 1.1), True, 0.0, False),
        ((0.53, 0.53), True, 0.0, True),  # measured on a busy machine, which nothing noticed
        ((1.0, 2.0), True, 0.0, True),
        ((1.4, 0.8), True, 0.0, True),
        ((0.53, 0.53), True, 1e3, False),
        ((0.53, 0.53), False, 0.0, False),
    ],
)
def test_rough_costs_that_the_first_passes_contradict_are_measured_again(
    now: tuple[float, float],
    rough: bool,
    load: float,
    replaced: bool,
    target: LlamaTarget,
    measured: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", saved_costs.__name__)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(saved_costs, "_stolen", lambda: 0.0)
    path = saved_costs.costs_path(target.model, target.settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    saved_costs.save_calibration(MEASURED, target, path, rough=rough)
    before = saved_costs.find_costs(target.model, target.settings)
    seen = {
        size: [factor * MEASURED.seconds[size][0]] for size, factor in zip((1, 8), now, strict=True)
    }
    monkeypatch.setattr(
        saved_costs,
        "calibrate_within",
        lambda *_: measured.append(True) or dataclasses.replace(MEASURED, seconds=seen),
    )
    costs = saved_costs.known_costs(target, 30)
    assert costs == saved_costs.find_costs(target.model, target.settings)
    assert (costs != before) == replaced
    assert len(measured) == 1 + replaced
    assert ("are measured again" in caplog.text) == replaced
    assert ("run `ngramspec bench calibrate` again" in caplog.text) == (not rough)


def test_a_policy_knows_the_target() -> None:
    costs = CostTable(((1, 1.0), (8, 2.0)), "some")
    assert DraftSetup(costs, None, None, None).policy("auto", 8).name == "auto"
    assert DraftSetup(costs, None, None, 4).policy("auto", 8).name == "gate"
    assert DraftSetup(None, None, None, None).policy("fixed", 8).name == "fixed"
    with pytest.raises(InputError, match="policy must be one of"):
        DraftSetup(None, None, None, None).policy("none", 8)


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"GGUF of another kind", FormatError), (None, FileNotFoundError)],
)
def test_a_second_source_must_open_unless_it_is_optional(
    target: LlamaTarget, tmp_path: Path, data: bytes | None, error: type[Exception]
) -> None:
    path = tmp_path / "small.gguf"
    if data is not None:
        path.write_bytes(data)
    settings = DraftModelSettings(path=path)
    with contextlib.ExitStack() as stack:
        with pytest.raises(error):
            set_up_drafts(target, settings, stack)
        setup = set_up_drafts(target, settings, stack, optional=True)
        assert setup.second is None
        assert isinstance(setup.refusal, error)


def test_what_was_opened_of_a_source_that_is_left_out_is_closed(
    target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mtp_models = pytest.importorskip("helpers.mtp_models", reason="needs gguf")
    mtp_models.gemma4_assistant(tmp_path / "heads.gguf")
    closed: list[str] = []
    close = LlamaModel.close

    def noted(model: LlamaModel) -> Any:
        closed.append(model.path.name)
        return close(model)

    monkeypatch.setattr(LlamaModel, "close", noted)
    with contextlib.ExitStack() as stack:
        settings = DraftModelSettings(path=tmp_path / "heads.gguf")
        setup = set_up_drafts(target, settings, stack, optional=True)
        assert isinstance(setup.refusal, BackendError)
        assert "is an MTP assistant" in str(setup.refusal)
        assert closed == ["heads.gguf"]
