"""Every documented error, its message, and that a failed call changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ngramspec import Drafter, HashPool, NgramCache, SuccessorPool, create_drafter
from ngramspec._native.cache.ngram_cache import check_records, entries_of_records
from ngramspec._native.core.arguments import leading_flagged
from ngramspec._native.map.drafter import SimpleSource
from ngramspec.errors import FormatError, InputError, NgramspecError, StateError


@pytest.fixture
def drafter() -> Drafter:
    """A drafter with a pending draft on slot 0; slot 1 is idle."""
    simple = create_drafter("ngram-simple", slots=2, size_n=2, size_m=4)
    simple.begin(0, [5, 6, 7, 8, 5, 6])
    simple.propose(0, 4)
    return simple


BAD_TOKENS = [
    (np.arange(3), "int64"),
    (np.arange(3, dtype=np.float32), "float32"),
    (np.arange(3, dtype=np.uint32), "uint32"),
    (np.zeros((2, 2), dtype=np.int32), "(2, 2)"),
    (np.arange(6, dtype=np.int32)[::2], "strided"),
    ([1, -2], "got -2"),
    (np.array([1, -5], dtype=np.int32), "got -5 at position 1"),
    ([1.5], "float64"),
    ([[1, 2]], "(1, 2)"),
    ([2**40], "1099511627776"),
    (SimpleNamespace(dtype="int32", shape=(3,)), "of shape (3,), a SimpleNamespace"),  # a tensor
    (None, "None"),
    ("text", "str"),
    (7, "int"),
]


@pytest.mark.parametrize(("tokens", "named"), BAD_TOKENS, ids=[named for _, named in BAD_TOKENS])
@pytest.mark.parametrize("call", ["begin", "accept", "follow", "replay"])
def test_tokens_of_a_wrong_kind_are_refused_and_named(
    drafter: Drafter, call: str, tokens: Any, named: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "begin": lambda: drafter.begin(0, tokens),
        "accept": lambda: drafter.accept(0, tokens, 0),
        "follow": lambda: drafter.follow(0, tokens),
        "replay": lambda: drafter.replay([1], tokens),
    }
    with pytest.raises(InputError, match=re.escape(named)):
        calls[call]()
    unchanged(drafter)


def unchanged(drafter: Drafter) -> None:
    """Check that the fixture's history and pending draft are as they were."""
    assert drafter.history(0).tolist() == [5, 6, 7, 8, 5, 6]
    assert drafter.check() == ""
    drafter.accept(0, [7, 8, 1], 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.begin(2, [1]), "slot must be in 0..1, got 2"),
        (lambda d: d.propose(-1, 4), "slot must be in 0..1, got -1"),
        (lambda d: d.accept(9, [1], 0), "slot must be in 0..1, got 9"),
        (lambda d: d.follow(9, [1]), "slot must be in 0..1, got 9"),
        (lambda d: d.follow(0, [5, 6, 7], 7), "token ids in 0..6, got 7 at position 2"),
        (lambda d: d.follow(0, [5, 6, 7, 8, 5, 6, 9], 9), "token ids in 0..8, got 9 at position 6"),
        (lambda d: d.follow(0, [5], -1), "vocab_size must be in 0..2147483647, got -1"),
        (lambda d: d.truncate(9, 0), "slot must be in 0..1, got 9"),
        (lambda d: d.end(9), "slot must be in 0..1, got 9"),
        (lambda d: d.forget(9), "slot must be in 0..1, got 9"),
        (lambda d: d.length(9), "slot must be in 0..1, got 9"),
        (lambda d: d.history(9), "slot must be in 0..1, got 9"),
        (lambda d: d.replay([1], [2], slot=2), "slot must be in 0..1, got 2"),
        (lambda d: d.replay([1], [2], max_tokens=-1), "max_tokens must be >= 0, got -1"),
        (lambda d: d.propose(0, -3), "max_tokens must be >= 0, got -3"),
        (lambda d: d.truncate(0, 7), "length must be in 0..6, got 7"),
        (lambda d: d.truncate(0, -1), "length must be in 0..6, got -1"),
        (lambda d: d.accept(0, [7], 2), "num_accepted must be in 0..1"),
        (lambda d: d.accept(0, [7], -1), "num_accepted must be in 0..1"),
        (lambda d: d.accept(0, [7, 8, 5, 6, 7, 8], 5), "at most 4, the length of the pending"),
        (
            lambda d: d.accept(0, [7, 9], 2),
            "the first 2 of token_ids must be tokens of the pending draft",
        ),
    ],
)
def test_arguments_out_of_bounds_are_refused(
    drafter: Drafter, call: Callable[[Drafter], Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        call(drafter)
    unchanged(drafter)


def test_a_slot_with_a_request_is_not_forgotten(drafter: Drafter) -> None:
    with pytest.raises(StateError, match="forget: a request is active on slot 0; call end"):
        drafter.forget(0)
    unchanged(drafter)


@pytest.mark.parametrize("call", ["propose", "accept", "truncate", "end", "propose_batch"])
def test_calls_before_begin_and_after_end_are_refused(drafter: Drafter, call: str) -> None:
    def attempt(slot: int) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "propose": (slot, 4),
            "accept": (slot, [1], 0),
            "truncate": (slot, 0),
            "end": (slot,),
            "propose_batch": ([slot], [4], np.zeros((1, 4), np.int32), np.zeros(1, np.int32)),
        }
        with pytest.raises(StateError, match=f"{call}: no request has begun on slot {slot}"):
            getattr(drafter, call)(*arguments[call])

    attempt(1)
    unchanged(drafter)
    drafter.end(0)
    attempt(0)


@pytest.mark.parametrize(
    ("slots", "limits", "out", "lens", "message"),
    [
        ([0, 0], [1], np.zeros((2, 4), np.int32), np.zeros(2, np.int32), "got 2, 1, 2 and 2"),
        ([0], [1], np.zeros((1, 4), np.int64), np.zeros(1, np.int32), "out must be writable int32"),
        ([0], [1], np.zeros(4, np.int32), np.zeros(1, np.int32), "out must be writable int32"),
        ([0], [1], np.zeros((1, 4), np.int32), [0], "out must be writable int32"),
        ([0], [-1], np.zeros((1, 4), np.int32), np.zeros(1, np.int32), "max_tokens must hold"),
        ([5], [1], np.zeros((1, 4), np.int32), np.zeros(1, np.int32), "slot must be in 0..1"),
    ],
)
def test_propose_batch_checks_all_arrays_first(
    drafter: Drafter, slots: Any, limits: Any, out: Any, lens: Any, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        drafter.propose_batch(slots, limits, out, lens)
    unchanged(drafter)


NO_TREES = np.zeros((1, 4), np.int32)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"parents": NO_TREES.astype(np.int64)}, "parents must be writable int32 of shape (b, w)"),
        ({"parents": np.zeros(4, np.int32)}, "of shape (b, w), like out"),
        (
            {"parents": np.zeros((1, 3), np.int32)},
            "expected parents of shape (1, 4), like out, a",
        ),
        ({"parents": np.zeros((2, 4), np.int32)}, "got (2, 4) and 8"),
        ({"parents": NO_TREES, "max_width": 0}, "max_width >= 1, got (1, 4) and 0"),
        ({"others": -1}, "0 <= others <= other_tokens <= 1073741824, got -1 and 0"),
        ({"others": 3, "other_tokens": 2}, "got 3 and 2"),
        ({"other_tokens": 1 << 31}, "got 0 and 2147483648"),
        ({"padded_rows": -1}, "padded_rows must be 0 or in 1..1073741824, at least the rows"),
        ({"padded_rows": 1 << 31}, "got 2147483648"),
    ],
)
def test_propose_batch_checks_where_trees_go_and_what_shares_the_pass(
    drafter: Drafter, more: dict[str, Any], message: str
) -> None:
    out, lens = np.zeros((1, 4), np.int32), np.zeros(1, np.int32)
    with pytest.raises(InputError, match=re.escape(message)):
        drafter.propose_batch([0], 4, out, lens, **more)
    unchanged(drafter)


