"""What llama-cpp-python's drop-in costs beside the native part, on the embedded model.

    python benchmarks/host_calls.py [--json OUT]

draft_model: `NgramDraft.__call__` as Llama.generate makes it, on recorded texts whose tokens are
renamed in every round, so that nothing is known from an earlier one. Native: follow, propose and
shorten within them, timed in rounds of their own. Host: the rest.

attach: a step of Llama.generate, attached with a drafter that finds nothing, beside a Llama without
drafts that says the same; steps of the two alternate. More: what a step takes longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import Llama

from ngramspec import NgramDraft, attach, embedded_model

TEXTS = Path(__file__).parent / "data" / "logits" / "smollm2-135m.npz"
NATIVE = ("follow", "propose", "shorten")
CONTEXT = 1024
VOCABULARY = 2000  # ids that texts are renamed to
PROMPT = "def area(width, height):\n"
Figures = dict[str, float]


class Timed:
    """A drafter that notes what its calls take, in ns."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.spent = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.drafter, name)
        return self._timed(value) if name in NATIVE else value

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.perf_counter_ns()
            result = call(*args)
            self.spent += time.perf_counter_ns() - started
            return result

        return timed


def texts() -> list[npt.NDArray[np.int32]]:
    """Return recorded texts, each with its prompt."""
    with np.load(TEXTS, allow_pickle=False) as file:
        tokens, lengths = file["tokens"], file["lengths"].sum(axis=1)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def measure_draft(rounds: int) -> Figures:
    """Return what a call takes, in us: medians over rounds of the means over calls."""
    draft = NgramDraft()
    llama = Llama(
        str(embedded_model()), n_ctx=CONTEXT, draft_model=draft, logits_all=True, verbose=False
    )
    draft.bind(llama)
    native, timed = draft.drafter, Timed(draft.drafter)
    rng = np.random.default_rng(0)
    runs: dict[str, list[float]] = {"whole": [], "native": []}
    for _ in range(rounds):
        timed.spent = 0
        draft.drafter = timed
        _, calls = replay(draft, llama, rng)
        draft.drafter = native
        runs["native"].append(timed.spent / calls / 1e3)
        spent, calls = replay(draft, llama, rng)
        runs["whole"].append(spent / calls / 1e3)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    return {**medians, "host": medians["whole"] - medians["native"]}


def replay(draft: NgramDraft, llama: Llama, rng: np.random.Generator) -> tuple[int, int]:
    """Draft for the second half of each text; return ns and calls."""
    spent = calls = 0
    names = rng.permutation(VOCABULARY).astype(np.int32)
    for original in texts():
        text = names[original % VOCABULARY]
        llama.input_ids[: len(text)] = text
        at = len(text) // 2
        while at < len(text):
            llama.n_tokens = at - 1
            ids = llama.input_ids[:at]
            started = time.perf_counter_ns()
            tokens = draft(ids)
            spent += time.perf_counter_ns() - started
            calls += 1
            right = np.flatnonzero(tokens[: len(text) - at] != text[at : at + len(tokens)])
            at += 1 + (int(right[0]) if len(right) else min(len(tokens), len(text) - at))
    return spent, calls


def measure_attach(steps: int) -> Figures:
    """Return what a step takes, in us: medians over steps."""
    bare, attached = (
        Llama(str(embedded_model()), n_ctx=CONTEXT, n_threads=1, verbose=False) for _ in range(2)
    )
    attach(attached, NgramDraft("ngram-simple", size_n=CONTEXT))
    spent: dict[str, list[int]] = {"bare": [], "attached": []}
    outputs: dict[str, list[int]] = {"bare": [], "attached": []}
    while len(spent["bare"]) < steps:
        running: dict[str, Iterator[int]] = {
            name: llama.generate(llama.tokenize(PROMPT.encode()), temp=0.0)
            for name, llama in (("bare", bare), ("attached", attached))
        }
        for step in range(CONTEXT // 2):
            for name, tokens in running.items():
                started = time.perf_counter_ns()
                outputs[name].append(next(tokens))
                if step:  # the first one reads the prompt
                    spent[name].append(time.perf_counter_ns() - started)
    if outputs["bare"] != outputs["attached"]:
        raise SystemExit("the two Llamas said different texts: their steps cannot be compared")
    more = [b - a for a, b in zip(spent["bare"], spent["attached"], strict=True)]
    medians = {name: statistics.median(values) / 1e3 for name, values in spent.items()}
    return {**medians, "more": statistics.median(more) / 1e3}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of the recorded texts")
    parser.add_argument("--steps", type=int, default=4000, help="at least, of each Llama")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures = {
        "draft_model": measure_draft(options.rounds),
        "attach": measure_attach(options.steps),
    }
    for name, values in figures.items():
        cells = ", ".join(f"{part} {us:.1f}" for part, us in values.items())
        print(f"{name}, us per {'call' if name == 'draft_model' else 'step'}: {cells}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
