"""Whether drafts are worth it: kinds of work with and without them, by turns, and a verdict."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.engine import Sampling
from ngramspec.lab.e2e.bench import NOISY, Bench, PromptOutcome, spread
from ngramspec.lab.e2e.tasks import Task

TEMPERATURES = (0.0, Sampling().temperature)  # greedy, and the server's default
LEAST_ROUNDS, MOST_ROUNDS = 2, 8
CUT = 6  # one figure at each end is left out for every six
LEAST_GAIN = 1.05  # nobody would notice less
MOST_NAMES = 4


@dataclass(frozen=True)
class Finding:
    """One kind of work at one temperature. outcome: All its runs with drafts and without."""

    name: str
    temperature: float
    outcome: PromptOutcome

    @property
    def ratio(self) -> float:
        """How many times as fast drafts make it, median of the rounds."""
        return self.outcome.ratio or 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest ratio of a round; of many rounds without the extremes."""
        ratios = _inner(self.outcome.ratios) or [1.0]
        return ratios[0], ratios[-1]

    @property
    def plain_rates(self) -> list[float]:
        """Tokens/s of the runs without drafts that have answered."""
        return [rate for run in self.outcome.plain if (rate := run.tokens_per_second)]

    @property
    def plain_median(self) -> float:
        return statistics.median(self.plain_rates or [0.0])

    @property
    def noise(self) -> float:
        """How many times as fast as another one a run without drafts was."""
        return spread(_inner(self.plain_rates) or [1.0])

    @property
    def change(self) -> str:
        """What drafts do: "faster", "slower", "same", or "unclear".

        A change is one that all rounds show, and larger than those of equal runs.
        """
        (low, high), least = self.bounds, max(LEAST_GAIN, self.noise)
        if len(self.outcome.ratios) < LEAST_ROUNDS or self.noise > NOISY:
            return "unclear"
        if 1 / LEAST_GAIN < self.ratio < LEAST_GAIN:
            return "same"
        if low > 1 and self.ratio >= least:
            return "faster"
        return "slower" if high < 1 and self.ratio <= 1 / least else "unclear"

    def as_json(self) -> dict[str, Any]:
        low, high = self.bounds
        return {
            "name": self.name,
            "temperature": self.temperature,
            "change": self.change,
            "plain_tokens_per_second": round(self.plain_median, 2),
            "low": round(low, 4),
            "high": round(high, 4),
            **self.outcome.as_json(),
        }


@dataclass(frozen=True)
class Verdict:
    """What follows.

    answer: "yes", "some", "no" or "unknown".
    noise: Of equal runs, see spread.
    busy: Whether nothing can be concluded from what was measured.
    """

    answer: str
    text: str
    noise: float
    busy: bool = False


def measure(
    bench: Bench,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
    max_tokens: int,
    *,
    advance: Callable[[str], object],
    stopped: Callable[[], bool],
) -> list[Finding]:
    """Run tasks with and without drafts, by turns in pairs; each round has another seed.

    What matters most comes first, for models that are too slow for all of it.

    Args:
        bench: Of plain decoding and one way to draft.
        tasks, prompts: What the model is asked, and the same in its tokens.
        max_tokens: Longest answer.
        advance: Called with the name of what runs next.
        stopped: Asked before each run whether to end.

    Raises:
        As Bench.run.
    """
    first = [(temp, number) for temp in TEMPERATURES for number in range(LEAST_ROUNDS)]
    more = [(temp, number) for number in range(LEAST_ROUNDS, MOST_ROUNDS) for temp in TEMPERATURES]
    pairs: dict[tuple[int, float], PromptOutcome] = {}
    for (temp, number), place in itertools.product(first + more, range(len(tasks))):
        advance(f"{tasks[place].name} at temperature {temp:g}")
        outcomes = bench.run(
            prompts[place],
            max_tokens=max_tokens,
            repeats=1,
            sampling=Sampling(temperature=temp, seed=number),
            first=number + place,
            stopped=stopped,
        )
        if not outcomes:
            break
        new, old = outcomes[1], pairs.get((place, temp))
        if old is not None:
            new = PromptOutcome(new.mode, old.runs + new.runs, old.plain + new.plain)
        pairs[place, temp] = new
    return [Finding(tasks[place].name, temp, pair) for (place, temp), pair in pairs.items()]


def conclude(findings: Sequence[Finding], overload: str = "") -> Verdict:
    """Return whether drafts are worth it, in plain words. overload: What else the machine did."""
    sure = [one for one in findings if len(one.outcome.ratios) >= LEAST_ROUNDS]
    noise = statistics.median([one.noise for one in sure] or [1.0])
    if overload or noise > NOISY:
        why = overload or f"equal runs without drafts differ by {noise - 1:.0%}"
        text = (
            f"No conclusion: the machine is too busy, or its speed varies too much: {why}. Close "
            "what else runs, or give -t as many threads as cores are idle, and try again."
        )
        return Verdict("unknown", text, noise, True)
    if not sure:
        few = f"No conclusion: fewer than {LEAST_ROUNDS} rounds were measured; --seconds N takes"
        return Verdict("unknown", f"{few} more time.", noise)
    faster = list(dict.fromkeys(one.name for one in sure if one.change == "faster"))
    if len(faster) == len({one.name for one in findings}):
        answer, head = "yes", "Yes"
    elif faster:
        answer, head = "some", f"Only for {_listed(faster)}"
    elif any(one.change == "unclear" for one in findings if one in sure or not one.temperature):
        answer, head = "unknown", "No conclusion"
    else:
        answer, head = "no", "No"
    at = (_at(temp, [one for one in sure if one.temperature == temp]) for temp in TEMPERATURES)
    text = f"{head}: {'; '.join(at)}."
    gaining = {one.temperature for one in sure if one.change == "faster"}
    if gaining == {0.0} < {one.temperature for one in sure}:
        text += " So send temperature 0 where it will do."
    return Verdict(answer, text, noise)


def _at(temperature: float, findings: Sequence[Finding]) -> str:
    where = f"at temperature {temperature:g}" + (", the server's default," * (temperature > 0))
    if not findings:
        return f"{where} too little was measured"
    changed = [f"{f.name} {f.ratio:.2f}" for f in findings if f.change in ("faster", "slower")]
    unclear = [one.name for one in findings if one.change == "unclear"]
    words = [f"{_listed(changed)} times as fast"] if changed else []
    words += [f"unclear for {_listed(unclear)}"] if unclear else []
    return f"{where} {', '.join(words) or 'nothing changes'}"


def _listed(words: Sequence[str]) -> str:
    """Return words with commas and "and"; of many, the first."""
    if len(words) > MOST_NAMES:
        words = [*words[:MOST_NAMES], f"{len(words) - MOST_NAMES} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _inner(figures: Sequence[float]) -> list[float]:
    """Return figures in order, of many without the extremes."""
    cut = len(figures) // CUT
    return sorted(figures)[cut : len(figures) - cut]
