"""create_drafter: from names and parameters to a native Drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ngramspec._native.cache.drafter import CacheSource
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.drafter.source import Source
from ngramspec._native.map.drafter import MapSource, SimpleSource
from ngramspec._native.mod.drafter import ModSource
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.recycle.drafter import RecycleSource
from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.drafting.config import (
    CONFIGS,
    CacheConfig,
    MapK4vConfig,
    MapKConfig,
    ModConfig,
    RecycleConfig,
    SimpleConfig,
    SuffixConfig,
    by_drafter,
    check_int,
)
from ngramspec.drafting.names import DEFAULT_ORDER, parse_names
from ngramspec.errors import InputError

MAX_SLOTS = 1 << 16


def create_drafter(
    spec: str | Iterable[str],
    *,
    slots: int = 1,
    max_history: int = 1 << 20,
    order: str = DEFAULT_ORDER,
    params: Mapping[str, Mapping[str, Any]] | None = None,
    policy: str | AutoPolicy | None = None,
    threads: int | None = None,
    **shared: Any,
) -> Drafter:
    """Make a drafter, or a chain of them, for any number of slots.

    Args:
        spec: Names separated by commas, such as "ngram-mod,ngram-cache", or a sequence of names.
            In a chain the first non-empty draft wins; with a policy, the most valuable one.
        slots: Requests that run at the same time, 1..65536.
        max_history: Tokens kept per slot, 1024..2**28, with suffix 1024..2**25 - 2; beyond it the
            older half is dropped; of a longer prompt, the newest 3/4 * max_history are kept.
        order: "priority" tries the drafters in llama.cpp's order, "given" in the caller's.
        policy: AutoPolicy that shortens drafts to what pays, and learns from what is accepted;
            "auto" = a new one, "fixed" or None = drafts as long as the drafters make them.
        threads: Most threads that a batch of rows uses, 1..64; None = by the cores there are.
        params: Parameters for one member of a chain, by its name.
        **shared: Parameters for every member that has them, such as size_n=12 or pool=pool.
            `ngramspec.drafting.config` lists them with their defaults. `static` is a file of
            counts for ngram-cache, an index for suffix, and the pools of ngram-mod, suffix and
            recycle are of different kinds: a chain of such drafters needs `params`.

    Returns:
        Drafter: begin, propose, accept, truncate, end; see its docstring.

    Thread-safety: calls on one Drafter wait for one another; with a policy, call from one thread at
    a time. Different Drafters run in parallel, also on one pool.
    Memory: suffix 31.4 bytes per token of `capacity`, by default 33 MB; ngram-mod 16 MiB; besides,
    what the texts of the slots take.

    Raises:
        InputError: A name or parameter is unknown (the message names the nearest known ones), or
            a value has the wrong type or is out of its bounds.
        FormatError: A `static`, `dynamic` or `pool` file is not a valid statistics file of the
            drafter's kind, or llama.cpp lookup cache.
        VocabMismatchError: Such a file was made with another tokenizer than `tokenizer`.
        CapacityError: A `dynamic` file holds more than max_ngrams.
        OSError: Such a file cannot be read; a missing `dynamic` or `pool` file starts empty.

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
    if policy in ("auto", "fixed"):
        policy = AutoPolicy() if policy == "auto" else None
    elif not isinstance(policy, (AutoPolicy, type(None))):
        raise InputError(f"policy must be 'auto', 'fixed' or an AutoPolicy, got {policy!r:.80}")
    per_name = by_drafter(names, shared, params or {})
    sources = [_SOURCES[name](slots, CONFIGS[name](**per_name[name])) for name in names]
    return Drafter(sources, slots, max_history, policy, threads)


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
    return ModSource(slots, _pool(c), c.n_match, c.n_min, c.n_max)


def _pool(config: ModConfig) -> HashPool:
    if config.pool is None:
        return HashPool(config.capacity, config.check_bits, config.max_occupancy)
    from ngramspec.drafting.statistics import open_or_make_pool

    return open_or_make_pool(config)


def _cache(slots: int, config: Any) -> Source:
    c = cast("CacheConfig", config)
    if c.static is None and c.dynamic is None:
        return CacheSource(slots, c, None, None)
    # Imported only if there are files to open.
    from ngramspec.drafting.statistics import open_dynamic, open_static, save_with

    if c.static is not None and c.static is c.dynamic:
        raise InputError("static and dynamic must be different caches: static does not change")
    static = open_static(c)
    dynamic, file = open_dynamic(c)
    source = CacheSource(slots, c, dynamic, static)
    if file is not None:
        save_with(source, file, c.save_interval)
    return source


def _suffix(slots: int, config: Any) -> Source:
    from ngramspec.models import confidence_weights

    c = cast("SuffixConfig", config)
    pool = (c.pool or SuffixPool(c.capacity)) if c.share else None
    index = None
    if c.static is not None:
        from ngramspec.drafting.statistics import open_index

        index = open_index(c)
    weights = confidence_weights()
    return SuffixSource(slots, pool, c.max_draft, c.min_probability, c.pool_prompts, weights, index)


def _recycle(slots: int, config: Any) -> Source:
    from ngramspec.models import successor_claims

    c = cast("RecycleConfig", config)
    file = None
    pool = c.pool or SuccessorPool(c.capacity, c.top)
    if not isinstance(pool, SuccessorPool):
        from ngramspec.drafting.statistics import open_successor_file, save_with

        file = open_successor_file(c)
        pool = file.pool
    pairs, claims = c.key_tokens == 2, successor_claims()
    source = RecycleSource(slots, pool, c.max_draft, c.min_probability, pairs, claims)
    if file is not None:
        save_with(source, file, c.save_interval)
    return source


_SOURCES: dict[str, Callable[[int, Any], Source]] = {
    "ngram-simple": _simple,
    "ngram-map-k": _map_k,
    "ngram-map-k4v": _map_k4v,
    "ngram-mod": _mod,
    "ngram-cache": _cache,
    "suffix": _suffix,
    "recycle": _recycle,
}
