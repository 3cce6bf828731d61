"""Records the run of recycle that tests/golden replays: the embedded model's texts and logits.

    python tools/record_recycle.py            # everything: needs llama-cpp-python
    python tools/record_recycle.py --drafts   # only what recycle drafts of it, after a change

Then `python tests/packaging/test_data.py` writes the digests anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.backends import Native  # noqa: E402
from helpers.recycle_run import SLOTS, TOP, WHOLE, Session, read, run, write  # noqa: E402
from ngramspec.models import embedded_model  # noqa: E402

MOST_OUTPUT = 70
TASKS = ("Repeat this code:", "Rename `{old}` to `{new}` in this code:")
# Our own: code, and a name in it to change.
SNIPPETS = (
    ("def area(width, height):\n    size = width * height\n    if size < 0:\n        raise "
     "ValueError(size)\n    return size", "size", "extent"),
    ("for name in sorted(names):\n    count = counts.get(name, 0)\n    print(name, count)\n"
     "    total += count", "count", "number"),
    ("class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
     "        self.items.append(item)", "items", "waiting"),
)  # fmt: skip
HEATS = (0.0, 1.8)


def main() -> None:
    """Record the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--drafts", action="store_true", help="keep the recorded texts and rows")
    sessions = read()[0] if parser.parse_args().drafts else record()
    steps = run(Native().drafter("recycle", SLOTS), sessions)
    write(sessions, steps)
    accepted = sum(step["accepted"] for step in steps)
    print(f"{len(sessions)} sessions, {len(steps)} steps, {accepted} tokens accepted")


def record() -> list[Session]:
    """Return what the embedded model says to each prompt, and its logits."""
    from llama_cpp import Llama

    llama = Llama(
        str(embedded_model()), n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1,
        flash_attn=True, logits_all=True, verbose=False,
    )  # fmt: skip
    random = np.random.default_rng(7)
    sessions = []
    for code, old, new in SNIPPETS:
        for task in TASKS:
            asked = f"{task.format(old=old, new=new)}\n\n```python\n{code}\n```"
            text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
            prompt = llama.tokenize(text.encode(), special=True)
            sessions += [answer(llama, prompt, heat, random) for heat in HEATS]
    return sessions


def answer(llama: Any, prompt: list[int], heat: float, random: np.random.Generator) -> Session:
    """Return a request: its tokens chosen by chance, or the likeliest where heat is 0."""
    llama.reset()
    llama.eval(prompt)
    output: list[int] = []
    while len(output) < MOST_OUTPUT and (not output or output[-1] != llama.token_eos()):
        p = softmax(llama.scores[llama.n_tokens - 1] / (heat or 1.0))
        output.append(int(random.choice(p.size, p=p)) if heat else int(p.argmax()))
        llama.eval(output[-1:])
    rows = [likeliest(llama.scores[i]) for i in range(len(prompt) + len(output) - 1)]
    return Session(prompt, output, rows)


def likeliest(row: Any) -> tuple[list[int], list[int]]:
    """Return the likeliest tokens and their probabilities, without those that round to 0."""
    p = np.rint(softmax(row) * WHOLE).astype(int)
    top = [int(token) for token in np.argsort(-p, kind="stable")[:TOP] if p[token]]
    return top, [int(p[token]) for token in top]


def softmax(row: Any) -> Any:
    """Return probabilities."""
    e = np.exp(row.astype(np.float64) - row.max())
    return e / e.sum()


if __name__ == "__main__":
    main()
