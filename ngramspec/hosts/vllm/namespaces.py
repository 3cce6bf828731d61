"""Namespaces: drafters and pools of vLLM's requests, by the namespace that these ask for."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable

from ngramspec.drafting.statistics import Saves, open_shared
from ngramspec.engine.sources.drafters import add_stats
from ngramspec.engine.sources.pools import Pools
from ngramspec.hosts.rows import BatchDrafts
from ngramspec.hosts.vllm.counters import log
from ngramspec.hosts.vllm.proposer import make_drafter, make_drafts, make_policy
from ngramspec.hosts.vllm.settings import ProposerSettings
from ngramspec.stats import SourceStats

IDLE_STEPS = 256  # a namespace without requests keeps its drafter for so long
LOG_SECONDS = 60.0
MOST_LOGGED = 16  # failures within LOG_SECONDS; requests choose how many namespaces there are


class Namespaces:
    """Keep a drafter for each namespace that requests use, and its pools for longer.

    Files are opened once. A drafter goes when its namespace has had no request for IDLE_STEPS
    steps; the pools of as many namespaces as the options say stay, those used last, and a new
    drafter finds them. The namespace "" keeps both. All drafters share the policy.

    Args:
        settings: Of the engine.
        clock: Returns the time in seconds.

    Raises:
        As create_drafter; FileNotFoundError: The folder of a file that will be written is missing.

    Not locked: one thread at a time.
    """

    def __init__(
        self, settings: ProposerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        saves = Saves()
        weakref.finalize(self, saves.close)
        self._params = open_shared(settings.params, saves)
        self._pools = Pools(self._params)
        self.policy = make_policy(settings)
        self.groups: OrderedDict[str, BatchDrafts] = OrderedDict()  # those used longest ago first
        self._used: OrderedDict[str, int] = OrderedDict()  # step of the last request, but of ""
        self._step = 0
        self._failed: dict[str, tuple[str, ...]] = {}  # namespaces without drafts: their requests
        self._failures = 0  # since LOG_SECONDS before _due
        self._due = clock() + LOG_SECONDS
        self._gone: dict[str, SourceStats] = {}
        self.get("")

    def begin_step(self, names: Collection[str], present: Container[str]) -> None:
        """Note which namespaces have requests in a step, and drop what others no longer keep.

        Args:
            names: The namespaces that have some.
            present: The ids of all requests.

        Cost: O(names) and what is dropped.
        """
        self._step += 1
        for name, requests in list(self._failed.items()):
            if not any(one in present for one in requests):
                del self._failed[name]
        for name in names:
            if name:
                self._used[name] = self._step
                self._used.move_to_end(name)
        self._drop_idle()
        most = max(self._settings.options.namespaces, sum(map(bool, names)))
        if len(self._used) > most:
            while len(self._used) > most:
                name, _ = self._used.popitem(last=False)
                self._drop(name)
            self._pools.forget(self._used)

    def get(self, name: str) -> BatchDrafts | None:
        """Return the drafts of a namespace, made if new; None while it has failed.

        Raises:
            As create_drafter.
        """
        if name in self._failed:
            return None
        group = self.groups.get(name)
        if group is None:
            params = {one: dict(own) for one, own in self._params.items()}
            self._pools.join(params, name)
            drafter = make_drafter(self._settings, params, self.policy)
            group = self.groups[name] = make_drafts(self._settings, drafter)
        self.groups.move_to_end(name)
        return group

    def running(self) -> list[str]:
        """Return the namespaces with requests that have begun and not ended."""
        return [name for name, group in self.groups.items() if group.rows.num_active]

    def default_alone(self) -> BatchDrafts | None:
        """Return the drafts of "", None if it has failed or others have requests to end."""
        group = self.groups.get("")
        if len(self.groups) > 1 and any(self.running()):
            return None
        return group

    def fail(self, name: str, error: Exception, requests: Iterable[str]) -> None:
        """Log an error, and let its namespace draft nothing until the requests that it has end.

        However often that happens, others go on: any client can make up namespaces, and must not
        end the drafts of all. A namespace fails at most once for each of its requests.

        Args:
            name: The namespace.
            error: What went wrong.
            requests: Their ids.
        """
        self._log(name, error)
        self._failed[name] = tuple(requests)
        self._used.pop(name, None)
        self._drop(name)
        self._pools.forget(self._used)

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name, over all namespaces, those that went included."""
        total = dict(self._gone)
        for group in self.groups.values():
            add_stats(total, group.drafter.stats())
        return total

    def _log(self, name: str, error: Exception) -> None:
        """Log a failure, unless there have been many lately."""
        now = self._clock()
        if now >= self._due:
            unsaid = self._failures - MOST_LOGGED
            if unsaid > 0:
                log.error("ngramspec failed %d times more, which was not logged", unsaid)
            self._failures, self._due = 0, now + LOG_SECONDS
        self._failures += 1
        if self._failures <= MOST_LOGGED:
            text = (
                "ngramspec failed: no drafts for namespace %r until its requests of now have ended"
            )
            log.error(text, name, exc_info=error)

    def _drop_idle(self) -> None:
        """Free the drafters of namespaces that had no request for long."""
        for name in [name for name in self.groups if name]:
            if self._step - self._used[name] < IDLE_STEPS:
                return
            self._drop(name)

    def _drop(self, name: str) -> None:
        group = self.groups.pop(name, None)
        if group is not None:
            add_stats(self._gone, group.drafter.stats())
