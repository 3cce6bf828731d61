"""Whether to ask a source that takes time: the slow twin of `policy.arbiter`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .auto import AutoPolicy, later, worths

DEPTHS = (0, 1, 2, 2, 3, 3, 3, 3)  # by token of a draft; later ones are 4
Draft = tuple[int, int]  # right tokens, known ones


def depth(i: int) -> int:
    return DEPTHS[i] if i < len(DEPTHS) else 4


def counts(drafts: Sequence[tuple[float, Draft]], at: int) -> tuple[float, float]:
    """Tokens seen and right at a depth, each draft with its weight."""
    seen = right = 0.0
    for weight, (good, known) in drafts:
        tokens = [i for i in range(min(known, good + 1)) if depth(i) == at]
        seen += weight * len(tokens)
        right += weight * sum(i < good for i in tokens)
    return seen, right


@dataclass
class Lane:
    """Drafts of this request with their weights; what trials may take, and the one under way."""

    drafts: list[tuple[float, Draft]] = field(default_factory=list)
    lately: float = 0.7
    credit: float = 0.5
    stake: float = 0.0


@dataclass
class Source:
    start: float = 0.0
    per_token: float = 0.0
    drafts: list[tuple[float, Draft]] = field(default_factory=list)
    lanes: dict[int, Lane] = field(default_factory=dict)

    def lane(self, slot: int) -> Lane:
        return self.lanes.setdefault(slot, Lane())

    def expected(self, slot: int) -> list[float]:
        """By depth, how probable a token is if those before it are right."""
        made: list[float] = []
        past = 0.7
        for at in range(5):
            seen, right = counts(self.drafts, at)
            past = (right + 4 * past) / (seen + 4)
            prior = past if at == 0 or seen > 3 else made[-1]
            here, good = counts(self.lane(slot).drafts, at)
            made.append((good + 4 * prior) / (here + 4))
        return made


class Arbiter:
    """The decisions written out."""

    def __init__(self, policy: AutoPolicy) -> None:
        self.policy = policy
        self.sources: dict[str, Source] = {}

    def price(self, source: str, start: float, per_token: float) -> None:
        known = self.sources.setdefault(source, Source())
        known.start, known.per_token = start, per_token

    def begin(self, slot: int) -> None:
        for source in self.sources.values():
            lane = source.lane(slot)
            lane.drafts, lane.stake = [], 0.0
            lane.lately = source.expected(slot)[0]

    def outcomes(
        self, p: Sequence[float], go_on: Sequence[float], drafted: Sequence[float]
    ) -> float:
        """Expected tokens of a pass and what is left of the free draft after it.

        p, go_on: the free draft's probabilities, and what it is worth to be at a token of it.
        drafted: of the source's tokens, which stand where the free draft's would.
        """
        total = 0.0
        for right in range(len(drafted) + 1):
            chance = math.prod(drafted[:right])
            if right < len(drafted):
                chance *= 1 - drafted[right]
            place = right + 1  # of the text that follows
            left = math.prod(p[:place]) * go_on[place] if place < len(p) else 0.0
            total += chance * (place + left)
        return total

    def best(
        self,
        known: Source,
        q: Sequence[float],
        free: tuple[Sequence[float], Sequence[float], int],
        most: int,
        room: int,
        prices: Callable[[int], float],
        rate: float,
        sharing: int,
        extends: bool,
        read: float,
    ) -> tuple[int, int, float]:
        """What gains most over the free draft alone: tokens after which, tokens, and the gain."""
        p, go_on, chosen = free
        bare = worths(p, 0, go_on)[chosen] - prices(chosen)
        found = (0, 0, 0.0)
        for after in sorted({0, chosen}) if extends else [0]:
            sure = math.prod(p[:after])
            short = sum(math.prod(p[:i]) for i in range(after + 1)) - sure * (after + 1)
            for k in range(1, min(most, room - after) + 1):
                taken = (
                    read + (known.start + known.per_token * k) / sharing / self.policy.costs.pace
                )
                made = [q[depth(i)] for i in range(k)]
                rest = self.outcomes(p[after:], go_on[after:], made)
                gain = short + sure * (after + rest) - prices(after + k) - bare
                gain -= rate * taken
                if gain > found[2]:
                    found = (after, k, gain)
        return found

    def ask(
        self,
        slot: int,
        source: str,
        most: int,
        room: int,
        free: str,
        claims: Sequence[float],
        chosen: int,
        base: int,
        decoding: int,
        sharing: int,
        extends: bool,
        backlog: float,
    ) -> tuple[int, int, bool]:
        known, lane = self.sources[source], self.sources[source].lane(slot)
        lane.stake = 0.0
        if min(most, room) <= 0:
            return 0, 0, False
        costs, policy = self.policy.costs, self.policy
        rate = max(policy.speed, decoding / costs.at(base))
        longest = max(0, min(len(claims), policy.max_draft, room))
        chain: list[float] = []
        if longest and policy.may_pay(free, claims, room, room, base, decoding, rate):
            chain = policy.chain(free, claims[:longest])
        share = costs.at(base) / decoding - costs.at(base)
        prices = lambda k: rate * (costs.at(base + k) + share)  # noqa: E731
        go_on = later(chain, [prices(k) for k in range(len(chain) + 1)])
        read = backlog / costs.pace
        sent = min(chosen, len(chain))
        ways = ((chain, go_on, sent), most, room, prices, rate, sharing, extends, read / 32)
        q = known.expected(slot)
        after, tokens, _ = self.best(known, q, *ways)
        if tokens:
            return after, tokens, False
        lane.credit = min(lane.credit + 0.008 * costs.at(base + chosen) / costs.at(1), 2.0)
        if not self.best(known, [max(x, 0.9) for x in q], *ways)[1]:
            return 0, 0, False
        took = read + (known.start + known.per_token) / sharing / costs.pace
        if not chosen:
            took += costs.at(base + 1) - costs.at(base)
        took /= costs.at(1)
        if lane.credit < took:
            return 0, 0, False
        lane.credit -= took
        lane.stake = took
        return 0, 1, True

    def learn(self, slot: int, source: str, right: int, known: int) -> None:
        if not known:
            return
        made, lane = self.sources[source], self.sources[source].lane(slot)
        p = made.expected(slot)[0]
        lane.lately += 0.4 * ((right > 0) - lane.lately)
        changed = abs(lane.lately - p) > 0.45
        lane.drafts = aged(lane.drafts, 0.0 if changed else 0.95, (right, known))
        made.drafts = aged(made.drafts, 0.99, (right, known))
        if lane.stake > 0 and right == known:
            lane.credit = min(lane.credit + 2 * (1 - p) * lane.stake, 2.0)
        lane.stake = 0.0


def aged(
    drafts: Sequence[tuple[float, Draft]], kept: float, newest: Draft
) -> list[tuple[float, Draft]]:
    return [*((kept * weight, draft) for weight, draft in drafts), (1.0, newest)]
