"""In the fast setting rounding may differ, but each token is the target's choice from its own row.

`pytest -s tests/engine/test_fast_setting.py` prints how many texts differ from plain decoding, and
how close the two tokens were where they begin to.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.workload import Garbage, requests
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine import (
    AutoPolicy,
    Chunk,
    Engine,
    Generation,
    Request,
    Speculation,
)
from ngramspec.llamacpp import LlamaModel, LlamaTarget

NUMBERS = range(196, 232)  # of prompts; each run has two greedy ones
CONTEXT = 512
CLOSE = 0.5  # logits: what rounding explains; a wrong row would be further apart
PARAMS = {"ngram-mod": {"n_match": 4, "n_min": 1, "n_max": 24}}
RUNS = [("ngram-simple,ngram-mod", 4), ("ngram-cache", 8), ("ngram-map-k4v", 1), ("garbage", 3)]


class Witness:
    """A target that notes what each sequence holds and which row follows which position."""

    def __init__(self, target: LlamaTarget) -> None:
        self._target = target
        self.rows: Rows | None = None
        self.held: dict[int, list[int]] = {}
        self.row_at: dict[tuple[int, int], int] = {}  # (sequence, position) of the last decode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode(self, batch: Batch, rows: Rows) -> None:
        self._target.decode(batch, rows)
        self.rows, self.row_at = rows, {}
        for token, position, sequence, output in zip(*batch.arrays(), strict=True):
            held = self.held.setdefault(int(sequence), [])
            assert len(held) == position
            held.append(int(token))
            if output:
                self.row_at[int(sequence), int(position)] = len(self.row_at)

    def truncate(self, sequence: int, length: int) -> bool:
        done = self._target.truncate(sequence, length)
        if done:
            del self.held.setdefault(sequence, [])[length:]
        return done

    def copy(self, source: int, sequence: int, length: int) -> None:
        self._target.copy(source, sequence, length)
        self.held[sequence] = self.held[source][:length]


@dataclass
class Trial:
    """A request under observation: each of its tokens is chosen once more, by a second sampler."""

    witness: Witness
    request: Request
    generation: Generation = field(init=False)
    text: list[int] = field(init=False)
    margins: list[np.ndarray] = field(default_factory=list)  # per token: best logit minus the row

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.text = self.request.prompt_ids.tolist()
        self.twin = self.witness.sampler(sampling, sampling.seed or 0)
        self.twin.accept_prompt(self.request.prompt_ids)

    def hear(self, chunk: Chunk) -> None:
        """Check what a step emitted against the rows of its decode."""
        witness, slot = self.witness, chunk.generation.slot
        rows = witness.rows
        for token in chunk.token_ids:
            position = len(self.text) - 1
            assert rows is not None
            assert witness.held[slot][: position + 1] == self.text
            index = witness.row_at[slot, position]
            assert self.twin.choose(rows, index) == token
            self.twin.accept(token)
            row = rows.copy(index)
            self.margins.append(row.max() - row)
            self.text.append(token)


def run(
    model: LlamaModel, drafter: str | None, slots: int, numbers: range, threads: int = 2
) -> list[Trial]:
    """Run requests at random moments, all of them observed."""
    rng, failures = random.Random(slots), []
    with LlamaTarget(model, slots=slots, context_size=CONTEXT, threads=threads) as target:
        witness = Witness(target)
        own = Garbage(model.vocab_size) if drafter == "garbage" else drafter
        params = PARAMS if drafter and "ngram-mod" in drafter else None
        engine = Engine(witness, own, slots=slots, params=params, policy=AutoPolicy(fixed=24))
        waiting = [Trial(witness, one) for one in requests(model, numbers, Speculation())]
        trials = list(waiting)

        def watched(trial: Trial) -> Any:
            def on_chunk(chunk: Chunk) -> None:
                try:
                    trial.hear(chunk)
                except BaseException as error:  # the engine would only log it
                    failures.append(error)

            return on_chunk

        while waiting or engine.busy:
            if waiting and (rng.random() < 0.3 or not engine.busy):
                trial = waiting.pop(0)
                trial.generation = engine.submit(trial.request, watched(trial))
            engine.step()
            if failures:
                raise failures[0]
        assert drafter is None or engine.stats().num_draft_tokens > 0
    return trials


@pytest.fixture(scope="module")
def plain(model: LlamaModel) -> dict[str, Trial]:
    # Alone and in so few cells a token has the same bits with one thread, which waits for none.
    trials = run(model, None, 1, NUMBERS, threads=1)
    return {trial.request.id: trial for trial in trials}


@pytest.mark.parametrize(("drafter", "slots"), RUNS)
def test_every_token_is_the_choice_from_its_own_row(
    drafter: str, slots: int, model: LlamaModel, plain: dict[str, Trial]
) -> None:
    index = RUNS.index((drafter, slots))
    trials = run(model, drafter, slots, NUMBERS[index :: len(RUNS)])
    differing, gaps = 0, []
    for trial in trials:
        ids, expected = trial.generation.token_ids, plain[trial.request.id]
        assert len(trial.margins) == len(ids)
        pairs = zip(ids, expected.generation.token_ids, expected.margins, strict=False)
        apart = [float(row[a]) for a, b, row in pairs if a != b][:1]
        differing += bool(apart)
        if trial.request.sampling.greedy:  # a draw may fall elsewhere however far logits are apart
            gaps += apart
    print(
        f"\n{drafter}, {slots} slots: {differing} of {len(trials)} texts differ; greedy ones were "
        f"{', '.join(f'{gap:.4f}' for gap in sorted(gaps)) or '-'} logits apart where they begin to"
    )
    assert any(trial.request.sampling.greedy for trial in trials)
    assert all(gap < CLOSE for gap in gaps)
