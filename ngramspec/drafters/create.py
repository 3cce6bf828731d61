"""create_drafter: from names and parameters to a native Drafter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from ngramspec._cache import NgramCache
from ngramspec._drafter import Drafter
from ngramspec._lookup import CacheSource
from ngramspec._map import MapSource
from ngramspec._mod import ModSource
from ngramspec._pool import HashPool
from ngramspec._simple import SimpleSource
from ngramspec._source import Source
from ngramspec.drafters.config import (
    CONFIGS,
    CacheConfig,
    MapK4vConfig,
    MapKConfig,
    ModConfig,
    SimpleConfig,
    check_int,
)
from ngramspec.drafters.names import nearest, parse_names
from ngramspec.errors import InputError
from ngramspec.formats.llama_lookup import read_lookup_cache

MAX_SLOTS = 1 << 16


def create_drafter(
    spec: str | Iterable[str],
    *,
    slots: int = 1,
    max_history: int = 1 << 20,
    order: str = "priority",
    params: Mapping[str, Mapping[str, Any]] | None = None,
    **shared: Any,
) -> Drafter:
    """Make a drafter, or a chain of them, for any number of slots.

    Args:
        spec: Names separated by commas, such as "ngram-mod,ngram-cache", or a sequence of names.
            In a chain the first non-empty draft wins.
        slots: Requests that run at the same time, 1..65536.
        max_history: Tokens kept per slot, 1024..2**28; beyond it the older half is dropped.
        order: "priority" tries the drafters in llama.cpp's order, "given" in the caller's.
        params: Parameters for one member of a chain, by its name.
        **shared: Parameters for every member that knows them, such as size_n=12 or pool=pool.
            `ngramspec.drafters.config` lists them with their defaults.

    Returns:
        Drafter: begin, propose, accept, truncate, end; see its docstring.

    Raises:
        InputError: A name or parameter is unknown (the message names the nearest known ones), or
            a value is out of its bounds.
        FormatError: A `static` or `dynamic` file is not a valid lookup-cache file.
        CapacityError: A `dynamic` file holds more than max_ngrams.
        OSError: Such a file cannot be read; a missing `dynamic` file starts empty.

    Example:
        >>> drafter = create_drafter("ngram-simple", size_n=2, size_m=4)
        >>> drafter.begin(0, [5, 6, 7, 8, 5])
        >>> drafter.accept(0, [6], 0)
        >>> drafter.propose(0, 8).tolist()
        [7, 8, 5, 6]
    """
    names = parse_names(spec, order)
    check_int("slots", slots, 1, MAX_SLOTS)
    check_int("max_history", max_history, 1024, 1 << 28)
    per_name = _parameters(names, shared, params or {})
    sources = [_SOURCES[name](slots, CONFIGS[name](**per_name[name])) for name in names]
    return Drafter(sources, slots, max_history)


def _parameters(
    names: tuple[str, ...], shared: Mapping[str, Any], params: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Sort the parameters by drafter; each must be known to at least one of them."""
    known = {name: {field.name for field in fields(CONFIGS[name])} for name in names}
    for key in shared:
        if not any(key in keys for keys in known.values()):
            hint = nearest(key, sorted(set().union(*known.values())))
            raise InputError(f"unknown parameter {key!r} for {', '.join(names)}; {hint}")
    per_name = {name: {k: v for k, v in shared.items() if k in known[name]} for name in names}
    for name, own in params.items():
        if name not in per_name:
            raise InputError(f"params names {name!r}, which is not in {', '.join(names)}")
        for key in own:
            if key not in known[name]:
                raise InputError(
                    f"unknown parameter {key!r} for {name}; {nearest(key, known[name])}"
                )
        per_name[name].update(own)
    return per_name


def _simple(slots: int, config: Any) -> Source:
    settings = cast("SimpleConfig", config)
    return SimpleSource(slots, settings.size_n, settings.size_m, settings.min_hits)


def _map_k(slots: int, config: Any) -> Source:
    settings = cast("MapKConfig", config)
    return MapSource(slots, settings.size_n, settings.size_m, settings.min_hits, 1, 1)


def _map_k4v(slots: int, config: Any) -> Source:
    c = cast("MapK4vConfig", config)
    return MapSource(slots, c.size_n, c.size_m, c.min_hits, c.max_values, c.window)


def _mod(slots: int, config: Any) -> Source:
    c = cast("ModConfig", config)
    pool = c.pool if c.pool is not None else HashPool(c.capacity, c.check_bits, c.max_occupancy)
    if not isinstance(pool, HashPool):
        raise InputError(f"pool must be a HashPool, got {type(pool).__name__}")
    return ModSource(slots, pool, c.n_match, c.n_min, c.n_max)


def _cache(slots: int, config: Any) -> Source:
    c = cast("CacheConfig", config)
    static = _open_cache("static", c.static, c)
    dynamic = _open_cache("dynamic", c.dynamic, c)
    if static is not None and static is dynamic:
        raise InputError("static and dynamic must be different caches: static cannot change")
    return CacheSource(slots, c, dynamic, static)


def _open_cache(role: str, given: object, config: CacheConfig) -> NgramCache | None:
    if given is None or isinstance(given, NgramCache):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"{role} must be an NgramCache or a path, got {type(given).__name__}")
    if role == "dynamic" and not Path(given).exists():
        return NgramCache(config.ngram_min, config.ngram_max, config.max_ngrams)
    return read_lookup_cache(given, max_ngrams=config.max_ngrams if role == "dynamic" else None)


_SOURCES: dict[str, Callable[[int, Any], Source]] = {
    "ngram-simple": _simple,
    "ngram-map-k": _map_k,
    "ngram-map-k4v": _map_k4v,
    "ngram-mod": _mod,
    "ngram-cache": _cache,
}
