"""What a pass costs by the tokens that each row verifies, and what of it is attention.

    python benchmarks/gpu/pass_costs.py                 # one GPU with 40 GB or more, a minute
    python benchmarks/gpu/pass_costs.py --small         # a few layers, on any machine

Every row verifies its newest token and a draft, all of the same length, after --prompt tokens of
context that are noise. Draft lengths take turns, a first round captures the graphs. `pass` is from
the launch to the chosen tokens on the host, `device` as in profile_steps.py, `attention` that of
all layers alone, in a graph of its own: without graphs it is not known.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from batch_sizes import measure_sizes
from messages import say
from packed_llama import attend
from packed_passes import CaptureError, Passes, Size
from replay_options import describe, make_model, parser, settle
from replay_rounds import Budget
from replay_setup import RESULTS

LENGTHS = (0, 1, 2, 4, 8, 16, 32)
ATTENTION_REPEATS = 20
Row = dict[str, Any]


class Costs:
    """Passes of a batch size in which all drafts are equally long.

    Args:
        passes: Over a cache that holds noise.
        rows: Of the batch.
        context: Tokens before the newest.
        max_draft: The longest draft that passes may have.
    """

    def __init__(self, passes: Passes, rows: int, context: int, max_draft: int) -> None:
        self._passes = passes
        rng = np.random.default_rng(1)
        self._newest = rng.integers(0, 1 << 15, rows, dtype=np.int32)
        self._at = np.full(rows, context, np.int32)
        self._drafts = rng.integers(0, 1 << 15, (rows, max_draft), dtype=np.int32)
        self.seconds: dict[int, list[float]] = {}
        self.device: dict[int, list[float]] = {}

    def run(self, length: int) -> None:
        """Do a pass with drafts of a length, timed."""
        passes = self._passes
        captured, started = passes.capture_seconds, time.perf_counter()
        lengths = np.full(len(self._at), length, np.int32)
        passes.launch(self._newest, self._at, self._drafts, lengths)
        passes.wait()
        seconds = time.perf_counter() - started - (passes.capture_seconds - captured)
        self.seconds.setdefault(length, []).append(seconds)
        timing = passes.timings()[-1]
        if timing.device is not None:
            self.device.setdefault(length, []).append(timing.device)

    def attention(self, length: int, model: Any) -> float | None:
        """Return the seconds of all layers' attention in such a pass; None without graphs."""
        passes = self._passes
        if not passes.graphs:
            return None
        self.run(length)
        try:
            graph, _ = passes.capture(attention_of(passes, passes.last_size, model))
        except RuntimeError as error:
            say(f"attention of drafts of {length} tokens is not measured: {error}")
            return None
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(ATTENTION_REPEATS):
            graph.replay()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3 / ATTENTION_REPEATS


def attention_of(passes: Passes, size: Size, model: Any) -> Any:
    """Return what computes the attention of all layers as the pass launched last does."""
    config = model.config
    head = config.hidden_size // config.num_attention_heads

    def noise(heads: int) -> torch.Tensor:
        shape = (1, heads, size.tokens, head)
        return torch.randn(shape, device=passes.device, dtype=passes.dtype)

    query = noise(config.num_attention_heads)
    key, value = (noise(config.num_key_value_heads) for _ in range(2))
    layers = [SimpleNamespace(layer_idx=i) for i in range(config.num_hidden_layers)]

    @torch.no_grad()
    def compute() -> torch.Tensor:
        packing = passes.packing(size)
        for layer in layers:
            seen, _ = attend(layer, query, key, value, None, packing=packing)
        return seen

    return compute


def rows_of(costs: Costs, rows: int, attention: dict[int, float | None]) -> list[Row]:
    """Return the medians by draft length, without the first round."""
    results: list[Row] = []
    for length, seconds in costs.seconds.items():
        device = costs.device.get(length, [])[1:]
        alone = attention.get(length)
        middle = statistics.median(device) if device else None
        results.append({
            "batch": rows,
            "draft": length,
            "tokens": rows * (1 + length),
            "pass_ms": 1e3 * statistics.median(seconds[1:] or seconds),
            "device_ms": None if middle is None else 1e3 * middle,
            "attention_ms": None if alone is None else 1e3 * alone,
            "attention_share": alone / middle if alone and middle else None,
            "samples": len(seconds[1:]),
        })  # fmt: skip
    for row in results:
        row["relative"] = row["pass_ms"] / results[0]["pass_ms"]
    return results


def table(rows: list[Row]) -> str:
    """Return the figures as text."""

    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    lines = [
        f"{'batch':>5} {'draft':>5} {'tokens':>6} {'pass ms':>8} {'relative':>8} {'device':>8} "
        f"{'attention':>9} {'share':>7}"
    ]
    lines += [
        f"{row['batch']:>5} {row['draft']:>5} {row['tokens']:>6} {row['pass_ms']:>8.3f} "
        f"{row['relative']:>8.2f} {cell(row['device_ms'], '.3f'):>8} "
        f"{cell(row['attention_ms'], '.3f'):>9} {cell(row['attention_share'], '.1%'):>7}"
        for row in rows
    ]
    return "\n".join(lines)


def measure(
    passes: Passes, rows: int, options: argparse.Namespace, budget: Budget, model: Any
) -> list[Row]:
    """Time passes while there is time, then attention; return the figures.

    Where no graph can be captured, it is done without.
    """
    costs = Costs(passes, rows, options.prompt, options.max_draft)
    lengths = [length for length in LENGTHS if length <= options.max_draft]
    try:
        for _ in range(options.repeats + 1):
            for length in lengths:
                if budget.left > 0:
                    costs.run(length)
        attention = {n: costs.attention(n, model) for n in lengths if budget.left > 0}
    except CaptureError:
        return measure(passes, rows, options, budget, model)
    return rows_of(costs, rows, attention)


def parse() -> argparse.Namespace:
    """Return the settled options."""
    cli = parser(__doc__ or "")
    cli.add_argument("--repeats", type=int, default=20, help="passes of each length (20)")
    options = cli.parse_args()
    if options.repeats < 1:
        cli.error("--repeats must be 1 or more")
    return options


def main() -> None:
    """Measure, save after each batch size, print."""
    options = parse()
    budget = Budget(options.minutes)
    settle(options)
    path: Path | None = options.json or (None if options.small else RESULTS / "pass_costs.json")
    body: Row = {"what": "costs of passes", "setup": describe(options), "passes": {}, "rows": []}
    model = make_model(options)
    measure_sizes(
        options,
        model,
        body,
        path,
        budget,
        lambda passes, rows: measure(passes, rows, options, budget, model),
    )
    print(table(body["rows"]), flush=True)
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
