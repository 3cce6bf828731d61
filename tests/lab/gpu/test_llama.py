"""The replay on llama.cpp: what it asks for before it begins, and the set-up beside results."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.gpu_scripts import needs

pytestmark = pytest.mark.usefixtures("scripts")


def test_without_a_gpu_no_large_model_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("llama_cpp")
    import llama_replay

    written: list[Path] = []
    lib = SimpleNamespace(llama_supports_gpu_offload=lambda: False)
    monkeypatch.setattr(llama_replay, "load_library", lambda: SimpleNamespace(lib=lib))
    monkeypatch.setattr(llama_replay, "random_model", written.append)
    monkeypatch.setattr(sys, "argv", ["llama_replay.py", "--slots", "1"])
    with pytest.raises(SystemExit, match=r"finds no GPU: build it .* run with --cpu or --small"):
        llama_replay.main()
    assert not written

    def fail() -> Any:
        raise llama_replay.BackendError("llama-cpp-python is not installed")

    monkeypatch.setattr(llama_replay, "load_library", fail)
    with pytest.raises(SystemExit, match="llama-cpp-python is not installed"):
        llama_replay.main()


def test_all_drafts_of_all_slots_are_one_computation() -> None:
    needs("llama_cpp")
    from llama_replay import settings_of

    options: Any = SimpleNamespace(prompt=2048, output=128, max_draft=32, threads=1)
    assert settings_of(1, options).n_ubatch == 512
    settings = settings_of(16, options)
    assert settings.max_outputs == settings.n_ubatch == 528
    assert settings.n_batch == 2048
    assert settings_of(64, options).n_batch == 2112


def test_slots_without_memory_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("llama_cpp")
    from contextlib import ExitStack, nullcontext

    import llama_replay

    def target(model: Any, settings: Any) -> Any:
        if settings.slots > most:
            raise llama_replay.BackendError("llama.cpp has no memory for the context")
        return nullcontext(settings.slots)

    monkeypatch.setattr(llama_replay, "LlamaTarget", target)
    options: Any = SimpleNamespace(prompt=8, output=8, max_draft=4, slots=[4, 1], threads=1)
    model: Any = None
    most = 1
    with ExitStack() as stack:
        assert llama_replay.open_targets(model, options, stack) == [1]
    stderr = capsys.readouterr().err
    assert stderr == "4 slots are left out: llama.cpp has no memory for the context\n"
    most = 0
    with ExitStack() as stack, pytest.raises(SystemExit, match="no number of slots fits"):
        llama_replay.open_targets(model, options, stack)


def test_a_copy_without_git_can_be_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay_setup import facts

    monkeypatch.setenv("NGRAMSPEC_COMMIT", "0123abc")
    assert facts()["commit"] == "0123abc"
    monkeypatch.delenv("NGRAMSPEC_COMMIT")
    assert facts()["commit"] != "0123abc"
