"""The recorded requests that are replayed: some of each set, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Cut, find_traces, load_traces

TRACES = Path(__file__).parents[1] / "data" / "traces"
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Text:
    """A request: what the target is given, and what it is taken to say.

    ids: int32, prompt and output.
    num_prompt: tokens of the prompt, >= 1.
    """

    ids: Tokens
    num_prompt: int


def set_names() -> list[str]:
    """Return the names of the recorded sets."""
    return [path.name.removesuffix(".txt.xz") for path in find_traces([TRACES])]


def load_texts(sets: Sequence[str], count: int, max_prompt: int, max_output: int) -> list[Text]:
    """Return `count` requests, one of each set in turn, each set in its recorded order.

    Prompts keep their last tokens, outputs their first ones. Requests with fewer than 16 output
    tokens are passed over: hardly any of them would be decoding.

    Raises:
        InputError: A set is not there, or the sets have fewer requests.
    """
    unknown = [name for name in sets if name not in set_names()]
    if unknown:
        raise InputError(f"no set {unknown[0]!r}; there are {', '.join(set_names())}")
    each = -(-count // len(sets))
    columns = [_of_set(name, each, max_prompt, max_output) for name in sets]
    texts = [text for row in zip(*columns, strict=False) for text in row][:count]
    if len(texts) < count:
        raise InputError(f"{count} requests of {len(sets)} sets are more than they hold")
    return texts


def _of_set(name: str, count: int, max_prompt: int, max_output: int) -> list[Text]:
    cut = Cut(0, max_prompt, max_output)
    (trace,) = load_traces([TRACES / f"{name}.txt.xz"], cut=cut)
    long = (one for one in trace.requests if len(one.output) >= min(16, max_output))
    return [
        Text(np.concatenate([one.prompt, one.output]), len(one.prompt))
        for one in islice(long, count)
    ]
