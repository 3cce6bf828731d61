"""How drafters that share what they learn scale: one thread and two, each with its own drafter.

The threads take recorded requests from one list until it is used up, so one and two threads do the
same work and learn the same texts. The ratio is the time of one thread over that of two; "apart" is
the ratio where the drafters share nothing, which is what the machine and the interpreter allow.
Both cores must be free. Runs alternate; the figures are medians of pairs.

    python benchmarks/shared_pools.py [--repeats 9] [--modes replay,batch,calls] [--json OUT]

Modes: `replay` plays whole requests natively; `batch` is what an adapter calls for the rows of
an engine (propose_batch, follow_batch, verification in numpy); `calls` is propose and accept, one
request at a time, verification in Python. In a Python with a GIL, what is not inside a long call
runs one thread at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec import Drafter, HashPool, NgramCache, SuffixPool, create_drafter
from ngramspec.lab.recordings import RecordedRequest
from traces import requests_of, trace_names

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "suffix": lambda: {"pool": SuffixPool()},
    "ngram-cache": lambda: {"dynamic": NgramCache()},
    "ngram-mod": lambda: {"pool": HashPool(), "n_match": 6, "n_min": 1, "n_max": 16},
}
ROWS = 32  # of the batch
DRAFT = 16  # tokens of a draft at most
WIDTH = 16384  # of the table of texts; longer prompts lose their beginning


def replay(drafter: Drafter, requests: Iterator[RecordedRequest]) -> None:
    """Play whole requests."""
    for request in requests:
        drafter.replay(request.prompt, request.output, DRAFT)
        drafter.end(0)


def calls(drafter: Drafter, requests: Iterator[RecordedRequest]) -> None:
    """Play requests by propose and accept."""
    for request in requests:
        output, at = request.output, 1
        drafter.begin(0, request.prompt)
        drafter.accept(0, output[:1], 0)
        while at < len(output):
            draft = drafter.propose(0, min(DRAFT, len(output) - at))
            right = 0
            for token in draft.tolist():
                if token != output[at + right]:
                    break
                right += 1
            drafter.accept(0, output[at : at + right + 1], right)
            at += right + 1
        drafter.end(0)


class Batch:
    """The rows of an engine: each holds a request's whole text, `lengths` tokens of it known."""

    def __init__(self, drafter: Drafter, requests: Iterator[RecordedRequest]) -> None:
        self.drafter, self.requests = drafter, requests
        self.table = np.full((ROWS, WIDTH + DRAFT + 1), -1, np.int32)
        self.lengths = np.zeros(ROWS, np.int32)
        self.ends = np.zeros(ROWS, np.int32)
        self.slots = np.arange(ROWS, dtype=np.int32)
        self.live = [row for row in range(ROWS) if self.seat(row)]

    def seat(self, row: int) -> bool:
        """Give a row the next request; False when there is none."""
        request = next(self.requests, None)
        if request is None:
            return False
        output = request.output[: WIDTH // 2]
        prompt = request.prompt[-(WIDTH - len(output)) :]
        end = len(prompt) + len(output)
        self.table[row, : len(prompt)] = prompt
        self.table[row, len(prompt) : end] = output
        self.lengths[row], self.ends[row] = len(prompt), end
        self.drafter.begin(row, prompt)
        return True

    def run(self) -> None:
        """Draft and verify until the requests are used up."""
        drafts, lens = np.empty((ROWS, DRAFT), np.int32), np.empty(ROWS, np.int32)
        accepted = np.empty(ROWS, np.int32)
        places = np.arange(DRAFT)
        while self.live:
            rows = np.array(self.live, np.int32)
            num = len(rows)
            room = np.minimum(self.ends[rows] - self.lengths[rows] - 1, DRAFT).astype(np.int32)
            self.drafter.propose_batch(rows, np.maximum(room, 0), drafts[:num], lens[:num])
            tokens = self.table[rows[:, None], self.lengths[rows, None] + places]
            right = (tokens == drafts[:num]) & (places < lens[:num, None])
            self.lengths[rows] += np.logical_and.accumulate(right, axis=1).sum(axis=1) + 1
            texts = self.table if num == ROWS else self.table[rows]
            self.drafter.follow_batch(rows, texts, self.lengths[rows], accepted[:num])
            over = rows[self.lengths[rows] >= self.ends[rows]]
            for row in over.tolist():
                self.drafter.end(row)
                if not self.seat(row):
                    self.live.remove(row)


def batch(drafter: Drafter, requests: Iterator[RecordedRequest]) -> None:
    """Play requests in the rows of a batch."""
    Batch(drafter, requests).run()


MODES = {"replay": replay, "batch": batch, "calls": calls}


class Locked:
    """An iterator that threads may share."""

    def __init__(self, requests: list[RecordedRequest]) -> None:
        self._left = iter(requests)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[RecordedRequest]:
        return self

    def __next__(self) -> RecordedRequest:
        with self._lock:
            return next(self._left)


def seconds(
    kind: str, mode: str, threads: int, shared: bool, requests: list[RecordedRequest]
) -> float:
    """Return how long the threads take for all requests together."""
    common = KINDS[kind]()
    slots = ROWS if mode == "batch" else 1
    left = Locked(requests)
    drafters = [
        create_drafter(kind, slots=slots, **(common if shared else KINDS[kind]()))
        for _ in range(threads)
    ]
    start = threading.Barrier(threads + 1)

    def work(drafter: Drafter) -> None:
        start.wait()
        MODES[mode](drafter, left)

    workers = [threading.Thread(target=work, args=(drafter,)) for drafter in drafters]
    for worker in workers:
        worker.start()
    start.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started


def measure(
    kind: str, mode: str, repeats: int, requests: list[RecordedRequest]
) -> dict[str, float]:
    """Return the medians of pairs of runs that follow each other."""
    ones, ratios, apart = [], [], []
    for _ in range(repeats):
        one = seconds(kind, mode, 1, True, requests)
        ones.append(one)
        ratios.append(one / seconds(kind, mode, 2, True, requests))
        apart.append(one / seconds(kind, mode, 2, False, requests))
    return {
        "one_thread_tokens_per_s": sum(len(one.output) for one in requests)
        / statistics.median(ones),
        "ratio": statistics.median(ratios),
        "best_ratio": max(ratios),
        "apart": statistics.median(apart),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--sets", default=",".join(trace_names()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    requests = [request for name in options.sets.split(",") for request in requests_of(name)]
    results: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'':20}{'1 thread, tokens/s':>20}{'2 threads':>12}{'best':>8}{'apart':>8}")
    for kind in options.kinds.split(","):
        results[kind] = {}
        for mode in options.modes.split(","):
            got = results[kind][mode] = measure(kind, mode, options.repeats, requests)
            print(
                f"{kind + ', ' + mode:20}{got['one_thread_tokens_per_s']:20,.0f}"
                f"{got['ratio']:11.2f}x{got['best_ratio']:7.2f}x{got['apart']:7.2f}x",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
