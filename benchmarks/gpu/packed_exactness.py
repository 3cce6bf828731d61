"""Whether a pass over a draft chooses the tokens that passes of one token choose.

    python benchmarks/gpu/packed_exactness.py             # one GPU with 40 GB or more, a minute
    python benchmarks/gpu/packed_exactness.py --small     # a few layers, on any machine

Kernels differ by the size of a pass, and with them the rounding; near ties are decided by it. Each
row decodes --tokens tokens one by one. Then the same tokens are verified as drafts of one length,
and the choices are counted that are equal; drafts of no token are the single ones once more. With
CUDA graphs, the same is done once without. Weights are random: near ties are far more frequent
than in a trained model, so this shows whether kernels differ, not how often a text would.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

from batch_sizes import measure_sizes
from packed_passes import CaptureError, Passes
from replay_options import describe, make_model, parser, settle
from replay_rounds import Budget
from replay_setup import RESULTS

LENGTHS = (0, 1, 2, 4, 8, 16, 32)
Row = dict[str, Any]
Said = npt.NDArray[np.int32]


def decode(passes: Passes, rows: int, context: int, tokens: int) -> Said:
    """Return the tokens that passes of one token choose, (rows, 1 + tokens); the first is given."""
    texts = np.zeros((rows, 1 + tokens), np.int32)
    texts[:, 0] = np.random.default_rng(1).integers(0, 1 << 10, rows)
    nothing, none = np.zeros((rows, 1), np.int32), np.zeros(rows, np.int32)
    for i in range(tokens):
        passes.launch(texts[:, i], np.full(rows, context + i, np.int32), nothing, none)
        texts[:, i + 1] = passes.wait()
    return texts


def verify(passes: Passes, texts: Said, context: int, length: int) -> tuple[int, int]:
    """Verify what was said as drafts of a length; return how many choices are equal, and of all."""
    rows, equal, judged = len(texts), 0, 0
    lengths = np.full(rows, length, np.int32)
    for i in range(0, texts.shape[1] - 1 - length, 1 + length):
        at = np.full(rows, context + i, np.int32)
        drafts = np.ascontiguousarray(texts[:, i + 1 : i + 1 + max(1, length)])
        passes.launch(texts[:, i], at, drafts, lengths)
        same = passes.wait().reshape(rows, -1) == texts[:, i + 1 : i + 2 + length]
        equal, judged = equal + int(same.sum()), judged + same.size
    return equal, judged


def measure(
    passes: Passes, rows: int, options: argparse.Namespace, budget: Budget, graphs: bool
) -> list[Row]:
    """Return the figures of a batch size; where no graph can be captured, those without."""
    passes.graphs, context = graphs, options.prompt
    results: list[Row] = []
    try:
        texts = decode(passes, rows, context, options.tokens)
        for length in (length for length in LENGTHS if length <= options.max_draft):
            if budget.left <= 0:
                return results
            equal, judged = verify(passes, texts, context, length)
            results.append({
                "batch": rows, "draft": length, "graphs": passes.graphs, "equal": equal,
                "choices": judged, "share": equal / judged,
            })  # fmt: skip
        if graphs and budget.left > 0:
            passes.graphs = False
            equal, judged = verify(passes, texts, context, 0)
            results.append({
                "batch": rows, "draft": 0, "graphs": False, "equal": equal, "choices": judged,
                "share": equal / judged,
            })  # fmt: skip
            passes.graphs = True
    except CaptureError:
        return measure(passes, rows, options, budget, False)
    return results


def table(rows: list[Row]) -> str:
    """Return the figures as text."""
    lines = [f"{'batch':>5} {'draft':>5} {'graphs':>6} {'equal':>6} {'of':>6} {'share':>8}"]
    lines += [
        f"{row['batch']:>5} {row['draft']:>5} {'yes' if row['graphs'] else 'no':>6} "
        f"{row['equal']:>6} {row['choices']:>6} {row['share']:>8.2%}"
        for row in rows
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Return the settled options."""
    cli = parser(__doc__ or "")
    cli.add_argument("--tokens", type=int, default=66, help="of each row (66)")
    options = cli.parse_args()
    if options.tokens <= options.max_draft:
        cli.error(f"--tokens must be above --max-draft ({options.max_draft})")
    options.output = options.tokens  # room in the cache
    return options


def main() -> None:
    """Measure, save after each batch size, print."""
    options = parse()
    budget = Budget(options.minutes)
    settle(options)
    path = options.json or (None if options.small else RESULTS / "packed_exactness.json")
    setup = {**describe(options), "tokens": options.tokens}
    body: Row = {"what": "exactness of passes", "setup": setup, "passes": {}, "rows": []}
    model = make_model(options)
    measure_sizes(
        options,
        model,
        body,
        path,
        budget,
        lambda passes, rows: measure(passes, rows, options, budget, passes.graphs),
    )
    print(table(body["rows"]), flush=True)
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
