"""Our SuffixDecodingCache by itself: what it drafts, from where, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.replays import tokens
from ngramspec import SuffixPool
from ngramspec.errors import InputError
from ngramspec.files.cache_file import Origin
from ngramspec.files.suffix_file import write_suffix_index
from ngramspec.hosts.arctic.cache import SuffixDecodingCache, SuffixDecodingDraft

COPY = [*range(10, 40), 7, 8]  # then 10, 11, 12: the start comes again
LONG = list(range(100, 180))


def started(prompt: list[int], **settings: Any) -> SuffixDecodingCache:
    cache = SuffixDecodingCache(**settings)
    cache.start_request("a", prompt)
    return cache


def test_a_draft_follows_the_request_own_text() -> None:
    cache = started([*LONG, 3])
    cache.add_active_response("a", LONG[:4])
    draft = cache.speculate("a", LONG[:4], max_spec_tokens=5, max_spec_factor=4.0)
    assert draft.token_ids == LONG[4:9]
    assert draft.parents == [-1, 0, 1, 2, 3]
    assert draft.probs == sorted(draft.probs, reverse=True)
    assert draft.score == pytest.approx(sum(draft.probs))
    assert (
        draft.match_len == 3
    )  # of a context of four, the last token is matched by what it follows


def test_the_whole_text_is_a_context_as_good_as_its_end() -> None:
    text = [*LONG, 3, *LONG[:9]]
    cache = started(text)
    drafts = [cache.speculate("a", context, 5) for context in (text, text[-64:], tokens(*text))]
    assert drafts[0].token_ids == LONG[9:14]
    assert drafts[0] == drafts[1] == drafts[2]


def test_a_longer_context_than_the_text_is_not_its_end() -> None:
    cache = started(LONG[:3])
    assert cache.speculate("a", [1, *LONG[:3]], 5) == SuffixDecodingDraft()


def test_without_a_bound_a_draft_is_as_long_as_the_tree_is_deep() -> None:
    text = [*LONG, 3, *LONG[:40]]
    for depth in (8, 24):
        cache = started(text, max_tree_depth=depth)
        draft = cache.speculate("a", text, max_spec_factor=9.0, min_token_prob=0.0)
        assert draft.token_ids == LONG[40 : 40 + depth]
    cache = started([*LONG, *LONG, *LONG[:40]], max_tree_depth=200)
    draft = cache.speculate("a", LONG[:40], max_spec_factor=9.0, min_token_prob=0.0)
    assert len(draft.token_ids) == 64


@pytest.mark.parametrize(
    ("factor", "offset", "length"),
    [(1.0, 0.0, 5), (0.0, 2.0, 2), (0.5, 1.0, 3), (0.0, 0.0, 0), (-1.0, 0.0, 0), (4.0, -18.0, 2)],
)
def test_a_draft_is_as_long_as_its_match_allows(factor: float, offset: float, length: int) -> None:
    text = [*LONG, 3, *LONG[:5]]
    cache = started(text)
    draft = cache.speculate("a", text, 40, factor, offset, 0.0)
    assert draft.match_len == 5
    assert draft.token_ids == LONG[5 : 5 + length]
    assert len(draft.parents) == len(draft.probs) == length


def test_a_match_of_32_tokens_or_more_allows_drafts_as_long_as_the_tree_is_deep() -> None:
    text = [*LONG, 3, *LONG[:36]]
    draft = started(text).speculate("a", text, 44, min_token_prob=0.0)
    assert (len(draft.token_ids), draft.match_len) == (44, 32)


def test_a_draft_ends_where_it_is_less_likely_than_asked_for() -> None:
    text = [*LONG, 3, *LONG[:5]]
    cache = started(text)
    whole = cache.speculate("a", text, 40, 9.0, 0.0, 0.0)
    assert len(whole.probs) == 40
    least = whole.probs[7] * 1.001
    cut = cache.speculate("a", text, 40, 9.0, 0.0, least)
    assert cut.probs == [p for p in whole.probs if p >= least]
    assert 0 < len(cut.probs) < 8
    assert cache.speculate("a", text, 40, 9.0, 0.0, 1.0).token_ids == []


def test_a_tree_has_branches_and_the_target_may_take_any_path() -> None:
    text = [1, 2, 3, 4, 9, 6, 1, 2, 3, 5, 8, 7, 1, 2, 3]
    cache = started(text)
    draft = cache.speculate("a", text, 8, 9.0, 0.0, 0.01, use_tree_spec=True)
    assert set(draft.token_ids[:2]) == {4, 5}
    assert draft.parents[:2] == [-1, -1]
    assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))
    assert draft.probs == sorted(draft.probs, reverse=True)
    cache.add_active_response("a", [4, 9, 6])
    (stats,) = [drafter.stats()["suffix"] for drafter in cache._slots.drafters]
    assert stats.num_accepted_tokens == 2


def test_accepted_drafts_are_counted_up_to_the_targets_own_token() -> None:
    text = [*LONG, 3, *LONG[:9]]
    cache = started(text)
    assert cache.speculate("a", text, 4).token_ids == LONG[9:13]
    cache.add_active_response("a", [*LONG[9:11], 5])
    assert cache.speculate("a", [*text, *LONG[9:11], 5], 4, max_spec_factor=0.0).token_ids == []
    cache.add_active_response("a", LONG[:3])
    (stats,) = [drafter.stats()["suffix"] for drafter in cache._slots.drafters]
    assert stats.accepted_per_position[:2] == (1, 1)
    assert cache._slots.drafters[0].history(0).tolist() == [*text, *LONG[9:11], 5, *LONG[:3]]


def test_a_returned_draft_is_the_callers_to_change() -> None:
    text = [*LONG, 3, *LONG[:9]]
    cache = started(text)
    draft = cache.speculate("a", text, 4)
    draft.token_ids[:] = [1]
    draft.parents.clear()
    cache.add_active_response("a", LONG[9:12])
    (stats,) = [drafter.stats()["suffix"] for drafter in cache._slots.drafters]
    assert stats.num_accepted_tokens == 2


@pytest.mark.parametrize("shared", [True, False])
def test_responses_are_drafted_for_other_requests_unless_none_are_cached(shared: bool) -> None:
    cache = started([1, 2], max_cached_requests=-1 if shared else 0)
    cache.add_active_response("a", LONG)
    cache.stop_request("a")
    cache.start_request("b", [5, 6, *LONG[:9]])
    draft = cache.speculate("b", LONG[:9], 5)
    assert draft.token_ids == (LONG[9:14] if shared else [])
    assert (cache.pool is not None) == shared


@pytest.mark.parametrize("pooled", [True, False])
def test_prompts_are_drafted_for_other_requests_on_demand(pooled: bool) -> None:
    cache = started(LONG, pool_prompts=pooled)
    cache.stop_request("a")
    cache.start_request("b", [5, 6, *LONG[:9]])
    assert cache.speculate("b", LONG[:9], 5).token_ids == (LONG[9:14] if pooled else [])


def test_a_context_that_is_not_the_requests_end_is_drafted_for_from_other_requests() -> None:
    cache = started([1, 2])
    cache.add_active_response("a", LONG)
    cache.stop_request("a")
    cache.start_request("b", COPY)
    stored = cache.pool.num_tokens if cache.pool else 0
    for _ in range(3):
        assert cache.speculate("b", LONG[:9], 5).token_ids == LONG[9:14]
        assert cache.speculate("b", COPY[:9], 5).token_ids == []  # its own text is no other's
    assert cache.pool is not None
    assert cache.pool.num_tokens == stored
    cache.add_active_response("b", COPY[:9])
    assert cache.speculate("b", COPY[:9], 5).token_ids == COPY[9:14]
    with pytest.raises(InputError, match="position 1"):
        cache.speculate("b", [4, -5], 5)
    assert cache.speculate("b", LONG[:9], 5).token_ids == LONG[9:14]


def test_caches_may_share_a_pool_and_read_an_index(tmp_path: Path) -> None:
    path = tmp_path / "a.ngs"
    write_suffix_index(path, tokens(*range(300, 380), -1), Origin(None, 1000))
    pool = SuffixPool(4096)
    first = started([1, 2], pool=pool)
    first.add_active_response("a", LONG)
    first.stop_request("a")
    second = started([5, 6, *LONG[:9]], pool=pool, static=path)
    assert second.pool is pool
    assert second.speculate("a", LONG[:9], 5).token_ids == LONG[9:14]
    second.add_active_response("a", list(range(300, 309)))
    assert second.speculate("a", list(range(300, 309)), 5).token_ids == list(range(309, 314))


def test_any_number_of_requests_may_run() -> None:
    cache = SuffixDecodingCache()
    for i in range(70):
        cache.start_request(i, [*range(i, i + 20), 3, *range(i, i + 4)])
    for i in range(70):
        draft = cache.speculate(i, list(range(i, i + 4)), 4, 4.0)
        assert draft.token_ids[:2] == [i + 4, i + 5]
    assert [drafter.slots for drafter in cache._slots.drafters] == [64, 64]
    for i in range(70):
        cache.stop_request(i)
    cache.start_request("next", [1])
    assert len(cache._slots.drafters) == 2
    assert list(cache.active_requests) == ["next"]


@pytest.mark.parametrize("most", [1, 2])
def test_the_oldest_requests_are_no_longer_cached(most: int) -> None:
    cache = SuffixDecodingCache(max_cached_requests=most)
    for name in "abc":
        cache.start_request(name, [1])
    assert list(cache.cached_requests) == ["a", "b", "c"][-most:]
    assert list(cache.active_requests) == ["a", "b", "c"]


def test_a_request_that_is_started_again_is_the_newest() -> None:
    cache = SuffixDecodingCache(max_cached_requests=2)
    for name in "ab":
        cache.start_request(name, [1])
    cache.stop_request("a")
    cache.start_request("a", [1])
    assert list(cache.cached_requests) == ["b", "a"]
    cache.start_request("c", [1])
    assert list(cache.cached_requests) == ["a", "c"]


def test_the_views_are_sets_that_follow_the_cache() -> None:
    cache = SuffixDecodingCache(24, 10)
    active = cache.active_requests
    cache.start_request("a", [1])
    assert active - {"b"} == {"a"}
    assert (cache.max_tree_depth, cache.max_cached_requests) == (24, 10)
    assert SuffixDecodingCache().max_tree_depth == 64


def test_an_empty_response_changes_nothing() -> None:
    cache = started([*LONG, 3, *LONG[:9]])
    cache.add_active_response("a", [])
    cache.add_active_response("a", tokens())
    assert cache.speculate("a", LONG[:9], 2).token_ids == LONG[9:11]


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    cache = started(COPY)
    with pytest.raises(InputError, match="request 'a' is already active"):
        cache.start_request("a", [1])
    for call in (
        lambda: cache.add_active_response("b", [1]),
        lambda: cache.speculate("b", [1, 2]),
        lambda: cache.stop_request("b"),
    ):
        with pytest.raises(InputError, match="request 'b' is not active"):
            call()
    with pytest.raises(InputError, match="request 'b' is not cached"):
        cache.evict_cached_response("b")
    with pytest.raises(InputError, match=r"got -1 at position 1"):
        cache.add_active_response("a", [4, -1])
    with pytest.raises(InputError, match="got -1 at position 0"):
        cache.start_request("b", [-1])
    cache.add_active_response("a", COPY[:4])
    assert cache.speculate("a", COPY[:4], 2).token_ids == COPY[4:6]
    assert list(cache.active_requests) == ["a"]
    assert len(cache._slots._free) == 63


@pytest.mark.parametrize(
    "values",
    [np.zeros(3), np.zeros(3, np.int64), np.zeros((2, 2), np.int32), np.zeros(6, np.int32)[::2]],
)
def test_other_arrays_are_refused(values: Any) -> None:
    cache = started(COPY)
    for call in (
        lambda: cache.start_request("b", values),
        lambda: cache.add_active_response("a", values),
        lambda: cache.speculate("a", values, 4),
    ):
        with pytest.raises(InputError, match="must be a contiguous int32 array of shape"):
            call()


@pytest.mark.parametrize("values", [["x"], [1.5], [1 << 31], None, "ab", b"abcd", 5, [None]])
def test_other_sequences_are_of_the_wrong_type(values: Any) -> None:
    cache = started(COPY)
    with pytest.raises(TypeError, match="token_ids must"):
        cache.add_active_response("a", values)
    assert cache.speculate("a", COPY, 4).token_ids == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tree_depth": 0}, r"max_tree_depth must be in 1\.\.2147483647, got 0"),
        ({"max_tree_depth": 1 << 63}, "max_tree_depth must be in 1"),
        ({"max_tree_depth": 24.0}, r"max_tree_depth must be an integer, got 24\.0"),
        ({"max_cached_requests": 1 << 31}, "max_cached_requests must be at most 2147483647"),
        ({"max_cached_requests": None}, "max_cached_requests must be an integer, got None"),
        ({"capacity": 1}, "capacity must be an integer in 4096"),
        ({"pool": 3}, "pool must be a SuffixPool, got int"),
        ({"pool_prompts": 1}, "pool_prompts must be True or False"),
        ({"static": 3}, "static must be a SuffixIndex"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SuffixDecodingCache(**settings)


def test_settings_may_be_numpys_numbers() -> None:
    depth: Any = np.int64(24)
    most: Any = np.int32(2)
    cache = SuffixDecodingCache(depth, most)
    for name in "abc":
        cache.start_request(name, COPY)
    assert list(cache.cached_requests) == ["b", "c"]
    assert (cache.max_tree_depth, cache.max_cached_requests) == (24, 2)
