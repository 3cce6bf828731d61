"""Time per step of proposers in vLLM's model runner: ours beside vLLM's n-gram and suffix ones.

    VLLM_SOURCES=FOLDER python benchmarks/vllm_proposer.py [--batches 1,8,64] [--contexts 1024,...]

FOLDER holds an unpacked vllm wheel (tests/hosts/vllm/test_contract.py). What importing it needs
must be installed, numba for its n-gram and arctic-inference for its suffix proposer; what is
missing is left out, and the output says so. Rows are recorded requests one after another, each row
from another place on; the recorded text counts as the model's choice. All proposers take each step
in turn, in rotating order, so that what else the machine does hits all alike. Only `propose` is
timed. Ours have the policy "fixed": "auto" goes by what passes cost, and there are none here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from traces import recorded_rows

DRAFTED = 8  # num_speculative_tokens
Tokens = Any


def configuration(rows: int, longest: int, **options: Any) -> Any:
    """The parts of a VllmConfig that proposers read, with vLLM's defaults."""
    return SimpleNamespace(
        additional_config={"ngramspec": {"log_seconds": 0, **options}},
        speculative_config=SimpleNamespace(
            num_speculative_tokens=DRAFTED,
            prompt_lookup_min=3,
            prompt_lookup_max=5,
            suffix_decoding_max_tree_depth=24,
            suffix_decoding_max_cached_requests=10_000,
            suffix_decoding_max_spec_factor=1.0,
            suffix_decoding_min_token_prob=0.1,
        ),
        model_config=SimpleNamespace(
            max_model_len=longest, tokenizer="", get_vocab_size=lambda: 1 << 20
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(
            rank=0, world_size=1, tensor_parallel_size=1, distributed_executor_backend="uni"
        ),
    )


def ours_by_content(config: Any, batch: Any) -> Callable[[list[list[int]]], list[list[int]]]:
    """method="custom_class"."""
    from ngramspec.hosts.vllm import Proposer

    proposer = Proposer(config)
    return lambda new: proposer.propose(new, batch.num_tokens_no_spec, batch.token_ids_cpu)


def ours_by_id(config: Any, batch: Any) -> Callable[[list[list[int]]], list[list[int]]]:
    """method="suffix" with the plugin."""
    from ngramspec.hosts.vllm.suffix import BatchProposer

    proposer = BatchProposer(config)
    return lambda new: proposer.propose(DRAFTED, batch, new)


def vllm_ngram(config: Any, batch: Any) -> Callable[[list[list[int]]], list[list[int]]]:
    """method="ngram"."""
    proposer = load("vllm.v1.spec_decode.ngram_proposer").NgramProposer(config)
    lengths, table = batch.num_tokens_no_spec, batch.token_ids_cpu
    return lambda new: proposer.propose(DRAFTED, new, lengths, table)


def vllm_suffix(config: Any, batch: Any) -> Callable[[list[list[int]]], list[list[int]]]:
    """method="suffix" with Arctic Inference."""
    proposer = load("vllm.v1.spec_decode.suffix_decoding").SuffixDecodingProposer(config)
    return lambda new: proposer.propose(DRAFTED, batch, new)


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ours, custom_class": (ours_by_content, {"policy": "fixed"}),
    "ours, suffix plugin": (ours_by_id, {"policy": "fixed"}),
    "ours, ngram-mod": (
        ours_by_content,
        {"drafter": "ngram-mod", "policy": "fixed", "n_match": 5, "n_min": 1},
    ),
    "vLLM ngram (numba)": (vllm_ngram, {}),
    "vLLM suffix (Arctic)": (vllm_suffix, {}),
}


def load(module: str) -> Any:
    """Import a module of vLLM from VLLM_SOURCES."""
    folder = os.environ.get("VLLM_SOURCES")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("vllm.utils.torch_utils").PIN_MEMORY = False
        return importlib.import_module(module)


