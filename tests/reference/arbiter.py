"""Whether to ask a source that takes time: the slow twin of `policy.arbiter`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .auto import AutoPolicy, later, worths
from .auto_tree import children, path

DEPTHS = (0, 1, 2, 2, 3, 3, 3, 3)  # by token of a draft; later ones are 4
Draft = tuple[int, int]  # right tokens, known ones


def depth(i: int) -> int:
    return DEPTHS[i] if i < len(DEPTHS) else 4


def counts(drafts: Sequence[tuple[float, Draft]], at: int) -> tuple[float, float]:
    """Tokens seen and right at a depth, each draft with its weight."""
    seen = right = 0.0
    for weight, (good, num_known) in drafts:
        tokens = [i for i in range(min(num_known, good + 1)) if depth(i) == at]
        seen += weight * len(tokens)
        right += weight * sum(i < good for i in tokens)
    return seen, right


@dataclass
class Lane:
    """Drafts of this request with their weights; what trials may take, and the one under way."""

    drafts: list[tuple[float, Draft]] = field(default_factory=list)
    recent: tuple[str, ...] = ()  # what came of its last two drafts
    credit: float = 0.5
    stake: float = 0.0
    least: float = 0.0
    shortest: int = 0


@dataclass
class Source:
    start: float = 0.0
    per_token: float = 0.0
    drafts: list[tuple[float, Draft]] = field(default_factory=list)
    apart: list[tuple[float, bool]] = field(default_factory=list)  # expected, right
    after: dict[tuple[str, ...], list[tuple[float, Draft]]] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)

    def lane(self, slot: int) -> Lane:
        return self.lanes.setdefault(slot, Lane())

    def expected(self, slot: int) -> list[float]:
        """By depth, how probable a token is if those before it are right."""
        chances: list[float] = []
        past = 0.7
        for at in range(5):
            seen, right = counts(self.drafts, at)
            past = (right + 4 * past) / (seen + 4)
            prior = past if at == 0 or seen > 3 else chances[-1]
            similar, well = counts(self.after.get(self.lane(slot).recent, []), at)
            prior = (well + 4 * prior) / (similar + 4)
            weight = 4 + 10 * min(similar, 30)
            here, good = counts(self.lane(slot).drafts, at)
            chances.append((good + weight * prior) / (here + weight))
        return chances

    def beside_wrong(self) -> float:
        """How much less often its first token is right where a free draft beside it is wrong."""
        weights = [0.99**age for age in reversed(range(len(self.apart)))]
        seen = sum(w * p for w, (p, _) in zip(weights, self.apart, strict=True))
        right = sum(w * good for w, (_, good) in zip(weights, self.apart, strict=True))
        return (right + 4) / (seen + 4)


@dataclass
class Free:
    """A free draft: its likeliest path, and the part of it that would be sent.

    sent, on_path: tokens that would be sent, and those of them on the path.
    levels: by depth, how probable it is that one of the sent tokens there is right.
    sides: expected right tokens beside the path.
    right: how probable it is that each of the sent tokens is right.
    """

    p: list[float]
    go_on: list[float]
    sent: int
    on_path: int
    levels: list[float]
    sides: float
    branches: int
    right: list[float]


def likeliest_path(p: Sequence[float], parents: Sequence[int], chosen: int) -> list[int]:
    """Tokens of the path among the first `chosen`, then what follows it most likely."""
    way: list[int] = []
    for among in (chosen, len(p)):
        while True:
            at = way[-1] if way else -1
            after = [i for i in children(parents, at) if i < among]
            if not after:
                break
            way.append(max(after, key=lambda i: p[i]))
    return way


class Arbiter:
    """The decisions written out."""

    def __init__(self, policy: AutoPolicy) -> None:
        self.policy = policy
        self.sources: dict[str, Source] = {}

    def price(self, source: str, start: float, per_token: float) -> None:
        state = self.sources.setdefault(source, Source())
        state.start, state.per_token = start, per_token

    def begin(self, slot: int) -> None:
        for source in self.sources.values():
            lane = source.lane(slot)
            lane.drafts, lane.recent, lane.stake = [], (), 0.0

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

    def taken(self, state: Source, k: int, sharing: int, read: float) -> float:
        """What drafting k tokens takes."""
        return read + (state.start + state.per_token * k) / sharing / self.policy.costs.pace

    def best(
        self,
        state: Source,
        q: Sequence[float],
        free: Free,
        most: int,
        room: int,
        prices: Callable[[int], float],
        rate: float,
        sharing: int,
        extends: bool,
        read: float,
        branches: int,
        shortest: int,
    ) -> tuple[int, int, bool, float]:
        """What gains most over the free draft alone: tokens after which, tokens, how, the gain."""
        p, go_on, path = free.p, free.go_on, free.on_path
        bare = worths(p, 0, go_on)[path] + free.sides - prices(free.sent)
        choice = (0, 0, False, 0.0)
        for after in sorted({0, path}) if extends else [0]:
            sent = free.sent if after else 0
            sure = math.prod(p[:after])
            short = sum(math.prod(p[:i]) for i in range(after + 1)) - sure * (after + 1)
            for k in range(1, min(most, room - sent) + 1):
                chances = [q[depth(i)] for i in range(k)]
                rest = self.outcomes(p[after:], go_on[after:], chances)
                gain = short + sure * (after + rest) - prices(sent + k) - bare
                gain += free.sides if after else 0.0
                gain -= rate * self.taken(state, k, sharing, read)
                if gain > choice[3] and sent + k >= shortest:
                    choice = (after, k, False, gain)
        if not free.sent or free.branches >= branches:
            return choice
        apart = state.beside_wrong()
        for k in range(1, min(most, room) + 1):
            num_free = min(free.sent, room - k)
            here = [apart * math.prod(q[depth(i)] for i in range(d)) for d in range(1, k + 1)]
            level = [
                min(free.levels[d], 1.0) if d < len(free.levels) else 0.0 for d in range(1, k + 1)
            ]
            gain = -sum(free.right[num_free:])
            for d in range(1, k + 1):
                saved = 1 - level[d - 1]
                if d > path and d <= len(p):  # the next pass would begin with this much of it
                    left = go_on[d] if d < len(p) else 0.0
                    more = p[d] * go_on[d + 1] if d + 1 < len(p) else 0.0
                    saved -= math.prod(p[:d]) * (left - more)
                gain += here[d - 1] * saved
            own = 1 - sum(x * y for x, y in zip(here, level, strict=True)) / k
            gain -= (prices(num_free + k) - prices(free.sent)) * own
            gain -= rate * self.taken(state, k, sharing, read)  # branches cost nothing here
            if gain > choice[3] and num_free + k >= shortest:
                choice = (0, k, True, gain)
        return choice

    def free(
        self,
        name: str,
        claims: Sequence[float],
        parents: Sequence[int] | None,
        chosen: int,
        room: int,
        base: int,
        decoding: int,
        rate: float,
    ) -> Free:
        policy, longest = self.policy, max(0, min(len(claims), self.policy.max_draft, room))
        if parents is None:
            p: list[float] = []
            if longest and policy.may_pay(name, claims, room, room, base, decoding, rate):
                p = policy.chain(name, claims[:longest])
            go_on = later(p, policy.prices(base, decoding, len(p), rate))
            sent = min(chosen, len(p))
            levels = [math.prod(p[:d]) for d in range(sent + 1)]
            return Free(p, go_on, sent, sent, levels, 0.0, int(sent > 0), levels[1:])
        links, sent = parents[:longest], min(chosen, longest)
        p = list(claims[:longest])  # of sources that the policy does not correct
        way = likeliest_path(p, links, sent)
        on_path = sum(i < sent for i in way)
        right = [math.prod(p[j] for j in path(links, i)) for i in range(sent)]
        deep = [len(path(links, i)) for i in range(sent)]
        levels = [
            sum(x for x, at in zip(right, deep, strict=True) if at == d)
            for d in range(max(deep, default=0) + 1)
        ]
        sides = sum(right) - sum(right[i] for i in way[:on_path])
        chain = [p[i] for i in way]
        go_on = later(chain, policy.prices(base, decoding, len(chain), rate))
        ends = sum(not [j for j in children(links, i) if j < sent] for i in range(sent))
        return Free(chain, go_on, sent, on_path, levels, sides, ends, right)

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
        parents: Sequence[int] | None = None,
        branches: int = 1,
        stops: bool = False,
        shortest: int = 0,
        left: int = 1,
    ) -> tuple[int, int, bool, bool]:
        state, lane = self.sources[source], self.sources[source].lane(slot)
        lane.stake, lane.least, lane.shortest = 0.0, 0.0, 0
        if min(most, room) <= 0:
            return 0, 0, False, False
        costs, policy = self.policy.costs, self.policy
        rate = max(policy.speed, decoding / costs.at(base))
        share = costs.at(base) / decoding - costs.at(base)
        prices = lambda k: rate * (costs.at(base + k) + share)  # noqa: E731
        offered = self.free(free, claims, parents, chosen, room, base, decoding, rate)
        read = backlog / costs.pace
        extends = extends and offered.sent > 0
        ways = (offered, most, room, prices, rate, sharing, extends)
        ends = (branches, shortest)
        q = state.expected(slot)
        part = read / drafts(q, most, left)
        after, tokens, beside, _ = self.best(state, q, *ways, part, *ends)
        if tokens and stops:
            asked = max(tokens, min(most, room - (offered.sent if after else 0)))
            sent = offered.sent if after or beside else 0
            counts = math.prod(offered.p[:after])  # how often a right token after `tokens` counts
            if beside and tokens + 1 < len(offered.levels):
                counts -= min(offered.levels[tokens + 1], 1.0)
            price = (prices(sent + asked) - prices(sent)) / asked
            price += rate * state.per_token / sharing / costs.pace
            lane.least = price / max(0.9 * counts, 1e-9)
            lane.shortest = shortest - sent
            tokens = asked
        if tokens:
            return after, tokens, False, beside
        lane.credit = min(lane.credit + 0.008 * costs.at(base + chosen) / costs.at(1), 2.0)
        q = [max(x, 0.9) for x in q]
        part = read / drafts(q, most, left)
        if not self.best(state, q, *ways, part, *ends)[1]:
            return 0, 0, False, False
        took = part + (state.start + state.per_token) / sharing / costs.pace
        took /= costs.at(1)
        if lane.credit < took:
            return 0, 0, False, False
        lane.credit -= took
        lane.stake = took
        return 0, 1, True, False

    def pays(self, slot: int, source: str, claims: Sequence[float]) -> bool:
        """Whether another token after these pays; the claims are taken as they are."""
        lane = self.sources[source].lane(slot)
        return len(claims) < lane.shortest or math.prod(claims) >= lane.least

    def learn(
        self, slot: int, source: str, right: int, num_known: int, apart: bool = False
    ) -> None:
        state, lane = self.sources[source], self.sources[source].lane(slot)
        if not num_known:
            lane.credit = min(lane.credit + lane.stake, 2.0)
            lane.stake = 0.0
            return
        p = state.expected(slot)[0]
        if apart:
            state.apart.append((p, right > 0))
        lane.drafts = aged(lane.drafts, 0.95, (right, num_known))
        state.after[lane.recent] = aged(state.after.get(lane.recent, []), 0.99, (right, num_known))
        outcome = "wrong" if not right else "right in part" if right < num_known else "right"
        lane.recent = (*lane.recent, outcome)[-2:] if lane.recent else (outcome, outcome)
        state.drafts = aged(state.drafts, 0.99, (right, num_known))
        if lane.stake > 0 and right == num_known:
            lane.credit = min(lane.credit + 2 * (1 - p) * lane.stake, 2.0)
        lane.stake = 0.0


def drafts(q: Sequence[float], most: int, left: int) -> float:
    """How many drafts of `most` tokens it takes to emit `left` tokens."""
    each = sum(math.prod(q[depth(i)] for i in range(k)) for k in range(most + 1))
    return max(left / each, 1.0)


def aged(
    drafts: Sequence[tuple[float, Draft]], decay: float, newest: Draft
) -> list[tuple[float, Draft]]:
    return [*((decay * weight, draft) for weight, draft in drafts), (1.0, newest)]
