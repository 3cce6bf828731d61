"""vLLM's settings of its suffix method: what one of them forbids, and which change nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from helpers.vllm_engine import config
from helpers.vllm_requests import SAID, Requests, texts
from ngramspec.errors import InputError
from ngramspec.hosts.vllm.settings import read_settings
from ngramspec.hosts.vllm.suffix import BatchProposer

APART = {"suffix_decoding_max_cached_requests": 0}


def facts(settings: dict[str, Any], **options: Any) -> Any:
    """A configuration with settings of vLLM and options of ours."""
    vllm_config = config(**options)
    vars(vllm_config.speculative_config).update(settings)
    return vllm_config


def test_without_cached_requests_nothing_is_shared() -> None:
    another = {"suffix_decoding_max_cached_requests": 7}
    own = {"share": True}  # what is said of our own option counts
    cases: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [
        ({}, {}, SAID[2:6]),
        (another, {}, SAID[2:6]),
        (APART, {}, []),
        (APART, own, SAID[2:6]),
    ]
    for settings, options, drafted in cases:
        vllm_config = facts(settings, drafter="suffix", policy="fixed", **options)
        run = Requests(BatchProposer(vllm_config), texts("first", "second"), {})
        for _ in range(10):
            run.step("first")
        run.step("second")
        assert run.step("second") == {"second": drafted}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"drafter": "ngram-mod"}, "ngram-mod drafts from the text of others"),
        ({"drafter": "suffix,ngram-mod"}, "leave it out of drafter"),
        ({"drafter": "ngram-cache", "dynamic": "learnt.ngd"}, "unless dynamic_update is False"),
    ],
)
def test_drafters_that_cannot_but_share_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"suffix_decoding_max_cached_requests=0.*{why}"):
        read_settings(facts(APART, **options), {})
    read_settings(facts({}, **options), {})


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-cache"},
        {"drafter": "ngram-cache", "dynamic": "learnt.ngd", "dynamic_update": False},
        {"drafter": "ngram-cache", "static": Path("counts.ngs")},
    ],
)
def test_drafters_that_share_no_text_of_requests_go_on(options: dict[str, Any]) -> None:
    assert "share" not in read_settings(facts(APART, **options), {}).params["ngram-cache"]


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({}, []),
        (APART, []),
        ({"suffix_decoding_max_tree_depth": 4}, []),  # num_speculative_tokens without a value
        ({"suffix_decoding_max_tree_depth": 48}, ["max_tree_depth=48 has no effect: num_spec"]),
        ({"suffix_decoding_max_cached_requests": 9}, ["max_cached_requests=9 has no effect: the"]),
        (
            {"suffix_decoding_max_spec_factor": 4.0, "suffix_decoding_min_token_prob": 0.2},
            ["max_spec_factor=4.0 has no effect", "min_token_prob=0.2 has no effect"],
        ),
    ],
)
def test_settings_without_effect_are_named(
    settings: dict[str, Any], messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        read_settings(facts(settings), {})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(messages)
    for line, expected in zip(lines, messages, strict=True):
        assert line.startswith(f"ngramspec: suffix_decoding_{expected}")


def test_ranks_without_drafts_name_nothing(caplog: pytest.LogCaptureFixture) -> None:
    vllm_config = facts({"suffix_decoding_max_tree_depth": 48})
    vllm_config.parallel_config.tensor_parallel_size, vllm_config.parallel_config.rank = 2, 1
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        assert not read_settings(vllm_config, {}).drafts_here
    assert not caplog.records