class Running:
    """A batch with one proposer: its table, and where each row is in its text."""

    def __init__(self, name: str, texts: list[Tokens], context: int, longest: int) -> None:
        rows = len(texts)
        self.name, self.texts, self.context = name, texts, context
        self.batch = SimpleNamespace(
            req_ids=[f"r{row}" for row in range(rows)],
            req_id_to_index={f"r{row}": row for row in range(rows)},
            token_ids_cpu=np.zeros((rows, longest), np.int32),
            num_tokens_no_spec=np.full(rows, context, np.int32),
            num_prompt_tokens=np.full(rows, context, np.int32),
        )
        make, options = KINDS[name]
        self.propose = make(configuration(rows, longest, **options), self.batch)
        for row, text in enumerate(texts):
            self.batch.token_ids_cpu[row, :context] = text[:context]
        self.drafts: list[list[int]] = [[] for _ in texts]
        self.seconds: list[float] = []
        self.emitted = 0

    def step(self) -> None:
        """Verify the drafts by the recorded text, then ask for new ones."""
        lengths, table = self.batch.num_tokens_no_spec, self.batch.token_ids_cpu
        new = []
        for row, text in enumerate(self.texts):
            at, right = int(lengths[row]), 0
            for token in self.drafts[row]:
                if token != text[at + right]:
                    break
                right += 1
            new.append(text[at : at + right + 1].tolist())
            table[row, at : at + right + 1] = new[-1]
            lengths[row] = at + right + 1
        started = time.perf_counter()
        self.drafts = self.propose(new)
        self.seconds.append(time.perf_counter() - started)
        self.emitted += sum(map(len, new))


def measure(rows: int, context: int, steps: int, names: list[str]) -> list[Any]:
    """One cell of the table: all proposers, step by step in turn."""
    longest = context + (steps + 2) * (DRAFTED + 1) + 1
    texts = list(recorded_rows(rows, longest))
    running = [Running(name, texts, context, longest) for name in names]
    for step in range(1 + steps):
        for i in range(len(running)):
            running[(step + i) % len(running)].step()
    return [
        {
            "proposer": one.name,
            "rows": rows,
            "context": context,
            "start_us": one.seconds[0] * 1e6,
            "step_us": statistics.median(one.seconds[1:]) * 1e6,
            "tokens_per_row_and_step": one.emitted / rows / (1 + steps),
        }
        for one in running
    ]


def usable(names: list[str]) -> list[str]:
    """Leave out what cannot be made here, and say so."""
    working = []
    for name in names:
        try:
            Running(name, [np.arange(64, dtype=np.int32)], 16, 64).step()
            working.append(name)
        except ImportError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    return working


def show(cells: list[Any], names: list[str]) -> None:
    """Print medians, and in brackets how many times ours each is."""
    print("| rows | context | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for key in dict.fromkeys((cell["rows"], cell["context"]) for cell in cells):
        by_name = {c["proposer"]: c for c in cells if (c["rows"], c["context"]) == key}
        first = by_name[names[0]]["step_us"]
        columns = [
            f"{by_name[name]['step_us']:,.0f} us ({by_name[name]['step_us'] / first:.2g}x, "
            f"{by_name[name]['tokens_per_row_and_step']:.2f})"
            for name in names
        ]
        print(f"| {key[0]} | {key[1]:,} | " + " | ".join(columns) + " |")
    print("\nFirst step, with whole prompts, ms:")
    for cell in cells:
        print(f"  {cell['rows']:3} x {cell['context']:6}  {cell['proposer']:28} "
              f"{cell['start_us'] / 1e3:9.2f}")  # fmt: skip


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--contexts", default="1024,8192,32768")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", default="", help="proposers whose names hold this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = usable([name for name in KINDS if options.only in name])
    cells = [
        cell
        for rows in map(int, options.batches.split(","))
        for context in map(int, options.contexts.split(","))
        for cell in measure(rows, context, options.steps, names)
    ]
    show(cells, names)
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
