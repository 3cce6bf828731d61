"""Our SuffixDecodingCache beside arctic-inference's, called as vLLM's suffix method calls it.

python benchmarks/arctic_facade.py [--requests N] [--repeats N] [--factor F] [--prob P] [SET ...]

Recorded requests run one after the other on one cache, and a recorded output counts as the target's
choice. Both caches run in turn, with the same calls; times are medians over the repeats. Needs
arctic-inference 0.3.0 (benchmarks/peers says how to build it); without it ours run alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngramspec.hosts.arctic.cache import SuffixDecodingCache
from ngramspec.lab.recordings import RecordedRequest
from traces import requests_of, trace_names

DEPTH, MOST, CACHED = 24, 24, 10_000  # vLLM's defaults


@dataclass
class Run:
    """Totals of one run over a set; times in nanoseconds."""

    steps: int = 0
    emitted: int = 0
    drafted: int = 0
    start_ns: int = 0
    step_ns: list[int] = field(default_factory=list)
    requests: int = 0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per step of the target."""
        return self.emitted / self.steps

    @property
    def step_us(self) -> float:
        """Mean time of add_active_response and speculate together."""
        return sum(self.step_ns) / self.steps / 1e3

    @property
    def request_us(self) -> float:
        """Mean time of a whole request, its start included."""
        return (sum(self.step_ns) + self.start_ns) / self.requests / 1e3


def run(cache: Any, requests: list[RecordedRequest], factor: float, prob: float) -> Run:
    """Run the requests through a cache."""
    figures = Run(requests=len(requests))
    clock = time.perf_counter_ns
    for number, request in enumerate(requests):
        text = np.concatenate((request.prompt, request.output))
        since = clock()
        cache.start_request(number, request.prompt)
        figures.start_ns += clock() - since
        at = len(request.prompt) + 1
        new = text[at - 1 : at].tolist()
        while at < len(text):
            context = text[max(0, at - DEPTH) : at]
            since = clock()
            cache.add_active_response(number, new)
            draft = cache.speculate(
                number, context, max_spec_tokens=MOST, max_spec_factor=factor, min_token_prob=prob
            ).token_ids
            figures.step_ns.append(clock() - since)
            after = text[at : at + len(draft)].tolist()
            right = next((i for i, t in enumerate(after) if draft[i] != t), len(after))
            new = text[at : at + right + 1].tolist()
            at += len(new)
            figures.steps += 1
            figures.emitted += len(new)
            figures.drafted += len(draft)
        cache.add_active_response(number, new)
        cache.stop_request(number)
    return figures


def table(name: str, runs: dict[str, list[Run]]) -> None:
    """Print a line per cache, and the ratios of ours to theirs."""
    medians = {}
    for who, repeats in runs.items():
        step = statistics.median(one.step_us for one in repeats)
        whole = statistics.median(one.request_us for one in repeats)
        one = repeats[0]
        length, wasted = one.mean_accepted_length, one.drafted - one.emitted + one.steps
        medians[who] = (length, step, whole)
        start = statistics.median(one.start_ns for one in repeats) / one.requests / 1e3
        print(
            f"| {name} | {who} | {length:.3f} | {wasted / one.emitted:.2f} | {step:.1f} "
            f"| {start:.0f} | {whole:.0f} |"
        )
    if len(medians) == 2:
        ours, theirs = medians.values()
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(f"| {name} | ratio | {ratios[0]:.2f} | | {ratios[1]:.2f} | | {ratios[2]:.2f} |")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="*", metavar="SET", default=trace_names())
    parser.add_argument("--requests", type=int, default=60, help="of each set")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--factor", type=float, default=1.0, help="max_spec_factor")
    parser.add_argument("--prob", type=float, default=0.1, help="min_token_prob")
    parser.add_argument("--pool-prompts", action="store_true", help="ours drafts from prompts, too")
    args = parser.parse_args()
    caches: dict[str, Any] = {
        "ngramspec": lambda: SuffixDecodingCache(DEPTH, CACHED, pool_prompts=args.pool_prompts)
    }
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache as Theirs

        caches["arctic"] = lambda: Theirs(DEPTH, CACHED)
    except ImportError as error:
        print(f"without the peer: {error}\n")
    print(f"factor {args.factor:g}, min prob {args.prob:g}, {args.requests} requests per set\n")
    print("| set | cache | accepted length | wasted per token | step us | start us | request us |")
    print("|---|---|---|---|---|---|---|")
    for name in args.sets:
        requests = requests_of(name)[: args.requests]
        runs: dict[str, list[Run]] = {who: [] for who in caches}
        for _ in range(args.repeats):
            for who, make in caches.items():
                runs[who].append(run(make(), requests, args.factor, args.prob))
        table(name, runs)


if __name__ == "__main__":
    main()
