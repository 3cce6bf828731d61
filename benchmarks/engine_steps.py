"""What the engine costs beside the model, and whether drafts ever make it slower.

    python benchmarks/engine_steps.py                              # embedded model
    python benchmarks/engine_steps.py --model random.gguf --threads 2 --json steps.json

Two tables, both over 1, 4 and 8 slots:

- overhead: time of a step besides llama_decode, median, with and without drafts;
- never slower: tokens per second with speculation over tokens per second without, on text that
  never repeats. Runs with and without alternate; the ratio is the median over pairs.

`random_model.py` writes models whose text hardly repeats; with --repeating nearly every draft is
right. Sampled requests (--temperature) do not repeat on any model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec import embedded_model
from ngramspec.engine import Engine, Request, Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SLOTS = (1, 4, 8)


class TimedTarget:
    """A target that adds up the time in decode."""

    def __init__(self, target: LlamaTarget) -> None:
        self._target = target
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode(self, batch: Any, rows: Any) -> None:
        """Decode, timed."""
        started = time.perf_counter()
        self._target.decode(batch, rows)
        self.seconds += time.perf_counter() - started


def requests(model: LlamaModel, count: int, tokens: int, temperature: float) -> list[Request]:
    """Return requests with random prompts, all different."""
    rng = np.random.default_rng(count)
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return [
        Request(
            prompt_ids=rng.integers(3, model.vocab_size, size=64).astype(np.int32),
            max_tokens=tokens,
            sampling=Sampling(seed=seed, ignore_eos=True, **sampling),
        )
        for seed in range(count)
    ]


def overhead(target: Any, drafter: str | None, asked: list[Request], slots: int) -> dict[str, Any]:
    """Return the median microseconds of a decode step besides llama_decode."""
    timed = TimedTarget(target)
    engine = Engine(timed, drafter, slots=slots)
    for request in asked[:slots]:
        engine.submit(request)
    spent = []
    while engine.busy:
        prompts, before, started = (
            engine.stats().num_prompt_tokens,
            timed.seconds,
            time.perf_counter(),
        )
        engine.step()
        took = time.perf_counter() - started - (timed.seconds - before)
        running = sum(slot.state == "decode" for slot in engine.slots())
        if engine.stats().num_prompt_tokens == prompts and running == slots:
            spent.append(1e6 * took)
    if not spent:
        sys.exit(f"no step had {slots} slots decoding and no prompt: ask for more --tokens")
    stats = engine.stats()
    return {
        "slots": slots,
        "drafter": drafter or "none",
        "us": statistics.median(spent),
        "p90": sorted(spent)[int(0.9 * len(spent))],
        "decode_us": 1e6 * stats.decode_seconds / stats.num_steps,
        "drafted": stats.num_draft_tokens,
    }


def rate(target: Any, drafter: str | None, asked: list[Request], slots: int) -> tuple[float, Any]:
    """Return tokens per second of one run, and its counters."""
    engine = Engine(target, drafter, slots=slots)
    started = time.perf_counter()
    generations = engine.generate(asked)
    seconds = time.perf_counter() - started
    return sum(len(m.token_ids) for m in generations) / seconds, engine.stats()


def compare(
    target: Any,
    drafter: str,
    asked: list[Request],
    slots: int,
    rounds: int,
) -> dict[str, Any]:
    """Return the ratio of tokens per second with drafts to those without."""
    pairs = []
    for index in range(rounds):
        order = (drafter, None) if index % 2 else (None, drafter)
        both = {name: rate(target, name, asked, slots) for name in order}
        pairs.append((both[drafter][0], both[None][0]))
        stats = both[drafter][1]
    return {
        "slots": slots,
        "drafter": drafter,
        "ratio": statistics.median(a / b for a, b in pairs),
        "low": min(a / b for a, b in pairs),
        "with": statistics.median(a for a, _ in pairs),
        "without": statistics.median(b for _, b in pairs),
        "drafted": stats.num_draft_tokens,
        "accepted": stats.num_accepted_tokens,
        "emitted": stats.num_emitted_tokens,
    }


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="GGUF file (the embedded model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200, help="of each request (200)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: greedily (1.0)")
    parser.add_argument("--drafter", action="append", help="chains to measure, several times")
    parser.add_argument("--slots", type=int, nargs="+", default=list(SLOTS))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure and print both tables."""
    options = parse()
    drafters = options.drafter or ["ngram-mod", "ngram-simple,ngram-mod,ngram-cache"]
    results: dict[str, list[Any]] = {"overhead": [], "never_slower": []}
    most = max(options.slots)
    with (
        LlamaModel(options.model or embedded_model()) as model,
        LlamaTarget(model, slots=most, context_size=512, threads=options.threads) as target,
    ):
        asked = requests(model, most, options.tokens, options.temperature)
        rate(target, None, asked, most)  # warm
        print(f"{'slots':>5} {'drafter':<38} {'µs beside decode':>17} {'p90':>6} {'decode µs':>10}")
        for slots in options.slots:
            for drafter in (None, *drafters):
                row = overhead(target, drafter, asked, slots)
                results["overhead"].append(row)
                print(
                    f"{slots:>5} {row['drafter']:<38} {row['us']:>17.0f} {row['p90']:>6.0f} "
                    f"{row['decode_us']:>10.0f}"
                )
        print(
            f"\n{'slots':>5} {'drafter':<38} {'ratio':>6} {'lowest':>7} {'drafted':>8} {'right':>6}"
        )
        for slots in options.slots:
            for drafter in drafters:
                row = compare(target, drafter, asked[:slots], slots, options.rounds)
                results["never_slower"].append(row)
                print(
                    f"{slots:>5} {drafter:<38} {row['ratio']:>6.3f} {row['low']:>7.3f} "
                    f"{row['drafted']:>8} {row['accepted']:>6}"
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