def batch_of_one(**moved: int) -> dict[str, Any]:
    """The arrays of a batch of one row in one memory, apart from one another unless moved."""
    memory = np.zeros(16, np.int32)
    starts = {"slots": 0, "max_tokens": 1, "out_lens": 2, "out": 4, "parents": 8, **moved}
    arrays = {name: memory[at : at + 1] for name, at in starts.items()}
    for name in ("out", "parents"):
        arrays[name] = memory[starts[name] : starts[name] + 4].reshape(1, 4)
    return arrays


@pytest.mark.parametrize(
    "moved",
    [
        {"slots": 7},
        {"max_tokens": 4},
        {"out_lens": 7},
        {"out_lens": 0},
        {"slots": 11},
        {"max_tokens": 8},
        {"out_lens": 11},
        {"parents": 4},
        {"parents": 7},
        {"out": 9},
    ],
)
def test_propose_batch_writes_into_nothing_that_it_reads(
    drafter: Drafter, moved: dict[str, int]
) -> None:
    with pytest.raises(InputError, match="must share no memory with one another or with slots"):
        drafter.propose_batch(**batch_of_one(**moved))
    unchanged(drafter)


def test_lengths_of_drafts_may_take_the_place_of_their_limits(drafter: Drafter) -> None:
    arrays = batch_of_one(out_lens=1)
    arrays["max_tokens"][0] = 3
    drafter.propose_batch(**arrays)
    assert arrays["out_lens"].tolist() == [3]
    assert arrays["out"].tolist() == [[7, 8, 5, 0]]


