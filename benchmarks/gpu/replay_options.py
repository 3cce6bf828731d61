"""What the measurements of transformers have in common: options, the model on its device."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from messages import say
from packed_llama import SHAPES, Cache, Shape, random_model
from packed_passes import CONTEXT_STEP, Passes
from replay_rounds import add_minutes
from replay_setup import device_facts, facts
from replay_texts import Text, load_texts, set_names

SLACK = 64  # tokens that a row has beyond its text
WORK_BYTES = 6 << 30  # beside weights and caches: graphs, logits, masks


@dataclass(frozen=True)
class Scale:
    """The defaults of a size of run."""

    batches: tuple[int, ...]
    requests: int  # at least, and 3 per row
    prompt: int
    output: int
    rounds: int


SCALES = {
    "8b": Scale((1, 8, 32), 12, 2048, 128, 3),
    "small": Scale((1, 2, 4), 4, 96, 32, 1),
}


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all."""
    cli = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--small", action="store_true", help="a few layers; always without a GPU")
    cli.add_argument("--batch", type=int, nargs="+", help="rows (1 8 32; small: 1 2 4)")
    cli.add_argument("--prompt", type=int, help="tokens of prompts, at most (2048; small: 96)")
    cli.add_argument("--max-draft", type=int, default=32, help="longest draft (32)")
    cli.add_argument("--eager", action="store_true", help="no CUDA graphs")
    add_minutes(cli)
    cli.add_argument("--seed", type=int, default=1, help="of the weights")
    cli.add_argument("--json", type=Path, help="where results go")
    return cli


def replay_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with those of the replays, too."""
    cli = parser(description)
    cli.add_argument("--sets", nargs="+", default=set_names(), help="recorded sets (all)")
    cli.add_argument("--requests", type=int, help="per batch size (12 or 3 per row; small: 4)")
    cli.add_argument("--output", type=int, help="first tokens of outputs (128; small: 32)")
    cli.add_argument("--rounds", type=int, help="runs of each mode after one to warm up (3)")
    cli.add_argument(
        "--prompts", action="store_true", help="compute prompts, instead of noise in the cache"
    )
    return cli


def settle(options: argparse.Namespace) -> None:
    """Fill in what was left open, by what there is to run on.

    Raises:
        SystemExit: A number is out of its bounds, or no batch size fits in the GPU's memory.
    """
    options.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.device.type == "cpu" and not options.small:
        print("No CUDA device: a small model on the CPU instead. Its figures say nothing of GPUs.")
        options.small = True
    options.scale = SCALES["small" if options.small else "8b"]
    options.shape = SHAPES["small" if options.small else "8b"]
    options.dtype = torch.float32 if options.device.type == "cpu" else torch.bfloat16
    options.batch = options.batch or list(options.scale.batches)
    for name in ("prompt", "output", "rounds"):
        if getattr(options, name, None) is None:
            setattr(options, name, getattr(options.scale, name))
    least = {"prompt": 1, "output": 4, "rounds": 1, "max_draft": 1}
    for name, low in least.items():
        if getattr(options, name) < low:
            raise SystemExit(f"--{name.replace('_', '-')} must be {low} or more")
    if min(options.batch) < 1:
        raise SystemExit("--batch must be 1 or more")
    leave_out_what_does_not_fit(options)


def requests_for(options: argparse.Namespace, rows: int) -> list[Text]:
    """Return the texts of a batch size."""
    count = options.requests or max(options.scale.requests, 3 * rows)
    return load_texts(options.sets, max(count, rows), options.prompt, options.output)


def make_model(options: argparse.Namespace) -> Any:
    """Return the model, and say how large it is."""
    shape: Shape = options.shape
    model = random_model(shape, options.device, options.dtype, options.seed)
    count = sum(weights.numel() for weights in model.parameters())
    print(
        f"{count / 1e6:.1f} M random weights, {shape.layers} layers of {shape.hidden}, "
        f"{str(options.dtype).removeprefix('torch.')}, on {options.device}",
        flush=True,
    )
    return model


def cache_length(options: argparse.Namespace) -> int:
    """Return the tokens of a row of the cache."""
    room = options.prompt + options.output + options.max_draft + SLACK
    return int(-(-room // CONTEXT_STEP) * CONTEXT_STEP)


def make_passes(
    model: Any, options: argparse.Namespace, rows: int, prompts: bool = False
) -> Passes:
    """Return passes over a fresh cache, which holds noise unless prompts are computed."""
    length = cache_length(options)
    cache = Cache(options.shape, rows, length, options.device, options.dtype)
    if not prompts:
        cache.fill_with_noise()
    return Passes(model, cache, options.max_draft, graphs=not options.eager, prompts=prompts)


def leave_out_what_does_not_fit(options: argparse.Namespace) -> None:
    """Keep the batch sizes whose caches fit in the GPU's memory beside the weights, all at once.

    Raises:
        SystemExit: None does.
    """
    if options.device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(options.device)
    shape, length = options.shape, cache_length(options)
    taken = shape.parameters * options.dtype.itemsize + WORK_BYTES
    needs = [shape.cache_bytes(rows, length, options.dtype) for rows in options.batch]
    options.batch = those_that_fit(options.batch, needs, taken, free, say)
    if not options.batch:
        raise SystemExit("no batch size fits in the GPU's memory: try a shorter --prompt")


def those_that_fit(
    sizes: Sequence[int], needs: Sequence[int], taken: int, free: int, say: Callable[[str], object]
) -> list[int]:
    """Return the batch sizes whose caches fit, in their order; say which are left out, and why.

    needs: Bytes of each. taken: Bytes that all of them need beside. free: Bytes that there are.
    """
    fitting = []
    for rows, need in zip(sizes, needs, strict=True):
        if taken + need <= free:
            taken += need
            fitting.append(rows)
            continue
        say(
            f"batch {rows} is left out: its cache takes {need / 1e9:.1f} GB, "
            f"all else {taken / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
    return fitting


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """Return the set-up of a run."""
    shape: Shape = options.shape
    return {
        **facts("torch", "transformers", "numpy"),
        "device": device_facts(options.device),
        "model": {**vars(shape), "dtype": str(options.dtype), "weights": "random"},
        "batch": options.batch,
        "prompt": options.prompt,
        "max_draft": options.max_draft,
        "minutes": options.minutes,
    }


def describe_replay(options: argparse.Namespace) -> dict[str, Any]:
    """Return the set-up of a replay."""
    return {
        **describe(options),
        "sets": options.sets,
        "output": options.output,
        "rounds": options.rounds,
        "prompts": "computed" if options.prompts else "noise in the cache",
    }
