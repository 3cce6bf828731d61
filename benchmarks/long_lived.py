"""One drafter for all recorded sets beside fresh ones: whether what it learnt elsewhere harms.

    python benchmarks/long_lived.py [--drafter auto:tree=64] [--json OUT]

Three ways to send all sets through one drafter: `in order`, set after set; `shuffled`, the
requests of all sets mixed; `ten times`, the sets in order ten times over, with a pool of a tenth of
their tokens. Each set's modelled speed-up is divided by that of a fresh drafter which sees the
requests of this set only, once, in the same order and with a pool of the same size. Less than 1:
what other sets taught harms. More than 1: they share text, or a later round knows the set already.
Of the ten rounds the table has the lowest ratio.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from ngramspec.cli.progress import progress
from ngramspec.costs import PROFILES, CostTable
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace, find_traces, load_traces
from ngramspec.lab.replay.sets import geometric_mean
from ngramspec.lab.replay.subjects import subject
from ngramspec.lab.replay.walk import Player, ReplayTally, Subject, walk
from traces import FOLDER

ROUNDS = 10
LEAST_POOL = 4096  # tokens, the smallest pool there is
Requests = tuple[RecordedRequest, ...]
Advance = Callable[[], object]
Ratios = dict[str, list[float]]  # by set, one per round


@dataclass(frozen=True)
class Way:
    """A way to send the sets through one drafter.

    subject: The drafter, with a pool of the size that this way asks for.
    visits: Requests of a set that follow one another, in the order of one round.
    """

    name: str
    subject: Subject
    visits: Sequence[tuple[str, Requests]]
    rounds: int = 1

    @property
    def num_requests(self) -> int:
        """Requests that are replayed, those of the fresh drafters included."""
        return (self.rounds + 1) * sum(len(requests) for _, requests in self.visits)

    def alone(self) -> dict[str, Requests]:
        """Return the requests of each set in the order of a round."""
        sets: dict[str, Requests] = {}
        for name, requests in self.visits:
            sets[name] = sets.get(name, ()) + requests
        return sets


def ways(spec: str, traces: Sequence[Trace], seed: int, rounds: int) -> list[Way]:
    """Return the three ways; `seed` shuffles."""
    one = subject(spec)
    in_order = [(trace.name, trace.requests) for trace in traces]
    mixed = [(name, (request,)) for name, requests in in_order for request in requests]
    order = np.random.default_rng(seed).permutation(len(mixed))
    tokens = sum(len(request.prompt) + len(request.output) for _, (request,) in mixed)
    capacity = f"capacity={max(tokens // 10, LEAST_POOL)}"
    small = subject(f"{spec},{capacity}" if ":" in spec else f"{spec}:{capacity}")
    return [
        Way("in order", one, in_order),
        Way("shuffled", one, [mixed[i] for i in order]),
        Way("ten times" if rounds == ROUNDS else f"{rounds} times", small, in_order, rounds),
    ]


def compare(way: Way, costs: CostTable, advance: Advance) -> Ratios:
    """Return the long-lived drafter's speed-up over the fresh one's."""
    fresh = {
        name: walk(lambda: way.subject.open(costs), requests, on_request=advance).speedup(costs)
        for name, requests in way.alone().items()
    }
    ratios: Ratios = {name: [] for name in fresh}
    player = way.subject.open(costs)
    for _ in range(way.rounds):
        for name, tally in one_round(way, player, advance):
            ratios[name].append(tally.speedup(costs) / fresh[name])
    return ratios


def one_round(way: Way, player: Player, advance: Advance) -> Iterator[tuple[str, ReplayTally]]:
    """Send all sets through the player once; yield what was counted of each."""
    tallies: dict[str, list[ReplayTally]] = {}
    for name, requests in way.visits:
        tally = walk(lambda: player, requests, on_request=advance)
        tallies.setdefault(name, []).append(tally)
    for name, parts in tallies.items():
        yield name, total_of(parts)


def total_of(tallies: Iterable[ReplayTally]) -> ReplayTally:
    """Return the summed counts of at least one replay, and their largest memory."""
    tallies = list(tallies)
    memories = [tally.nbytes for tally in tallies if tally.nbytes is not None]
    return ReplayTally(
        requests=sum(tally.requests for tally in tallies),
        draft_lengths=added(tally.draft_lengths for tally in tallies),
        accepted_lengths=added(tally.accepted_lengths for tally in tallies),
        begin_ns=sum(tally.begin_ns for tally in tallies),
        step_ns=sum(tally.step_ns for tally in tallies),
        nbytes=max(memories, default=None),
    )


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums, length by length."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def table(way: Way, ratios: Mapping[str, Ratios]) -> Iterator[str]:
    """Yield the lines of a way's table; `ratios` are by profile."""
    yield f"| {way.name} | {' | '.join(ratios)} |"
    yield "|---|" + "---|" * len(ratios)
    columns = [{name: min(rounds) for name, rounds in of.items()} for of in ratios.values()]
    for name in columns[0]:
        yield f"| {name} | {' | '.join(f'{column[name]:.3f}' for column in columns)} |"
    means = [geometric_mean(column.values()) for column in columns]
    yield f"| geometric mean | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def main() -> None:
    """Replay, and print a table per way and the lowest ratio."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--drafter", default="auto", help="as bench replay takes it")
    parser.add_argument("--traces", type=Path, nargs="*", default=[FOLDER], help="files, folders")
    parser.add_argument("--profile", nargs="*", default=[*PROFILES], choices=[*PROFILES])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="with the small pool")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffled order")
    parser.add_argument("--json", type=Path, help="also write all ratios to this file")
    options = parser.parse_args()
    traces = load_traces(find_traces(options.traces))
    chosen = ways(options.drafter, traces, options.seed, options.rounds)
    results: dict[str, dict[str, Ratios]] = {way.name: {} for way in chosen}
    total = len(options.profile) * sum(way.num_requests for way in chosen)
    with progress("replaying", total) as advance:
        for way in chosen:
            for profile in options.profile:
                results[way.name][profile] = compare(way, PROFILES[profile], advance)
    for way in chosen:
        print("\n".join(table(way, results[way.name])) + "\n")
    lowest, where = min(
        (ratio, f"{name}, {way}, {profile}, round {i + 1}")
        for way, by_profile in results.items()
        for profile, ratios in by_profile.items()
        for name, rounds in ratios.items()
        for i, ratio in enumerate(rounds)
    )
    print(f"lowest: {lowest:.3f} ({where})")
    if options.json:
        body = {"drafter": options.drafter, "seed": options.seed, "ratios": results}
        options.json.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
