"""Fixtures: recorded sets, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from helpers.cli import invoke
from helpers.recordings import TRACES, load_trace
from ngramspec.lab.recordings.traces import Cut, Trace


@pytest.fixture
def trace_of() -> Callable[..., Trace]:
    """Return a function that loads the first requests of a recorded set."""

    def load(name: str, limit: int = 0) -> Trace:
        return load_trace(Path(TRACES, f"{name}.txt.xz"), None, Cut(limit))

    return load


@pytest.fixture
def bench_replay() -> Callable[..., Result]:
    """Return a function that runs `ngramspec bench replay` in this process."""
    return partial(invoke, "bench", "replay")
