"""The policy between our default and a second draft source that has its price.

The second source's lengths are made up for the recorded sets, in several kinds: it is right with a
probability per token that is always 0.9, 0.5 or 0; or 0.9 and 0.05 from request to request; or all
of its drafts are right, and none, in runs of 60 to 240 tokens. Modelled speed-ups, no model runs.
The figures are in benchmarks/README.md.

    python benchmarks/arbitration.py [--tokens 4] [--price 0.05] [--start 0.05] [--limit N]
        [--branches 4] [--json FILE]

With branches our default drafts trees; "either" is then a choice of one of the sources in each
pass. "Tails": our default drafts behind the other source's drafts, too.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from ngramspec.costs import PROFILES
from ngramspec.lab.recordings.traces import Cut, Trace, find_traces, load_traces
from second_source import Arbitration, OtherSource, arbitrate

TRACES = Path(__file__).parent / "data" / "traces"
GOOD, BAD = 0.9, 0.05
SHORTEST, LONGEST = 60, 240  # tokens of a run

# By kind: how probable a token of the source is, for each output position of a request.
Kind = Callable[[int, int, random.Random], Sequence[float]]


def in_runs(index: int, length: int, rng: random.Random) -> Sequence[float]:
    """Right and wrong in turn, each for a while."""
    chances: list[float] = []
    good = bool(index % 2)
    while len(chances) < length:
        chances += [1.0 if good else 0.0] * rng.randint(SHORTEST, LONGEST)
        good = not good
    return chances[:length]


KINDS: dict[str, Kind] = {
    "always": lambda _, length, __: [GOOD] * length,
    "half": lambda _, length, __: [0.5] * length,
    "never": lambda _, length, __: [0.0] * length,
    "by request": lambda index, length, _: [GOOD if index % 2 else BAD] * length,
    "in runs": in_runs,
}


def lengths_of(trace: Trace, kind: Kind, most: int) -> list[list[int]]:
    """Return made-up lengths of a source, for each output position of each request."""
    rng = random.Random(1)
    rows = []
    for index, request in enumerate(trace.requests):
        lengths = []
        for p in kind(index, len(request.output), rng):
            length = 1
            while length <= most and rng.random() < p:
                length += 1
            lengths.append(length)
        rows.append(lengths)
    return rows


def summary(rows: Sequence[Arbitration]) -> tuple[float, float, float]:
    """Return lowest and mean speed-up over the better source, and the share of the ideal gain."""
    ratios = [row.arbiter / max(row.ours, row.other) for row in rows]
    shares = [(row.arbiter - 1) / (row.perfect - 1) for row in rows]
    return min(ratios), mean_of(ratios), sum(shares) / len(shares)


def mean_of(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--price", type=float, default=0.05)
    parser.add_argument("--start", type=float, default=0.05)
    parser.add_argument("--limit", type=int, default=0, help="requests of each set, 0 = all")
    parser.add_argument("--branches", type=int, default=1, help="most of a draft")
    parser.add_argument("--json", type=Path)
    order = parser.parse_args()
    traces = load_traces(find_traces([TRACES]), None, Cut(order.limit))
    source = OtherSource("other", order.tokens, order.price, order.start)
    columns = ["kind", "costs", "lowest over the better one", "mean", "share of the ideal gain"]
    if order.branches > 1:
        columns[-1] = "mean over either"
    columns.append("over no tails")
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|", flush=True)
    results = []
    for kind, chance in KINDS.items():
        for name, table in PROFILES.items():
            rows = {}
            for trace in traces:
                lengths = lengths_of(trace, chance, order.tokens)
                rows[trace.name] = arbitrate(trace, lengths, source, table, branches=order.branches)
            lowest, mean, share = summary([*rows.values()])
            if order.branches > 1:
                share = mean_of([row.arbiter / row.either for row in rows.values()])
            tails = mean_of([row.arbiter / row.untailed for row in rows.values()])
            cells = (f"{value:.3f}" for value in (lowest, mean, share, tails))
            print(f"| {kind} | {name} | {' | '.join(cells)} |", flush=True)
            sets = {name: row.as_json() for name, row in rows.items()}
            results.append({"kind": kind, "costs": name, "sets": sets})
    if order.json:
        order.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
