"""Drafters: the engine's n-gram drafters, one chain per kind of request, pools shared."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ngramspec._pool import HashPool
from ngramspec._suffix_pool import SuffixPool
from ngramspec.drafters import create_drafter
from ngramspec.drafters.config import CONFIGS
from ngramspec.drafters.names import nearest, parse_names
from ngramspec.engine.pools import Pools
from ngramspec.engine.request import Speculation
from ngramspec.engine.sources import SlotwiseSource
from ngramspec.errors import InputError
from ngramspec.stats import SourceStats

Params = Mapping[str, Mapping[str, Any]]
MAX_KINDS = 32  # combinations of types, sizes and namespace that are kept
# What a request may not set: memory, files, and what others share.
OWNED = ("pool", "capacity", "check_bits", "max_occupancy", "static", "dynamic", "dynamic_update",
         "max_ngrams", "save_interval", "tokenizer", "any_tokenizer")  # fmt: skip


class Drafters:
    """Gives each request the drafter chain that it asks for.

    Requests that ask for the same types, sizes and namespace share one native Drafter; all of one
    namespace share their pools. The namespace "" has the pool and dynamic cache that the engine was
    given; others have their own, in memory, forgotten when MAX_KINDS newer ones came.

    Args:
        spec: Drafter names, the default of requests; None = no n-gram drafts by default.
        slots: Slots of the engine.
        params: Parameters by drafter name.

    Raises:
        As create_drafter.
    """

    def __init__(
        self, spec: str | Iterable[str] | None, slots: int, params: Params | None = None
    ) -> None:
        self.types = () if spec is None else parse_names(spec, "priority")
        self._slots = slots
        self._params = {name: dict(own) for name, own in (params or {}).items()}
        self._pools = Pools(self._params)
        self._kinds: OrderedDict[Any, SlotwiseSource] = OrderedDict()
        self._gone: dict[str, SourceStats] = {}
        self._lock = threading.Lock()  # requests are submitted from any thread
        if self.types:
            self.get(Speculation())

    def get(self, wanted: Speculation) -> SlotwiseSource | None:
        """Return the chain for a request's settings, None when it wants no n-gram drafts.

        Raises:
            InputError: An unknown type or parameter, a value out of bounds, or a parameter that
                belongs to the engine.
        """
        types = self.types if wanted.types is None else parse_names(wanted.types, "priority")
        if not (wanted.enabled and types):
            return None
        _check_params(wanted.params)
        own = {name: dict(given) for name, given in wanted.params.items() if name in types}
        key = _kind(types, wanted.namespace, own)
        with self._lock:
            source = self._kinds.get(key)
            if source is None:
                source = self._make(types, own, wanted.namespace)
                self._kinds[key] = source
                self._forget_oldest()
            self._kinds.move_to_end(key)
        return source

    def pool(self, namespace: str = "") -> HashPool | None:
        """Return the pool of ngram-mod of a namespace, None when there is none yet."""
        return self._pools.hash.get(namespace)

    def pools(self) -> dict[str, HashPool]:
        """Return all pools of ngram-mod by namespace."""
        with self._lock:
            return dict(self._pools.hash)

    def suffix_pool(self, namespace: str = "") -> SuffixPool | None:
        """Return the pool of suffix of a namespace, None when there is none yet."""
        return self._pools.suffix.get(namespace)

    def suffix_pools(self) -> dict[str, SuffixPool]:
        """Return all pools of suffix by namespace."""
        with self._lock:
            return dict(self._pools.suffix)

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name, over all chains."""
        with self._lock:
            total = dict(self._gone)
            for source in self._kinds.values():
                add_stats(total, source.stats())
        return total

    def _make(
        self, types: tuple[str, ...], own: Mapping[str, dict[str, Any]], namespace: str
    ) -> SlotwiseSource:
        params = {name: {**self._params.get(name, {}), **own.get(name, {})} for name in types}
        self._pools.join(params, namespace)
        return SlotwiseSource(create_drafter(types, slots=self._slots, params=params))

    def _forget_oldest(self) -> None:
        """Drop the chain and the namespace's pool that were not used for longest."""
        if len(self._kinds) > MAX_KINDS:
            default = _kind(self.types, "", {})
            first = next(key for key in self._kinds if key != default)
            add_stats(self._gone, self._kinds.pop(first).stats())
            used = {key[1] for key in self._kinds}
            self._pools.forget(used)


def _kind(types: tuple[str, ...], namespace: str, own: Params) -> tuple[Any, ...]:
    """Return what requests that share a chain have in common; values may be lists."""
    settings = sorted((name, sorted(given.items())) for name, given in own.items())
    return types, namespace, repr(settings)


def _check_params(params: Params) -> None:
    """Refuse what create_drafter would, and what a request may not set."""
    for name, own in params.items():
        if name not in CONFIGS:
            raise InputError(f"unknown drafter {name!r}; {nearest(name, CONFIGS)}")
        known = [field.name for field in fields(CONFIGS[name]) if field.name not in OWNED]
        if not isinstance(own, Mapping):
            raise InputError(f"the parameters of {name} must be a mapping, got {own!r}")
        for key in own:
            if key not in known:
                raise InputError(f"a request cannot set {key!r} of {name}; {nearest(key, known)}")
        CONFIGS[name](**own)


def add_stats(total: dict[str, SourceStats], more: Mapping[str, SourceStats]) -> None:
    """Add counts to those of the same name."""
    for name, stats in more.items():
        total[name] = stats if name not in total else total[name].plus(stats)
