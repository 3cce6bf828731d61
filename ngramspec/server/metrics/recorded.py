"""RecorderCollector: what was written to the file of --record, as metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ngramspec.server.metrics.families import MetricFamilies
from ngramspec.server.recorder import Recorder


class RecorderCollector(Collector):
    """Reads a recorder's counters on request; collect from any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._own = MetricFamilies("ngramspec")

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all families, read now."""
        stats, make = self._recorder.stats(), self._own
        yield make.counter("recorded_requests_total", "Requests recorded.", stats.written)
        yield make.counter("recorded_bytes_total", "Bytes of records written.", stats.num_bytes)
        text = "Requests not recorded: too many waited, too long for the file, not writable."
        rows = [((reason,), count) for reason, count in stats.dropped.items()]
        yield make.counters("record_dropped_requests_total", text, ("reason",), rows)
        yield make.gauge("record_waiting_requests", "Requests to be written.", stats.waiting)
        text = "1 while the latest request could not be written."
        yield make.gauge("record_failing", text, stats.failing)
