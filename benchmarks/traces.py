"""The recorded sessions that all replay benchmarks share: data/traces/NAME.txt.xz."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Cut, load_traces

FOLDER = Path(__file__).parent / "data" / "traces"
Tokens = npt.NDArray[np.int32]


def trace_names() -> list[str]:
    """Return the names of all recorded sets."""
    return sorted(path.name.removesuffix(".txt.xz") for path in FOLDER.glob("*.txt.xz"))


def trace_text(name: str) -> bytes:
    """Return a set as text, one request per line: prompt length, prompt ids, output ids."""
    return lzma.decompress((FOLDER / f"{name}.txt.xz").read_bytes())


def recorded_stream() -> Tokens:
    """Return all recorded requests one after another, prompts and outputs."""
    requests = [one for name in trace_names() for one in requests_of(name)]
    return np.concatenate([part for one in requests for part in (one.prompt, one.output)])


def recorded_rows(rows: int, size: int) -> Tokens:
    """Return texts, (rows, size), from places spread over the stream; it goes round at its end."""
    stream = recorded_stream()
    starts = np.arange(rows)[:, None] * len(stream) // rows
    return np.take(stream, starts + np.arange(size), mode="wrap")


def requests_of(name: str) -> list[RecordedRequest]:
    """Return the requests of a set, whole, in their recorded order."""
    whole = Cut(max_prompt=0, max_output=0)
    (trace,) = load_traces([FOLDER / f"{name}.txt.xz"], cut=whole)
    return list(trace.requests)
