"""Tuning: which drafter and sizes suit recorded requests best, by successive halving."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ngramspec.costs import CostTable
from ngramspec.errors import InputError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.replay.tally import ReplayTally, total_of
from ngramspec.lab.replay.walk import walk
from ngramspec.lab.tune.candidates import DEFAULT, Candidate
from ngramspec.lab.tune.memo import Memo
from ngramspec.lab.tune.split import BLOCK, Part, Split

FINALISTS = 8
SIMILAR = 2  # finalists of one drafter that differ only in sizes
FIRST = 12  # requests of the first round, more if there are many sets
GROWTH = 3  # each round has 3 times the requests of the one before, and a part of the candidates
FOR_LLAMA_SERVER = 4  # one place in 4 is for what llama-server can do
LEAST_GAIN = 1.01  # over the default, to be worth a setting


class Stopped(Exception):
    """Ends a replay in the middle."""


@dataclass(frozen=True)
class Result:
    """The result of a candidate.

    tally: on the requests to choose on of its last round.
    requests: their number.
    held_out: on the held-out requests, after those to choose on; None = not replayed.
    """

    candidate: Candidate
    tally: ReplayTally
    requests: int
    held_out: ReplayTally | None = None

    @property
    def reported(self) -> ReplayTally:
        """The tally to report: on the held-out requests, if they were replayed."""
        return self.held_out or self.tally


@dataclass(frozen=True)
class Tuning:
    """The outcome of a search.

    costs: of the target.
    results: of all candidates that were replayed: those of the last round first, each round by
        the modelled speed-up on the requests to choose on.
    rounds: candidates and requests of each round that was finished.
    num_chosen_on, num_held_out: requests of the split.
    finished: whether all rounds, and the held-out replays if any, were done.
    """

    costs: CostTable
    results: Sequence[Result]
    rounds: Sequence[tuple[int, int]]
    num_chosen_on: int
    num_held_out: int
    finished: bool

    @property
    def default(self) -> Result:
        """The result of the default."""
        return next(result for result in self.results if result.candidate.name == DEFAULT.name)

    @property
    def finalists(self) -> Sequence[Result]:
        """What to show, best first: those replayed on held-out requests, or the best ones."""
        judged = [result for result in self.results if result.held_out is not None]
        return judged or _best(self.results, FINALISTS, SIMILAR)

    @property
    def best(self) -> Result:
        """What to use: the first result if it beats the default by more than 1 %, or the default.

        It must do so on the requests to choose on and on the held-out ones.
        """
        first = self.results[0]
        gains = (self.gain(first), self.held_out_gain(first))
        return first if min(filter(None, gains)) > LEAST_GAIN else self.default

    @property
    def best_for_llama_server(self) -> Result | None:
        """The best that llama-server can do, None if it gains no more than 1 %."""
        result = next((r for r in self.results if r.candidate.for_llama_server), None)
        pays = result is not None and self.speedup(result.reported) > LEAST_GAIN
        return result if pays else None

    def speedup(self, tally: ReplayTally) -> float:
        """Return the modelled speed-up over plain decoding."""
        return tally.speedup(self.costs)

    def gain(self, result: Result) -> float | None:
        """Return the speed-up over that of the default, on the requests to choose on.

        None if the default was replayed on another number of requests.
        """
        if result.requests != self.default.requests:
            return None
        return self.speedup(result.tally) / self.speedup(self.default.tally)

    def held_out_gain(self, result: Result) -> float | None:
        """Return the same on the held-out requests, None if either has none."""
        mine, default = result.held_out, self.default.held_out
        if mine is None or default is None:
            return None
        return self.speedup(mine) / self.speedup(default)


def plan_rounds(num_candidates: int, parts: Split) -> list[tuple[int, int]]:
    """Return candidates and requests of each round; the last one has all requests to choose on."""
    available = parts.num_chosen_on
    requests = max(FIRST, BLOCK * len(parts.parts))
    rounds = [(num_candidates, min(requests, available))]
    while rounds[-1][1] < available:
        num_candidates = min(num_candidates, max(FINALISTS, -(-num_candidates // GROWTH)))
        requests *= GROWTH
        rounds.append((num_candidates, min(requests, available)))
    return rounds


def count_replays(num_candidates: int, parts: Split) -> int:
    """Return how often `advance` will be called by a search that nothing ends early."""
    search = sum(many * requests for many, requests in plan_rounds(num_candidates, parts))
    judged = sum(len(p.chosen_on) + len(p.held_out) for p in parts.parts if p.held_out)
    return search + min(FINALISTS, num_candidates) * judged


def tune(
    parts: Split,
    candidates: Sequence[Candidate],
    costs: CostTable,
    *,
    memo: Memo | None = None,
    advance: Callable[[], object] = lambda: None,
    stop_search: Callable[[], bool] = lambda: False,
    stop: Callable[[], bool] = lambda: False,
) -> Tuning:
    """Find the best candidate.

    Each round replays a larger sample of the requests to choose on, and the next one has the best
    third of the candidates. Every set has fresh drafters, which keep what they learn in it. At the
    end the best candidates are replayed on all requests, and only those held out are counted.

    Args:
        parts: The requests.
        candidates: At least the default.
        costs: Of the target.
        memo: Has replays that were finished before, and gets those of this search.
        advance: Called after every replayed request.
        stop_search: Called as often: True ends the search, not the replays of held-out requests.
        stop: Called as often: True ends everything.

    Returns:
        Tuning: What is known at the end; no results if not even the default was replayed.

    Raises:
        InputError: The default is not among the candidates.

    Cost: count_replays requests, each O(prompt + output).
    """
    if DEFAULT.name not in [candidate.name for candidate in candidates]:
        raise InputError("the default must be among the candidates")
    search = _Search(parts, costs, memo or Memo(), advance)
    try:
        search.run(candidates, lambda: stop_search() or stop())
        finished = True
    except Stopped:
        finished = False
    results = search.ranked()
    if not results or not parts.num_held_out:
        return _made(search, results, finished)
    try:
        search.judge(results, stop)
    except Stopped:
        finished = False
    return _made(search, search.ranked(), finished)


def _made(search: _Search, results: Sequence[Result], finished: bool) -> Tuning:
    parts = search.parts
    chosen_on, held_out = parts.num_chosen_on, parts.num_held_out
    return Tuning(search.costs, results, search.rounds, chosen_on, held_out, finished)


class _Search:
    """What is known so far. results: by name of the candidate."""

    def __init__(
        self, parts: Split, costs: CostTable, memo: Memo, advance: Callable[[], object]
    ) -> None:
        self.parts, self.costs, self.memo, self.advance = parts, costs, memo, advance
        self.results: dict[str, Result] = {}
        self.rounds: list[tuple[int, int]] = []

    def run(self, candidates: Sequence[Candidate], stop: Callable[[], bool]) -> None:
        """Do the rounds; raises Stopped."""
        left = sorted(candidates, key=_after_the_default)
        for many, requests in plan_rounds(len(left), self.parts):
            if self.rounds:
                left = [result.candidate for result in _best(self.ranked(), many)]
                left.sort(key=_after_the_default)
            sample = self.parts.sample(requests)
            new: list[Result] = []
            for candidate in left:
                tally = total_of(self._walk(candidate, group, stop) for group in sample)
                new.append(Result(candidate, tally, requests))
                if len(new) >= min(2, len(left)):  # the default alone would be the best of a round
                    self.results.update((result.candidate.name, result) for result in new)
            self.rounds.append((many, requests))

    def ranked(self) -> list[Result]:
        """Return the results, those with most requests first, and these by speed-up."""
        return sorted(
            self.results.values(), key=lambda r: (-r.requests, -r.tally.speedup(self.costs))
        )

    def judge(self, results: Sequence[Result], stop: Callable[[], bool]) -> None:
        """Replay the best candidates on the held-out requests; raises Stopped."""
        if stop():
            raise Stopped
        finalists = _best(results, FINALISTS, SIMILAR)
        for result in sorted(finalists, key=lambda one: _after_the_default(one.candidate)):
            parts = [part for part in self.parts.parts if part.held_out]
            tally = total_of(self._walk_on(result.candidate, part, stop) for part in parts)
            self.results[result.candidate.name] = dataclasses.replace(result, held_out=tally)

    def _walk(
        self, candidate: Candidate, requests: Sequence[RecordedRequest], stop: Callable[[], bool]
    ) -> ReplayTally:
        return self._remembered(candidate, (), requests, stop)

    def _walk_on(self, candidate: Candidate, part: Part, stop: Callable[[], bool]) -> ReplayTally:
        """Return the tally of the held-out requests, by a drafter that replayed those before."""
        return self._remembered(candidate, part.chosen_on, part.held_out, stop)

    def _remembered(
        self,
        candidate: Candidate,
        before: Sequence[RecordedRequest],
        requests: Sequence[RecordedRequest],
        stop: Callable[[], bool],
    ) -> ReplayTally:
        """Return the tally of requests by a drafter that replayed those before, perhaps earlier."""
        check = self._checked(stop)
        key = self.memo.key(candidate, self.costs, before, requests)
        tally = self.memo.get(key)
        if tally is not None:
            for _ in (*before, *requests):
                check()
            return tally
        player = candidate.open(self.costs)
        if before:
            walk(lambda: player, before, on_request=check)
        tally = walk(lambda: player, requests, on_request=check)
        self.memo.put(key, tally)
        return tally

    def _checked(self, stop: Callable[[], bool]) -> Callable[[], None]:
        def check() -> None:
            self.advance()
            if stop():
                raise Stopped

        return check


def _after_the_default(candidate: Candidate) -> bool:
    return candidate.name != DEFAULT.name


def _best(ranked: Sequence[Result], many: int, similar: int | None = None) -> list[Result]:
    """Return the best `many` in their order; the default and llama-server's best are kept.

    similar: Most candidates that differ in nothing but sizes, unless fewer than `many` are left.
    """
    chosen = [result for result in ranked if not _after_the_default(result.candidate)]
    chosen += [result for result in ranked[:1] if result not in chosen]
    theirs = [result for result in ranked if result.candidate.for_llama_server]
    chosen += [result for result in theirs[: many // FOR_LLAMA_SERVER] if result not in chosen]
    seen = Counter(_family(result) for result in chosen)
    later: list[Result] = []
    for result in ranked:
        if result not in chosen:
            seen[_family(result)] += 1
            fits = similar is None or seen[_family(result)] <= similar
            (chosen if fits else later).append(result)
    names = {result.candidate.name for result in (chosen + later)[:many]}
    return [result for result in ranked if result.candidate.name in names]


def _family(result: Result) -> tuple[str, bool]:
    return result.candidate.spec, result.candidate.adaptive
