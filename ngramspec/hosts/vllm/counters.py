"""SourceCounters: counts by drafter, in vLLM's log and, across processes, in Prometheus.

vLLM counts drafts, drafted and accepted tokens itself, in its log and as vllm:spec_decode_*. This
module adds the split by drafter. Proposers run in worker processes, whose counters nobody reads
unless PROMETHEUS_MULTIPROC_DIR is set; vLLM sets it for several API servers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.stats import SourceStats

log = logging.getLogger("vllm.ngramspec")  # below vLLM's logger, so that its settings apply
_COUNTERS = {
    "drafts": ("num_drafts", "Drafts that were proposed."),
    "draft_tokens": ("num_draft_tokens", "Tokens of the drafts that were proposed."),
    "accepted_tokens": ("num_accepted_tokens", "Drafted tokens that the model confirmed."),
}
_registered: dict[str, Any] = {}  # of this process: prometheus_client accepts each name once


class SourceCounters:
    """Report counts by source at intervals.

    Args:
        stats: Returns the counts since the start, by source.
        seconds: Between two reports, 0 = none.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, SourceStats]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats = stats
        self._seconds = seconds
        self._clock = clock
        self._due = clock() + seconds
        self._last: Mapping[str, SourceStats] = {}
        shared = seconds > 0 and "PROMETHEUS_MULTIPROC_DIR" in os.environ
        self._counters = _prometheus_counters() if shared else {}

    def report(self) -> None:
        """Report new counts, if it is time. Cost between reports: one reading of the clock."""
        if self._seconds <= 0 or self._clock() < self._due:
            return
        self._due = self._clock() + self._seconds
        now = dict(self._stats())
        for name, stats in now.items():
            before = self._last.get(name)
            new = {
                counter: getattr(stats, figure) - (getattr(before, figure) if before else 0)
                for counter, (figure, _) in _COUNTERS.items()
            }
            for counter, amount in new.items():
                if counter in self._counters:
                    self._counters[counter].labels(source=name).inc(max(0, amount))
            if new["drafts"] > 0:
                log.info(
                    "Drafts of %s: %d, Drafted: %d tokens, Accepted: %d tokens (%.1f%%)",
                    name,
                    new["drafts"],
                    new["draft_tokens"],
                    new["accepted_tokens"],
                    100 * new["accepted_tokens"] / max(1, new["draft_tokens"]),
                )
        self._last = now


def _prometheus_counters() -> dict[str, Any]:
    try:
        from prometheus_client import Counter
    except ImportError:  # vLLM depends on it; without vLLM nobody reads it
        return {}
    for name, (_, text) in _COUNTERS.items():
        if name not in _registered:
            _registered[name] = Counter(f"ngramspec:{name}", text, ["source"])
    return _registered
