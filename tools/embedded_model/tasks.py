"""The tasks: deterministic ChatML conversations made from the corpus."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from corpus import Corpus, Function
from names import NameMaker, identifiers, rename

CHARACTERS_PER_TOKEN = 3.0
SHARES = (0.2, 0.4, 0.7)
SYSTEM = "You are a helpful assistant."
PHRASES = {
    "repeat_code": ("Repeat this code:", "Repeat the code exactly:", "Copy this code:"),
    "repeat_text": ("Repeat this text:", "Repeat the text exactly:", "Copy this text:"),
    "rename": (
        "Rename `{old}` to `{new}` in this code:",
        "Rename the variable `{old}` to `{new}`:",
        "Replace `{old}` by `{new}` in this code:",
    ),
    "again": ("Now rename `{old}` to `{new}`.", "Also rename `{old}` to `{new}`."),
    "show": (
        "Show the function `{name}` from this file:",
        "Find the function `{name}` in this file:",
        "Print the function `{name}` from this code:",
    ),
    "think": (
        "Think, then rename `{old}` to `{new}` in this code:",
        "Think step by step, then rename `{old}` to `{new}`:",
    ),
    "json": ("Convert to JSON:", "Convert this CSV to JSON:"),
}


@dataclass(frozen=True)
class Sample:
    """One conversation: its task and its (user, assistant) turns."""

    task: str
    turns: tuple[tuple[str, str], ...]
    system: str = ""


def chat_prefix(user: str) -> str:
    """Return the ChatML text before the assistant's answer to one user turn."""
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def fence(code: str, language: str = "python") -> str:
    """Put code into a Markdown fence."""
    return f"```{language}\n{code}\n```"


