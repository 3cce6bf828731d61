"""What parts of a step cost where no model computes anything, beside another build.

    python benchmarks/step_parts.py
    python benchmarks/step_parts.py --baseline CHECKOUT     # runs of both builds alternate
    python benchmarks/step_parts.py --parts verify --runs 7

- resting: what a step takes longer with a draft model that is never asked, as it is too dear;
- decodes: how often a draft model decodes for drafts of 6 tokens that were right the last time;
- mtp: what MTP heads that compute nothing take from the target's decodes: of a prompt of 2,048
  tokens with states of 5,120 numbers, and of a step of 8 slots; and copying such states alone;
- verify: choosing a token of every slot from 151,936 logits, alone and with `recycle`, which
  learns from them;
- forbidden: choosing a token of 49,152 where the grammar forbids the first choice, and where it
  does not, greedily and with the usual filters.

Medians over the runs, each of them a process; in brackets the least and the most.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Batch, GreedySampler, Rows
from ngramspec._native.grammar.matcher import Matcher, Tokens
from ngramspec._native.hosts.llama import Candidates, ChainSampler
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, DraftModel, Engine, MtpHeads, Request, Sampling
from ngramspec.text.grammar.gbnf import read_grammar
from ngramspec.text.tokenizers.llama_library import load_library

COSTS = CostTable(((1, 1.0), (512, 3.0)))
VOCABULARY = 151_936
FEW = 10_000  # tokens of a vocabulary that has a row of logits for each
BLOCK = 64  # steps
CONTEXT = 65_536
PROMPT = np.array([1, 5, 7], np.int32)


class Silent:
    """A target that computes nothing: what comes next depends on position and sequence only.

    Args:
        slots: Sequences.
        vocab_size: Of its logits.
        period: The text repeats itself after so many tokens; 0 = after 4,999.
    """

    window = exact_batch = branch_bytes = state_bytes = num_adapters = 0
    max_rollback = min_copy = cells = None
    can_save = shares_copies = contiguous = False
    no_shift, no_branches, aside, identity = "it computes nothing", "", 0.0, bytes(16)
    max_branches, context_size, max_batch = 1, CONTEXT, 512

    def __init__(self, slots: int, vocab_size: int = 512, period: int = 0) -> None:
        self.num_sequences, self.vocab_size = slots, vocab_size
        self.max_outputs = 0 if vocab_size < FEW else 6 * slots
        self.text = np.random.default_rng(1).integers(1, vocab_size, period or 4999)
        if vocab_size < FEW:
            self.logits = np.eye(vocab_size, dtype=np.float32) * 10
        else:
            rng = np.random.default_rng(0)
            logits = rng.standard_normal((self.max_outputs, vocab_size)) * 2
            self.logits = logits.astype(np.float32)
        self.changed: list[tuple[int, int, float]] = []
        self.seconds, self.decodes = 0.0, 0

    def decode(self, batch: Batch, rows: Any) -> None:
        """Show logits; what that takes is added up."""
        started = time.perf_counter()
        self.decodes += 1
        _, positions, sequences, outputs = batch.arrays()
        places = positions[outputs] + 1 + 37 * sequences[outputs]
        following = self.text[places % len(self.text)]
        if self.vocab_size < FEW:
            rows.set(self.logits[following])
        else:
            for row, token, logit in self.changed:
                self.logits[row, token] = logit
            chosen = list(enumerate(following.tolist()))
            self.changed = [(row, token, float(self.logits[row, token])) for row, token in chosen]
            for row, token in chosen:
                self.logits[row, token] = 30.0
            rows.set(self.logits[: len(following)])
        self.seconds += time.perf_counter() - started

    def truncate(self, sequence: int, length: int) -> bool:
        """Remove nothing."""
        return True

    def adapt(self, adapters: Any) -> None:
        """Compute with no adapters."""

    def sampler(self, sampling: Sampling, seed: int) -> GreedySampler:
        """Choose greedily."""
        return GreedySampler()

    def piece(self, token_id: int, special: bool) -> bytes:
        """Return the token's number."""
        return b" %d" % token_id

    def is_end(self, token_id: int) -> bool:
        """Return False: texts go on."""
        return False


def engine_on(target: Any, drafter: str, tokens: int, drafts: DraftModel | None = None) -> Engine:
    """Return an engine with a request on every slot."""
    policy = AutoPolicy(
        8, costs=COSTS
    )  # of longer drafts the text grows so fast that figures scatter
    slots = target.num_sequences
    engine = Engine(target, drafter, slots=slots, policy=policy, draft_model=drafts, tree="off")
    for i in range(slots):
        sampling = Sampling(temperature=0.0)
        engine.submit(Request(prompt_ids=PROMPT + i, sampling=sampling, max_tokens=tokens))
    return engine


