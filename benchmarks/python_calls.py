"""Cost of propose + accept from Python, by context length, beside a Python peer.

Workload: the context is text without repeats, the output copies a slice of it with every 25th
token changed; drafts of up to 8 tokens are verified against it. Figures are the mean over the
steps of a session, the median over sessions. begin is timed on a slot that held another prompt.
llama-cpp-python's prompt lookup drafts from the same tokens in the same run.

    python benchmarks/python_calls.py [--json OUT] [--pool-tokens 10000000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec import DRAFTER_NAMES, HashPool, SuffixPool, create_drafter

CONTEXTS = (1024, 8192, 32768, 131072)
NUM_OUTPUT = 2000
SMALL = {
    "ngram-simple": {"size_n": 4, "size_m": 8},
    "ngram-map-k": {"size_n": 4, "size_m": 8},
    "ngram-map-k4v": {"size_n": 4, "size_m": 8},
    "ngram-mod": {"n_match": 6, "n_min": 1, "n_max": 8},
    "ngram-cache": {},
    "suffix": {},
}
FULL = "suffix, full pool"  # the pool holds --pool-tokens tokens of other requests
Tokens = npt.NDArray[np.int32]


def session(context: int, seed: int) -> tuple[Tokens, Tokens]:
    """Return a prompt of random tokens and an output that copies part of it with changes."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 50_000, context, dtype=np.int32)
    start = int(rng.integers(0, max(1, context - NUM_OUTPUT)))
    output = np.resize(prompt[start : start + NUM_OUTPUT], NUM_OUTPUT).astype(np.int32)
    output[::25] = rng.integers(0, 50_000, len(output[::25]), dtype=np.int32)
    return prompt, output


def time_drafter(
    kind: str, params: dict[str, Any], context: int, max_tokens: int, seed: int
) -> dict[str, float]:
    """Time begin, and propose + accept of one session; the verification in between is not timed."""
    prompt, output = session(context, seed)
    if kind == "ngram-mod":
        params = {**params, "pool": POOL}
    drafter = create_drafter(kind.partition(",")[0], **params)
    drafter.begin(0, session(context, seed + 1000)[0])  # a slot in use has its memory
    started = time.perf_counter_ns()
    drafter.begin(0, prompt)
    begin_ns = time.perf_counter_ns() - started
    drafter.accept(0, output[:1], 0)
    spent, steps, accepted, i = 0, 0, 0, 0
    empty = measure_clock()
    while i + 1 < len(output):
        started = time.perf_counter_ns()
        draft = drafter.propose(0, max_tokens)
        spent += time.perf_counter_ns() - started
        right = right_prefix(draft, output, i + 1)
        tokens = output[i + 1 : i + 2 + right]
        started = time.perf_counter_ns()
        drafter.accept(0, tokens, right)
        spent += time.perf_counter_ns() - started
        steps, accepted, i = steps + 1, accepted + right, i + 1 + right
    return {
        "us_per_step": (spent / steps - 2 * empty) / 1e3,
        "begin_ns_per_token": begin_ns / context,
        "mean_accepted_length": 1 + accepted / steps,
    }


def time_prompt_lookup(context: int, max_tokens: int, seed: int) -> dict[str, float] | None:
    """Time llama-cpp-python's prompt lookup on the same session; None when it is not installed."""
    try:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError:
        return None
    prompt, output = session(context, seed)
    lookup = LlamaPromptLookupDecoding(max_ngram_size=4, num_pred_tokens=max_tokens)
    text = np.concatenate([prompt, output])
    spent, steps, accepted, i = 0, 0, 0, 0
    while i + 1 < min(len(output), 200):
        started = time.perf_counter_ns()
        draft = lookup(text[: context + i + 1])
        spent += time.perf_counter_ns() - started
        right = right_prefix(draft, output, i + 1)
        steps, accepted, i = steps + 1, accepted + right, i + 1 + right
    return {"us_per_step": spent / steps / 1e3, "mean_accepted_length": 1 + accepted / steps}


def right_prefix(draft: Tokens, output: Tokens, start: int) -> int:
    """Return how many tokens of the draft the output confirms."""
    room = min(len(draft), len(output) - start - 1)
    wrong = np.flatnonzero(draft[:room] != output[start : start + room])
    return int(wrong[0]) if len(wrong) else max(room, 0)


def measure_clock() -> float:
    """Return what reading the clock twice costs, in ns; it is taken off the figures."""
    readings = []
    for _ in range(200):
        started = time.perf_counter_ns()
        readings.append(time.perf_counter_ns() - started)
    return statistics.median(readings)


def median_of(
    run: Callable[[int], dict[str, float] | None], repeats: int
) -> dict[str, float] | None:
    """Return the median of each figure over sessions with different seeds."""
    runs = [figures for seed in range(repeats) if (figures := run(seed)) is not None]
    return {key: statistics.median(r[key] for r in runs) for key in runs[0]} if runs else None


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    names = [name for name in DRAFTER_NAMES if name in SMALL]  # recycle drafts from logits only
    parser.add_argument("--drafter", action="append", choices=names, help="default: all")
    parser.add_argument("--pool-tokens", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    kinds = dict.fromkeys(options.drafter or names)
    if options.pool_tokens:
        SMALL[FULL] = {"pool": full_pool(options.pool_tokens)}
        kinds[FULL] = None
    for kind in kinds:
        rows[kind] = {
            str(context): median_of(
                lambda seed, k=kind, c=context: time_drafter(
                    k, SMALL[k], c, options.max_tokens, seed
                ),
                options.repeats,
            )
            for context in CONTEXTS
        }
    rows["llama-cpp-python lookup"] = {
        str(c): median_of(lambda seed, c=c: time_prompt_lookup(c, options.max_tokens, seed), 2)
        for c in CONTEXTS
    }
    print(
        f"{'propose + accept, us per step':30}" + "".join(f"{context:>12}" for context in CONTEXTS)
    )
    for name, row in rows.items():
        cells = (
            f"{row[str(c)]['us_per_step']:12.2f}" if row[str(c)] else f"{'-':>12}" for c in CONTEXTS
        )
        print(f"{name:30}" + "".join(cells))
    print(
        f"\n{'begin, ns per prompt token':30}" + "".join(f"{context:>12}" for context in CONTEXTS)
    )
    for name in kinds:
        print(
            f"{name:30}"
            + "".join(f"{rows[name][str(c)]['begin_ns_per_token']:12.2f}" for c in CONTEXTS)
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def full_pool(num_tokens: int) -> SuffixPool:
    """Return a pool that holds so many tokens that requests generated."""
    pool = SuffixPool(num_tokens + num_tokens // 8)
    rng = np.random.default_rng(7)
    drafter = create_drafter("suffix", pool=pool)
    while pool.num_tokens < num_tokens:
        drafter.begin(0, rng.integers(0, 50_000, 100_000, dtype=np.int32))
        drafter.end(0)
    print(f"pool: {pool.num_tokens:,} tokens, {pool.nbytes / pool.num_tokens:.1f} bytes per token")
    return pool


POOL = HashPool()

if __name__ == "__main__":
    main()
