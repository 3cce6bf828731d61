"""What drafting for many rows takes, alone: propose_batch and follow_batch on one thread and more.

Rows are recorded requests one after another, each row from another place on; the recorded text
counts as the model's choice. All drafters see the same rows. They take turns of ten steps, in
rotating order: what else the machine does hits all alike, and none waits at every step for memory
that another took from the caches. A step is timed from the tokens that came to the new drafts: us
per row and step, and the same times threads, which is what a row costs of a core. The ratio is one
thread's time over that of more, step by step: median, and in brackets the middle half.

The policy's choice is what propose_batch takes longer with an AutoPolicy that chooses than with one
that sends the same number of tokens of every draft: both make the same drafts, on one core.

Both cores must be free. The last lines say how much of the machine other programs used meanwhile,
and which figures tell nothing for it.

    python benchmarks/rows.py [--cases 64x1024,256x32768] [--threads 1,2] [--json OUT]
    python benchmarks/rows.py --cases 64x1024 --threads 1,2,4 --drafter ngram-mod --steps 2000
    python benchmarks/rows.py --cases '' --choice 256
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec import DRAFTER_NAMES, AutoPolicy, Drafter, create_drafter
from ngramspec.costs import PROFILES
from serving_machine import Usage, usable
from traces import Tokens, recorded_rows

DRAFT = 8  # longest draft
TURN = 10  # steps of a drafter before it is another's turn
WARM = TURN  # steps before those that count
BUSY = 0.05  # cores that others used, from which on figures tell nothing
CHOICE_CONTEXT = 1024


class Table:
    """An engine's token table: each row goes on as its recorded text does."""

    def __init__(self, rows: int, context: int, steps: int) -> None:
        self.tokens = recorded_rows(rows, context + (steps + 1) * (DRAFT + 1))
        self.lengths = [np.full(rows, context, np.int32)]  # at each step

    def go_on(self, step: int, drafts: Tokens, lens: Tokens) -> None:
        """Let a step emit what drafts had right and a token more, unless another's did already."""
        if len(self.lengths) > step + 1:
            return
        places = np.arange(DRAFT)
        coming = np.take_along_axis(self.tokens, self.lengths[step][:, None] + places, axis=1)
        right = (drafts == coming) & (places < lens[:, None])
        emitted = np.cumprod(right, axis=1).sum(axis=1) + 1
        self.lengths.append(self.lengths[step] + emitted.astype(np.int32))

    def tokens_per_step(self) -> float:
        """Return what a row emitted in a step, on average."""
        return float((self.lengths[-1] - self.lengths[0]).mean()) / (len(self.lengths) - 1)


class Taking:
    """A drafter for all rows, and what its steps took."""

    def __init__(self, table: Table, drafter: Drafter) -> None:
        rows = len(table.tokens)
        self.table, self.drafter = table, drafter
        self.slots = np.arange(rows, dtype=np.int32)
        self.limits = np.full(rows, DRAFT, np.int32)
        self.accepted = np.zeros(rows, np.int32)
        self.drafts = np.zeros((rows, DRAFT), np.int32)
        self.lens = np.zeros(rows, np.int32)
        self.follow: list[float] = []  # seconds
        self.propose: list[float] = []
        for slot, length in enumerate(table.lengths[0].tolist()):
            drafter.begin(slot, table.tokens[slot, :length])

    def step(self) -> None:
        """Take up what came since the last step, and draft."""
        number = len(self.follow)
        lengths = self.table.lengths[number]
        started = time.perf_counter()
        self.drafter.follow_batch(self.slots, self.table.tokens, lengths, self.accepted)
        followed = time.perf_counter()
        self.drafter.propose_batch(self.slots, self.limits, self.drafts, self.lens)
        self.propose.append(time.perf_counter() - followed)
        self.follow.append(followed - started)
        if self.accepted.min() < 0:
            raise AssertionError("a row does not continue its slot")
        self.table.go_on(number, self.drafts, self.lens)

    def seconds(self) -> list[float]:
        """What the steps took that count."""
        both = zip(self.follow[WARM:], self.propose[WARM:], strict=True)
        return [follow + propose for follow, propose in both]


