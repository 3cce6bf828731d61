"""DrafterPlayer beside arctic-inference itself: same calls, same errors, same shape of drafts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.machines import SETTINGS
from helpers.recordings import TRACES, load_trace
from ngramspec.hosts.arctic.cache import SuffixDecodingCache, SuffixDecodingDraft

theirs: Any = pytest.importorskip(
    "arctic_inference.suffix_decoding", reason="the peer is arctic-inference"
)
IDS = st.integers(0, 3)
TEXTS = st.lists(st.integers(0, 4), max_size=24)
LIMITS = st.tuples(
    st.integers(-1, 12),
    st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    st.sampled_from([-1.0, 0.0, 3.0]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
)
BAD = (np.zeros(3), np.zeros((2, 2), np.int32), np.zeros(6, np.int32)[::2], np.zeros(2, np.int64))
BAD_LISTS = (["x"], [1.5], [1 << 31], None)


def outcome(call: Any) -> tuple[str, Any]:
    try:
        return "", call()
    except (ValueError, TypeError) as error:
        return "ValueError" if isinstance(error, ValueError) else "TypeError", None


class Machine(RuleBasedStateMachine):
    """Both caches, and what each request said so far."""

    @initialize(depth=st.integers(2, 40), most=st.sampled_from([-1, 0, 1, 2]))
    def make(self, depth: int, most: int) -> None:
        self.both = SuffixDecodingCache(depth, most), theirs.SuffixDecodingCache(depth, most)
        self.texts: dict[int, list[int]] = {}

    def same(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        ours, other = (outcome(lambda c=c: getattr(c, name)(*args, **kwargs)) for c in self.both)
        assert ours[0] == other[0]
        return [] if ours[0] else [ours[1], other[1]]

    @rule(who=IDS, text=TEXTS, as_array=st.booleans())
    def start(self, who: int, text: list[int], as_array: bool) -> None:
        if self.same("start_request", who, np.array(text, np.int32) if as_array else text):
            self.texts[who] = list(text)

    @rule(who=IDS, text=TEXTS, as_array=st.booleans())
    def add(self, who: int, text: list[int], as_array: bool) -> None:
        tokens = np.array(text, np.int32) if as_array else text
        if self.same("add_active_response", who, tokens):
            self.texts[who] += text

    @rule(who=IDS, text=st.none() | TEXTS, limits=LIMITS)
    def speculate(self, who: int, text: list[int] | None, limits: tuple[Any, ...]) -> None:
        context = self.texts.get(who, []) if text is None else text
        for draft in self.same("speculate", who, context, *limits):
            check(draft, limits, len(context))

    @rule(who=IDS)
    def stop(self, who: int) -> None:
        self.same("stop_request", who)

    @rule(who=IDS)
    def evict(self, who: int) -> None:
        self.same("evict_cached_response", who)

    @rule(who=IDS, bad=st.integers(0, 3), name=st.integers(0, 2))
    def refuse(self, who: int, bad: int, name: int) -> None:
        more = [3] if name == 2 else []
        call = ("start_request", "add_active_response", "speculate")[name]
        assert self.same(call, who, BAD[bad], *more) == []
        if name:  # theirs stays active after a prompt that it refused
            assert self.same(call, who, BAD_LISTS[bad], *more) == []

    @invariant()
    def same_requests(self) -> None:
        if hasattr(self, "both"):
            ours, other = self.both
            assert list(ours.active_requests) == list(other.active_requests)
            assert list(ours.cached_requests) == list(other.cached_requests)
            assert ours.max_tree_depth == other.max_tree_depth
            assert ours.max_cached_requests == other.max_cached_requests


def check(draft: Any, limits: tuple[Any, ...], context_len: int) -> None:
    """What holds for the drafts of both."""
    most, factor, offset, least, tree = limits
    n = len(draft.token_ids)
    assert len(draft.parents) == len(draft.probs) == n <= max(0, most)
    assert all(type(token) is int for token in draft.token_ids + draft.parents)
    assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))
    assert tree or draft.parents == list(range(-1, n - 1))
    assert all(least - 1e-6 <= p <= 1 for p in draft.probs)
    for parent, p in zip(draft.parents, draft.probs, strict=True):
        assert parent < 0 or p <= draft.probs[parent] + 1e-6
    assert draft.score == pytest.approx(sum(draft.probs), abs=1e-4)
    assert 0 <= draft.match_len <= max(0, context_len - 1)
    assert n <= max(0.0, draft.match_len * factor + offset) + 1e-5
    assert n == 0 or context_len > 1


Machine.TestCase.settings = SETTINGS
test_the_same_calls_have_the_same_outcome = Machine.TestCase


def test_names_and_defaults_are_the_same() -> None:
    for name in ("start_request", "stop_request", "add_active_response", "speculate",
                 "evict_cached_response"):  # fmt: skip
        ours, other = (
            inspect.signature(getattr(c, name)).parameters
            for c in (SuffixDecodingCache, theirs.SuffixDecodingCache)
        )
        assert list(ours) == list(other)
        assert [p.default for p in ours.values()] == [p.default for p in other.values()]
    ours, other = (
        inspect.signature(c).parameters for c in (SuffixDecodingCache, theirs.SuffixDecodingCache)
    )
    assert {name: p.default for name, p in other.items()}.items() <= {
        name: p.default for name, p in ours.items()
    }.items()
    assert vars(SuffixDecodingDraft()) == vars(theirs.SuffixDecodingDraft())


def accepted(cache: Any, requests: Any, factor: float, least: float) -> float:
    """Mean accepted length, called as vLLM calls it."""
    steps = emitted = 0
    for number, request in enumerate(requests):
        text = np.concatenate((request.prompt, request.output))
        at = len(request.prompt) + 1
        cache.start_request(number, request.prompt)
        cache.add_active_response(number, request.output[:1].tolist())
        while at < len(text):
            context = text[max(0, at - 24) : at]
            draft = cache.speculate(
                number, context, max_spec_tokens=16, max_spec_factor=factor, min_token_prob=least
            ).token_ids
            after = text[at : at + len(draft)].tolist()
            right = next((i for i, t in enumerate(after) if draft[i] != t), len(after))
            cache.add_active_response(number, text[at : at + right + 1].tolist())
            at += right + 1
            emitted += min(right + 1, len(text) - at + right + 1)
            steps += 1
        cache.stop_request(number)
    return emitted / steps


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("name", ["agentic.tau2_tools", "code_edit.debugbench"])
def test_drafts_are_as_good_on_recorded_requests(name: str, factor: float) -> None:
    requests = load_trace(TRACES / f"{name}.txt.xz").requests[:30]
    ours = accepted(SuffixDecodingCache(24, 10000), requests, factor, 0.1)
    other = accepted(theirs.SuffixDecodingCache(24, 10000), requests, factor, 0.1)
    assert ours > 0.98 * other
    assert other > 1.3  # or the comparison says nothing
