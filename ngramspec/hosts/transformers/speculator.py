"""NgramSpeculator: drafters, pools and policy that outlive a call of generate()."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import MAX_CHOSEN, by_drafter, check_int
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT, DEFAULT_POLICY, DEFAULT_SPEC, parse_names
from ngramspec.engine.sources.drafters import add_stats
from ngramspec.engine.sources.pools import Pools
from ngramspec.errors import InputError
from ngramspec.stats import SourceStats


class NgramSpeculator:
    """Keep drafters, pools and policy across calls of generate().

    A call drafts from the texts of earlier calls if its drafters share a pool (suffix, ngram-mod)
    or keep counts (ngram-cache), and the policy remembers what passes cost.

    Args:
        spec: Drafter names as for create_drafter, comma-separated.
        max_draft: Longest draft in tokens, 1..1024.
        policy: "auto": drafts are as long as their tokens pay, by the measured cost of passes;
            "fixed": as long as the drafters make them; or an AutoPolicy of your own.
        params: Drafter parameters as for create_drafter: pool=, static=, size_n= and so on;
            `params={"suffix": {...}}` for one member of a chain.

    Raises:
        InputError: An argument is out of range, or unknown.
        FormatError, VocabMismatchError, OSError: As create_drafter, for statistics files.

    Threads: calls of generate() may run at the same time, each on its own slots; with an
    AutoPolicy of your own, only one at a time.
    """

    def __init__(
        self,
        spec: str | Iterable[str] = DEFAULT_SPEC,
        *,
        max_draft: int = DEFAULT_MAX_DRAFT,
        policy: str | AutoPolicy = DEFAULT_POLICY,
        params: Mapping[str, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> None:
        check_int("max_draft", max_draft, 1, MAX_CHOSEN)
        if not isinstance(policy, AutoPolicy) and policy not in ("auto", "fixed"):
            raise InputError(f'policy must be "auto", "fixed" or an AutoPolicy, got {policy!r}')
        self.max_draft = max_draft
        self._spec = parse_names(spec, "priority")
        self._policy = policy
        self._params = by_drafter(self._spec, shared, params or {})
        Pools(self._params).join(self._params, "")
        self._idle = [self._grow(None, slots=1)]
        self._gone: dict[str, SourceStats] = {}
        self._lent: list[Drafter] = []
        self._lock = threading.Lock()

    @property
    def policy(self) -> AutoPolicy | None:
        """Return the policy of the drafter that was used last, None for "fixed"."""
        with self._lock:
            return (self._lent or self._idle)[-1].policy

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name, over all calls so far."""
        with self._lock:
            total = dict(self._gone)
            for drafter in (*self._idle, *self._lent):
                add_stats(total, drafter.stats())
        return total

    @contextmanager
    def lend(self, slots: int) -> Iterator[Drafter]:
        """Lend a drafter with a free slot for each row of a batch."""
        drafter = self._take(slots)
        try:
            yield drafter
        finally:
            with self._lock:
                self._lent = [other for other in self._lent if other is not drafter]
                self._idle.append(drafter)

    def _take(self, slots: int) -> Drafter:
        with self._lock:
            smaller = None
            for drafter in reversed(self._idle):
                if drafter.slots >= slots:
                    break
                smaller = smaller or drafter
            else:
                drafter = self._grow(smaller, slots)
            self._idle = [other for other in self._idle if other is not drafter]
            self._lent.append(drafter)
        return drafter

    def _grow(self, smaller: Drafter | None, slots: int) -> Drafter:
        """Make a drafter; it replaces a smaller idle one and keeps its policy."""
        policy = self._policy if isinstance(self._policy, AutoPolicy) else None
        if smaller is not None:
            policy = smaller.policy
            add_stats(self._gone, smaller.stats())
            self._idle = [other for other in self._idle if other is not smaller]
        elif self._policy == "auto":
            policy = AutoPolicy(self.max_draft)
        return create_drafter(self._spec, slots=slots, params=self._params, policy=policy)


class GivenDrafter:
    """A Drafter of the caller's, lent to one call at a time."""

    def __init__(self, drafter: Drafter, max_draft: int = DEFAULT_MAX_DRAFT) -> None:
        self._drafter, self.max_draft = drafter, max_draft

    @contextmanager
    def lend(self, slots: int) -> Iterator[Drafter]:
        """Lend the drafter; InputError when it has fewer slots than the batch has rows."""
        if self._drafter.slots < slots:
            raise InputError(
                f"a batch of {slots} rows needs a Drafter of {slots} slots, "
                f"got one of {self._drafter.slots}: create_drafter(..., slots={slots})"
            )
        yield self._drafter


def as_lender(drafter: Any) -> NgramSpeculator | GivenDrafter:
    """Return a lender of the drafter for one call.

    Raises:
        InputError: It is not names, a Drafter or an NgramSpeculator, or as create_drafter.
    """
    if isinstance(drafter, NgramSpeculator):
        return drafter
    if isinstance(drafter, Drafter):
        return GivenDrafter(drafter)
    if isinstance(drafter, (str, list, tuple)):
        return NgramSpeculator(drafter)
    raise InputError(
        "drafter must be drafter names, a Drafter or an NgramSpeculator, "
        f"got {type(drafter).__name__}"
    )
