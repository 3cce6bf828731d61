"""How sure the suffix drafter is of a token: votes, a small network, what was right lately.

The formulas are the native ones: approximate logarithms, probabilities kept in 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import ngramspec

FEATURES, HIDDEN = 34, 32
WEIGHTS = Path(ngramspec.__file__).parent / "models" / "suffix_confidence.npy"
LEAST = 0.0005  # probabilities stay in LEAST..1 - LEAST
OWN, POOL, STATIC = "own", "pool", "static"


def single(value: float) -> float:
    """Rounded to 32 bits."""
    return float(np.float32(value))


def log2(value: float) -> float:
    """The native approximation."""
    mantissa, exponent = math.frexp(single(value))
    m = 2 * mantissa
    return exponent - 1 + (-0.33582878 * m + 2.0) * m - 1.65871022


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def bucket(run: int) -> int:
    """A class of lengths of matches."""
    if run <= 4:
        return run
    bounds = (6, 8, 12, 16, 24, 32)
    return 5 + sum(run > bound for bound in bounds)


def place_in_draft(position: int) -> int:
    return position if position < 2 else 2 if position < 4 else 3


@cache
def network() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Inputs, biases, outputs and the last bias."""
    flat = np.load(WEIGHTS, allow_pickle=False)
    inputs = flat[: FEATURES * HIDDEN].reshape(FEATURES, HIDDEN)
    return inputs, flat[-2 * HIDDEN - 1 : -HIDDEN - 1], flat[-HIDDEN - 1 : -1], float(flat[-1])


