"""How the cost of a step grows with the context: long prompts, outputs that are edited copies."""

from __future__ import annotations

import numpy as np

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.player import Tokens

CONTEXTS = (1 << 10, 8 << 10, 32 << 10, 128 << 10)
NUM_REQUESTS = 2
NUM_OUTPUT = 600
EDIT_EVERY = 25
VOCABULARY = 50_000


def growth_traces() -> dict[int, Trace]:
    """Return a set per length of the context.

    A prompt is random tokens, its output a slice of it with every 25th token changed.
    """
    return {context: _trace(context) for context in CONTEXTS}


def _trace(context: int) -> Trace:
    rng = np.random.default_rng(context)
    requests = tuple(_request(rng, context) for _ in range(NUM_REQUESTS))
    return Trace(f"context {context}", requests)


def _request(rng: np.random.Generator, context: int) -> RecordedRequest:
    def tokens(count: int) -> Tokens:
        return rng.integers(0, VOCABULARY, count, dtype=np.int32)

    prompt = tokens(context)
    start = int(rng.integers(0, context - NUM_OUTPUT))
    output = prompt[start : start + NUM_OUTPUT].copy()
    output[::EDIT_EVERY] = tokens(len(output[::EDIT_EVERY]))
    return RecordedRequest(prompt, output)
