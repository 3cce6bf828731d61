"""The measurements behind docs/explanation/exactness.md; not a test.

python tests/hosts/llama_cpp/measure.py exactness
    Texts equal with and without drafts, per setting.
python tests/hosts/llama_cpp/measure.py attach
    Prefill time and memory, with and without attach().
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[2:4]]

from helpers import gguf_models  # noqa: E402
from helpers.quantisations import requantized  # noqa: E402
from ngramspec import NgramDraft, attach, embedded_model  # noqa: E402

NAMES = ["total", "count_words", "first_line", "merge", "clean", "scale", "flatten", "lookup"]
BODIES = [
    "result = 0\n    for item in items:\n        result += item.price\n    return result",
    "table = {}\n    for part in text.split():\n        table[part] = 1\n    return table",
    "with open(path) as handle:\n        for line in handle:\n            return line.strip()",
]
DRAFT = {"spec": "ngram-simple,ngram-cache", "size_n": 6}
KINDS = ("Q8_0", "F16", "Q4_K_M")


def prompts() -> Iterator[str]:
    """Yield 24 pieces of code that the model goes on with; it copies much, but not all."""
    for name in NAMES:
        for body in BODIES:
            code = f"def {name}(items, text, path):\n    {body}\n\n\n"
            yield f"{code}def {name}_again(items, text, path):\n    "


def texts(path: str, max_draft: int, temperature: float, **settings: Any) -> tuple[list[str], int]:
    """Return the 24 texts of a setting and how many draft tokens were accepted on the way."""
    from llama_cpp import Llama

    llama = Llama(path, n_ctx=512, n_batch=512, verbose=False, **settings)
    if max_draft:
        attach(llama, NgramDraft(max_draft=max_draft, size_m=max_draft, n_draft=16, **DRAFT))
    answers = []
    for seed, prompt in enumerate(prompts()):
        llama.reset()
        options = {"max_tokens": 120, "temperature": temperature, "seed": seed + 1}
        answers.append(llama.create_completion(prompt, **options)["choices"][0]["text"])
    accepted = llama.draft_model.counters.accepted if max_draft else 0
    llama.close()
    return answers, accepted


def exactness(_: argparse.Namespace) -> None:
    """Print how many of 24 texts are equal, per weights, attention, threads and draft length."""
    rows = [
        ("Q8_0", True, 1, 62), ("Q8_0", True, 1, 100), ("Q8_0", True, 2, 62),
        ("Q8_0", False, 1, 62), ("Q8_0", False, 2, 62), ("F16", True, 1, 62),
        ("F16", False, 1, 62), ("Q4_K_M", True, 1, 62), ("Q4_K_M", True, 1, 2),
    ]  # fmt: skip
    print("| weights | flash_attn | threads | max_draft | equal at 0 | equal at 0.8 | accepted |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: requantized(kind, Path(folder)) for kind in KINDS}
        for kind, flash, threads, max_draft in rows:
            settings = {"flash_attn": flash, "n_threads": threads, "n_threads_batch": threads}
            equal, accepted = [], 0
            for temperature in (0.0, 0.8):
                plain, _none = texts(paths[kind], 0, temperature, **settings)
                drafted, more = texts(paths[kind], max_draft, temperature, **settings)
                equal.append(sum(a == b for a, b in zip(plain, drafted, strict=True)))
                accepted += more
            cells = (kind, flash, threads, max_draft, *(f"{n} of 24" for n in equal), accepted)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def attach_costs(_: argparse.Namespace) -> None:
    """Print prompt time and memory, each way in a process of its own."""
    print("| vocabulary | way | 900 prompt tokens | memory grown |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        paths = {"150,016": gguf_models.build("big-vocab", Path(folder))}
        paths["4,096 (embedded model)"] = str(embedded_model())
        for name, path in paths.items():
            for way in ("no drafts", "draft_model", "attach"):
                command = [sys.executable, __file__, "one", path, way]
                got = json.loads(subprocess.check_output(command, text=True))
                cells = (name, way, f"{got['prompt']:.0f} ms", f"{got['grown']:.0f} MB")
                print("| " + " | ".join(cells) + " |", flush=True)


def peak_memory() -> int:
    """Return the most memory this process has had, in kB (Linux; getrusage counts the parent)."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def one(options: argparse.Namespace) -> None:
    """Measure one way and print JSON; run by attach_costs."""
    from llama_cpp import Llama

    draft = NgramDraft("ngram-simple", size_n=3, size_m=16)
    own = draft if options.way == "draft_model" else None
    start = peak_memory()
    llama = Llama(
        options.path, n_ctx=2048, n_batch=512, n_threads=1, n_threads_batch=1, verbose=False,
        flash_attn=True, draft_model=own, logits_all=own is not None,
    )  # fmt: skip
    if options.way == "attach":
        attach(llama, draft)
    prompt = [270 + (i * 7 + i // 50) % 80 for i in range(900)]
    seconds = []
    for _ in range(3):
        llama.reset()
        start_time = time.perf_counter()
        next(llama.generate(prompt, temp=0.0))
        seconds.append(time.perf_counter() - start_time)
    grown = (peak_memory() - start) / 1024
    print(json.dumps({"prompt": min(seconds) * 1e3, "grown": grown}))


def main() -> None:
    """Run the measurement named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run in (("exactness", exactness), ("attach", attach_costs), ("one", one)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        if run is one:
            command.add_argument("path")
            command.add_argument("way")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
