"""Time generate() of transformers on the demo's tasks: plain, prompt lookup, and our drafts.

The embedded model in float32, greedy, whole calls with their prompts, in interleaved rounds. Every
text is compared with the plain one. Needs torch, transformers and gguf:

    python benchmarks/transformers_generate.py --repeats 7
    python benchmarks/transformers_generate.py --trees      # tokens per pass of chains and trees
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngramspec import embedded_model
from ngramspec.hosts.transformers import NgramSpeculator, ngramspec_generate
from ngramspec.lab.e2e.tasks import FREE, TASKS

EXPORTER = Path(__file__).parents[1] / "tools" / "gguf_to_transformers.py"
Call = Callable[[], dict[str, Any]]


def load() -> tuple[Any, Any]:
    """Return the embedded model and its tokenizer, by way of safetensors."""
    spec = importlib.util.spec_from_file_location("gguf_to_transformers", EXPORTER)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{EXPORTER} cannot be loaded")
    exporter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exporter)
    with tempfile.TemporaryDirectory() as folder:
        exporter.export(embedded_model(), Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder)
        return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


def ways(lookup: bool) -> dict[str, Call]:
    """Return the arguments of each way, fresh for each call."""
    lasting = NgramSpeculator("suffix")
    ours = {"custom_generate": ngramspec_generate}
    calls: dict[str, Call] = {"plain": dict}
    if lookup:
        calls["prompt lookup"] = lambda: {"prompt_lookup_num_tokens": 10}
    # Costs of passes are known from the calls before; texts only where the object is the same.
    calls["suffix"] = lambda: {**ours, "drafter": NgramSpeculator("suffix", policy=lasting.policy)}
    calls["suffix, kept"] = lambda: {**ours, "drafter": lasting}
    return calls


def measure(
    model: Any, inputs: Any, calls: dict[str, Call], repeats: int, **options: Any
) -> tuple[int, dict[str, list[float]], list[str]]:
    """Return the new tokens, seconds by way, and the ways whose text was another one."""
    times: dict[str, list[float]] = {way: [] for way in calls}
    expected, other = None, []
    for turn in range(repeats + 1):  # the first warms up
        for way, call in calls.items():
            arguments = call()
            started = time.perf_counter()
            text = model.generate(**inputs, do_sample=False, **options, **arguments)
            seconds = time.perf_counter() - started
            expected = text if expected is None else expected
            if not torch.equal(text, expected):
                other.append(way)
            if turn:
                times[way].append(seconds)
    assert expected is not None
    ids = expected[:, inputs["input_ids"].shape[1] :]
    return int((ids != model.config.pad_token_id).sum()), times, other


def tokens_per_pass(model: Any, inputs: Any, tree: int | str, most: int, **options: Any) -> float:
    """Return what a pass emits when drafts of one row hold at most `most` tokens."""
    calls: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(None))
    text = model.generate(
        **inputs,
        **options,
        do_sample=False,
        custom_generate=ngramspec_generate,
        drafter=NgramSpeculator("suffix", policy="fixed"),
        max_draft=most,
        tree=tree,
    )
    hook.remove()
    if not torch.equal(text, model.generate(**inputs, **options, do_sample=False)):
        raise SystemExit(f"another text with tree={tree!r} and drafts of {most} tokens")
    # The prompt's pass gives the first token.
    return float(text.shape[1] - inputs["input_ids"].shape[1] - 1) / (len(calls) - 1)


def compare_trees(model: Any, named: list[tuple[str, Any]], **options: Any) -> None:
    """Print tokens per pass of chains and of trees of as many tokens."""
    sizes = (4, 8, 16, 32)
    print(f"| task | {' | '.join(f'{most} tokens' for most in sizes)} |")
    print(f"|{'---|' * (1 + len(sizes))}")
    for name, inputs in named:
        cells = [name]
        for most in sizes:
            chain, tree = (
                tokens_per_pass(model, inputs, kind, most, **options) for kind in ("off", 8)
            )
            cells.append(f"{chain:.2f} → {tree:.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def show(name: str, tokens: int, times: dict[str, list[float]], other: list[str]) -> None:
    """Print a row of the table: tokens per second, and the median of ratios round by round."""
    cells = [name, str(tokens)]
    for way, seconds in times.items():
        rate = tokens / statistics.median(seconds)
        ratios = [a / b for a, b in zip(times["plain"], seconds, strict=True)]
        gain = f" ({statistics.median(ratios):.2f}x)" if way != "plain" else ""
        cells.append(f"{rate:,.0f}{gain}{' other text' if way in other else ''}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print one table for batch size 1 and one for batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
    parser.add_argument("--trees", action="store_true", help="tokens per pass, chains and trees")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load()
    tasks = (*TASKS, FREE)
    prompts = [
        tokenizer.apply_chat_template(task.messages, add_generation_prompt=True, tokenize=False)
        for task in tasks
    ]
    static = options.cache == "static"
    settings = {"max_new_tokens": options.max_tokens}
    settings.update({"cache_implementation": "static"} if static else {})
    single = [
        (task.name, tokenizer(prompt, return_tensors="pt"))
        for task, prompt in zip(tasks, prompts, strict=True)
    ]
    if options.trees:
        compare_trees(model, single, **settings)
        return
    calls = ways(lookup=not static)  # prompt lookup needs a dynamic cache
    print(f"| task | tokens | {' | '.join(calls)} |\n|{'---|' * (len(calls) + 2)}")
    for name, inputs in single:
        show(name, *measure(model, inputs, calls, options.repeats, **settings))
    calls = ways(lookup=False)  # prompt lookup is for batch size 1
    print(f"\n| batch | tokens | {' | '.join(calls)} |\n|{'---|' * (len(calls) + 2)}")
    for rows in (2, 4, 6):
        inputs = tokenizer(prompts[:rows], return_tensors="pt", padding=True)
        show(str(rows), *measure(model, inputs, calls, options.repeats, **settings))


if __name__ == "__main__":
    main()
