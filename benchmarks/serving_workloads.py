"""Prompts for the serving benchmarks: words that never repeat, code to be copied, real work."""

from __future__ import annotations

import ast
import json
import random
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[1] / "corpora" / "python"
REAL = Path(__file__).parent / "data" / "prompts.jsonl"
LENGTHS = range(200, 500)  # characters of a function; answers of about 60 to 160 tokens
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
NAMES = ("alpha", "bright", "count_of", "delta", "entry", "first_part", "given", "handle")


@dataclass(frozen=True)
class Prompt:
    """What is sent: the text of a plain completion, or the messages of a chat."""

    text: str
    messages: Sequence[dict[str, Any]]


def fresh(seed: int, words: int) -> Iterator[Prompt]:
    """Yield prompts of random words, without end; no two are alike."""
    chance = random.Random(seed)
    while True:
        text = " ".join(_word(chance) for _ in range(words))
        yield Prompt(text, [{"role": "user", "content": text}])


def copy(seed: int, corpus: Path) -> Iterator[Prompt]:
    """Yield tasks whose answers copy most of the prompt: repeat a function, rename in it.

    No task comes twice; at the end of them the iterator ends.
    """
    chance = random.Random(seed)
    functions = dict(_functions(corpus))
    tasks = [(code, "Repeat this code:") for code in functions]
    for code, name in functions.items():
        tasks.append((code, f"Rename `{name}` to `{chance.choice(NAMES)}` in this code:"))
    chance.shuffle(tasks)
    for code, task in tasks:
        message = f"{task}\n\n```python\n{code}\n```"
        yield Prompt(chatml(message), [{"role": "user", "content": message}])


def real(most: int) -> dict[str, list[Prompt]]:
    """Return chats by kind of work; most: of each kind."""
    kinds: dict[str, list[Prompt]] = {}
    for line in REAL.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kinds.setdefault(row["kind"], []).append(Prompt("", row["messages"]))
    return {kind: prompts[:most] for kind, prompts in kinds.items()}


def chatml(message: str) -> str:
    """Return a user's message as the embedded model's chat template writes it."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


def _word(chance: random.Random) -> str:
    syllables = (chance.choice(CONSONANTS) + chance.choice(VOWELS) for _ in range(3))
    return "".join(syllables)


def _functions(corpus: Path) -> Iterator[tuple[str, str]]:
    """Yield functions of a fitting length, each with the name that it uses most."""
    for path in sorted(corpus.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            code = textwrap.dedent(ast.get_source_segment(source, node, padded=True) or "")
            names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
            if len(code) in LENGTHS and code.isascii() and names:
                yield code, max(sorted(set(names)), key=names.count)
