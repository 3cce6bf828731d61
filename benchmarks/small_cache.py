"""Requests that do not all fit in the cache of their slots, beside a cache that holds all.

    python benchmarks/small_cache.py                                  # the embedded model
    python benchmarks/small_cache.py --model FILE --threads 2 --slots 8

Clients of mixed lengths (prompts of 20 to 400 tokens, answers of 20 to 500, one seed) come at once.
Per number of clients and size of the cache: tokens per second in the small cache over those in a
cache in which every slot can be full, both with the same slots, in turn; the median of --repeats
pairs and their range; preemptions, and the tokens that were read again or brought back from memory,
as shares of those of prompts; how much the process has grown since the first pair; tokens/s.
Every request must end by its limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from ngramspec import embedded_model
from ngramspec.engine import Engine, Request, Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings, with_branches
from ngramspec.llamacpp.target import LlamaTarget

CLIENTS, CELLS = (4, 8, 32), (1024, 2048, 4096)
PROMPTS, ANSWERS = (20, 100, 400), (20, 150, 500)


def requests(model: LlamaModel, count: int) -> list[Request]:
    """Return requests of mixed lengths, each about another text."""
    chance = np.random.default_rng(5)
    source = Path(__file__).read_text()
    ids = model.tokenize(source)
    asked = []
    for number in range(count):
        size, answer = int(chance.choice(PROMPTS)), int(chance.choice(ANSWERS))
        start = number * 7 % max(1, ids.size - size)
        prompt = np.concatenate([model.tokenize(f"# part {number}\n"), ids[start:][:size]])
        sampling = Sampling(temperature=0, ignore_eos=True)
        asked.append(Request(prompt_ids=prompt, max_tokens=answer, sampling=sampling))
    return asked


def run(model: LlamaModel, options: argparse.Namespace, cells: int, jobs: list[Request]) -> Engine:
    """Answer all requests; return the engine, closed, whose counters say how it went."""
    size = min(CELLS[0], model.n_ctx_train)
    settings = ContextSettings(
        slots=options.slots,
        context_size=size,
        cells=cells or size * options.slots,
        kv_unified=True,
        threads=options.threads,
    )
    with LlamaTarget(model, with_branches(settings, "auto")) as target:
        engine = Engine(target, options.drafter or None, slots=options.slots)
        for answer in engine.generate(jobs):
            assert answer.finish_reason == "length", (answer.finish_reason, answer.error)
            assert answer.num_tokens == answer.request.max_tokens
        engine.close()
    return engine


def resident() -> int:
    """Return the memory of this process, in bytes."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=embedded_model())
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drafter", default="suffix", help='"" = no drafts')
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--cells", type=int, nargs="*", default=CELLS)
    options = parser.parse_args()
    print(
        "clients  cells  speed (range)        preempted  read again  restored      grown  tokens/s"
    )
    with LlamaModel(options.model) as model:
        for clients in options.clients:
            jobs = requests(model, clients)
            tokens = sum(job.max_tokens for job in jobs)
            for cells in options.cells:
                ratios, held = [], 0
                for _ in range(options.repeats):
                    seconds = []
                    for size in (0, cells):
                        started = time.perf_counter()
                        stats = run(model, options, size, jobs).stats()
                        seconds.append(time.perf_counter() - started)
                    ratios.append(seconds[0] / seconds[1])
                    held = held or resident()
                again = stats.num_reread_tokens / stats.num_prompt_tokens
                restored = stats.num_restored_tokens / stats.num_prompt_tokens
                print(
                    f"{clients:7}  {cells:5}  {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})  {stats.num_preempted:9}  "
                    f"{again:10.1%}  {restored:8.1%}  {(resident() - held) / 2**20:5.1f} MiB  "
                    f"{tokens / seconds[1]:8.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
