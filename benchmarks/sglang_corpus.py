"""Our corpus for SGLang's NGRAM algorithm beside SGLang's own, called as its worker calls them.

python benchmarks/sglang_corpus.py --sglang FOLDER [--requests N] [--repeats N] [--rows D] [SET ...]

FOLDER is an unpacked wheel of sglang 0.5.23, kernels/jit with its C++ included; its corpus is
compiled from that (g++, ninja, apache-tvm-ffi==0.1.11, torch; some 15 s the first time). Without
FOLDER ours runs alone. Recorded requests run one after the other, a recorded output counts as the
target's choice, and a tree is accepted along the path that agrees. Both run in turn; times are
medians over the repeats. SGLang's own sees the last 18 tokens of a text only, as in SGLang.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.settings import read_settings
from ngramspec.lab.recordings import RecordedRequest
from traces import requests_of, trace_names

DEPTH, WIDTH = 18, 10  # SGLang's defaults


def sglang_corpus(folder: Path) -> Any:
    """Return SGLang's class NgramCorpus, its C++ compiled without the rest of SGLang."""
    import functools

    import tvm_ffi.cpp

    def load_jit(name: str, cpp_files: list[str], **_: Any) -> Any:
        source = folder / "sglang/kernels/jit/csrc"
        paths = [str(source / file) for file in cpp_files]
        return tvm_ffi.cpp.load(
            name=name,
            cpp_files=paths,
            extra_cflags=["-std=c++20", "-O3"],
            extra_include_paths=[str(folder / "sglang/kernels/jit/include")],
        )

    jit: Any = types.ModuleType("sglang.kernels.jit.utils")
    jit.cache_once, jit.load_jit = functools.cache, load_jit
    sys.modules[jit.__name__] = jit
    for name in (
        "sglang.kernels.ops.speculative.ngram_corpus",
        "sglang.srt.speculative.cpp_ngram.ngram_corpus",
    ):
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise SystemExit(f"{path}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module.NgramCorpus


@dataclass
class Run:
    """Totals of one run over a set."""

    steps: int = 0
    emitted: int = 0
    spent_ns: int = 0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per step of the target."""
        return self.emitted / self.steps

    @property
    def step_us(self) -> float:
        """Mean time of all calls of a step, and of what is shown of a new request."""
        return self.spent_ns / self.steps / 1e3


def right_path(rows: list[int], mask: Any, after: list[int]) -> int:
    """Return how many of the tokens that come are a path of the tree."""
    at = right = 0
    parents = [max(j for j in range(i) if mask[i, j]) for i in range(1, len(rows))]
    while right < len(after):
        here = (i + 1 for i, p in enumerate(parents) if p == at and rows[i + 1] == after[right])
        at = next(here, 0)
        if not at:
            break
        right += 1
    return right


def run(corpus: Any, requests: list[RecordedRequest], d: int) -> Run:
    """Run the requests through a corpus, one at a time."""
    figures, clock = Run(), time.perf_counter_ns
    for number, request in enumerate(requests):
        name, prompt = str(number), array("q", request.prompt.tolist())
        output, at = request.output.tolist(), 1
        shown = [SimpleNamespace(rid=name, origin_input_ids_unpadded=prompt,
                                 output_ids=array("q", output[:1]))]  # fmt: skip
        while at < len(output):
            tail = (list(prompt[-DEPTH:]) + output[max(0, at - DEPTH) : at])[-DEPTH:]
            since = clock()
            if isinstance(corpus, Corpus):
                corpus.meet(shown)
            corpus.synchronize()
            ids, mask = corpus.batch_get([name], [tail], [len(prompt) + at])
            corpus.batch_put([tail])
            figures.spent_ns += clock() - since
            corpus.synchronize()  # SGLang's inserts hide behind the model's pass
            after = output[at : at + d - 1]
            right = right_path(ids.tolist(), mask.reshape(d, d), after)
            new = min(right + 1, len(output) - at)
            at, figures.steps, figures.emitted = at + new, figures.steps + 1, figures.emitted + new
        corpus.erase_match_state([name])
    return figures


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="*", metavar="SET", default=trace_names())
    parser.add_argument("--sglang", type=Path, metavar="FOLDER")
    parser.add_argument("--requests", type=int, default=40, help="of each set")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=12, help="speculative_num_draft_tokens")
    args = parser.parse_args()
    options = {"max_trie_depth": DEPTH, "draft_token_num": args.rows, "max_bfs_breadth": WIDTH}
    settings = read_settings({})
    makers: dict[str, Any] = {
        "ngramspec": lambda: Corpus(**options, settings=settings, vocab_size=1 << 21)
    }
    if args.sglang:
        theirs = sglang_corpus(args.sglang)
        makers["sglang"] = lambda: theirs(**options, capacity=1_000_000)
    print("| set | corpus | accepted length | step us |")
    print("|---|---|---|---|")
    for name in args.sets:
        requests = requests_of(name)[: args.requests]
        runs: dict[str, list[Run]] = {who: [] for who in makers}
        for _ in range(args.repeats):
            for who, make in makers.items():
                runs[who].append(run(make(), requests, args.rows))
        pairs = []
        for who, repeats in runs.items():
            step = statistics.median(one.step_us for one in repeats)
            pairs.append((repeats[0].mean_accepted_length, step))
            print(f"| {name} | {who} | {pairs[-1][0]:.3f} | {step:.1f} |")
        if len(pairs) == 2:
            ratios = [a / b for a, b in zip(*pairs, strict=True)]
            print(f"| {name} | ratio | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
