"""Synthetic drafting: chains with claimed and true probabilities, and a policy that chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngramspec.costs import CostTable

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
LONGEST = 64


def chain(claim: float, truth: float, length: int = LONGEST) -> Draw:
    """Chains of one length, claim and truth."""
    chains = np.full(length, claim), np.full(length, truth)
    return lambda rng, step: chains


def honest(rng: np.random.Generator, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a chain of any length, whose claims are true: doubtful, likely or sure."""
    middle = (0.2, 0.5, 0.8, 0.93, 0.985)[rng.integers(5)]
    length = (0, 1, 4, 12, 30, LONGEST)[rng.integers(6)]
    claims = middle + rng.normal(size=length) * 0.3 * (1 - middle)
    claims = np.minimum(np.maximum(claims, 0.02), 0.995)  # np.clip takes longer
    return claims, claims


def phases(steps: int, *draws: Draw) -> Draw:
    """Each of the draws in turn for so many steps."""
    return lambda rng, step: draws[step // steps % len(draws)](rng, step)


@dataclass
class Text:
    """A slot whose source offers chains; the tokens of a chain that are right are drawn with it."""

    draw: Draw
    rng: np.random.Generator
    step: int = 0
    claims: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    right: int = 0
    endless: bool = False

    def emit(self, drafted: int) -> tuple[int, int, int]:
        """Verify a draft; return emitted tokens, and right and known ones of the chain."""
        emitted = min(drafted, self.right) + 1
        num_known = min(len(self.claims), emitted)
        counts = (emitted, min(self.right, num_known), num_known)
        self.step += 1
        if self.right >= emitted:
            self.claims, self.right = self.claims[emitted:], self.right - emitted
            self.go_on(emitted if self.endless else 0)
        else:
            self.claims = self.claims[:0]
        if not len(self.claims):
            self.renew()
        return counts

    def renew(self) -> None:
        """Draw the next chain."""
        claims, truth = self.draw(self.rng, self.step)
        self.claims, self.right = claims.astype(np.float32), self.num_right(truth)
        self.endless = len(claims) == LONGEST

    def go_on(self, count: int) -> None:
        """Add tokens at the end of a chain that was cut there."""
        claims, truth = self.draw(self.rng, self.step)
        if self.right == len(self.claims):
            self.right += self.num_right(truth[:count])
        self.claims = np.concatenate([self.claims, claims[:count]], dtype=np.float32)

    def num_right(self, truth: np.ndarray) -> int:
        """Draw how many tokens are right before the first wrong one."""
        if not len(truth):
            return 0
        wrong = self.rng.random(len(truth)) >= truth
        first = int(wrong.argmax())
        return first if wrong[first] else len(truth)


@dataclass
class Made:
    """What came of some steps."""

    tokens: int
    time: float
    lengths: list[int]

    @property
    def rate(self) -> float:
        return self.tokens / self.time


def run(
    policy: Any, draw: Draw, costs: CostTable, steps: int, seed: int = 0, noise: float | None = None
) -> Made:
    """Let a policy choose for one slot; with `noise` it has a clock that is off by such a share."""
    rng = np.random.default_rng(seed)
    text = Text(draw, np.random.default_rng(seed + 1))
    text.renew()
    table = [0.0, *costs.dense(LONGEST + 1)]
    figures = Made(0, 0.0, [])
    for _ in range(steps):
        claims = text.claims
        length = policy.choose(0, "a", claims, LONGEST)
        emitted, right, num_known = text.emit(length)
        seconds = table[1 + length]
        figures.tokens += emitted
        figures.time += seconds
        figures.lengths.append(length)
        if noise is not None:
            seconds *= float(np.exp(noise * rng.normal()))
            policy.observe(1 + length, seconds)
        policy.learn(0, "a", claims, right, num_known)
        policy.step(emitted, 1 + length, 0.0 if noise is None else seconds)
    return figures


def run_slots(
    policy: Any, draws: list[Draw], costs: CostTable, steps: int, seed: int = 0, clock: bool = False
) -> Made:
    """The same for slots that share every pass, each with a source of its own."""
    texts = [Text(draw, np.random.default_rng(seed + i)) for i, draw in enumerate(draws)]
    for text in texts:
        text.renew()
    slots, figures = len(texts), Made(0, 0.0, [])
    table = [0.0, *costs.dense(slots * (LONGEST + 1))]
    for _ in range(steps):
        chains = [(f"source {i}", text.claims, LONGEST) for i, text in enumerate(texts)]
        lengths = policy.choose_many(chains, capacity=slots * (LONGEST + 1))
        batch = slots + sum(lengths)
        done = [text.emit(length) for text, length in zip(texts, lengths, strict=True)]
        emitted, seconds = sum(one for one, _, _ in done), table[batch]
        figures.tokens += emitted
        figures.time += seconds
        figures.lengths.append(sum(lengths))
        if clock:
            policy.observe(batch, seconds)
        for i, (_, right, num_known) in enumerate(done):
            policy.learn(i, chains[i][0], chains[i][1], right, num_known)
        policy.step(emitted, batch, seconds if clock else 0.0)
    return figures