class TaskMaker:
    """Draws conversations from a corpus; equal seeds give equal samples."""

    def __init__(self, corpus: Corpus, varied: bool = True, longest: int = 900) -> None:
        """Keep the corpus; `varied` allows other phrases, plain names and a system message."""
        self.corpus = corpus
        self.names = NameMaker(function.source for function in corpus.functions)
        self.varied = varied
        self.longest = longest
        self.makers: dict[str, tuple[int, Callable[[random.Random], Sample]]] = {
            "rename": (42, self.make_rename),
            "repeat_code": (12, self.make_repeat_code),
            "repeat_text": (4, self.make_repeat_text),
            "show": (25, self.make_show),
            "think": (11, self.make_think),
            "json": (2, self.make_json),
            "two_turns": (4, self.make_two_turns),
        }

    def make(self, seed: str, task: str = "") -> Sample:
        """Make the sample of this seed, of a random task unless one is named."""
        rng = random.Random(seed)
        if not task:
            weights = [weight for weight, _ in self.makers.values()]
            task = rng.choices(list(self.makers), weights)[0]
        sample = self.makers[task][1](rng)
        if self.varied and rng.random() < 0.15:
            return Sample(sample.task, sample.turns, SYSTEM)
        return sample

    def _phrase(self, key: str, rng: random.Random) -> str:
        phrases = PHRASES[key]
        return rng.choice(phrases[1:]) if self.varied and rng.random() < 0.35 else phrases[0]

    def _length(self, rng: random.Random, longest: int) -> int:
        tokens = 60 * (min(longest, self.longest) / 60) ** rng.random()
        return int(tokens * CHARACTERS_PER_TOKEN)

    def _function(self, rng: random.Random, limit: int) -> Function:
        for _ in range(60):
            function = rng.choice(self.corpus.functions)
            if len(function.source) <= limit:
                return function
        return min(
            (rng.choice(self.corpus.functions) for _ in range(60)), key=lambda f: len(f.source)
        )

    def _scrambled(self, code: str, rng: random.Random) -> str:
        if self.varied and rng.random() < 0.2:
            return code
        return self.names.scramble(code, rng, rng.choice(SHARES))

    def _code(self, rng: random.Random, longest: int) -> str:
        """Join functions, or pieces of them, up to a random length."""
        length = self._length(rng, longest)
        pieces = self.varied and rng.random() < 0.25
        code = ""
        while len(code) < 0.6 * length:
            source = self._function(rng, max(length - len(code), 200)).source
            if pieces:
                lines = source.splitlines()
                start = rng.randrange(len(lines))
                source = "\n".join(lines[start : start + rng.randint(1, 8)])
            code += ("\n" if pieces else "\n\n\n") * bool(code) + source
        return self._scrambled(code, rng).strip("\n")

    def _change(self, code: str, rng: random.Random) -> tuple[str, str]:
        names = identifiers(code) or ["self"]
        counts = [min(code.count(name), 6) ** 1.5 if len(name) > 1 else 1.0 for name in names]
        old = rng.choices(names, counts)[0]
        if rng.random() < 0.3:
            other = identifiers(rng.choice(self.corpus.functions).source)
            spare = [name for name in other if name not in names]
            if spare:
                return old, rng.choice(spare)
        return old, self.names.fresh(code, rng)

    def make_rename(self, rng: random.Random) -> Sample:
        """Rename one identifier everywhere."""
        code = self._code(rng, self.longest)
        old, new = self._change(code, rng)
        ask = self._phrase("rename", rng).format(old=old, new=new)
        answer = fence(rename(code, {old: new}))
        return Sample("rename", ((f"{ask}\n\n{fence(code)}", answer),))

    def make_repeat_code(self, rng: random.Random) -> Sample:
        """Repeat code exactly."""
        code = fence(self._code(rng, self.longest))
        return Sample("repeat_code", ((f"{self._phrase('repeat_code', rng)}\n\n{code}", code),))

    def make_repeat_text(self, rng: random.Random) -> Sample:
        """Repeat prose exactly; some of its words are invented."""
        text = rng.choice(self.corpus.prose)[: self._length(rng, self.longest)].rstrip()
        text = self.names.scramble(text, rng, rng.choice((0.05, 0.15, 0.4)))
        return Sample("repeat_text", ((f"{self._phrase('repeat_text', rng)}\n\n{text}", text),))

    def make_show(self, rng: random.Random) -> Sample:
        """Show one function out of a file of several."""
        limit, most = max(self._length(rng, 450), 240), min(4200, 9 * self.longest)
        sources: dict[str, str] = {}
        while len(sources) < 2 or (len(sources) < 5 and rng.random() < 0.5):
            function = self._function(rng, limit)
            code = self.names.scramble(function.source, rng, rng.choice(SHARES))
            name = code.split("def ", 1)[1].split("(", 1)[0]
            if sum(map(len, sources.values())) + len(code) > most and len(sources) >= 2:
                break
            sources.setdefault(name, code)
        name = rng.choice(list(sources))
        ask = self._phrase("show", rng).format(name=name)
        file = fence("\n\n\n".join(sources.values()))
        return Sample("show", ((f"{ask}\n\n{file}", fence(sources[name])),))

    def make_think(self, rng: random.Random) -> Sample:
        """Write the renamed code between think tags, then repeat it as the answer."""
        code = self._code(rng, min(self.longest, 420))
        old, new = self._change(code, rng)
        ask = self._phrase("think", rng).format(old=old, new=new)
        done = rename(code, {old: new})
        answer = f"<think>\nI replace `{old}` with `{new}`:\n{done}\n</think>\n{fence(done)}"
        return Sample("think", ((f"{ask}\n\n{fence(code)}", answer),))

    def make_json(self, rng: random.Random) -> Sample:
        """Convert a CSV table to JSON."""
        columns = list(dict.fromkeys(self.names.word(rng) for _ in range(rng.randint(2, 5))))
        if self.varied and rng.random() < 0.5:
            columns = rng.sample(["id", "name", "kind", "count", "city", "age", "price"], 4)
        rows: list[dict[str, int | str]] = []
        for _ in range(rng.randint(3, 14)):
            row = {c: rng.choice((rng.randint(0, 999), self.names.word(rng))) for c in columns}
            rows.append(row)
        table = io.StringIO()
        writer = csv.DictWriter(table, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        answer = fence(json.dumps(rows, indent=1), "json")
        ask = f"{self._phrase('json', rng)}\n\n{fence(table.getvalue().strip(), 'csv')}"
        return Sample("json", ((ask, answer),))

    def make_two_turns(self, rng: random.Random) -> Sample:
        """Rename one identifier, then another one in a second turn."""
        code = self._code(rng, min(self.longest, 380))
        old, new = self._change(code, rng)
        first = rename(code, {old: new})
        ask = self._phrase("rename", rng).format(old=old, new=new)
        turn = (f"{ask}\n\n{fence(code)}", fence(first))
        old, new = self._change(first, rng)
        again = self._phrase("again", rng).format(old=old, new=new)
        return Sample("two_turns", (turn, (again, fence(rename(first, {old: new})))))
