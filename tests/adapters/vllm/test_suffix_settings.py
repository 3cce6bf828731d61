"""vLLM's settings of its suffix method: what one of them forbids, and which change nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.vllm_calls import batch_of
from helpers.vllm_engine import config
from ngramspec.adapters.vllm.settings import read_settings
from ngramspec.adapters.vllm.suffix import BatchProposer
from ngramspec.errors import InputError

APART = {"suffix_decoding_max_cached_requests": 0}


def facts(settings: dict[str, Any], **options: Any) -> Any:
    """A configuration with settings of vLLM and options of ours."""
    made = config(**options)
    vars(made.speculative_config).update(settings)
    return made


def calls_of(name: str, prompt: list[int], answer: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the calls of a request that has each pass to itself."""
    for end in range(1, len(answer) + 1):
        text = [*prompt, *answer[:end]]
        yield {"ids": [name], "table": [[1, 64]], "texts": [text], "sampled": [[text[-1]]]}


def drafts_of_the_second(settings: dict[str, Any], **options: Any) -> list[list[int]]:
    """Let two requests say the same after prompts that are unlike; return the other's drafts."""
    proposer = BatchProposer(facts(settings, drafter="suffix", policy="fixed", **options))
    answer = list(range(50, 62))
    made: list[list[int]] = []
    for name, first in (("r1", 100), ("r2", 200)):
        made = []
        for call in calls_of(name, list(range(first, first + 24)), answer):
            made += proposer.propose(4, batch_of(call), call["sampled"])
    return made


def test_without_cached_requests_nothing_is_shared() -> None:
    shared = drafts_of_the_second({})
    assert [53, 54, 55, 56] in shared
    apart = drafts_of_the_second(APART)
    assert not any(apart)
    assert drafts_of_the_second({}, share=False) == apart
    assert drafts_of_the_second(APART, share=True) == shared  # what is said of our own counts
    assert drafts_of_the_second({"suffix_decoding_max_cached_requests": 7}) == shared


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
    ("settings", "said"),
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
    settings: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        read_settings(facts(settings), {})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(said)
    for line, expected in zip(lines, said, strict=True):
        assert line.startswith(f"ngramspec: suffix_decoding_{expected}")


def test_ranks_without_drafts_name_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = facts({"suffix_decoding_max_tree_depth": 48})
    made.parallel_config.tensor_parallel_size, made.parallel_config.rank = 2, 1
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        assert not read_settings(made, {}).drafts_here
    assert not caplog.records
