"""TrafficCollector: errors, cancelled requests and connections as metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ngramspec.server.metrics.families import MetricFamilies
from ngramspec.server.traffic import Traffic


class TrafficCollector(Collector):
    """Reads the counts of the HTTP side on request; collect from any thread."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._own = MetricFamilies("ngramspec")

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all families, read now."""
        traffic, make = self._traffic, self._own
        text = "Requests that got an error, by HTTP status and the error's code."
        errors = traffic.errors.copy().items()  # the event loop may add one meanwhile
        yield make.counters("http_errors_total", text, ("status", "code"), errors)
        text = "Cancelled requests by what ended them."
        cancelled = [((cause,), count) for cause, count in traffic.cancelled.items()]
        yield make.counters("cancelled_requests_total", text, ("reason",), cancelled)
        yield make.gauge("connections", "Open connections.", traffic.num_connections)
        text = "Connections that the server closed by itself."
        dropped = [((why,), count) for why, count in traffic.dropped.items()]
        yield make.counters("dropped_connections_total", text, ("reason",), dropped)
