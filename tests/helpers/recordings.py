"""Readers of the recorded runs in tests/golden/data, and where the traces are."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.paths import BENCHMARK_DATA, GOLDEN_DATA
from ngramspec.lab.recordings.traces import Cut, Trace, load_files
from ngramspec.text.tokenizers import Tokenizer

TRACES = BENCHMARK_DATA / "traces"


@dataclass(frozen=True)
class Step:
    """One draft call of a recorded run."""

    slot: int
    session: int
    history_len: int  # without last_token
    last_token: int
    draft: list[int]
    accepted: int
    tie: bool


@dataclass(frozen=True)
class Recording:
    """A golden file: header, sessions as (prompt, output), steps in the order they ran."""

    params: dict[str, Any]
    num_slots: int
    sessions: list[tuple[list[int], list[int]]]
    steps: list[Step]

    @property
    def num_accepted(self) -> int:
        return sum(step.accepted for step in self.steps)

    def history_at(self, step: Step) -> list[int]:
        """Every token committed before the step's draft, the newest included."""
        prompt, output = self.sessions[step.session]
        history = prompt + output[: step.history_len - len(prompt)]
        return [*history, step.last_token]

    def right_tokens(self, step: Step) -> list[int]:
        """The tokens that really followed."""
        prompt, output = self.sessions[step.session]
        return output[step.history_len - len(prompt) + 1 :]


def load_trace(path: Path, tokenizer: Tokenizer | None = None, cut: Cut | None = None) -> Trace:
    """The only set of a file."""
    (loaded,) = load_files([path], None if tokenizer is None else lambda: tokenizer, cut)
    (trace,) = loaded.sets
    return trace


def read_recording(name: str) -> Recording:
    """The golden file tests/golden/data/NAME.jsonl.gz."""
    with gzip.open(GOLDEN_DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        header, *rows = [json.loads(line) for line in lines]
    sessions = [(row["prompt"], row["output"]) for row in rows if row["kind"] == "session"]
    steps = [_step(row) for row in rows if row["kind"] == "step"]
    return Recording(header["params"], header["slots"], sessions, steps)


def _step(row: dict[str, Any]) -> Step:
    names = ("slot", "session", "history_len", "last_token", "draft", "accepted")
    return Step(*(row[name] for name in names), tie=bool(row.get("tie")))


def read_records(path: Path) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """The records of a llama.cpp lookup-cache file: n-gram, follower -> count."""
    data, offset = path.read_bytes(), 0
    while offset < len(data):
        *cells, num_followers = struct.unpack_from("<5i", data, offset)
        pairs = struct.iter_unpack("<2i", data[offset + 20 : offset + 20 + 8 * num_followers])
        yield tuple(cell for cell in cells if cell >= 0), dict(pairs)
        offset += 20 + 8 * num_followers


def trace_names() -> list[str]:
    """The trace sets at hand."""
    return sorted(path.name.removesuffix(".txt.xz") for path in TRACES.glob("*.txt.xz"))