@pytest.mark.parametrize(
    ("spec", "params", "message"),
    [
        ("ngram-mud", {}, "unknown drafter 'ngram-mud'; did you mean ngram-mod"),
        ("ngram_mod", {}, "did you mean ngram-mod"),
        ("", {}, "at least one drafter"),
        ("ngram-mod,ngram-mod", {}, "each drafter may be named once"),
        (5, {}, "spec must be names of drafters, got 5"),
        (None, {}, "spec must be names of drafters, got None"),
        (b"suffix", {}, "spec must be names of drafters, got b'suffix'"),
        (["suffix", 5], {}, "spec must be names of drafters, got ['suffix', 5]"),
        (
            "suffix",
            {"policy": "gate"},
            "policy must be 'auto', 'fixed' or an AutoPolicy, got 'gate'",
        ),
        ("suffix", {"params": "x"}, "params must be a mapping by drafter, got str"),
        ("suffix", {"params": {"suffix": 5}}, "params of suffix must be a mapping, got int"),
        ("suffix", {"params": {"suffix": {5: 5}}}, "unknown parameter 5 for suffix"),
        ("ngram-mod", {"order": "random"}, 'order must be "priority" or "given"'),
        ("ngram-mod", {"slots": 0}, "slots must be an integer in 1.."),
        ("ngram-mod", {"max_history": 10}, "max_history must be an integer in 1024.."),
        ("suffix", {"max_history": (1 << 25) - 1}, "suffix drafts from 33554430 tokens of history"),
        ("ngram-mod", {"n_mach": 3}, "unknown parameter 'n_mach' for ngram-mod; did you mean"),
        ("ngram-mod", {"n_match": 0}, "n_match must be an integer in 1..65535, got 0"),
        ("ngram-mod", {"n_min": -1}, "n_min must be an integer in 0..4096, got -1"),
        ("ngram-mod", {"n_max": 2.5}, "n_max must be an integer"),
        ("ngram-mod", {"pool": 3}, "pool must be a HashPool or a path, got int"),
        ("ngram-mod", {"capacity": 1000}, "capacity must be a power of two"),
        ("ngram-simple", {"size_n": True}, "size_n must be an integer"),
        ("ngram-simple", {"params": {"ngram-mod": {}}}, "not in ngram-simple"),
        ("ngram-simple", {"params": {"ngram-simple": {"n_max": 1}}}, "unknown parameter 'n_max'"),
        ("ngram-map-k4v", {"max_values": 1}, "max_values must be an integer in 2..16"),
        ("ngram-cache", {"ngram_min": 3, "ngram_max": 2}, "ngram_max must be an integer in 3..4"),
        ("ngram-cache", {"lax_min_sample": (1, 2)}, "lax_min_sample must hold 4 integers"),
        ("ngram-cache", {"strict_min_percent": (1, 2, 3, 101)}, "strict_min_percent of size 4"),
        ("ngram-cache", {"static_veto": 1}, "static_veto must be True or False"),
        (
            "ngram-cache",
            {"static": 3},
            "static must be a StaticCache, an NgramCache or a path, got int",
        ),
    ],
)
def test_create_drafter_names_what_is_wrong(
    spec: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        create_drafter(spec, **params)


def test_one_cache_cannot_be_static_and_dynamic() -> None:
    cache = NgramCache()
    with pytest.raises(InputError, match="static and dynamic must be different"):
        create_drafter("ngram-cache", static=cache, dynamic=cache)


def test_a_drafter_checks_its_sources() -> None:
    source = SimpleSource(1, 2, 3, 1)
    with pytest.raises(InputError, match="at least one source"):
        Drafter([])
    with pytest.raises(InputError, match="must be Source objects, got int"):
        Drafter([3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="made for 1 slots, the drafter has 2"):
        Drafter([source], slots=2)
    with pytest.raises(InputError, match="slots must be >= 1"):
        Drafter([source], slots=0)
    with pytest.raises(InputError, match="max_history"):
        Drafter([source], max_history=1)
    with pytest.raises(InputError, match="threads must be in"):
        Drafter([source], threads=0)
    Drafter([source])  # those that failed took nothing
    with pytest.raises(InputError, match="already belongs to a drafter"):
        Drafter([source])
    with pytest.raises(InputError, match="used once"):
        Drafter([SimpleSource(1, 2, 3, 1), SimpleSource(1, 2, 3, 1)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HashPool(capacity=1000), "power of two"),
        (lambda: HashPool(check_bits=9), "check_bits must be an integer in 0..8"),
        (lambda: HashPool(max_occupancy=0.0), "max_occupancy must be above 0"),
        (lambda: HashPool(1024).lookup([]), "at least 1 token"),
        (lambda: HashPool(1024).index_of([-1]), "got -1"),
        (lambda: HashPool(1024).insert([1], -1), "token must be in 0..4194302, got -1"),
        (lambda: HashPool(1024).insert([1], 1 << 22), "token must be in 0..4194302"),
        (lambda: HashPool(1024).insert([1], 1 << 31), "0..4194302, got 2147483648"),
        (lambda: SuccessorPool(64, 1 << 31), "top must be in 1..16, got 2147483648"),
        (lambda: NgramCache(ngram_min=0), "ngram_min must be an integer in 1..4"),
        (lambda: NgramCache(ngram_max=5), "ngram_max must be an integer in 1..4"),
        (lambda: NgramCache(max_ngrams=1), "max_ngrams must be an integer in 16.."),
        (lambda: NgramCache().update([1, 2], 3), "start must be in 0..2, got 3"),
        (lambda: NgramCache().followers([]), "must hold 1..4 tokens, got 0"),
        (lambda: NgramCache().followers([1] * 5), "must hold 1..4 tokens, got 5"),
        (lambda: NgramCache().add_records([1, 2]), "records must be an int32 array"),
        (lambda: NgramCache().add_records(None), "records must be an int32 array"),
        (lambda: check_records(None), "records must be an int32 array"),
        (lambda: entries_of_records(None, 1), "records must be an int32 array"),
    ],
)
def test_pools_and_caches_check_their_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        call()


def test_pools_round_no_numbers() -> None:
    half: Any = 1.5
    pool = HashPool(1024)
    with pytest.raises(TypeError):
        pool.insert([5], half)
    assert pool.lookup([5]) == -1
    with pytest.raises(TypeError):
        SuccessorPool(64, half)


def test_a_cache_does_not_merge_with_itself() -> None:
    cache = NgramCache()
    with pytest.raises(InputError, match="cannot be merged with itself"):
        cache.merge(cache)


def test_the_errors_form_one_tree() -> None:
    assert issubclass(InputError, NgramspecError)
    assert issubclass(InputError, ValueError)
    assert issubclass(StateError, RuntimeError)
    assert issubclass(FormatError, ValueError)


def test_follow_checks_only_what_the_history_does_not_hold(drafter: Drafter) -> None:
    assert drafter.follow(0, [5, 6, 7, 8, 5, 6, 7, 8, 1], 9) == 2
    assert (
        drafter.follow(0, [5, 6, 7, 8, 5, 6, 7, 8, 1, 2], 3) == 0
    )  # known ids pass, new ones must
    with pytest.raises(InputError, match="got 3 at position 10"):
        drafter.follow(0, [5, 6, 7, 8, 5, 6, 7, 8, 1, 2, 3], 3)
    with pytest.raises(InputError, match="got 5 at position 0"):  # a new request: all are new
        drafter.follow(0, [5, 9], 3)
    assert drafter.length(0) == 10


def test_leading_flagged_stops_at_the_first_token_without_the_flag() -> None:
    flags = np.array([1, 1, 0, 1, 2], dtype=np.uint8)

    def leading(tokens: list[int]) -> int:
        return leading_flagged(np.array(tokens, dtype=np.int32), flags, 1)

    assert [leading(t) for t in ([], [0, 1, 3], [0, 2, 1], [4], [1, 5], [1, 2**31 - 1])] == [
        *(0, 3, 1, 0, 1, 1)
    ]
    with pytest.raises(InputError, match="got -1"):
        leading([0, -1])
