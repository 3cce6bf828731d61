"""MetricFamilies: metric families with a common prefix and common labels."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ngramspec.engine import Histogram

Row = tuple[tuple[str, ...], float]  # label values, value


class MetricFamilies:
    """Makes metric families.

    Args:
        prefix: Put before all names, with a colon, as vLLM and llama-server do.
        labels: Labels of every sample.
    """

    def __init__(self, prefix: str, **labels: str) -> None:
        self._prefix = prefix
        self._names = tuple(labels)
        self._values = tuple(labels.values())

    def counter(self, name: str, text: str, value: float) -> Metric:
        """Return a counter with one sample; its name ends with _total."""
        return self.counters(name, text, (), [((), value)])

    def counters(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        rows: Iterable[Row],
    ) -> Metric:
        """Return a counter with one sample per combination of label values."""
        family = CounterMetricFamily(self._full(name), text, labels=(*self._names, *labels))
        for key, value in rows:
            family.add_metric((*self._values, *key), value)
        return family

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return self.gauges(name, text, (), [((), value)])

    def gauges(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        rows: Iterable[Row],
    ) -> Metric:
        """Return a gauge with one sample per combination of label values."""
        family = GaugeMetricFamily(self._full(name), text, labels=(*self._names, *labels))
        for key, value in rows:
            family.add_metric((*self._values, *key), value)
        return family

    def histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(self._full(name), text, labels=self._names)
        family.add_metric(self._values, histogram.cumulative(), histogram.total)
        return family

    def _full(self, name: str) -> str:
        return f"{self._prefix}:{name}"


class Rate:
    """An amount per second of work between two readings; 0 if there was no work."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0

    def read(self, amount: float, seconds: float) -> float:
        """Return the rate since the last call."""
        more, longer = amount - self._amount, seconds - self._seconds
        self._amount, self._seconds = amount, seconds
        return more / longer if longer > 0 else 0.0


class Monotonic:
    """Keeps the highest value of each row, for counters whose source may fall a little."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, ...], float] = {}

    def read(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows, none lower than before."""
        highest = self._highest
        for key, value in rows:
            highest[key] = max(value, highest.get(key, 0))
        return list(highest.items())
