"""Every drafter against its slow reference, over random sequences of calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from helpers.backends import Backend
from helpers.machines import SETTINGS, Options, SideBySide

CORPUS = [0, 1, 2, 3, 0, 1, 2, 0, 1, 3, 3, 3, 2, 1, 0, 1, 2, 3, 4, 5, 0, 1, 1, 2, 5, 4]


def pool(backend: Backend, check_bits: int, num_cells: int) -> Any:
    """A pool that ages once `num_cells` are in use."""
    return backend.pool(capacity=1024, check_bits=check_bits, max_occupancy=num_cells / 1024)


def cache_of(backend: Backend, tokens: list[int], ngram_min: int = 1, ngram_max: int = 4) -> Any:
    cache = backend.cache(ngram_min=ngram_min, ngram_max=ngram_max)
    cache.update(tokens)
    return cache


def both_caches(
    backend: Backend, static_min: int = 2, static_max: int = 2, **options: Any
) -> dict[str, Any]:
    static = cache_of(backend, CORPUS, static_min, static_max)
    return {"static": static, "dynamic": cache_of(backend, CORPUS[::-1]), **options}


LOW_PERCENTS = {"lax_min_percent": (40, 30, 20, 20), "lax_min_sample": (3, 2, 2, 1)}


def case(spec: Any, max_token: int, **options: Any) -> tuple[Any, int, Options]:
    return spec, max_token, lambda backend: options


CASES: dict[str, tuple[Any, int, Options]] = {
    "simple": case("ngram-simple", 2, size_n=2, size_m=5),
    "simple, one token": case("ngram-simple", 3, size_n=1, size_m=1),
    "simple, two hits": case("ngram-simple", 1, size_n=3, size_m=9, min_hits=2),
    "map-k": case("ngram-map-k", 2, size_n=2, size_m=24),
    "map-k, short": case("ngram-map-k", 3, size_n=1, size_m=3),
    "map-k, two hits": case("ngram-map-k", 1, size_n=3, size_m=13, min_hits=2),
    "k4v": case("ngram-map-k4v", 2, size_n=2, size_m=6),
    "k4v, few values": case("ngram-map-k4v", 3, size_n=1, size_m=12, max_values=2, window=5),
    "k4v, three hits": case("ngram-map-k4v", 2, size_n=1, size_m=5, min_hits=3, window=2),
    "mod": case("ngram-mod", 3, n_match=2, n_min=2, n_max=7),
    "mod, full drafts": case("ngram-mod", 2, n_match=3, n_min=9, n_max=6),
    "mod, ageing": (
        "ngram-mod",
        5,
        lambda b: {"pool": pool(b, 8, 9), "n_match": 2, "n_min": 0, "n_max": 9},
    ),
    "mod, no check": (
        "ngram-mod",
        5,
        lambda b: {"pool": pool(b, 0, 24), "n_match": 5, "n_min": 1, "n_max": 3},
    ),
    "cache": case("ngram-cache", 2),
    "cache, wide": case("ngram-cache", 5, **LOW_PERCENTS),
    "cache, some sizes": case("ngram-cache", 3, ngram_min=2, ngram_max=3),
    "cache, all three": ("ngram-cache", 4, both_caches),
    "cache, no veto": ("ngram-cache", 3, lambda b: both_caches(b, static_veto=False)),
    "cache, static of all sizes": ("ngram-cache", 4, lambda b: both_caches(b, 1, 4)),
    "cache, static 1 and 2": (
        "ngram-cache",
        3,
        lambda b: both_caches(b, 1, 2, static_veto=False, static_min_sample=1),
    ),
    "cache, static 3 and 4": ("ngram-cache", 3, lambda b: both_caches(b, 3, 4, **LOW_PERCENTS)),
    "cache, nothing learned": (
        "ngram-cache",
        3,
        lambda b: both_caches(b, dynamic_update=False, static_veto=False, **LOW_PERCENTS),
    ),
    "chain": case(
        "ngram-cache,ngram-mod,ngram-map-k", 3, size_n=4, size_m=9, n_match=3, n_min=3, n_max=5
    ),
    "chain of all": case(
        "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache,suffix",
        2,
        size_m=10,
        n_match=2,
        n_min=1,
        n_max=5,
        params={
            "ngram-simple": {"size_n": 6, "min_hits": 2},
            "ngram-map-k": {"size_n": 5, "min_hits": 2},
            "ngram-map-k4v": {"size_n": 3},
            "suffix": {"capacity": 4096, "max_draft": 9},
        },
    ),
    "chain, order given": case(
        ["ngram-map-k4v", "ngram-mod", "ngram-simple"],
        2,
        order="given",
        size_n=2,
        n_match=4,
        n_min=3,
        n_max=8,
    ),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", CASES)
def test_native_and_reference_agree_on_every_call(name: str) -> None:
    spec, max_token, options = CASES[name]

    class Machine(SideBySide):
        pass

    Machine.spec, Machine.max_token, Machine.options = spec, max_token, staticmethod(options)
    Machine.tails = "suffix" not in spec  # what it expects to follow has no obvious reference
    run_state_machine_as_test(Machine, settings=SETTINGS)
