"""Draft lengths from what tokens are worth and passes cost: the slow twin of `policy.auto`.

The choice is the sum over what may happen, written out; costs and calibration follow the rules step
by step in plain lists. See `best_length` for the rule that all of it serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ngramspec.costs import CostTable

from .auto_costs import PassCosts
from .source import InputError

Chains = Sequence[tuple[str, Sequence[float], int]]  # source, claims, room
NOTHING = 1e-9  # tokens: what lies behind in a chain and is worth less is left out
ROUNDS = 2
LEVELS = [1 / (1 + math.exp(4.5 - i)) for i in range(12)]  # of claims


def worths(p: Sequence[float], i: int, go_on: Sequence[float]) -> list[float]:
    """What sending 0, 1, ... tokens of a chain at position i brings, costs not taken off.

    `go_on[j]` is what it is worth to be at position j afterwards.
    """
    n, totals, reached, tokens = len(p), [], 1.0, 1.0
    for k in range(n - i + 1):
        follows = p[i + k] * go_on[i + k + 1] if i + k < n else go_on[n]
        totals.append(tokens + reached * follows)
        if i + k < n:
            reached *= p[i + k]
            tokens += reached
    return totals


def later(p: Sequence[float], prices: Sequence[float]) -> list[float]:
    """What it is worth to be at each position; behind the last token is fresh text, worth 0."""
    go_on = [0.0] * (len(p) + 1)
    for i in range(len(p) - 1, 0, -1):
        totals = worths(p, i, go_on)
        go_on[i] = max(0.0, max(totals[k] - prices[k] for k in range(len(totals))))
    return go_on


def values(p: Sequence[float], prices: Sequence[float]) -> list[float]:
    """The worths at the chain's first token."""
    return worths(p, 0, later(p, prices))


@dataclass
class Choice:
    """A length, and by length what drafts are worth and that less the price."""

    length: int
    worths: list[float]
    values: list[float]

    @property
    def gain(self) -> float:
        """What the length is worth beyond no draft, costs not taken off."""
        return self.worths[self.length] - self.worths[0]


def best_length(
    p: Sequence[float], prices: Sequence[float], allowed: Sequence[bool] | None = None
) -> Choice:
    """Return the length of the highest value among those allowed, the smallest on ties.

    The value of k tokens: those that are emitted, less the price of the pass, and when all of them
    and the one after were right, the value of what is left of the chain, if it is positive.
    """
    if not p:
        return Choice(0, [0.0], [0.0])
    gross = values(p, prices)
    net = [gross[k] - prices[k] for k in range(len(p) + 1)]
    may = [k for k in range(len(net)) if k == 0 or allowed is None or allowed[k]]
    return Choice(max(may, key=lambda k: (net[k], -k)), gross, net)


@dataclass
class Calibration:
    """Per place in the chain and level of the claim, how far off the claims were."""

    weight: list[list[float]] = field(default_factory=lambda: [[0.0] * 12 for _ in range(4)])
    mean: list[list[float]] = field(default_factory=lambda: [[0.0] * 12 for _ in range(4)])
    lately: list[list[float]] = field(default_factory=lambda: [[0.0] * 12 for _ in range(4)])
    trust: list[list[float]] = field(default_factory=lambda: [[8.0] * 12 for _ in range(4)])

    @staticmethod
    def shares(claimed: float) -> dict[int, float]:
        """The two levels around a claim, and how much of it belongs to each."""
        low = max((i for i in range(11) if LEVELS[i] <= claimed), default=0)
        high = (claimed - LEVELS[low]) / (LEVELS[low + 1] - LEVELS[low])
        high = min(max(high, 0.0), 1.0)
        return {low: 1 - high, low + 1: high}

    def excess(self, place: int, level: int) -> float:
        """What to add to claims; what is not known of a place is that of the place before."""
        if place < 0:
            return 0.0
        weight, trusted = self.weight[place][level], self.trust[place][level]
        before = self.excess(place - 1, level)
        return (weight * self.mean[place][level] + trusted * before) / (weight + trusted)

    def apply(self, i: int, claimed: float) -> float:
        """The probability of token i of a chain."""
        place = min(i, 2) if i < 4 else 3
        extra = sum(w * self.excess(place, level) for level, w in self.shares(claimed).items())
        return min(max(claimed + extra, 0.0), 1.0)

    def learn(self, claims: Sequence[float], num_right: int) -> None:
        """Right tokens are 1, the one behind them 0, the rest unknown."""
        for i, claimed in enumerate(claims[: num_right + 1]):
            place = min(i, 2) if i < 4 else 3
            error = (1.0 if i < num_right else 0.0) - claimed
            for level, w in self.shares(claimed).items():
                self.learn_one(place, level, w, error)

    def learn_one(self, place: int, level: int, share: float, error: float) -> None:
        """A running mean over at most 400 tokens; when that of the last 16 is far off, that one."""
        if share == 0:
            return
        self.weight[place][level] += share
        weight = self.weight[place][level]
        self.mean[place][level] += share * (error - self.mean[place][level]) / weight
        self.lately[place][level] += share * (error - self.lately[place][level]) / min(weight, 16)
        if abs(self.lately[place][level] - self.mean[place][level]) > 0.4:
            self.mean[place][level] = self.lately[place][level]
            self.weight[place][level] = min(weight, 4)
            self.trust[place][level] = 0.0
        total = self.weight[place][level] + self.trust[place][level]
        if total > 400:
            self.weight[place][level] *= 400 / total
            self.trust[place][level] *= 400 / total


