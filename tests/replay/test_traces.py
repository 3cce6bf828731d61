"""Replay of real outputs: no drafter may draft worse than llama.cpp's recorded figure."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from helpers.backends import Native, Reference
from helpers.recordings import BENCHMARK_DATA, TRACES, load_trace, trace_names
from ngramspec import create_drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.costs import PROFILES
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.lab.recordings.traces import Cut
from ngramspec.lab.replay.subjects import DrafterPlayer
from ngramspec.lab.replay.walk import walk
from reference.source import common_prefix

DRAFTERS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
ROUNDING = 0.0005  # the figures are recorded with four decimals
UPSTREAM = json.loads((BENCHMARK_DATA / "llama_cpp_mat.json").read_text(encoding="utf-8"))["sets"]
SHORT_PROMPT = 700  # the reference's work grows with the square of the history
each_drafter = pytest.mark.parametrize("spec", DRAFTERS)
each_set = pytest.mark.parametrize("name", trace_names())


def test_every_recorded_set_is_at_hand() -> None:
    assert trace_names() == sorted(UPSTREAM)
    assert len(UPSTREAM) == 12


@each_drafter
@each_set
def test_the_mean_accepted_length_is_at_least_upstreams(name: str, spec: str) -> None:
    """Tokens per step: every step yields its accepted draft tokens and one of the target's."""
    drafter = Native().drafter(spec)
    steps, accepted = 0, 0
    for prompt, output in _requests(name, Cut(max_prompt=0, max_output=0)):
        replay = drafter.replay(prompt, output)
        steps += replay.steps
        accepted += replay.accepted
    assert drafter.check() == ""
    assert (steps + accepted) / steps >= UPSTREAM[name][spec] - ROUNDING


@each_set
def test_an_index_of_other_texts_takes_nothing_away(name: str) -> None:
    index = _index_of(trace_names().index(name) % 2 == 0)
    trace = load_trace(TRACES / f"{name}.txt.xz")

    def tokens_per_pass(**static: SuffixIndex) -> float:
        policy = AutoPolicy(DEFAULT_MAX_DRAFT, PROFILES["cpu"])
        drafter = create_drafter("suffix", policy=policy, **static)
        return walk(lambda: DrafterPlayer(drafter), trace.requests).mean_accepted_length

    assert tokens_per_pass(static=index) >= 0.995 * tokens_per_pass()


@each_drafter
@each_set
def test_native_and_reference_draft_the_same_on_real_text(name: str, spec: str) -> None:
    native, reference = Native().drafter(spec), Reference().drafter(spec)
    for prompt, output in _requests(name, Cut(2, SHORT_PROMPT, 150)):
        for drafter in (native, reference):
            drafter.begin(0, prompt)
            drafter.accept(0, output[:1], 0)
        done = 1
        while done < len(output):
            draft = native.propose(0, len(output) - done)
            expected = reference.propose(0, len(output) - done)
            if reference.is_ambiguous(0):
                reference.adopt(0, draft)
            else:
                assert draft == expected
            right = common_prefix(draft, output[done:])
            for drafter in (native, reference):
                drafter.accept(0, output[done : done + right + 1], right)
            done += right + 1
        assert native.history(0) == reference.history(0)


@functools.cache
def _index_of(odd: bool) -> Any:
    """Return an index of what every other set says, beginning with the first or the second one."""
    others = [_requests(other, Cut()) for other in trace_names()[odd::2]]
    return Native().suffix_index([output for each in others for _, output in each])


@functools.cache
def _requests(name: str, cut: Cut) -> list[tuple[list[int], list[int]]]:
    """Prompts and outputs of a set."""
    requests = load_trace(TRACES / f"{name}.txt.xz", cut=cut).requests
    return [(one.prompt.tolist(), one.output.tolist()) for one in requests]
