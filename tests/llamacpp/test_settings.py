"""ContextSettings: what they make of a target, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.decoding import rows_of
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.rope import Rope
from ngramspec.llamacpp.settings import ContextSettings, physical_cores
from ngramspec.llamacpp.target import LlamaTarget

Open = Callable[..., LlamaTarget]


def test_settings_decide_what_a_target_can_do(open_target: Open) -> None:
    attention, recurrent = open_target(), open_target("mamba")
    hybrid, bare = open_target("lfm2"), open_target("lfm2", n_rs_seq=0)
    facts = [(t.max_rollback, t.can_save, t.min_copy) for t in (attention, recurrent, hybrid, bare)]
    assert facts == [(None, False, 32), (0, True, None), (64, True, None), (0, True, None)]
    assert open_target("lfm2", n_rs_seq=5).max_rollback == 5
    assert open_target(n_batch=32, slots=2).max_batch == 32
    assert attention.vocab_size == attention.model.vocab_size
    assert attention.piece(326, False) == b"a"
    assert [t for t in range(10) if attention.is_end(t)] == [2, 4]


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"slots": 0}, r"slots must be in 1\.\.256, got 0"),
    ({"slots": 257}, r"slots must be in 1\.\.256"),
    ({"slots": 256, "pad": True, "kv_unified": True}, r"slots must be in 1\.\.255"),
    ({"pad": True}, "pad needs kv_unified"),
    ({"cells": 512}, "cells needs kv_unified"),
    ({"cells": 255, "kv_unified": True}, "255 cells cannot hold a sequence of 256"),
    ({"n_batch": 2, "slots": 3}, "n_batch must be >= 3, got 2"),
    ({"n_ubatch": 0}, "n_ubatch must be >= 1"),
    ({"n_batch": -1}, r"n_batch must be in 0\.\."),
    ({"context_size": -1}, "context_size must be in 0"),
    ({"context_size": 1 << 30, "slots": 4}, "too many cells"),
    ({"max_outputs": 1, "slots": 2}, r"max_outputs must be 0 or in 2\.\.2048"),
    ({"threads": 0}, r"threads must be in 1\.\.512, got 0"),
    ({"threads_batch": 513}, "threads_batch must be in"),
    ({"flash_attn": "yes"}, "flash_attn must be"),
    ({"type_k": "q4_K"}, "type_k must be one of f32, f16"),
    ({"type_v": 1}, "type_v must be one of"),
    ({"n_rs_seq": -1}, "n_rs_seq must be"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS, ids=str)
def test_settings_out_of_bounds_are_refused(
    open_target: Open, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_target(**settings)


def test_snapshots_must_fit_into_a_batch(open_target: Open) -> None:
    with pytest.raises(InputError, match="n_rs_seq must be below n_ubatch - 1, got 31 of 32"):
        open_target("lfm2", n_ubatch=32, n_rs_seq=31)
    assert open_target("lfm2", n_ubatch=32, n_rs_seq=30).max_rollback == 30
    assert open_target("lfm2", n_ubatch=8).max_rollback == 6


def test_what_llama_cpp_refuses_says_why(open_target: Open) -> None:
    with pytest.raises(BackendError, match=r"cannot make a context of .*: .*requires flash_attn"):
        open_target(type_v="q8_0", flash_attn=False)
    assert open_target(type_k="q8_0", type_v="q8_0").exact_batch == 0  # nobody has measured it


def test_threads_default_to_the_physical_cores() -> None:
    cores = physical_cores()
    assert cores >= 1
    assert ContextSettings().num_threads == (cores, cores)
    assert ContextSettings(threads=3).num_threads == (3, 3)
    assert ContextSettings(threads=3, threads_batch=5).num_threads == (3, 5)


def test_outputs_can_be_limited(open_target: Open) -> None:
    target = open_target(max_outputs=2)
    assert rows_of(target, [300, 301]).shape == (2, target.vocab_size)
    with pytest.raises(InputError, match="at most 2 outputs, got 3 and 3"):
        rows_of(target, [300, 301, 302], start=2)


def logits_of(target: LlamaTarget, count: int = 40) -> Any:
    """Return the logits after `count` tokens."""
    ids = [(7 * i) % 90 + 5 for i in range(count)]
    return rows_of(target, ids)[-1]


ROPES = [
    {"freq_base": 500.0},
    {"freq_scale": 0.25},
    {"scaling": "linear", "freq_scale": 0.5},
    {"scaling": "yarn", "freq_scale": 0.5, "yarn_orig_ctx": 32},
    {"scaling": "yarn", "freq_scale": 0.5, "yarn_orig_ctx": 32, "yarn_ext_factor": 0.3},
    {"scaling": "yarn", "yarn_ext_factor": 0.0, "yarn_attn_factor": 1.5},
    {"scaling": "yarn", "freq_scale": 0.5, "yarn_orig_ctx": 2048, "yarn_beta_fast": 4.0},
    {"scaling": "yarn", "freq_scale": 0.5, "yarn_orig_ctx": 2048, "yarn_beta_slow": 8.0},
]


def test_every_setting_of_rope_changes_the_logits(open_target: Open) -> None:
    plain = logits_of(open_target("embedded"))
    assert (logits_of(open_target("embedded", rope=Rope())) == plain).all()
    assert (logits_of(open_target("embedded", rope=Rope(scaling="none"))) == plain).all()
    seen = [plain]
    for rope in ROPES:
        seen.append(logits_of(open_target("embedded", rope=Rope(**rope))))  # type: ignore[arg-type]
        assert not any((seen[-1] == other).all() for other in seen[:-1]), rope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "longrope"}, "rope scaling must be one of none, linear, yarn, got 'longrope'"),
        ({"freq_base": float("inf")}, "freq_base must be finite and not negative, got inf"),
        ({"yarn_beta_slow": float("nan")}, "yarn_beta_slow must be finite, got nan"),
        ({"yarn_orig_ctx": -1}, r"yarn_orig_ctx must be in 0\.\.2147483647, got -1"),
    ],
)
def test_rope_out_of_its_bounds_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rope(**options)
