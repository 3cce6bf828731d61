"""Measuring something for one batch size after the other, saved after each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from messages import say
from packed_passes import Passes
from replay_batch import facts_of
from replay_options import make_passes
from replay_rounds import Budget
from replay_setup import save

Row = dict[str, Any]


def measure_sizes(
    options: argparse.Namespace,
    model: Any,
    body: Row,
    path: Path | None,
    budget: Budget,
    measure: Callable[[Passes, int], list[Row]],
) -> None:
    """Add to `body` what is measured for each of --batch; one without memory is left out and named.

    Args:
        options: The settled ones.
        model: What passes are made over.
        body: Receives `rows`, `passes` by batch size, and whether all is there as `complete`.
        path: Where it is saved after each batch size, None = nowhere.
        budget: What is left of the time.
        measure: Returns the rows of a batch size, fewer if the time ends.
    """
    for rows in options.batch:
        passes = make_passes(model, options, rows)
        try:
            body["rows"] += measure(passes, rows)
        except torch.OutOfMemoryError as error:
            say(f"batch {rows} is left out: {error}")
        body["passes"][str(rows)] = facts_of(passes)
        measured = {row["batch"] for row in body["rows"]}
        body["complete"] = measured == set(options.batch) and budget.left > 0
        if path:
            save(body, path)
        del passes  # and with it the cache and the graphs, before the next
