"""Fixtures: tiny models, built once per session, and targets with a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.fake_target import FakeTarget
from ngramspec.costs import PROFILES

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the path of a model by name; "embedded" is the one that ships with the package."""
    from helpers.gguf_models import build

    folder: Path = tmp_path_factory.mktemp("gguf")

    def path(name: str) -> str:
        return str(embedded_model()) if name == "embedded" else build(name, folder)

    return path


@pytest.fixture(scope="session")
def model() -> Iterator[LlamaModel]:
    """Return the embedded model."""
    with LlamaModel(embedded_model()) as embedded:
        yield embedded


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTarget]:
    """Make a target with the costs of a profile, by whose clock the engine goes from then on."""

    def make(
        profile: str = "moe", kind: type[FakeTarget] = FakeTarget, **options: Any
    ) -> FakeTarget:
        target = kind(costs=PROFILES[profile], **options)
        clock = SimpleNamespace(perf_counter=lambda: target.now)
        monkeypatch.setattr("ngramspec.engine.stepper.time", clock)
        return target

    return make


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the engine's clock: what pays is then what the costs say that a policy is given."""
    monkeypatch.setattr("ngramspec.engine.stepper.time", SimpleNamespace(perf_counter=lambda: 1.0))
