"""The recorded sessions that all replay benchmarks share: data/traces/NAME.txt.xz."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "data" / "traces"
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Request:
    """One recorded request, as token ids."""

    prompt: Tokens
    output: Tokens


def trace_names() -> list[str]:
    """Return the names of all recorded sets."""
    return sorted(path.name.removesuffix(".txt.xz") for path in FOLDER.glob("*.txt.xz"))


def trace_text(name: str) -> bytes:
    """Return a set as text, one request per line: prompt length, prompt ids, output ids."""
    return lzma.decompress((FOLDER / f"{name}.txt.xz").read_bytes())


def recorded_stream() -> Tokens:
    """Return all recorded requests one after another, prompts and outputs."""
    requests = [one for name in trace_names() for one in load_trace(name)]
    return np.concatenate([part for one in requests for part in (one.prompt, one.output)])


def recorded_rows(rows: int, size: int) -> Tokens:
    """Return texts, (rows, size), from places spread over the stream; it goes round at its end."""
    stream = recorded_stream()
    starts = np.arange(rows)[:, None] * len(stream) // rows
    return np.take(stream, starts + np.arange(size), mode="wrap")


def load_trace(name: str) -> list[Request]:
    """Return the requests of a set in their recorded order."""
    requests = []
    for line in trace_text(name).splitlines():
        ids = np.array(line.split(), dtype=np.int32)
        prompt_len = int(ids[0])
        requests.append(Request(ids[1 : 1 + prompt_len].copy(), ids[1 + prompt_len :].copy()))
    return requests
