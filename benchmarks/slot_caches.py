"""What a pass costs where all slots share a cache, beside one cache for each slot.

    python benchmarks/slot_caches.py                        # the embedded model
    python benchmarks/slot_caches.py --model FILE --held 1000

Two tables, milliseconds per pass, the second fastest of 7, both kinds of cache in turn:

- four slots that decode, with drafts of equal and of different lengths: with a cache for each slot,
  llama.cpp computes drafts of different lengths one after the other;
- one slot that decodes a token beside three that are idle and hold --held tokens each: with a cache
  for all, a token goes over their cells, too.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngramspec import embedded_model
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SLOTS, CONTEXT, RUNS = 4, 128, 7
PASSES = ((1, 1, 1, 1), (5, 5, 5, 5), (9, 5, 3, 1), (17, 1, 1, 1), (17, 17, 1, 1), (33, 17, 9, 1))


class Passes:
    """Decodes passes of several slots and takes them back."""

    def __init__(self, target: LlamaTarget, token_ids: npt.NDArray[np.int32]) -> None:
        self._target, self._ids = target, token_ids
        self._batch, self._rows = Batch(target.max_batch), Rows(target.vocab_size)
        self._held = [0] * SLOTS

    def hold(self, slot: int, tokens: int) -> None:
        """Let a slot hold so many tokens."""
        self._target.truncate(slot, 0)
        for at in range(0, tokens, 512):
            self._batch.clear()
            self._batch.add(slot, at, self._ids[at : min(at + 512, tokens)], None, False)
            self._target.decode(self._batch, self._rows)
        self._held[slot] = tokens

    def milliseconds(self, lengths: tuple[int, ...]) -> float:
        """Return what a pass with this number of tokens of each slot takes."""
        taken = []
        for _ in range(RUNS):
            self._batch.clear()
            for slot, length in enumerate(lengths):
                at = self._held[slot]
                draft = self._ids[at + 1 : at + length] if length > 1 else None
                self._batch.add(slot, at, self._ids[at : at + 1], draft)
            started = time.perf_counter()
            self._target.decode(self._batch, self._rows)
            taken.append(1e3 * (time.perf_counter() - started))
            for slot in range(len(lengths)):
                self._target.truncate(slot, self._held[slot])
        return sorted(taken)[1]


def main() -> None:
    """Measure both kinds and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="GGUF file (the embedded model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--held", type=int, default=300, help="tokens of an idle slot (300)")
    options = parser.parse_args()
    size = max(options.held, CONTEXT) + 64
    with LlamaModel(options.model or embedded_model()) as model:
        chance = np.random.default_rng(0)
        token_ids = chance.integers(0, model.vocab_size, size, dtype=np.int32)
        targets = [
            LlamaTarget(
                model, slots=SLOTS, context_size=size, threads=options.threads, kv_unified=shared
            )
            for shared in (True, False)
        ]
        kinds = [Passes(target, token_ids) for target in targets]
        print(
            "| tokens of each slot | one cache, ms | one per slot, ms | ratio |\n|---|---|---|---|"
        )
        for passes in kinds:
            for slot in range(SLOTS):
                passes.hold(slot, CONTEXT)
        for lengths in PASSES:
            shared, apart = (passes.milliseconds(lengths) for passes in kinds)
            label = ", ".join(map(str, lengths))
            print(f"| {label} | {shared:.2f} | {apart:.2f} | {apart / shared:.2f} |")
        for held in (0, options.held):
            for passes in kinds:
                for slot in range(1, SLOTS):
                    passes.hold(slot, held)
            shared, apart = (passes.milliseconds((1,)) for passes in kinds)
            label = f"1, idle slots hold {held}"
            print(f"| {label} | {shared:.2f} | {apart:.2f} | {apart / shared:.2f} |")
        for target in targets:
            target.close()


if __name__ == "__main__":
    main()
