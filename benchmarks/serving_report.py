"""The tables of the serving benchmark: medians over blocks, ratios within pairs of blocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving_client import Answer, Cell
from serving_servers import Server
from serving_statistics import QUIET, Ratio, ratio


@dataclass(frozen=True)
class Key:
    """What one figure is of."""

    workload: str
    server: str
    variant: str
    clients: int


@dataclass
class Results:
    """All cells, one per block and key, the peak memory of each process, complete rounds."""

    cells: dict[Key, list[Cell]] = field(default_factory=dict)
    peaks: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    def add(self, key: Key, cell: Cell) -> None:
        """Note the next block's cell."""
        self.cells.setdefault(key, []).append(cell)

    def drop_incomplete(self) -> None:
        """Leave the workloads that have a complete round."""
        self.cells = {
            key: cells for key, cells in self.cells.items() if key.workload in self.rounds
        }

    def as_json(self) -> dict[str, Any]:
        """Return the figures of every process and block, without texts."""
        cells = [
            {**vars(key), "block": i, **figures(cell)}
            for key, cells in self.cells.items()
            for i, cell in enumerate(cells)
        ]
        return {
            "cells": cells,
            "peak_mb": {" ".join(key): peaks for key, peaks in self.peaks.items()},
        }


def figures(cell: Cell) -> dict[str, Any]:
    """Return a cell as numbers."""
    answers = [{k: v for k, v in vars(one).items() if k != "text"} for one in cell.answers]
    return {
        "seconds": cell.seconds,
        "cores": cell.cores,
        "tokens_per_second": cell.tokens_per_second,
        "answers": answers,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return Markdown lines."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


@dataclass(frozen=True)
class Report:
    """Tables of one workload; the first server is compared with every other."""

    results: Results
    workload: str
    servers: Sequence[Server]
    spec_types: Sequence[str]
    clients: Sequence[int]

    def cells(self, server: Server, spec_type: str, clients: int) -> list[Cell]:
        """Return the cells of all blocks."""
        key = Key(self.workload, server.name, server.variant(spec_type), clients)
        return self.results.cells[key]

    def answers(self, server: Server, spec_type: str, clients: int) -> list[Answer]:
        """Return the answers of all blocks."""
        cells = self.cells(server, spec_type, clients)
        return [answer for cell in cells for answer in cell.answers]

    def rows(self, figure: Callable[[Server, str, int], str]) -> list[list[str]]:
        """Return a row per number of clients and drafter, with a figure per server."""
        return [
            [str(clients), spec, *(figure(server, spec, clients) for server in self.servers)]
            for clients in self.clients
            for spec in self.spec_types
        ]

    def throughput(self) -> list[str]:
        """Return tokens per second and ratios."""
        first, *others = self.servers
        rows = self.rows(lambda *which: f"{self._median_rate(*which):.0f}")
        for row in rows:
            clients, spec = int(row[0]), row[1]
            row += [str(self.ratio(first, other, spec, clients)) for other in others]
        names = [server.name for server in self.servers]
        ratios = [f"{first.name} / {other.name}" for other in others]
        return table(["concurrent", "spec type", *names, *ratios], rows)

    def ratios(self) -> list[Ratio]:
        """Return the first server's ratios to all others."""
        first, *others = self.servers
        return [
            self.ratio(first, other, spec, clients)
            for clients in self.clients
            for spec in self.spec_types
            for other in others
        ]

    def ratio(self, first: Server, other: Server, spec: str, clients: int) -> Ratio:
        """Return one ratio, of the blocks in which other programs left both servers alone."""
        ours, theirs = (self.cells(one, spec, clients) for one in (first, other))
        return ratio(
            [cell.tokens_per_second for cell in ours],
            [cell.tokens_per_second for cell in theirs],
            [
                max(a.cores["others"], b.cores["others"]) <= QUIET
                for a, b in zip(ours, theirs, strict=True)
            ],
        )

    def _median_rate(self, *which: Any) -> float:
        return statistics.median(cell.tokens_per_second for cell in self.cells(*which))

    def latency(self, stream: bool) -> list[str]:
        """Return the median and 95th percentile of a request, and the median first text."""

        def figure(*which: Any) -> str:
            answers = self.answers(*which)
            seconds = [answer.seconds * 1e3 for answer in answers]
            parts = [f"{statistics.median(seconds):.0f}", f"{percentile95(seconds):.0f}"]
            firsts = [answer.first * 1e3 for answer in answers if answer.first]
            if stream:
                parts.append(f"{statistics.median(firsts):.0f}" if firsts else "-")
            return " / ".join(parts)

        what = "median / p95 / first text" if stream else "median / p95"
        names = [f"{server.name}, ms, {what}" for server in self.servers]
        return table(["concurrent", "spec type", *names], self.rows(figure))

    def drafts(self) -> list[str]:
        """Return what was drafted and accepted, and whose texts equal the first server's."""
        first = self.servers[0]

        def figure(server: Server, spec: str, clients: int) -> str:
            answers = self.answers(server, spec, clients)
            tokens = sum(answer.tokens for answer in answers)
            drafted = sum(answer.drafted or 0 for answer in answers)
            accepted = sum(answer.accepted or 0 for answer in answers)
            counts = f"{accepted} of {drafted}"
            if answers[0].drafted is None:
                counts = "not told"
            baseline = self.answers(first, self.spec_types[0], clients)
            same = sum(a.text == b.text for a, b in zip(answers, baseline, strict=True))
            return f"{counts}, {tokens}, {same} of {len(answers)}"

        what = "accepted of drafted, tokens, same texts"
        names = [f"{server.name}, {what}" for server in self.servers]
        return table(["concurrent", "spec type", *names], self.rows(figure))

    def memory(self) -> list[str]:
        """Return the most memory that a process held, the highest of the rounds."""

        def figure(server: Server, spec: str) -> str:
            peaks = self.results.peaks[self.workload, server.name, server.variant(spec)]
            return f"{max(peaks):.0f}"

        rows = [[spec, *(figure(one, spec) for one in self.servers)] for spec in self.spec_types]
        return table(["spec type", *(f"{one.name}, peak MB" for one in self.servers)], rows)

    def lines(self, stream: bool) -> list[str]:
        """Return everything."""
        parts = [self.throughput(), self.latency(stream), self.drafts(), self.memory()]
        lines = [f"## {self.workload}: tokens per second, all requests together"]
        for part in parts:
            lines += ["", *part]
        return lines


def percentile95(values: Sequence[float]) -> float:
    """Return the value that 95 % do not exceed."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def usage(results: Results) -> str:
    """Return a sentence on who else used the processors during the loads."""
    cells = [cell for some in results.cells.values() for cell in some]
    client = max(cell.cores["client"] for cell in cells)
    others = [cell.cores["others"] for cell in cells]
    return (
        f"During the loads the client used at most {client:.2f} cores, other programs "
        f"{statistics.median(others):.2f} in the median and {max(others):.2f} at most;"
    )
