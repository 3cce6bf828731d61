"""Drafters: the engine's n-gram drafters, one chain per kind of request, pools shared."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import CONFIGS
from ngramspec.drafting.names import DEFAULT_ORDER, DRAFTER_NAMES, nearest, parse_names
from ngramspec.engine.request import Speculation
from ngramspec.engine.sources.pools import Pools
from ngramspec.engine.sources.source import NativeSource
from ngramspec.errors import InputError, QuotaError
from ngramspec.files.dynamic_file import DynamicFile
from ngramspec.stats import SourceStats

Params = Mapping[str, Mapping[str, Any]]
MAX_KINDS = 32  # combinations of types, sizes and namespace that are kept for one tenant
KEPT_BYTES = 1 << 30  # memory kept for all tenants together
# What a request may not set: memory, files, and what others share.
OWNED = ("pool", "capacity", "top", "check_bits", "max_occupancy", "static", "dynamic",
         "dynamic_update", "max_ngrams", "save_interval", "tokenizer", "any_tokenizer")  # fmt: skip


@dataclass(eq=False, slots=True)
class _Kind:
    """A chain, who it was made for, and how many requests wait or run with it."""

    source: NativeSource
    tenant: str
    namespace: str
    nbytes: int = 0  # as last measured
    held: int = 0


class Drafters:
    """Gives each request the drafter chain that it asks for.

    Requests that ask for the same types, sizes and namespace share one native Drafter; all of one
    namespace share their pools. The namespace "" has the pool and dynamic cache that the engine was
    given; others have their own, in memory.

    A chain counts against the tenant whose request made it. A tenant with more than MAX_KINDS
    chains loses its own oldest, with the pools that no other chain uses. If all tenants together
    exceed `max_bytes`, the tenant with the most memory loses its oldest chain; a tenant within an
    equal share loses nothing. A chain that a waiting or running request uses is never dropped, and
    neither are the default and the pools of "", which do not count.

    Args:
        spec: Drafter names, the default of requests; None = no n-gram drafts by default.
        slots: Slots of the engine.
        params: Parameters by drafter name.
        max_bytes: Most memory of all chains and pools that count, >= 0; those in use may exceed it.
        order: Of the names, as for create_drafter; those of a request are asked by priority.

    Raises:
        As create_drafter.

    Thread-safety: safe. `release` takes no lock.
    """

    def __init__(
        self,
        spec: str | Iterable[str] | None,
        slots: int,
        params: Params | None = None,
        max_bytes: int = KEPT_BYTES,
        order: str = DEFAULT_ORDER,
    ) -> None:
        self.types = () if spec is None else parse_names(spec, order)
        if max_bytes < 0:
            raise InputError(f"max_bytes must be >= 0, got {max_bytes}")
        self._slots = slots
        self._max_bytes = max_bytes
        self._params = {name: dict(own) for name, own in (params or {}).items()}
        self._pools = Pools(self._params)
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()  # the oldest first
        self._default = _kind(self.types, "", {})
        self._released: deque[Any] = deque()  # keys of kinds, not counted yet
        self._over = False  # more than max_bytes was in use
        self._gone: dict[str, SourceStats] = {}
        self._lock = threading.Lock()  # requests are submitted from any thread
        if self.types:
            self.get(Speculation())

    def get(self, speculation: Speculation, tenant: str = "") -> NativeSource | None:
        """Return the chain for a request's settings, None when it wants no n-gram drafts.

        Raises:
            InputError: An unknown type or parameter, a value out of bounds, a parameter that
                belongs to the engine, or one of a drafter that is not among the types.
            QuotaError: MAX_KINDS other chains of the tenant are in use.
        """
        source, key = self.hold(speculation, tenant)
        self.release(key)
        return source

    def hold(self, speculation: Speculation, tenant: str = "") -> tuple[NativeSource | None, Any]:
        """Return the chain as `get` does, and the key for `release` when the request ends.

        Raises:
            As get.
        """
        types = tuple(name for name in speculation.drafters(self.types) if name in DRAFTER_NAMES)
        if speculation.enabled:
            _check_params(speculation.params, types)
        if not types:
            return None, None
        own = {name: dict(values) for name, values in speculation.params.items() if values}
        key = _kind(types, speculation.namespace, own)
        with self._lock:
            grown = self._count_released()
            kind = self._kinds.get(key)
            if kind is None:
                leaving = self._leaving(tenant)
                kind = self._kinds[key] = self._make(types, own, speculation.namespace, tenant)
                if leaving is not None:  # not before: settings that are refused cost nothing
                    self._drop(leaving)
                grown = True
            self._kinds.move_to_end(key)
            kind.held += 1
            if grown or self._over:
                self._over = not self._keep_within_bytes()
        return kind.source, key

    def release(self, key: Any) -> None:
        """Note that a request that held a chain has ended. Cost: O(1), from any thread."""
        if key is not None:
            self._released.append(key)

    def pool(self, namespace: str = "") -> HashPool | None:
        """Return the ngram-mod pool of a namespace, None when there is none yet."""
        return self._pools.hash.get(namespace)

    @property
    def dynamic_file(self) -> DynamicFile | None:
        """The file behind the dynamic cache of ngram-cache, None when there is none."""
        dynamic = self._params.get("ngram-cache", {}).get("dynamic")
        return dynamic if isinstance(dynamic, DynamicFile) else None

    def pools(self) -> dict[str, HashPool]:
        """Return all ngram-mod pools by namespace."""
        with self._lock:
            return dict(self._pools.hash)

    def suffix_pool(self, namespace: str = "") -> SuffixPool | None:
        """Return the suffix pool of a namespace, None when there is none yet."""
        return self._pools.suffix.get(namespace)

    def suffix_pools(self) -> dict[str, SuffixPool]:
        """Return all suffix pools by namespace."""
        with self._lock:
            return dict(self._pools.suffix)

    def successor_pool(self, namespace: str = "") -> SuccessorPool | None:
        """Return the recycle pool of a namespace, None when there is none yet."""
        return self._pools.recycle.get(namespace)

    def successor_pools(self) -> dict[str, SuccessorPool]:
        """Return all recycle pools by namespace."""
        with self._lock:
            return dict(self._pools.recycle)

    def of_namespace(self, namespace: str) -> list[Drafter]:
        with self._lock:
            kinds = [kind for kind in self._kinds.values() if kind.namespace == namespace]
        return [kind.source.native for kind in kinds]

    def forget(self, slot: int, owner: str) -> None:
        """Drop what chains hold of a slot's texts, of all namespaces that begin with `owner`."""
        with self._lock:
            sources = [
                kind.source for kind in self._kinds.values() if kind.namespace.startswith(owner)
            ]
        for source in sources:
            source.forget(slot)

    def stats(self) -> dict[str, SourceStats]:
        with self._lock:
            total = dict(self._gone)
            for kind in self._kinds.values():
                add_stats(total, kind.source.stats())
        return total

    def shared_bytes(self) -> dict[str, int]:
        """Return by default drafter the memory of the pool, caches and index that "" has."""
        shared: dict[str, tuple[Any, ...]] = {
            "ngram-mod": (self.pool(),),
            "ngram-cache": (
                self._param("ngram-cache", "static"),
                self._param("ngram-cache", "dynamic"),
            ),
            "suffix": (self.suffix_pool(), self._param("suffix", "static")),
            "recycle": (self.successor_pool(),),
        }
        return {name: sum(map(_nbytes, shared.get(name, ()))) for name in self.types}

    def slot_bytes(self) -> int:
        """Return the memory of the histories and indexes of the default drafters now."""
        return self._kinds[self._default].source.nbytes if self.types else 0

    @property
    def max_draft(self) -> int:
        """Return the longest draft of the default drafters, 0 without them."""
        return self._kinds[self._default].source.max_draft if self.types else 0

    def _param(self, name: str, key: str) -> Any:
        return self._params.get(name, {}).get(key)

    def nbytes(self) -> dict[str, int]:
        """Return the memory kept by tenant, as measured when their requests last ended."""
        with self._lock:
            self._count_released()
            return dict(self._bytes())

    @property
    def shared_params(self) -> tuple[str, ...]:
        """Return which pools and caches the engine was given; only the namespace "" uses them."""
        return tuple(
            f"{key} of {name}"
            for name, key in (
                ("ngram-mod", "pool"),
                ("ngram-cache", "dynamic"),
                ("suffix", "pool"),
                ("recycle", "pool"),
            )
            if self._params.get(name, {}).get(key) is not None
        )

    # -- with the lock held ------------------------------------------------------------------------

    def _make(self, types: tuple[str, ...], own: Params, namespace: str, tenant: str) -> _Kind:
        params = {name: {**self._params.get(name, {}), **own.get(name, {})} for name in types}
        try:
            self._pools.join(params, namespace)
            drafter = create_drafter(types, slots=self._slots, params=params, order="given")
        except BaseException:
            self._forget_pools()
            raise
        return _Kind(NativeSource(drafter), tenant, namespace, drafter.nbytes)

    def _count_released(self) -> bool:
        """Count the requests that ended; True when one of their chains has grown."""
        ended: set[Any] = set()
        while self._released:
            key = self._released.popleft()
            self._kinds[key].held -= 1
            # The default's memory counts for nobody: no wait for a prompt that it reads.
            if key != self._default:
                ended.add(key)
        grown = False
        for key in ended:
            kind = self._kinds[key]
            before, kind.nbytes = kind.nbytes, kind.source.nbytes
            grown = grown or kind.nbytes > before
        return grown

    def _leaving(self, tenant: str) -> Any:
        """Return the tenant's chain to drop for a new one, None if there is room."""
        own = [key for key, kind in self._kinds.items() if kind.tenant == tenant]
        if len(own) < MAX_KINDS:
            return None
        oldest = next((key for key in own if self._may_go(key)), None)
        if oldest is None:
            raise QuotaError(
                f"{len(own)} combinations of drafters, sizes and namespace are in use already: "
                "wait for requests to end, or use fewer at a time"
            )
        return oldest

    def _keep_within_bytes(self) -> bool:
        """Drop chains of tenants above their share; False if chains in use take too much."""
        while (held := self._bytes()).total() > self._max_bytes:
            share = self._max_bytes // len(held)
            oldest: dict[str, Any] = {}
            for key, kind in self._kinds.items():
                if held[kind.tenant] > share and self._may_go(key):
                    oldest.setdefault(kind.tenant, key)
            if not oldest:
                return False
            self._drop(oldest[max(oldest, key=lambda tenant: held[tenant])])
        return True

    def _bytes(self) -> Counter[str]:
        """Return the memory of all chains but the default, and of their pools, by tenant."""
        held: Counter[str] = Counter()
        seen: set[str] = set()
        for key, kind in self._kinds.items():
            if key == self._default:
                continue
            held[kind.tenant] += kind.nbytes
            if kind.namespace not in seen:
                seen.add(kind.namespace)
                held[kind.tenant] += self._pools.nbytes(kind.namespace)
        return held

    def _may_go(self, key: Any) -> bool:
        return not self._kinds[key].held and key != self._default

    def _drop(self, key: Any) -> None:
        """Forget a chain, and the pools that no other uses."""
        add_stats(self._gone, self._kinds.pop(key).source.stats())
        self._forget_pools()

    def _forget_pools(self) -> None:
        self._pools.forget({kind.namespace for kind in self._kinds.values()})


