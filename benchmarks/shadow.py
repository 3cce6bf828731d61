"""Drafts that are only judged: what that costs per step, and whether a run that sends them agrees.

    python benchmarks/shadow.py                            # embedded model
    python benchmarks/shadow.py --model model.gguf --tokens 200 --rounds 5 --json shadow.json

Each round answers the tasks of `bench e2e` greedily, without drafts, with drafts that are judged,
and with drafts that are sent, in turn and with fresh drafters:

- cost: time of a step besides the pass, judged over plain, mean without the slowest 2 %;
- agreement: tokens per pass and speed-up as judged, and as sent. Costs of passes are a profile's
  for both, so that a busy machine changes neither's drafts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ngramspec import embedded_model
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, Engine, Request, Sampling, stepper
from ngramspec.lab.e2e.bench import tokenize_tasks
from ngramspec.lab.e2e.tasks import TASKS
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SLOWEST = 0.02  # share of steps that something else has held up
PLAIN, JUDGED, SENT = "plain", "judged", "sent"


def run(engine: Engine, asked: list[Request]) -> tuple[float, list[list[int]]]:
    """Answer requests; return the microseconds of a step besides the pass, and the texts."""
    stats, spent, texts = engine.stats(), [], []
    for request in asked:
        generation = engine.submit(request)
        while generation.finish_reason is None:
            before = stats.draft_seconds + stats.verify_seconds
            engine.step()
            spent.append(1e6 * (stats.draft_seconds + stats.verify_seconds - before))
        texts.append(generation.token_ids)
    usual = sorted(spent)[: int((1 - SLOWEST) * len(spent))]
    return statistics.fmean(usual), texts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="GGUF file (the embedded model)")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument("--profile", default="cpu", choices=tuple(PROFILES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=120, help="of each answer (120)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Costs stay those of the profile: no pass takes any time.
    stepper.time = SimpleNamespace(perf_counter=lambda: 0.0)  # type: ignore[attr-defined]
    costs, rows = PROFILES[options.profile], list[dict[str, Any]]()
    with (
        LlamaModel(options.model or embedded_model()) as model,
        LlamaTarget(model, slots=1, context_size=2048, threads=options.threads) as target,
    ):
        asked = [
            Request(prompt_ids=ids, max_tokens=options.tokens, sampling=Sampling(temperature=0))
            for ids in tokenize_tasks(model, TASKS)
        ]
        for _ in range(options.rounds):
            row: dict[str, Any] = {}
            texts = {}
            for kind in (PLAIN, JUDGED, SENT):
                policy = AutoPolicy(64, costs, shadow=kind == JUDGED)
                engine = Engine(target, None if kind == PLAIN else options.drafter, policy=policy)
                row[f"{kind}_us"], texts[kind] = run(engine, asked)
                if kind == JUDGED:
                    (shadow,) = (s for s in engine.shadows() if s.name == options.drafter)
                    row["judged_length"], row["judged_speedup"] = (
                        shadow.mean_accepted_length,
                        shadow.speedup,
                    )
            stats = engine.stats()
            passes = stats.num_slot_steps - len(asked)
            row["sent_length"] = 1 + stats.num_accepted_tokens / passes
            row["same_texts"] = sum(map(list.__eq__, texts[JUDGED], texts[SENT])) / len(asked)
            rows.append(row)
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    middle["cost_us"] = statistics.median(row["judged_us"] - row["plain_us"] for row in rows)
    middle["cost_ratio"] = statistics.median(row["judged_us"] / row["plain_us"] for row in rows)
    for key, value in middle.items():
        print(f"{key:<16} {value:.3f}")
    if options.json:
        options.json.write_text(json.dumps({"rounds": rows, "median": middle}, indent=1), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
