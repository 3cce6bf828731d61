"""Requests of many kinds for the embedded model, and drafters that are wrong on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec.engine import DraftSource, Request, Sampling, Speculation

NAMES = ["total", "count_words", "first_line", "merge", "clean", "scale", "flatten", "lookup"]
BODIES = [
    "result = 0\n    for item in items:\n        result += item.price\n    return result",
    "table = {}\n    for part in text.split():\n        table[part] = 1\n    return table",
    "with open(path) as handle:\n        for line in handle:\n            return line.strip()",
    "if not values:\n        return None\n    return max(values) - min(values)",
    "left, right = parts[0], parts[1]\n    return left.lower() + right.upper()",
]
TASKS = ["Repeat this code:", "Rename `{0}` to `{0}_new` in this code:", "Repeat this text:"]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "repeat_penalty": 1.1, "frequency_penalty": 0.2},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 0.9, "typical_p": 0.7, "dry_multiplier": 0.8},
    {"temperature": 0.0, "repeat_penalty": 1.2},
    {"temperature": 0.8, "grammar": 'root ::= [a-z_ \\n(),:."=]+'},
]


def prompt(number: int) -> str:
    """Return one of many different prompts that make the model copy."""
    name, body = NAMES[number % 8], BODIES[number // 8 % 5]
    code = f"def {name}_{number}(items, text, path):\n    {body}\n"
    task = TASKS[number % 3].format(name)
    question = f"{task}\n```python\n{code}```"
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def requests(
    model: Any, numbers: Sequence[int], speculation: Speculation, greedy: bool | None = None
) -> list[Request]:
    """Return one request per number; the same number gives the same text whatever drafts."""
    asked = []
    for number in numbers:
        rng = random.Random(number)
        kind = 0 if greedy else rng.randrange(greedy is False, len(SAMPLINGS))
        asked.append(
            Request(
                prompt_ids=model.tokenize(prompt(number), parse_special=True),
                max_tokens=rng.choice([1, 2, 17, 40, 60]),
                stop=rng.choice([(), (), ("return",), (":\n", "zzz")]),
                sampling=Sampling(seed=number, **SAMPLINGS[kind]),
                speculation=speculation,
                id=str(number),
            )
        )
    return asked


class Garbage(DraftSource):
    """A drafter that proposes anything: end tokens, ids beyond the vocabulary, random lengths."""

    name = "garbage"

    def __init__(self, vocab_size: int, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._high = vocab_size + 50

    def draft(self, slot: int, limit: int) -> Any:
        size = int(self._rng.integers(0, limit + 1))
        return self._rng.integers(0, self._high, size=size).astype(np.int32)


class Oracle(DraftSource):
    """A drafter that knows the right texts, up to a random place of each draft.

    texts: Emitted tokens by prompt, as a run without drafts gave them.
    """

    name = "oracle"

    def __init__(self, texts: dict[bytes, Sequence[int]], seed: int = 1) -> None:
        self._texts = texts
        self._rng = random.Random(seed)
        self._left: dict[int, list[int]] = {}

    def begin(self, slot: int, token_ids: Any) -> None:
        self._left[slot] = list(self._texts.get(token_ids.tobytes(), ()))

    def draft(self, slot: int, limit: int) -> Any:
        right = self._left[slot][: self._rng.randrange(limit + 1)]
        wrong = [self._rng.randrange(3, 90) for _ in range(self._rng.randrange(3))]
        return np.array((right + wrong)[:limit], dtype=np.int32)

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        del self._left[slot][: len(token_ids)]

    def end(self, slot: int) -> None:
        del self._left[slot]
