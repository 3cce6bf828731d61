"""Drafters: which requests share a chain, a pool and its counts, and what they may set."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import END, FakeTarget
from ngramspec import HashPool, NgramCache, SuffixPool, create_drafter
from ngramspec.engine import AutoPolicy, Engine, Request, Speculation
from ngramspec.engine.sources import pools as module
from ngramspec.engine.sources.drafters import MAX_KINDS, OWNED, Drafters
from ngramspec.engine.sources.pools import NAMESPACE_CAPACITY
from ngramspec.errors import FormatError, InputError

pytestmark = pytest.mark.usefixtures("still")

SMALL_POOL = {"ngram-mod": {"capacity": 1024, "n_match": 2, "n_min": 1, "n_max": 8}}
ALL = "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache"


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMESPACE_CAPACITY", 2048)


def make(spec: Any = "ngram-mod", **params: Any) -> Drafters:
    return Drafters(spec, 2, {**SMALL_POOL, **params})


def speculation(
    types: tuple[str, ...] | None = None, namespace: str = "", **params: Any
) -> Speculation:
    own = {name.replace("_", "-"): fields for name, fields in params.items()}
    return Speculation(types=types, namespace=namespace, params=own)


def teach(source: Any, slot: int = 0) -> None:
    """Let a chain see a text that repeats itself."""
    source.begin(slot, int32([1, 2, 3, 4, 5] * 6))


def knows(source: Any) -> bool:
    """Tell whether a chain drafts from the text of `teach`."""
    source.begin(1, int32([2, 3]))
    source.accept(1, int32([4]), 0)
    return source.propose([1], [1])[0].tolist() == [5]


def test_equal_settings_share_a_native_drafter() -> None:
    drafters = make("ngram-mod,ngram-simple")
    default = drafters.get(Speculation())
    assert drafters.get(speculation(("ngram-simple", "ngram-mod"))) is default
    assert drafters.get(speculation(ngram_map_k={})) is default  # nothing of it is set
    other = drafters.get(speculation(ngram_simple={"size_n": 3}))
    assert other is drafters.get(speculation(ngram_simple={"size_n": 3}))
    assert (
        len({id(source) for source in (default, other, drafters.get(speculation(namespace="a")))})
        == 3
    )
    assert drafters.get(speculation(("ngram-simple",))) not in (default, other)


def test_the_order_of_parameters_is_no_setting() -> None:
    drafters = make()
    first = drafters.get(speculation(ngram_mod={"n_max": 4, "n_min": 2}))
    assert drafters.get(speculation(ngram_mod={"n_min": 2, "n_max": 4})) is first


def test_no_drafts_are_wanted_where_they_are_off_or_none_are_set() -> None:
    assert make().get(Speculation(enabled=False)) is None
    nothing = make(None)
    assert nothing.types == ()
    assert nothing.get(Speculation()) is None
    assert nothing.get(speculation(("ngram-simple",))) is not None


def test_parameters_of_a_drafter_add_it_to_the_default_ones() -> None:
    drafters = make("ngram-mod,suffix")
    added = drafters.get(speculation(ngram_map_k={"size_n": 3}))
    assert added is not None
    assert list(added.stats()) == ["ngram-map-k", "ngram-mod", "suffix"]  # by priority
    assert added is drafters.get(speculation(("ngram-map-k", "ngram-mod", "suffix"),
                                    ngram_map_k={"size_n": 3}))  # fmt: skip
    alone = make(None).get(speculation(ngram_simple={"size_n": 3}))
    assert alone is not None
    assert list(alone.stats()) == ["ngram-simple"]
    off = Speculation(enabled=False, params={"ngram-simple": {"size_n": 3}})
    assert (drafters.get(off), off.drafters(drafters.types)) == (None, ())


def test_a_namespace_shares_its_pool_over_all_chains() -> None:
    drafters = make()
    teach(drafters.get(Speculation()))
    assert knows(drafters.get(speculation(("ngram-simple", "ngram-mod"))))
    assert knows(drafters.get(speculation(ngram_mod={"n_max": 3})))
    assert not knows(drafters.get(speculation(namespace="other")))
    teach(drafters.get(speculation(namespace="other")))
    assert knows(drafters.get(speculation(("ngram-simple", "ngram-mod"), "other")))
    assert not knows(drafters.get(speculation(namespace="third")))


def test_pools_have_the_size_that_was_set_or_that_of_namespaces() -> None:
    drafters = make()
    pool = drafters.pool()
    assert pool is not None
    assert pool.capacity == 1024
    assert drafters.pool("other") is None
    drafters.get(speculation(namespace="other"))
    other = drafters.pool("other")
    assert other is not None
    assert other.capacity == 2048
    assert NAMESPACE_CAPACITY == 1 << 20


def test_suffix_shares_a_pool_over_the_chains_of_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NAMESPACE_TOKENS", 4096)
    drafters = make("suffix", suffix={"capacity": 8192})
    pool = drafters.suffix_pool()
    assert pool is not None
    assert pool.capacity == SuffixPool(8192).capacity
    held = 0
    for source in (drafters.get(Speculation()), drafters.get(speculation(suffix={"max_draft": 3}))):
        assert source is not None
        teach(source)
        source.end(0)
        assert pool.num_tokens > held
        held = pool.num_tokens
    assert drafters.get(speculation(namespace="other")) is not None
    other = drafters.suffix_pool("other")
    assert other is not None
    assert (other.capacity, other.num_tokens) == (SuffixPool(4096).capacity, 0)
    assert drafters.get(speculation(("suffix",), "third", suffix={"share": False})) is not None
    assert drafters.suffix_pool("third") is None
    assert set(drafters.suffix_pools()) == {"", "other"}


def test_a_given_pool_is_the_pool_of_the_empty_namespace_only() -> None:
    pool = HashPool(capacity=4096)
    drafters = Drafters("ngram-mod", 2, {"ngram-mod": {"pool": pool, "n_match": 2, "n_min": 1}})
    assert drafters.pool() is pool
    drafters.get(speculation(namespace="other"))
    assert drafters.pool("other") is not pool
    teach(drafters.get(Speculation()))
    assert pool.num_used > 0


def test_a_pool_file_has_the_engines_key_length(tmp_path: Path) -> None:
    path = tmp_path / "server.ngp"
    params = {"ngram-mod": {**SMALL_POOL["ngram-mod"], "pool": str(path), "n_match": 5}}
    drafters = Drafters("ngram-mod", 2, params)
    assert drafters.pool() is not None
    create_drafter("ngram-mod", pool=str(path), n_match=5)
    with pytest.raises((InputError, FormatError)):
        create_drafter("ngram-mod", pool=str(path), n_match=24)


def test_a_dynamic_cache_is_not_shared_with_other_namespaces() -> None:
    cache = NgramCache()
    drafters = Drafters("ngram-cache", 2, {"ngram-cache": {"dynamic": cache}})
    other = drafters.get(speculation(namespace="other"))
    assert other is not None
    teach(other)
    for _ in range(8):
        other.accept(0, int32([1, 2, 3, 4, 5]), 0)
    assert len(cache) == 0
    default = drafters.get(Speculation())
    assert default is not None
    teach(default)
    default.accept(0, int32([1, 2, 3, 4, 5]), 0)
    assert len(cache) > 0


def test_the_oldest_kinds_are_forgotten_but_not_their_counts() -> None:
    drafters = make()
    default = drafters.get(Speculation())
    sources = []
    for number in range(MAX_KINDS + 5):
        sources.append(drafters.get(speculation(namespace=f"n{number}")))
        teach(sources[-1])
        assert drafters.get(Speculation()) is default  # used all the time, and never forgotten
    assert drafters.stats()["ngram-mod"].begin_calls == MAX_KINDS + 5
    assert len(drafters._kinds) == MAX_KINDS
    assert drafters.pool("n0") is drafters.pool("n5") is None
    assert drafters.pool(f"n{MAX_KINDS + 4}") is not None
    assert drafters.pool() is not None
    assert drafters.get(speculation(namespace="n36")) is sources[36]
    again = drafters.get(speculation(namespace="n0"))
    assert again is not sources[0]
    assert not knows(again)
    assert drafters.stats()["ngram-mod"].begin_calls == MAX_KINDS + 6


def test_a_default_that_nobody_uses_is_kept() -> None:
    drafters = make()
    default = drafters.get(Speculation())
    for number in range(3 * MAX_KINDS):
        drafters.get(speculation(namespace=f"n{number}"))
    assert drafters.get(Speculation()) is default


def test_a_kind_in_use_is_forgotten_last() -> None:
    drafters = make()
    first, second = (
        drafters.get(speculation(namespace="n0")),
        drafters.get(speculation(namespace="n1")),
    )
    for number in range(2, MAX_KINDS + 3):
        drafters.get(speculation(namespace=f"n{number}"))
        assert drafters.get(speculation(namespace="n0")) is first
    assert drafters.get(speculation(namespace="n1")) is not second


@pytest.mark.parametrize("key", OWNED)
def test_requests_may_not_set_what_belongs_to_the_engine(key: str) -> None:
    drafters = make(ALL)
    for name in ("ngram-mod", "ngram-cache"):
        with pytest.raises(InputError, match=f"a request cannot set '{key}' of {name}"):
            drafters.get(Speculation(params={name: {key: 1}}))
    assert len(drafters._kinds) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (speculation(("ngram-cash",)), "did you mean ngram-cache"),
        (speculation(("ngram-mod", "ngram-mod")), "named once"),
        (speculation(()), "at least one drafter"),
        (Speculation(params={"ngram": {}}), "unknown drafter 'ngram'"),
        (Speculation(params={"ngram-mod": {"n_mim": 3}}), "did you mean n_min"),
        (Speculation(params={"ngram-mod": {"n_max": 0}}), "n_max must be an integer in 1"),
        (Speculation(params={"ngram-mod": {"n_max": "3"}}), "n_max must be an integer"),
        (Speculation(params={"ngram-simple": {"size_n": 0}}), "size_n must be"),
        (
            speculation(("ngram-mod",), ngram_simple={"size_n": 3}),
            "parameters of ngram-simple need it",
        ),
        (Speculation(params={"ngram-mod": 5}), "must be a mapping"),  # type: ignore[dict-item]
    ],
)
def test_bad_settings_are_refused_by_name(asked: Speculation, message: str) -> None:
    drafters = make()
    kinds = len(drafters._kinds)
    with pytest.raises(InputError, match=message):
        drafters.get(asked)
    assert len(drafters._kinds) == kinds


def test_values_that_only_fail_together_are_refused_too() -> None:
    drafters = Drafters("ngram-cache", 2, {"ngram-cache": {"ngram_max": 2}})
    with pytest.raises(InputError, match="ngram_max"):
        drafters.get(speculation(ngram_cache={"ngram_min": 3}))
    assert drafters.get(speculation(ngram_cache={"ngram_min": 3, "ngram_max": 4})) is not None


def test_values_may_be_lists_as_they_come_from_json() -> None:
    drafters = Drafters("ngram-cache", 2)
    own = {"lax_min_sample": [2, 2, 1, 1]}
    source = drafters.get(speculation(ngram_cache=own))
    assert source is drafters.get(speculation(ngram_cache=dict(own)))
    assert source is not drafters.get(speculation(ngram_cache={"lax_min_sample": [2, 2, 2, 1]}))


def test_unknown_names_are_refused_when_the_engine_is_made() -> None:
    with pytest.raises(InputError, match="unknown drafter"):
        Engine(FakeTarget(), "ngram-nod")
    with pytest.raises(InputError, match="unknown parameter"):
        Engine(FakeTarget(), "ngram-simple", params={"ngram-simple": {"size": 3}})
    assert Engine(FakeTarget(), " ngram-mod, ngram-simple").drafters.types == (
        "ngram-simple",
        "ngram-mod",
    )


def test_counts_of_all_chains_add_up() -> None:
    target = FakeTarget(period=2)
    engine = Engine(target, "ngram-simple", slots=2, params={"ngram-simple": {"size_n": 2}})
    for name in ("", "", "other", "third"):
        asked = Speculation(namespace=name)
        engine.generate([Request(prompt_ids=int32([3]), max_tokens=30, speculation=asked)])
    stats = engine.source_stats()["ngram-simple"]
    assert stats.begin_calls == 4
    assert stats.num_accepted_tokens == engine.stats().num_accepted_tokens > 60
    assert stats.accepted_per_position == tuple(engine.stats().accepted_per_position)


@pytest.mark.parametrize("policy", [AutoPolicy(fixed=8), AutoPolicy(gate=True), AutoPolicy()])
def test_what_was_never_sent_does_not_count_as_drafted(policy: Any) -> None:
    """A copy of the prompt runs into an end token, which no draft may hold."""
    target = FakeTarget(period=7)
    prompt = [3]
    while len(prompt) < 14:
        prompt.append(END if len(prompt) % 7 == 4 else target.next_token(prompt))
    engine = Engine(target, "ngram-simple", params={"ngram-simple": {"size_n": 2}}, policy=policy)
    engine.generate([Request(prompt_ids=int32(prompt), max_tokens=40)])
    stats, sent = engine.source_stats()["ngram-simple"], engine.stats()
    assert sent.num_draft_tokens > 0
    assert (stats.num_draft_tokens, stats.num_drafts) == (sent.num_draft_tokens, sent.num_drafts)


def test_threads_that_ask_for_the_same_get_the_same() -> None:
    drafters = make()
    sources: list[set[int]] = [set() for _ in range(40)]
    start = threading.Barrier(4)

    def ask() -> None:
        start.wait()
        for number in range(40):
            source = drafters.get(speculation(ngram_mod={"n_max": 1 + number // 2}))
            sources[number].add(id(source))
            drafters.stats()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(ids) for ids in sources] == [1] * 40
    assert len(drafters._kinds) == 21
