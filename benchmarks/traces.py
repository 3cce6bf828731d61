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


def load_trace(name: str) -> list[Request]:
    """Return the requests of a set in their recorded order."""
    requests = []
    for line in trace_text(name).splitlines():
        ids = np.array(line.split(), dtype=np.int32)
        prompt_len = int(ids[0])
        requests.append(Request(ids[1 : 1 + prompt_len].copy(), ids[1 + prompt_len :].copy()))
    return requests
