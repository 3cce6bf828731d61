"""Tuned: the outcome of a search for a drafter, with its plan, costs and figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.lab.costs import Costs
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.outcome import figures
from ngramspec.lab.replay.tally import ReplayTally
from ngramspec.lab.tune.candidates import Candidate, grid
from ngramspec.lab.tune.lines import llama_server_line, ready_lines
from ngramspec.lab.tune.memo import Memo
from ngramspec.lab.tune.search import Result, Tuning, count_replays, tune
from ngramspec.lab.tune.split import Split, split
from ngramspec.lab.tune.trial import Trial

if TYPE_CHECKING:
    from ngramspec.lab.tune.measured import Measured

SHARE_OF_SEARCH = 0.75  # of the time limit; the rest is for the held-out requests


@dataclass(frozen=True)
class SearchPlan:
    """What is searched: the requests, split, and the candidates.

    sets: requests of each set.
    """

    parts: Split
    candidates: Sequence[Candidate]
    sets: Mapping[str, int]
    seed: int

    @property
    def num_replays(self) -> int:
        """How many requests are replayed if nothing ends the search early."""
        return count_replays(len(self.candidates), self.parts)


def plan_search(traces: Sequence[Trace], seed: int = 0) -> SearchPlan:
    """Return what to search on recorded requests. seed: of the samples of the first rounds."""
    sets = {trace.name: len(trace.requests) for trace in traces}
    return SearchPlan(split(traces, seed), grid(), sets, seed)


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search.

    seconds: its duration.
    interrupted: whether it was told to stop; if not, an unfinished one hit the time limit.
    trial: of a statistics file.
    measured: on the model.
    setting: options of `serve` and llama-server that run the model as its costs were measured.
    """

    tuning: Tuning
    plan: SearchPlan
    costs: Costs
    seconds: float
    interrupted: bool
    trial: Trial | None = None
    measured: Measured | None = None
    setting: Sequence[str] = ()

    @property
    def advised(self) -> Candidate:
        """What to use: with the file, if it pays, otherwise the best of the search."""
        trial = self.trial
        if trial is not None and trial.path is not None:
            return trial.best_with.candidate
        return self.tuning.best.candidate

    @property
    def file_options(self) -> list[str]:
        """Options of `serve` that read the file, [] without one."""
        return [] if self.trial is None else self.trial.options

    @property
    def options(self) -> list[str]:
        """Further options of `serve` that belong to what is advised."""
        return [*self.setting, *self.file_options]

    def gain(self, result: Result) -> float | None:
        """Return the gain over the default, on the held-out requests if both replayed them."""
        held_out = self.tuning.held_out_gain(result)
        return self.tuning.gain(result) if held_out is None else held_out

    def as_json(self, model: Path | None = None) -> dict[str, Any]:
        """Return everything as plain data; no recommendation without results.

        Args:
            model: The GGUF file to name in command lines.
        """
        tuning, theirs = self.tuning, None
        facts: dict[str, Any] = {
            "costs": {
                "name": self.costs.table.name,
                "profile": self.costs.profile,
                "file": None if self.costs.path is None else str(self.costs.path),
                "reason": self.costs.reason,
            },
            "sets": dict(self.plan.sets),
            "requests": {"chosen_on": tuning.num_chosen_on, "held_out": tuning.num_held_out},
            "seed": self.plan.seed,
            "seconds": round(self.seconds, 3),
            "finished": tuning.finished,
            "interrupted": self.interrupted,
            "rounds": [{"candidates": many, "requests": n} for many, n in tuning.rounds],
            "num_candidates": len(self.plan.candidates),
            "recommended": None,
            "llama_server": None,
            "statistics_file": None,
            "measured": None,
            "results": [_row(tuning, result) for result in tuning.results],
        }
        if tuning.results:
            advised = self.advised
            row = next(one for one in tuning.results if one.candidate.name == advised.name)
            facts["recommended"] = {
                **_row(tuning, row),
                "is_default": row is tuning.default and not self.file_options,
                **ready_lines(advised, self.costs, model, self.options),
            }
            facts["statistics_file"] = None if self.trial is None else self.trial.as_json()
            facts["measured"] = None if self.measured is None else self.measured.as_json()
            theirs = tuning.best_for_llama_server
        if theirs is not None:
            line = llama_server_line(theirs.candidate, model, self.setting)
            facts["llama_server"] = {**_row(tuning, theirs), "command": line}
        return facts


def run_search(
    plan: SearchPlan,
    costs: Costs,
    *,
    time_limit: float | None = None,
    memo: Memo | None = None,
    advance: Callable[[], object] = lambda: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Search for the drafter and sizes that suit recorded requests best.

    Args:
        plan: What is searched.
        costs: Of the target.
        time_limit: Seconds after which the best one so far is taken, None = no limit. A quarter
            of it is for the held-out requests.
        memo: Has replays that were finished before, and gets those of this search.
        advance: Called after every replayed request, plan.num_replays times.
        interrupted: Called as often: True ends everything.
    """
    started = time.monotonic()
    limit = time_limit or float("inf")

    def spent() -> float:
        return time.monotonic() - started

    tuning = tune(
        plan.parts,
        plan.candidates,
        costs.table,
        memo=memo,
        advance=advance,
        stop_search=lambda: spent() > SHARE_OF_SEARCH * limit,
        stop=lambda: interrupted() or spent() > limit,
    )
    return Tuned(tuning, plan, costs, spent(), interrupted())


def _row(tuning: Tuning, result: Result) -> dict[str, Any]:
    """Return the figures of a candidate."""
    candidate, gain = result.candidate, tuning.held_out_gain(result)
    held_out = result.held_out
    return {
        "drafter": candidate.spec,
        "parameters": dict(candidate.params),
        "lengths": candidate.lengths,
        "for_llama_server": candidate.for_llama_server,
        "requests": result.requests,
        "chosen_on": _figures(tuning, result.tally),
        "held_out": None if held_out is None else _figures(tuning, held_out),
        "held_out_gain": None if gain is None else round(gain, 4),
    }


def _figures(tuning: Tuning, tally: ReplayTally) -> dict[str, Any]:
    return {"modelled_speedup": round(tuning.speedup(tally), 4), **figures(tally)}