class Steps:
    """An engine on a Silent target, whose steps are timed in blocks."""

    def __init__(self, slots: int, period: int, model: bool) -> None:
        self.target = Silent(slots, period=period)
        small: Any = Silent(slots, period=period)
        drafts = DraftModel(small, n_max=6, p_min=0.0) if model else None
        if drafts is not None:
            drafts.price = lambda: (1e9, 1e9)  # type: ignore[method-assign]
        self.engine = engine_on(self.target, "suffix", CONTEXT - 100, drafts)

    def block(self) -> float:
        """Return what a step takes beside the target, in us."""
        before, started = self.target.seconds, time.perf_counter()
        for _ in range(BLOCK):
            self.engine.step()
        if not self.engine.busy:
            raise AssertionError("the requests have ended")
        return 1e6 * (time.perf_counter() - started - self.target.seconds + before) / BLOCK


def resting() -> dict[str, float]:
    """Return what a draft model that is never asked adds to a step."""
    results = {}
    for slots in (1, 8):
        for period, name, blocks in ((0, "new text", 60), (400, "repeating text", 30)):
            without, beside = Steps(slots, period, False), Steps(slots, period, True)
            more = []
            for _ in range(blocks):
                alone = without.block()
                more.append(beside.block() - alone)
            results[f"resting model, {slots} slots, {name}, us"] = statistics.median(more[2:])
    return results


def decodes() -> dict[str, float]:
    """Return how often a draft model decodes for drafts of six tokens."""
    results = {}
    for slots in (1, 8, 16):
        model: Any = Silent(slots)
        drafts = DraftModel(model, n_max=6, p_min=0.0)
        ids = list(range(slots))
        for slot in ids:
            drafts.begin(slot, PROMPT)
        counts = []
        for _ in range(5):
            model.decodes = 0
            proposed = drafts.propose(ids, [6] * slots)
            counts.append(model.decodes)
            for slot, draft in zip(ids, proposed, strict=True):
                drafts.accept(slot, np.append(draft, 1).astype(np.int32), 6)
        results[f"decodes of a draft model, {slots} slots"] = float(counts[-1])
    return results


class SilentHeads:
    """MTP heads that compute nothing."""

    vocab_size, num_heads, state_width, num_sequences = 64, 1, 5120, 8
    context_size, max_batch = 8192, 512

    def decode(self, batch: Batch, states: Any, rows: Any, head: int) -> Any:
        """Show logits of nothing."""
        count = batch.num_outputs
        rows.set(np.zeros((count, self.vocab_size), np.float32))
        return np.zeros((count, self.state_width), np.float32)

    def truncate(self, sequence: int, length: int) -> None:
        """Remove nothing."""

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Copy nothing."""
        return True

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Move nothing."""
        return True

    def is_end(self, token_id: int) -> bool:
        """Return False: texts go on."""
        return False

    def listen(self, follower: Any) -> None:
        """Hear of decodes from the benchmark."""


def median_of(call: Callable[[int], Any], times: int) -> float:
    """Return the median seconds of calls with 0, 1, ..."""
    spent = []
    for i in range(times):
        started = time.perf_counter()
        call(i)
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def mtp() -> dict[str, float]:
    """Return what MTP heads take from the target's decodes."""
    heads = MtpHeads(SilentHeads(), n_max=3)
    tokens = np.arange(2048, dtype=np.int32) % 60
    states = np.random.default_rng(0).standard_normal((2048, 5120)).astype(np.float32)
    place = np.zeros((512, 5120), np.float32)
    prompts, steps = [], []
    for slot in range(8):
        prompts.append(Batch(2048))
        prompts[-1].add(slot, 0, tokens)
    for i in range(300):
        steps.append(Batch(64))
        for slot in range(8):
            steps[-1].add(slot, 2048 + i, tokens[:1])

    def copy_once(_: int) -> None:
        for first in range(0, 2048, 512):
            place[:] = states[first : first + 512]

    return {
        "mtp, prompt of 2,048 tokens, ms": 1e3
        * median_of(lambda i: heads.decoded(prompts[i], states), 8),
        "copying its states once, ms": 1e3 * median_of(copy_once, 8),
        "mtp, step of 8 slots, us": 1e6
        * median_of(lambda i: heads.decoded(steps[i], states[:8]), 300),
        "copying its 8 states, us": 1e6
        * median_of(lambda _: [states[i : i + 1].copy() for i in range(8)], 300),
    }