def take_turns(
    rows: int, context: int, steps: int, makers: Sequence[Callable[[], Drafter]]
) -> tuple[list[Taking], float, float]:
    """Run all drafters over the same rows; also return tokens per row and step, others' cores."""
    table = Table(rows, context, WARM + steps)
    taking = [Taking(table, make()) for make in makers]
    used = Usage()
    for first in range(0, WARM + steps, TURN):
        for i in range(len(taking)):
            for _ in range(min(TURN, WARM + steps - first)):
                taking[(first // TURN + i) % len(taking)].step()
    return taking, table.tokens_per_step(), used.cores()["others"]


def measure_rows(
    rows: int, context: int, steps: int, threads: list[int], name: str
) -> list[dict[str, Any]]:
    """Measure one number of rows and one length of text with each number of threads."""
    makers = [
        lambda most=count: create_drafter(name, slots=rows, threads=most) for count in threads
    ]
    taking, tokens, others = take_turns(rows, context, steps, makers)
    first = taking[0].seconds()
    cells = []
    for count, one in zip(threads, taking, strict=True):
        seconds = one.seconds()
        step = statistics.median(seconds)
        ratios = [a / b for a, b in zip(first, seconds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(
            {
                "rows": rows,
                "context": context,
                "threads": count,
                "us_per_row": step / rows * 1e6,
                "us_per_row_and_core": step * count / rows * 1e6,
                "follow_us_per_row": statistics.median(one.follow[WARM:]) / rows * 1e6,
                "propose_us_per_row": statistics.median(one.propose[WARM:]) / rows * 1e6,
                "ratio": middle,
                "ratio_middle_half": [low, high],
                "tokens_per_row_and_step": tokens,
                "cores_of_others": others,
            }
        )
    return cells


def measure_choice(slots: int, steps: int, name: str) -> dict[str, Any]:
    """Measure what choosing draft lengths for so many slots adds to a batch."""
    policies = [
        lambda: AutoPolicy(DRAFT, costs=PROFILES["h100-8b"]),
        lambda: AutoPolicy(DRAFT, costs=PROFILES["h100-8b"], fixed=DRAFT),
    ]
    makers = [
        lambda policy=make: create_drafter(name, slots=slots, threads=1, policy=policy())
        for make in policies
    ]
    (chosen, fixed), tokens, others = take_turns(slots, CHOICE_CONTEXT, steps, makers)
    more = [a - b for a, b in zip(chosen.propose[WARM:], fixed.propose[WARM:], strict=True)]
    low, middle, high = (1e6 * one for one in statistics.quantiles(more, n=4))
    return {
        "slots": slots,
        "choice_us": middle,
        "choice_us_middle_half": [low, high],
        "propose_us": statistics.median(chosen.propose[WARM:]) * 1e6,
        "tokens_per_row_and_step": tokens,
        "cores_of_others": others,
    }


def show_rows(cells: list[dict[str, Any]]) -> None:
    """Print a line per case and number of threads."""
    print(
        "| rows | context | threads | us per row | and core | follow | propose | 1 thread / this |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for cell in cells:
        low, high = cell["ratio_middle_half"]
        print(
            f"| {cell['rows']} | {cell['context']:,} | {cell['threads']} | "
            f"{cell['us_per_row']:.2f} | {cell['us_per_row_and_core']:.2f} | "
            f"{cell['follow_us_per_row']:.2f} | "
            f"{cell['propose_us_per_row']:.2f} | {cell['ratio']:.2f} ({low:.2f} to {high:.2f}) |"
        )


def show_choice(choice: dict[str, Any]) -> None:
    """Print what the policy's choice took."""
    low, high = choice["choice_us_middle_half"]
    print(
        f"\nThe policy's choice over {choice['slots']} slots: {choice['choice_us']:.0f} us "
        f"({low:.0f} to {high:.0f}) on one core, of {choice['propose_us']:.0f} us of propose_batch."
    )


def show_others(cells: list[dict[str, Any]], choice: dict[str, Any] | None) -> None:
    """Say what other programs used, and what figures tell nothing."""
    cores = {f"{cell['rows']} x {cell['context']:,}": cell["cores_of_others"] for cell in cells}
    if choice:
        cores[f"the choice over {choice['slots']} slots"] = choice["cores_of_others"]
    if not cores:
        return
    print("\nCores that other programs used: "
          + "; ".join(f"{name}: {others:.2f}" for name, others in cores.items()) + ".")  # fmt: skip
    busy = [name for name, others in cores.items() if others > BUSY]
    if busy:
        print(f"The machine was too busy to tell: {'; '.join(busy)}.")
    most = max((cell["threads"] for cell in cells), default=1)
    if most > len(usable()):
        print(
            f"{most} threads had {len(usable())} cores: their figures tell nothing of more cores."
        )


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", default="64x1024,256x32768", help="rows x tokens of context")
    parser.add_argument(
        "--threads", default="1,2", help="numbers of threads, the first is divided by"
    )
    parser.add_argument("--steps", type=int, default=400, help="that count, of each case")
    parser.add_argument("--drafter", choices=DRAFTER_NAMES, default="suffix")
    parser.add_argument("--choice", type=int, default=256, metavar="SLOTS", help="0 = leave it out")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    threads = [int(one) for one in options.threads.split(",")]
    cells = []
    for case in filter(None, options.cases.split(",")):
        rows, context = map(int, case.split("x"))
        cells += measure_rows(rows, context, options.steps, threads, options.drafter)
    choice = (
        measure_choice(options.choice, options.steps, options.drafter) if options.choice else None
    )
    if cells:
        show_rows(cells)
    if choice:
        show_choice(choice)
    show_others(cells, choice)
    if options.json:
        options.json.write_text(json.dumps({"rows": cells, "choice": choice}, indent=1) + "\n")


if __name__ == "__main__":
    main()
