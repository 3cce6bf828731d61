"""Pools: what the requests of one namespace share, and those of another do not see."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.drafting.config import ModConfig, RecycleConfig, SuffixConfig

# Sizes of a namespace's own pools: cells for ngram-mod, tokens for suffix and contexts for recycle,
# 4 MiB each, and n-grams of its dynamic cache, 17 MiB when it is full.
NAMESPACE_CAPACITY = 1 << 20
NAMESPACE_TOKENS = 1 << 17
NAMESPACE_NGRAMS = 1 << 17
NAMESPACE_CONTEXTS = 1 << 16
_SUCCESSOR_KEYS = ("pool", "capacity", "top", "save_interval", "tokenizer", "any_tokenizer")
_HASH_KEYS = ("pool", "capacity", "check_bits", "max_occupancy", "tokenizer", "any_tokenizer")


class Pools:
    """Keeps the pools by namespace: for ngram-mod, suffix and recycle, and ngram-cache's caches.

    The namespace "" uses the pools and sizes of the engine's parameters; others have pools of their
    own, in memory, until they are forgotten.

    Args:
        params: The engine's parameters by drafter name.
    """

    def __init__(self, params: Mapping[str, Mapping[str, Any]]) -> None:
        self._n_match = params.get("ngram-mod", {}).get("n_match", ModConfig.n_match)
        self.hash: dict[str, HashPool] = {}
        self.suffix: dict[str, SuffixPool] = {}
        self.recycle: dict[str, SuccessorPool] = {}
        self._dynamic: dict[str, NgramCache] = {}  # of other namespaces than ""

    def join(self, params: dict[str, dict[str, Any]], namespace: str) -> None:
        """Put the pools of a namespace into parameters by drafter name, in place of their sizes."""
        if "ngram-mod" in params:
            params["ngram-mod"] = self._with_hash(params["ngram-mod"], namespace)
        if "suffix" in params and params["suffix"].get("share", SuffixConfig.share):
            params["suffix"] = self._with_suffix(params["suffix"], namespace)
        if "recycle" in params:
            params["recycle"] = self._with_recycle(params["recycle"], namespace)
        if "ngram-cache" in params and namespace:
            cache = params["ngram-cache"]
            if cache.pop("dynamic", None) is not None:
                dynamic = NgramCache(max_ngrams=NAMESPACE_NGRAMS)
                cache["dynamic"] = self._dynamic.setdefault(namespace, dynamic)

    def forget(self, used: Collection[str]) -> None:
        """Drop the pools of all namespaces but "" and those in use."""
        for pools in self._all():
            for namespace in [name for name in pools if name and name not in used]:
                del pools[namespace]

    def nbytes(self, namespace: str) -> int:
        """Return the memory of the pools that a namespace has of its own, 0 for ""."""
        if not namespace:
            return 0
        return sum(pools[namespace].nbytes for pools in self._all() if namespace in pools)

    def _all(self) -> tuple[dict[str, Any], ...]:
        return self.hash, self.suffix, self.recycle, self._dynamic

    def _with_hash(self, params: dict[str, Any], namespace: str) -> dict[str, Any]:
        shape = {key: params.pop(key) for key in _HASH_KEYS if key in params}
        pool = self.hash.get(namespace)
        if pool is None:
            if namespace:
                shape.pop("pool", None)
                shape["capacity"] = NAMESPACE_CAPACITY
            config = ModConfig(n_match=self._n_match, **shape)  # a file has the engine's n_match
            pool = self.hash[namespace] = _open_hash(config)
        return {**params, "pool": pool}

    def _with_suffix(self, params: dict[str, Any], namespace: str) -> dict[str, Any]:
        own = params.pop("pool", None)
        capacity = params.pop("capacity", SuffixConfig.capacity)
        pool = self.suffix.get(namespace)
        if pool is None:
            if namespace:
                own, capacity = None, min(capacity, NAMESPACE_TOKENS)
            pool = self.suffix[namespace] = own or SuffixPool(capacity)
        return {**params, "pool": pool}

    def _with_recycle(self, params: dict[str, Any], namespace: str) -> dict[str, Any]:
        shape = {key: params.pop(key) for key in _SUCCESSOR_KEYS if key in params}
        pool = self.recycle.get(namespace)
        if pool is None:
            if namespace:
                shape.pop("pool", None)
                shape["capacity"] = min(shape.get("capacity", 1 << 26), NAMESPACE_CONTEXTS)
            pool = self.recycle[namespace] = self._open_successors(RecycleConfig(**shape))
        return {**params, "pool": pool}

    def _open_successors(self, config: RecycleConfig) -> SuccessorPool:
        if isinstance(config.pool, SuccessorPool):
            return config.pool
        if config.pool is None:
            return SuccessorPool(config.capacity, config.top)
        from ngramspec.drafting.statistics import open_successor_file, save_with

        file = open_successor_file(config)
        save_with(self, file, config.save_interval)
        return file.pool


def _open_hash(config: ModConfig) -> HashPool:
    if isinstance(config.pool, HashPool):
        return config.pool
    if config.pool is None:
        return HashPool(config.capacity, config.check_bits, config.max_occupancy)
    from ngramspec.drafting.statistics import open_or_make_pool

    return open_or_make_pool(config)