def verify() -> dict[str, float]:
    """Return what the choice of tokens takes."""
    results = {}
    for slots in (1, 16):
        for drafter in ("suffix", "suffix,recycle"):
            engine = engine_on(Silent(slots, VOCABULARY), drafter, 200)
            spent = []
            while engine.busy:
                before = engine.stats().verify_seconds
                engine.step()
                if all(slot.state == "decode" for slot in engine.slots()):
                    spent.append(engine.stats().verify_seconds - before)
            if engine.stats().finished != {"length": slots}:
                raise AssertionError("a request failed")
            results[f"verify, {slots} slots, {drafter}, ms"] = 1e3 * statistics.median(spent[5:])
    return results


def forbidden() -> dict[str, float]:
    """Return what choosing takes where a grammar forbids the likeliest tokens."""
    library, rng = load_library(), np.random.default_rng(0)
    lib, size = library.lib, 49_152
    texts = [bytes(rng.integers(97, 123, length).tolist()) for length in rng.integers(2, 9, size)]
    tokens, candidates = Tokens(texts, [False] * size), Candidates(size)
    logits = rng.standard_normal((1, size)).astype(np.float32) * 3
    logits[0, [not text.startswith(b"a") for text in texts]] += 20.0
    rows = Rows(size)
    rows.set(logits)
    greedy = [lib.llama_sampler_init_greedy()]
    usual = [
        lib.llama_sampler_init_top_k(40),
        lib.llama_sampler_init_top_p(0.95, 0),
        lib.llama_sampler_init_min_p(0.05, 0),
        lib.llama_sampler_init_temp(0.8),
        lib.llama_sampler_init_dist(1),
    ]
    results = {}
    for filters, samplers, keep in (("greedy", greedy, 1), ("usual filters", usual, 40)):
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in samplers:
            lib.llama_sampler_chain_add(chain, sampler)
        address = ctypes.cast(chain, ctypes.c_void_p).value or 0
        for grammar, name in (("[a-z]*", "allowed"), ('"a" [a-z]*', "forbidden")):
            matcher = Matcher(read_grammar(f"root ::= {grammar}", lambda text: -1), tokens)
            own = ChainSampler(library.calls, address, candidates, None, matcher, keep=keep)
            if texts[own.choose(rows, 0)].startswith(b"a") != (name == "forbidden"):
                raise AssertionError("the grammar was not followed")
            label = f"first choice is {name}, {filters}, us"
            results[label] = 1e6 * median_of(lambda _, own=own: own.choose(rows, 0), 1000)
        lib.llama_sampler_free(chain)
    return results


PARTS = {
    "resting": resting,
    "decodes": decodes,
    "mtp": mtp,
    "verify": verify,
    "forbidden": forbidden,
}


def measured_in(checkout: Path | None, parts: str) -> dict[str, float]:
    """Measure in a process of its own, with another checkout's package if there is one."""
    command = [sys.executable, __file__, "--parts", parts, "--once"]
    place = {**os.environ, "PYTHONPATH": str(checkout or Path(__file__).resolve().parent.parent)}
    printed = subprocess.run(command, env=place, check=True, stdout=subprocess.PIPE).stdout
    figures: dict[str, float] = json.loads(printed)
    return figures


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--runs", type=int, default=5, help="of each build (5)")
    parser.add_argument("--baseline", type=Path, metavar="CHECKOUT", help="another build, in place")
    parser.add_argument("--once", action="store_true", help="measure here, print JSON")
    options = parser.parse_args()
    if options.once:
        figures = {}
        for part in options.parts.split(","):
            figures.update(PARTS[part]())
        print(json.dumps(figures))
        return
    builds = {"this": None, **({"baseline": options.baseline} if options.baseline else {})}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(options.runs):
        for name, checkout in builds.items():
            runs[name].append(measured_in(checkout, options.parts))
    print(f"{'':<44}" + "".join(f"{name:>28}" for name in builds) + "   ratio" * (len(builds) > 1))
    for label in runs["this"][0]:
        cells, middles = [], []
        for measured in runs.values():
            values = [one[label] for one in measured]
            middles.append(statistics.median(values))
            cells.append(f"{middles[-1]:.2f} ({min(values):.2f} to {max(values):.2f})")
        ratio = f"{middles[0] / middles[1]:>8.2f}" if len(middles) > 1 and middles[1] else ""
        print(f"{label:<44}" + "".join(f"{cell:>28}" for cell in cells) + ratio)


if __name__ == "__main__":
    main()