class Adaptive:
    """A probability that moves towards what happens, in 16 bits."""

    def __init__(self, p: int = 0, n: int = 0) -> None:
        self.p, self.n = p, n

    def learn(self, right: bool) -> None:
        rate = single(1 / (self.n + 1.5))
        self.p = int(single(self.p + ((65535 if right else 0) - self.p) * rate) + 0.5)
        self.n = min(400, self.n + 1)

    @property
    def value(self) -> float:
        return single(np.float32(self.p) * np.float32(1 / 65535))

    @property
    def odds(self) -> float:
        step = self.p // 64
        return single((step + 0.5) / (1024.5 - step))

    @property
    def logit(self) -> float:
        p = min(max((self.p // 64 + 0.5) / 1024, 0.002), 0.998)
        return math.log(p / (1 - p))

    @property
    def weight(self) -> float:
        return self.n / (self.n + 2)


@dataclass
class Lately:
    """What lately happened to a request's drafts."""

    hits: float = 0.5  # running share of first tokens that were right
    run: int = 0  # tokens in a row that were right
    history: list[bool] = field(default_factory=list)  # the newest three first tokens


@dataclass(eq=False)
class Candidate:
    """An earlier place whose text may go on as the history does now."""

    position: int  # of the token that would come next
    place: str
    output: bool  # it was generated
    same: list[bool]  # whether the token i + 1 before it is that of the history
    near: int  # 0: nothing was expected, 1: far from it, 2: near, 3: there
    token: int
    live: bool = True

    @property
    def run(self) -> int:
        return [*self.same, False].index(False)

    @property
    def alike(self) -> int:
        """How much of what lies before the run agrees, 0..3."""
        if self.run >= 32:
            return 3
        return sum(sum(self.same) - self.run >= n for n in (2, 4, 8))


@dataclass
class Choice:
    """A token that may come next, and the candidates that say so."""

    token: int
    odds: float = 0.0
    best: Adaptive | None = None  # reliability of its best candidate
    candidate: Candidate | None = None
    votes: dict[str, int] = field(default_factory=lambda: {OWN: 0, POOL: 0})
    runs: dict[str, int] = field(default_factory=lambda: {OWN: 0, POOL: 0})
    foreign: bool = True  # only the static index says so
    p: float = 0.0
    inputs: list[float] = field(default_factory=list)  # of the online stage
    shift: tuple[int, int, bool] = (0, 0, False)
    token_keys: list[int] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return max(self.runs.values())

    @property
    def num_votes(self) -> int:
        return sum(self.votes.values())


def token_key(a: int, b: int, how: int) -> int:
    """16 bits of two tokens and a small number."""
    h = a * 0x9E3779B1 ^ (b + 1) * 0x85EBCA77
    h = (h + how * 0x27D4EB2F) % 2**32
    h ^= h >> 15
    return h * 0x2C1B3C6D % 2**32 >> 16


class Model:
    """What all slots of a drafter learn together."""

    def __init__(self) -> None:
        self.reliable: dict[tuple, Adaptive] = {}
        self.sure: dict[tuple, Adaptive] = {}
        self.tokens: list[dict[int, Adaptive]] = [{}, {}, {}, {}]
        self.shifts: dict[tuple[int, int, bool], Adaptive] = {}
        self.weights = [[1.0] + [0.0] * 6 for _ in range(8)]  # by place; of the static index last

    def reliability(self, key: tuple) -> Adaptive:
        return self.reliable.setdefault(key, Adaptive(13107))

    def sureness(self, key: tuple) -> Adaptive:
        return self.sure.setdefault(key, Adaptive(63569, 20))

    def shift(self, key: tuple[int, int, bool]) -> Adaptive:
        first = int(65535 * logistic((key[1] + 0.5) / 2 - 6))
        return self.shifts.setdefault(key, Adaptive(first, 20))

    def seen(self, choice: Choice) -> list[Adaptive]:
        """How right such choices were, in each table."""
        keyed = zip(self.tokens, choice.token_keys, strict=True)
        return [table.setdefault(key, Adaptive()) for table, key in keyed]

    def judge(
        self, choices: list[Choice], num: int, lately: Lately, text: list[int], length: int
    ) -> None:
        """Judge the first `num` choices of what follows `text`, the history and then the draft."""
        position = len(text) - length
        place = place_in_draft(position)
        last, second = (text[-1], text[-2]) if len(text) > 1 else (text[-1], 0)
        for rank, choice in enumerate(choices[:num]):
            how = 2 * bucket(choice.longest) + (rank > 0) + 32 * choice.foreign
            choice.token_keys = [
                token_key(choice.token, 0, how),
                token_key(choice.token, last, 0),
                token_key(choice.token, second, 0),
                token_key(last, 0, how),
            ]
            x = self.describe(choices, rank, lately, length, position)
            inputs, bias, out, out_bias = network()
            hidden = np.maximum(np.array(x, np.float32) @ inputs + bias, 0)
            self.correct(choice, float(hidden @ out) + out_bias, x, place)

    def describe(
        self, choices: list[Choice], rank: int, lately: Lately, length: int, position: int
    ) -> list[float]:
        """The network's inputs."""
        c = choices[rank]
        best = c.candidate
        assert best is not None
        assert c.best is not None
        total = sum(other.odds for other in choices)
        rival = max((other.longest for other in choices if other is not c), default=0)
        newest = (lately.history + [False] * 3)[:3]
        seen = self.seen(c)
        back = length - best.position + position
        return [
            log2(1 + position) / 3, log2(1 + c.runs[OWN]) / 5, log2(1 + c.runs[POOL]) / 5,
            c.odds / total, log2(1 + c.votes[OWN]) / 3, log2(1 + c.votes[POOL]) / 3,
            min(len(choices), 8) / 8, log2(1 + rival) / 5,
            log2(1 + sum(other.num_votes for other in choices)) / 4,
            lately.hits, log2(1 + lately.run) / 5, *newest,
            c.best.logit / 4,
            math.log(2) / 4 * log2(c.odds + 1e-3), math.log(2) / 4 * log2(total - c.odds + 1e-3),
            sum(best.same) / 32, best.near == 3, best.near == 2,
            best.place == OWN and best.output, best.place != OWN and not best.output,
            best.place != OWN and best.output, log2(1 + back) / 16 if best.place == OWN else 0,
            rank > 0, bucket(c.longest) / 11,
            *(x for one in seen for x in (one.logit / 4 * one.weight, one.weight)),
        ]  # fmt: skip

    def correct(self, choice: Choice, logit: float, x: list[float], place: int) -> None:
        """Let the network's logit pass the stage that follows the workload."""
        choice.shift = (place, min(max(int((logit + 6) * 2), 0), 23), choice.foreign)
        shift = self.shift(choice.shift).logit - logit
        choice.inputs = [logit, 0.5, shift, *x[26::2]]
        total = sum(
            a * b
            for a, b in zip(choice.inputs, self.weights[place + 4 * choice.foreign], strict=True)
        )
        choice.p = min(max(logistic(total), LEAST), 1 - LEAST)

    def learn(self, choice: Choice, position: int, right: bool) -> None:
        weights = self.weights[place_in_draft(position) + 4 * choice.foreign]
        for i, value in enumerate(choice.inputs):
            weights[i] += 0.002 * (right - choice.p) * value
        self.shift(choice.shift).learn(right)
        for one in self.seen(choice):
            one.learn(right)
