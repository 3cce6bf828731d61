"""Measured: held-out requests on the model: without drafts, with the default, and as advised.

As in a server that has just started: each way of drafting keeps what it learns from one request to
the next, and the ways take turns on every request, each time another one first. Each round starts
afresh.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec._native.mod.pool import HashPool
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.drafting.config import CONFIGS
from ngramspec.engine import Sampling
from ngramspec.errors import InputError
from ngramspec.lab.e2e.bench import PLAIN, Bench, Mode, PromptOutcome
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.tune.candidates import DEFAULT, Candidate

if TYPE_CHECKING:
    from ngramspec.engine.target import Target
    from ngramspec.runtime import DraftSetup

ROUNDS = 3
WARM_UP = 16  # tokens
ADVISED = "recommended"
POOLS: dict[str, Callable[[], Any]] = {"ngram-mod": HashPool, "suffix": SuffixPool}


@dataclass(frozen=True)
class Rate:
    """One way of drafting.

    tokens_per_second: Geometric mean of the requests, each the median of its rounds.
    ratio: Of that of plain decoding.
    same: Answers equal to the plain ones, in the first round as the two before.
    """

    name: str
    tokens_per_second: float
    ratio: float
    drafted: int
    accepted: int
    same: int


@dataclass(frozen=True)
class Measured:
    """Rates on the model. rows: plain decoding, the default, and what is advised if it differs.

    requests: With an answer of two tokens or more, whose rates count.
    """

    requests: int
    rows: tuple[Rate, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)


def measure(
    target: Target,
    requests: Sequence[RecordedRequest],
    advised: Candidate,
    files: Mapping[str, Mapping[str, Any]],
    setup: DraftSetup,
    *,
    advance: Callable[[], object] = lambda: None,
) -> Measured:
    """Answer requests greedily, each as long as its recorded answer.

    Args:
        target: The model, with room for the longest request.
        requests: At least one.
        advised: What is advised.
        files: Of the drafters it advises: parameters by drafter.
        setup: Costs of the target's passes.
        advance: Called after each answer, num_answers(advised, files) times per request.

    Raises:
        InputError: A prompt does not fit, or no answer is long enough.
        BackendError: The target fails.
    """
    sampling = Sampling(temperature=0.0)
    rounds: list[list[tuple[PromptOutcome, ...]]] = []
    for number in range(ROUNDS):
        bench = Bench(target, _modes(advised, files), setup=setup)
        bench.warm_up(np.resize(requests[0].prompt, WARM_UP).astype(np.int32), sampling)
        rounds.append(
            [
                bench.run(
                    np.ascontiguousarray(request.prompt),
                    max_tokens=len(request.output),
                    repeats=1,
                    sampling=sampling,
                    advance=advance,
                    first=number + place,
                )
                for place, request in enumerate(requests)
            ]
        )
    answered = [
        number
        for number in range(len(requests))
        if all(one.tokens_per_second for outcomes in rounds for one in outcomes[number])
    ]
    if not answered:
        raise InputError("the model answered none of the requests with two tokens or more")
    columns = range(len(rounds[0][0]))
    rows = [_rate([[outcomes[n][i] for outcomes in rounds] for n in answered]) for i in columns]
    plain = rows[0].tokens_per_second
    rows = [dataclasses.replace(row, ratio=round(row.tokens_per_second / plain, 4)) for row in rows]
    return Measured(len(answered), tuple(rows))


def _rate(outcomes: Sequence[Sequence[PromptOutcome]]) -> Rate:
    """Return the row of a way of drafting from its outcomes, by request and round."""
    medians = [statistics.median(one.tokens_per_second for one in rounds) for rounds in outcomes]
    first = [rounds[0] for rounds in outcomes]
    return Rate(
        first[0].mode.spec,
        round(statistics.geometric_mean(medians), 2),
        1.0,
        sum(one.drafted for one in first),
        sum(one.accepted for one in first),
        sum(one.difference is None for one in first),
    )


def num_answers(advised: Candidate, files: Mapping[str, Mapping[str, Any]]) -> int:
    """Return how many answers are made for each request."""
    return ROUNDS * len(_modes(advised, files))


def _modes(advised: Candidate, files: Mapping[str, Mapping[str, Any]]) -> list[Mode]:
    modes = [Mode(PLAIN, (), {}), _mode("default", DEFAULT, {})]
    if advised.name != DEFAULT.name or files:
        modes.append(_mode(ADVISED, advised, files))
    return modes


def _mode(name: str, candidate: Candidate, files: Mapping[str, Mapping[str, Any]]) -> Mode:
    params: dict[str, dict[str, Any]] = {}
    for drafter in candidate.names:
        fields = CONFIGS[drafter].__dataclass_fields__
        own = {key: value for key, value in candidate.params.items() if key in fields}
        if drafter in POOLS:
            keys = ("capacity", "check_bits", "max_occupancy")
            shape = {key: own.pop(key) for key in keys if key in own}
            own["pool"] = POOLS[drafter](**shape)
        params[drafter] = {**own, **files.get(drafter, {})}
    return Mode(name, candidate.names, params, "auto" if candidate.adaptive else "fixed")