class AutoPolicy:
    """The policy: costs, calibration and rate, and the choice from them."""

    def __init__(
        self, max_draft: int = 64, costs: CostTable | None = None, fixed: int | None = None
    ) -> None:
        self.max_draft, self.fixed = max_draft, fixed
        self.costs = PassCosts(costs)
        # Tokens and passes over one token, by step; the first entry stands for all before.
        self.history: list[tuple[float, float]] = [(1.0, 1.0)]
        self.steps = 0
        self.exploring, self.lost = False, 0.0
        self.sources: dict[str, Calibration] = {}

    @property
    def rate(self) -> float:
        return self.speed / self.costs.pace

    @property
    def speed(self) -> float:
        """The rate at pace 1: of the last 20 steps or of the last 2000, the lower one."""
        return min(self.running(0.95), self.running(0.9995)) / self.costs.at(1)

    def running(self, decay: float) -> float:
        """Tokens per pass over one token; a step counts `kept` times what the next one does."""
        weights = [decay**age for age in reversed(range(len(self.history)))]
        emitted = sum(w * tokens for w, (tokens, _) in zip(weights, self.history, strict=True))
        spent = sum(w * passes for w, (_, passes) in zip(weights, self.history, strict=True))
        return emitted / spent

    def calibrated(self, source: str, claims: Sequence[float]) -> list[float]:
        """What claims of a source are worth."""
        calibration = self.sources.setdefault(source, Calibration())
        return [calibration.apply(i, claimed) for i, claimed in enumerate(claims)]

    def chain(self, source: str, claims: Sequence[float]) -> list[float]:
        """The probabilities that are looked at."""
        p = self.calibrated(source, claims)
        hopeless = [i for i in range(len(p)) if math.prod(p[: i + 1]) * (len(p) + 1) < NOTHING]
        return p[: hopeless[0] + 1] if hopeless else p

    def prices(self, base: int, decoding: int, n: int, speed: float | None = None) -> list[float]:
        """What a pass with 0..n drafted tokens beside `base` costs one of its slots, in tokens."""
        share = self.costs.at(base) / decoding
        speed = self.speed if speed is None else speed
        return [speed * (self.added(base, k) + share) for k in range(n + 1)]

    def added(self, base: int, k: int) -> float:
        """What k drafted tokens add to a pass, and some more: claims and costs may be off."""
        return 1.07 * (self.costs.at(base + k) - self.costs.at(base))

    def attainable(self, chains: Chains, room: int, decoding: int) -> float:
        """The speed to choose by: the present one, but no more than these drafts can bring."""
        if not chains:
            return self.speed
        considered = [
            self.chain(source, claims[: max(0, min(self.max_draft, most))])
            for source, claims, most in chains
        ]
        lengths = [len(p) for p in considered]
        speeds = [decoding / self.costs.at(decoding)]
        emitted = float(decoding)
        for k in range(max(lengths, default=0)):
            tokens = sum(min(length, k + 1) for length in lengths)
            if tokens > room:
                break
            emitted += sum(math.prod(p[: k + 1]) for p in considered if k < len(p))
            speeds.append(emitted / (self.costs.at(decoding) + self.added(decoding, tokens)))
        return min(self.speed, max(speeds))

    def consider(
        self,
        source: str,
        claims: Sequence[float],
        most: int,
        base: int,
        decoding: int,
        streak: int | None = None,
        speed: float | None = None,
    ) -> Choice:
        """Choose for one slot beside a batch of `base` tokens."""
        p = self.chain(source, claims[: max(0, min(self.max_draft, most))])
        allowed = [self.may_cost(base, k, streak) for k in range(len(p) + 1)]
        return best_length(p, self.prices(base, decoding, len(p), speed), allowed)

    def may_cost(self, base: int, k: int, streak: int | None) -> bool:
        """Whether k drafted tokens add no more than what the latest drafts allow."""
        if streak is None:
            return True
        return self.costs.at(base + k) <= self.costs.at(base) + (6.0 + streak) * self.costs.at(1)

    def probes(self, bare: int, decoding: int) -> bool:
        """Whether this pass has no drafts, to learn what that costs."""
        if bare > 1024 or not self.costs.timed or self.steps % 8 != 7:
            return False
        little = self.speed * self.costs.at(bare) < 1.5 * decoding
        return self.costs.weight[bare] < (24 if little else 6)

    def choose(
        self,
        source: str,
        claims: Sequence[float],
        room: int,
        batch_tokens: int = 1,
        decoding: int = 1,
        streak: int | None = None,
    ) -> Choice:
        """Choose for one slot."""
        if self.fixed is not None:
            return Choice(max(0, min(self.fixed, len(claims), room)), [], [])
        choice = self.solve(source, claims, room, batch_tokens, decoding, streak)
        choice.length = self.explore(source, claims, choice.length, room, batch_tokens, streak)
        return choice

    def solve(
        self,
        source: str,
        claims: Sequence[float],
        room: int,
        batch_tokens: int,
        decoding: int,
        streak: int | None = None,
    ) -> Choice:
        """Choose by what is known."""
        if self.probes(batch_tokens, decoding):
            return Choice(0, [0.0], [0.0])
        speed = self.attainable([(source, claims, room)], room, decoding)
        return self.consider(source, claims, room, batch_tokens, decoding, streak, speed)

    def explore(
        self,
        source: str,
        claims: Sequence[float],
        length: int,
        room: int,
        base: int,
        streak: int | None = None,
    ) -> int:
        """Now and then choose the longest draft of an unknown size that may lose little."""
        self.exploring = False
        if not self.costs.timed or self.steps % 8 != 4 or self.lost >= 2:
            return length
        p, right, below, chosen = self.calibrated(source, claims), 1.0, base, length
        wrong = 0.0
        for k in range(1, min(len(p), self.max_draft, room, 1024 - base) + 1):
            right *= p[k - 1]
            wrong += 1 - right
            if wrong > 2 - self.lost:
                break
            if self.costs.weight[base + k] > 0 or base + k <= self.costs.listed:
                below = base + k
            seen = base + k <= self.costs.listed or self.costs.seen_often(base + k)
            if length < k <= 2 * below - base and not seen and self.may_cost(base, k, streak):
                chosen = k
        self.exploring = chosen > length
        return chosen

    def best(
        self,
        chains: Chains,
        batch_tokens: int = 1,
        decoding: int = 1,
        streak: int | None = None,
    ) -> int:
        """The candidate of one slot that gains most beyond none, the first one on ties."""
        nets = [0.0]
        for source, claims, room in chains if len(chains) > 1 and self.fixed is None else []:
            choice = self.solve(source, claims, room, batch_tokens, decoding, streak)
            cost = self.costs.at(batch_tokens + choice.length) - self.costs.at(batch_tokens)
            speed = self.attainable([(source, claims, room)], room, decoding)
            nets.append((choice.gain if choice.worths else 0.0) - speed * cost)
        return max(nets.index(max(nets)) - 1, 0)

    def choose_many(
        self,
        chains: Chains,
        capacity: int,
        batch_tokens: int = 0,
        decoding: int = 0,
        streaks: Sequence[int | None] | None = None,
        padded_rows: int = 0,
    ) -> list[int]:
        """Choose for all: twice in turn, from no drafts and from whole ones; the best wins.

        If a pass pads drafts, they are then cut to one length.
        """
        decoding = max(decoding, len(chains))
        base = max(batch_tokens, decoding, padded_rows)
        if self.fixed is not None:
            lengths, left = [], capacity - base
            for _, claims, room in chains:
                lengths.append(max(0, min(self.fixed, len(claims), room, left)))
                left -= lengths[-1]
            return lengths
        best, value = [0] * len(chains), 0.0
        streaks = streaks or [None] * len(chains)
        if self.probes(base, decoding):
            return best
        solved: dict[int, Choice] = {}
        speed = self.attainable(chains, capacity - base, decoding)
        for whole in (False, True):
            lengths, gain = self.take_turns(
                chains, streaks, solved, capacity - base, base, decoding, whole, speed
            )
            if gain > value:
                best, value = lengths, gain
        if not chains:
            return best
        first = max(chains, key=lambda one: self.first(*one))
        i = chains.index(first)
        others = base + sum(best) - best[i]
        room = min(first[2], capacity - others)
        best[i] = self.explore(*first[:2], best[i], room, others, streaks[i])
        return self.even(chains, best, base, padded_rows, speed) if padded_rows > 1 else best

    def even(
        self, chains: Chains, lengths: list[int], base: int, rows: int, speed: float
    ) -> list[int]:
        """Cut drafts to the one length that gains most where each place costs `rows` tokens."""

        def gain(most: int) -> float:
            tokens = 0.0
            for (source, claims, _), length in zip(chains, lengths, strict=True):
                p = self.calibrated(source, claims)
                tokens += sum(math.prod(p[: k + 1]) for k in range(min(length, most)))
            return tokens - speed * (self.costs.at(base + rows * most) - self.costs.at(base))

        longest = max(lengths)
        most = max(range(longest + 1), key=lambda k: (gain(k), -k))
        self.exploring = self.exploring and most == longest
        return [min(length, most) for length in lengths]

    def first(self, source: str, claims: Sequence[float], most: int) -> float:
        """How sure a slot's first token is, -1 where none can be sent."""
        return self.calibrated(source, claims)[0] if len(claims) and most > 0 else -1.0

    def take_turns(
        self,
        chains: Chains,
        streaks: Sequence[int | None],
        solved: dict[int, Choice],
        room: int,
        base: int,
        decoding: int,
        whole: bool,
        speed: float,
    ) -> tuple[list[int], float]:
        """Return the lengths that the slots choose in turn, and what they bring beyond none."""
        turns = sorted(range(len(chains)), key=lambda i: -self.first(*chains[i]))
        lengths, gains = [0] * len(chains), [0.0] * len(chains)
        for i in turns if whole else []:
            _, claims, most = chains[i]
            lengths[i] = max(0, min(len(claims), self.max_draft, most, room - sum(lengths)))
        for i in turns * ROUNDS:
            others = sum(lengths) - lengths[i]
            source, claims, most = chains[i]
            if i not in solved and self.may_pay(*chains[i], room, base + others, decoding, speed):
                # What follows this pass is valued once, where the chain first may pay.
                most = min(most, room)
                at = base + others
                solved[i] = self.consider(source, claims, most, at, decoding, speed=speed)
            lengths[i], gains[i] = 0, 0.0
            if i in solved:
                lengths[i], gains[i] = self.in_turn(
                    solved[i], room - others, base + others, streaks[i], speed
                )
        pass_costs = self.costs.at(base + sum(lengths)) - self.costs.at(base)
        return lengths, sum(gains) - speed * pass_costs

    def may_pay(
        self,
        source: str,
        claims: Sequence[float],
        most: int,
        room: int,
        base: int,
        decoding: int,
        speed: float | None = None,
    ) -> bool:
        """Whether anything of a chain may pay, by its first token alone."""
        n = max(0, min(self.max_draft, most, room, len(claims)))
        if n == 0:
            return False
        first, prices = self.calibrated(source, claims)[0], self.prices(base, decoding, n, speed)
        least = 1.0 if n == 1 else 0.0
        return any(
            first * max(prices[k - 1], least) > prices[k] - prices[0] for k in range(1, n + 1)
        )

    def in_turn(
        self, solved: Choice, most: int, base: int, streak: int | None, speed: float
    ) -> tuple[int, float]:
        """The length of at most `most` tokens that is worth most beside `base`, and its gain."""
        net = [
            solved.worths[k] - speed * self.added(base, k)
            if self.may_cost(base, k, streak)
            else -math.inf
            for k in range(max(0, min(most, len(solved.worths) - 1)) + 1)
        ]
        length = net.index(max(net))
        return length, solved.worths[length] - solved.worths[0]

    def learn(self, source: str, claims: Sequence[float], num_right: int, num_known: int) -> None:
        """Learn what came of a candidate draft."""
        if not 0 <= num_right <= num_known <= len(claims):
            raise InputError("not so many tokens")
        if num_known:
            self.sources.setdefault(source, Calibration()).learn(claims[:num_known], num_right)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a pass took."""
        self.costs.observe(num_tokens, seconds)

    def spend(self, seconds: float) -> None:
        """Learn that drafting took time: the latest step took longer, by four passes at most."""
        tokens, passes = self.history[-1]
        passes += min(seconds / self.costs.pace / self.costs.at(1), 4.0)
        self.history[-1] = (tokens, passes)

    def step(self, emitted: int, batch_tokens: int, seconds: float = 0.0) -> None:
        """Learn how fast tokens come."""
        if emitted <= 0:
            return
        expected = self.costs.at(batch_tokens)
        if not (self.costs.timed and seconds > 0 and math.isfinite(seconds)):
            seconds = expected
        else:
            seconds /= self.costs.pace
        self.steps += 1
        seconds = min(max(seconds, expected / 4), expected * 4)
        self.history.append((emitted, seconds / self.costs.at(1)))
        if self.exploring:
            self.lost += seconds / self.costs.at(1) - emitted
            self.exploring = False
        self.lost = max(self.lost - 0.005, 0)
