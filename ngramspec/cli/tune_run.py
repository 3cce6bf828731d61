"""The work of `ngramspec tune`: reading, the search, with progress and limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.bench.candidates import grid
from ngramspec.bench.split import split
from ngramspec.bench.traces import Cut
from ngramspec.bench.tune import Tuning, count_replays
from ngramspec.bench.tune import tune as search
from ngramspec.cli.interrupt import interruptible
from ngramspec.cli.progress import progress
from ngramspec.cli.trace_files import read_traces
from ngramspec.cli.tune_costs import Costs, choose_costs

NOTE = "interrupted: the best so far follows; Ctrl-C again ends at once"
SHARE_OF_SEARCH = 0.75  # of the time limit; the rest is for the held-out requests


@dataclass(frozen=True)
class Tuned:
    """The outcome.

    sets: requests of each set.
    model: the GGUF file that was given.
    interrupted: whether Ctrl-C ended it; otherwise what is not finished met the time limit.
    """

    tuning: Tuning
    costs: Costs
    sets: Mapping[str, int]
    num_candidates: int
    model: Path | None
    seed: int
    seconds: float
    interrupted: bool


def run_tune(options: Mapping[str, Any]) -> Tuned:
    """Do what the options of the command say.

    Raises:
        InputError: Traces that are none, or text without a tokenizer.
        FormatError: A damaged file.
        BackendError: The tokenizer or the model failed.
        OSError: A file cannot be read.
    """
    costs = choose_costs(options)
    cut = Cut(options["requests"], options["max_prompt"], options["max_output"])
    traces = read_traces(options["traces"], options["tokenizer"] or options["model"], cut)
    parts, candidates = split(traces, options["seed"]), grid()
    started = time.monotonic()
    limit = options["time_limit"] or float("inf")

    def spent() -> float:
        return time.monotonic() - started

    total = count_replays(len(candidates), parts)
    with interruptible(NOTE) as interrupt, progress("tuning", total) as advance:
        tuning = search(
            parts,
            candidates,
            costs.table,
            advance=advance,
            stop_search=lambda: spent() > SHARE_OF_SEARCH * limit,
            stop=lambda: interrupt.requested or spent() > limit,
        )
    sets = {trace.name: len(trace.requests) for trace in traces}
    return Tuned(
        tuning,
        costs,
        sets,
        len(candidates),
        options["model"],
        options["seed"],
        spent(),
        interrupt.requested,
    )