def _kind(types: tuple[str, ...], namespace: str, own: Params) -> tuple[Any, ...]:
    """Return the key of the chain for these settings, hashable even where values are lists."""
    settings = sorted((name, sorted(values.items())) for name, values in own.items())
    return types, namespace, repr(settings)


def _nbytes(shared: Any) -> int:
    """Return the memory of a pool, cache, index or file that was opened, 0 for a path or None."""
    return int(getattr(getattr(shared, "cache", shared), "nbytes", 0))


def _check_params(params: Params, types: Sequence[str]) -> None:
    """Refuse what create_drafter would, what a request may not set, and what nothing would use."""
    for name, own in params.items():
        if name not in CONFIGS:
            raise InputError(f"unknown drafter {name!r}; {nearest(name, CONFIGS)}")
        names = [field.name for field in fields(CONFIGS[name]) if field.name not in OWNED]
        if not isinstance(own, Mapping):
            raise InputError(f"the parameters of {name} must be a mapping, got {own!r}")
        for key in own:
            if key not in names:
                raise InputError(f"a request cannot set {key!r} of {name}; {nearest(key, names)}")
        CONFIGS[name](**own)
        if own and name not in types:
            raise InputError(f"parameters of {name} need it in types, got {','.join(types)}")


def add_stats(total: dict[str, SourceStats], more: Mapping[str, SourceStats]) -> None:
    """Add counts to those of the same name."""
    for name, stats in more.items():
        total[name] = stats if name not in total else total[name].plus(stats)
