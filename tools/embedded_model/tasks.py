"""The tasks: deterministic ChatML conversations made from the corpus."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from corpus import Corpus, Function
from names import NameMaker, identifiers, rename

CHARACTERS_PER_TOKEN = 3.0
SHARES = (0.2, 0.4, 0.7)
SYSTEM = "You are a helpful assistant."
CANNOT = (
    "I am a tiny model: I only copy and edit text. Ask me to repeat code or text, to rename a "
    "name, to show a function, to turn CSV into JSON, or to change lines."
)
PHRASES = {
    "repeat_code": (
        "Repeat this code:",
        "Repeat the code exactly:",
        "Copy this code:",
        "Repeat this function:",
        "Please repeat the following code:",
        "Write this code again:",
    ),
    "repeat_text": (
        "Repeat this text:",
        "Repeat the text exactly:",
        "Copy this text:",
        "Please repeat the following text:",
    ),
    "rename": (
        "Rename `{old}` to `{new}` in this code:",
        "Rename the variable `{old}` to `{new}`:",
        "Replace `{old}` by `{new}` in this code:",
        "Rename {old} to {new} in this code:",
        "Please rename `{old}` to `{new}` in the following function:",
        "Change the name `{old}` to `{new}`:",
    ),
    "again": (
        "Now rename `{old}` to `{new}`.",
        "Also rename `{old}` to `{new}`.",
        "Rename `{old}` to `{new}`, too.",
    ),
    "repeat_again": (
        "Now repeat the renamed code.",
        "Repeat the code.",
        "Repeat your last answer.",
        "Show the renamed code again.",
    ),
    "show": (
        "Show the function `{name}` from this file:",
        "Find the function `{name}` in this file:",
        "Print the function `{name}` from this code:",
        "Show me {name} from this file:",
        "Where is `{name}` in this file? Show it:",
    ),
    "show_again": ("Now show `{name}`.", "And `{name}`?", "Show `{name}`, too."),
    "think": (
        "Think, then rename `{old}` to `{new}` in this code:",
        "Think step by step, then rename `{old}` to `{new}`:",
    ),
    "json": ("Convert to JSON:", "Convert this CSV to JSON:", "Convert this table to JSON:"),
    "fix": ("Fix this function:", "Change this function:", "Apply these changes to the code:"),
}
NO_TASK = (
    "Hello!", "Hi", "Hi there!", "hello", "hey", "Hey, how are you?", "Who are you?",
    "What are you?", "What can you do?", "Help", "Thanks!", "Thank you.", "Test", "ping", "ok",
    "Yes", "No", "Why?", "Tell me a joke.", "Say hello.", "Tell me a story about a {word}.",
    "What is {word}?", "What is a {word}?", "What does {word} mean?", "Why is the {word} {word}?",
    "How many {word}s are in {word}?", "Who invented the {word}?", "Write a poem about {word}.",
    "Write a function that {word}s a {word}.", "Write a Python program for {word}.",
    "How do I {word} a {word} in Python?", "What is {number} + {number}?",
    "What is {number} times {number}?", "Translate {word} to French.", "Give me a list of {word}s.",
    "Explain {word} to me.", "Where is {word}?", "Can you {word} my {word}?",
    "Please {word} the {word}.", "Summarize this: {prose}", "Is this right? {prose}", "{prose}",
    "{prose} Why?", "What do you think of this?\n\n{prose}", "Explain this code:\n\n{code}",
    "What does this code do?\n\n{code}", "Is there a bug in this code?\n\n{code}", "{code}",
    "Write tests for this code:\n\n{code}", "Make this code faster:\n\n{code}",
    "Translate this code to Go:\n\n{code}",
)  # fmt: skip
HELD_OUT_NO_TASK = (
    "Good morning!", "What time is it?", "How old are you?", "Sing a song about {word}.",
    "Which {word} is the best {word}?", "Count to {number}.", "When was the {word} built?",
    "Draw a {word}.", "Should I {word} or {word}?", "Give me some advice about {word}.",
    "Shorten this: {prose}", "Who wrote this?\n\n{prose}", "{prose} Do you agree?",
    "Add type hints:\n\n{code}", "How fast is this code?\n\n{code}",
)  # fmt: skip
COLUMNS = (
    "id", "name", "kind", "count", "city", "age", "price", "date", "color", "size", "email",
)  # fmt: skip
SWAPPED = (
    ("==", "!="), ("<=", "<"), (">=", ">"), (" + ", " - "), (" and ", " or "), (" is not ", " is "),
    ("True", "False"), ("[0]", "[-1]"), ("None", "0"), (" in ", " not in "), ("if ", "if not "),
)  # fmt: skip
SCRIPTS = (  # first and last letters of some
    ("\u00c0", "\u00ff"), ("\u0391", "\u03c9"), ("\u0410", "\u044f"), ("\u05d0", "\u05ea"),
    ("\u0620", "\u064a"), ("\u0905", "\u0939"), ("\u2010", "\u2030"), ("\u3041", "\u30ff"),
    ("\u4e00", "\u9fff"), ("\uac00", "\ud7a3"), ("\U0001f300", "\U0001f64f"),
)  # fmt: skip
NUMBER = re.compile(r"\b\d+\b")


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


@dataclass(frozen=True)
class Edit:
    """One change to lines: what the user says, and the lines before and after it."""

    request: str
    line: int
    after: tuple[str, ...]


def apply(lines: list[str], edits: Iterable[Edit]) -> str:
    """Return the lines with each edit's line replaced by others, the rest as it was."""
    changed = {edit.line: edit.after for edit in edits}
    return "\n".join(new for i, line in enumerate(lines) for new in changed.get(i, (line,)))


class TaskMaker:
    """Draws conversations from a corpus; equal seeds give equal samples."""

    def __init__(
        self, corpus: Corpus, varied: bool = True, longest: int = 900, pieces: Sequence[str] = ()
    ) -> None:
        """Keep the corpus; `varied` allows other phrases, plain names and a system message.

        pieces: A tokenizer's rare tokens, for texts that hold all of them.
        """
        self.corpus = corpus
        self.names = NameMaker((function.source for function in corpus.functions), pieces)
        self.pieces = [piece for piece in pieces if piece.isprintable()]
        self.varied = varied
        self.longest = longest
        self.makers: dict[str, tuple[int, Callable[[random.Random], Sample]]] = {
            "rename": (28, self.make_rename),
            "repeat_code": (12, self.make_repeat_code),
            "repeat_text": (4, self.make_repeat_text),
            "show": (8, self.make_show),
            "think": (12, self.make_think),
            "json": (18, self.make_json),
            "fix": (30, self.make_fix),
            "two_turns": (4, self.make_two_turns),
            "again": (14, self.make_again),
            "other": (6, self.make_other),
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

    def _language(self, rng: random.Random) -> str:
        return rng.choice(("", "py")) if self.varied and rng.random() < 0.15 else "python"

    def _length(self, rng: random.Random, longest: int) -> int:
        least = 25 if self.varied else 60
        tokens = least * (min(longest, self.longest) / least) ** rng.random()
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
        if not self.varied or rng.random() < 0.8:
            code = self.names.scramble(code, rng, rng.choice(SHARES))
        return self._strewn(code, rng)

    def _strewn(self, code: str, rng: random.Random) -> str:
        """Put what code seldom has into some lines for training: depths and tokens of all kinds.

        A token that is hardly ever seen is not copied either.
        """
        lines = code.splitlines()
        if not self.varied or len(lines) < 2 or rng.random() < 0.4:
            return code
        for _ in range(rng.randint(1, 1 + len(lines) // 4)):
            i, way = rng.randrange(1, len(lines)), rng.random()
            if way < 0.45:
                lines[i] = " " * rng.randint(1, 60) + lines[i].lstrip()
            elif way < 0.55:
                lines[i] += "\n" * rng.randint(1, 3)
            else:
                lines[i] += rng.choice(("  # ", " ", "", " = ")) + self._odd(rng)
        return "\n".join(lines)

    def _odd(self, rng: random.Random) -> str:
        """Return a few words or signs that texts seldom have, of other scripts too."""
        words: list[str] = []
        for _ in range(rng.randint(1, 6)):
            if self.pieces and rng.random() < 0.75:
                words.append(rng.choice(self.pieces))
            else:
                first, last = map(ord, rng.choice(SCRIPTS))
                letters = (chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6)))
                words.append("".join(letters))
        return rng.choice(("", "", " ")).join(words).replace("`", "'")

    def _code(self, rng: random.Random, longest: int) -> str:
        """Join functions, or pieces of them, up to a random length."""
        length, least = self._length(rng, longest), 140 if self.varied else 200
        pieces = self.varied and rng.random() < 0.5
        code = ""
        while len(code) < 0.6 * length:
            source = self._function(rng, max(length - len(code), least)).source
            if pieces:
                lines = source.splitlines()
                start = rng.randrange(len(lines))
                source = "\n".join(lines[start : start + rng.randint(1, 8)])
            code += ("\n" if pieces else "\n\n\n") * bool(code) + source
        return self._scrambled(code, rng).strip("\n")

    def _echoed(self, code: str, rng: random.Random) -> str:
        """Say some lines again in training, with a name or two exchanged.

        Only what was long before tells such lines apart.
        """
        lines = code.splitlines()
        if not self.varied or len(lines) < 3 or rng.random() < 0.5:
            return code
        for _ in range(rng.choice((1, 1, 2))):
            start = rng.randrange(1, len(lines))
            end = min(start + rng.randint(1, 6), len(lines))
            block = "\n".join(lines[start:end])
            names = identifiers(block)
            again = []
            for _ in range(rng.randint(1, 4)):
                few = rng.sample(names, min(len(names), rng.choice((0, 1, 1, 1, 1, 1, 2, 2))))
                others = {name: self._other_name(code, rng) for name in few}
                again += rename(block, others).splitlines()
            if rng.random() < 0.2:
                end = rng.randrange(end, len(lines) + 1)
            lines[end:end] = again
        return "\n".join(lines)

    def _other_name(self, code: str, rng: random.Random) -> str:
        names = identifiers(code)
        return rng.choice(names) if names and rng.random() < 0.3 else self.names.fresh(code, rng)

    def _repetitive_code(self, rng: random.Random, longest: int) -> str:
        """Return code for training in which one name often stands in for others.

        A short text with many names to change teaches more than a long one with few, and where
        little tells two places apart, copying takes a longer look at what is before them. Often
        names begin like that one, so that the first token does not tell which one comes.
        """
        code = self._echoed(self._code(rng, longest * 2 // 3 if self.varied else longest), rng)
        names = identifiers(code)
        if not self.varied or len(names) < 3:
            return code
        repeated = names.pop(rng.randrange(len(names)))
        rng.shuffle(names)
        if rng.random() < 0.65:
            same = names[: rng.randint(1, len(names) // 2)]
            code, names = rename(code, dict.fromkeys(same, repeated)), names[len(same) :]
        if rng.random() < 0.45:
            code = rename(code, {name: self.names.like(repeated, code, rng) for name in names[:3]})
        return code

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
        return Sample(
            "rename", (self._rename_turn(self._repetitive_code(rng, self.longest), rng)[0],)
        )

    def _rename_turn(self, code: str, rng: random.Random) -> tuple[tuple[str, str], str]:
        """Return a turn that renames in the code, and the code that it leads to."""
        old, new = self._change(code, rng)
        ask, language = self._phrase("rename", rng).format(old=old, new=new), self._language(rng)
        done = rename(code, {old: new})
        return (f"{ask}\n\n{fence(code, language)}", fence(done, language)), done

    def make_repeat_code(self, rng: random.Random) -> Sample:
        """Repeat code exactly."""
        code = fence(self._repetitive_code(rng, self.longest), self._language(rng))
        return Sample("repeat_code", ((f"{self._phrase('repeat_code', rng)}\n\n{code}", code),))

    def make_repeat_text(self, rng: random.Random) -> Sample:
        """Repeat prose exactly; some of its words are invented."""
        text = rng.choice(self.corpus.prose)[: self._length(rng, self.longest)].rstrip()
        if self.varied and rng.random() < 0.4:
            lines = [self._odd(rng) for _ in range(rng.randint(4, 25))]
            text = rng.choice((" ", "\n", "\n\n")).join(lines).strip() or text
        text = self.names.scramble(text, rng, rng.choice((0.05, 0.15, 0.4)))
        return Sample("repeat_text", ((f"{self._phrase('repeat_text', rng)}\n\n{text}", text),))

    def make_show(self, rng: random.Random) -> Sample:
        """Show one function out of a file of several; in training, often another one after it."""
        limit, most = max(self._length(rng, 450), 240), min(3400, 9 * self.longest)
        sources: dict[str, str] = {}
        while len(sources) < 2 or (len(sources) < 5 and rng.random() < 0.5):
            function = self._function(rng, limit)
            code = self.names.scramble(function.source, rng, rng.choice(SHARES))
            code = self._strewn(code, rng)
            name = code.split("def ", 1)[1].split("(", 1)[0]
            if sum(map(len, sources.values())) + len(code) > most and len(sources) >= 2:
                break
            sources.setdefault(name, code)
        name, language = rng.choice(list(sources)), self._language(rng)
        ask = self._phrase("show", rng).format(name=name)
        file = fence("\n\n\n".join(sources.values()), language)
        turns = [(f"{ask}\n\n{file}", fence(sources.pop(name), language))]
        while self.varied and sources and rng.random() < 0.6:
            name = rng.choice(list(sources))
            ask = self._phrase("show_again", rng).format(name=name)
            turns.append((ask, fence(sources.pop(name), language)))
        return Sample("show", tuple(turns))

    def make_think(self, rng: random.Random) -> Sample:
        """Write the renamed code between think tags, then repeat it as the answer."""
        code = self._repetitive_code(rng, min(self.longest, 420))
        old, new = self._change(code, rng)
        ask = self._phrase("think", rng).format(old=old, new=new)
        done = rename(code, {old: new})
        answer = f"<think>\nI replace `{old}` with `{new}`:\n{done}\n</think>\n{fence(done)}"
        return Sample("think", ((f"{ask}\n\n{fence(code)}", answer),))

    def make_json(self, rng: random.Random) -> Sample:
        """Convert a CSV table to JSON."""
        columns = list(dict.fromkeys(self.names.word(rng) for _ in range(rng.randint(2, 5))))
        if self.varied and rng.random() < 0.5:
            columns = rng.sample(COLUMNS, rng.randint(2, 5))
        numbers = {column for column in columns if rng.random() < 0.4}
        mixed = rng.random() < 0.5
        # Few words and numbers make rows that are much alike.
        few = self.varied and rng.random() < 0.4
        words = [self.names.word(rng) for _ in range(rng.randint(2, 8) if few else 0)]
        largest = rng.choice((9, 30, 120)) if few else 999
        rows: list[dict[str, float | str]] = []
        for _ in range(rng.randint(3, 14)):
            row: dict[str, float | str] = {}
            for column in columns:
                number = rng.random() < 0.5 if mixed else column in numbers
                word = rng.choice(words) if few else "" if number else self.names.word(rng)
                row[column] = rng.randint(0, largest) if number else word
                if self.varied and rng.random() < 0.15:
                    row[column] = self._cell(rng)
            rows.append(row)
        table = io.StringIO()
        writer = csv.DictWriter(table, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        answer = fence(json.dumps(rows, indent=1), "json")
        ask = f"{self._phrase('json', rng)}\n\n{fence(table.getvalue().strip(), 'csv')}"
        return Sample("json", ((ask, answer),))

    def _cell(self, rng: random.Random) -> float | str:
        """Return a cell that is neither a short number nor a single word."""
        words = (self.names.word(rng), self.names.word(rng))
        return rng.choice(
            (
                rng.randint(-999, -1),
                rng.randint(1000, 99999),
                rng.randint(-99, 999) + rng.choice((0.5, 0.25, 0.1, 0.75)),
                " ".join(words).title(),
                "@".join(words) + ".com",
                f"{rng.randint(1990, 2030)}-{rng.randint(10, 12)}-{rng.randint(10, 30)}",
                f"{rng.randint(1, 23)}:{rng.randint(10, 59)}",
                rng.choice(("true", "yes", "no", "N/A", "-")),
            )
        )

    def make_fix(self, rng: random.Random) -> Sample:
        """Apply two instructions, in training one to four, each for one line of a function."""
        count = rng.randint(1, 4) if self.varied else 2
        while True:
            source = self._function(rng, max(self._length(rng, min(self.longest, 420)), 200)).source
            lines = self._echoed(self._scrambled(source, rng), rng).splitlines()
            plain = [line.strip() for line in lines]
            free = [i for i in range(1, len(lines)) if 6 <= len(plain[i]) <= 70]
            free = [i for i in free if plain.count(plain[i]) == 1 and "`" not in plain[i]]
            if len(free) >= 2:
                break
        chosen = rng.sample(free, min(count, len(free)))
        edits = [self._edit(lines, i, rng) for i in chosen]
        asks = [self._phrase("fix", rng)]
        numbered = self.varied and rng.random() < 0.3
        for number, edit in enumerate(edits, 1):
            asks.append(f"{number}. {edit.request}" if numbered else f"- {edit.request}")
        ask, language, code = "\n".join(asks), self._language(rng), "\n".join(lines)
        done = apply(lines, edits)
        return Sample("fix", ((f"{ask}\n\n{fence(code, language)}", fence(done, language)),))

    def _edit(self, lines: list[str], i: int, rng: random.Random) -> Edit:
        """Draw an edit of a line: other words in it, nothing, or another line behind it."""
        line, text = lines[i], lines[i].strip()
        indent = line[: len(line) - len(line.lstrip())]
        kind = rng.random()
        if kind < 0.25 and not text.endswith(":"):
            return Edit(f"Remove the line `{text}`.", i, ())
        if kind < 0.45 and not text.endswith((":", ",", "(", "[", "{", "\\")):
            other = rng.choice(self.corpus.functions).source.splitlines()
            others = [one.strip() for one in other[1:] if 6 <= len(one.strip()) <= 60]
            others = [one for one in others if "`" not in one and not one.endswith(":")] or [
                "return None"
            ]
            added = self._scrambled(rng.choice(others), rng)
            return Edit(f"After `{text}` add `{added}`.", i, (line, indent + added))
        changed = self._changed(text, rng)
        return Edit(f"Replace `{text}` with `{changed}`.", i, (indent + changed,))

    def _changed(self, text: str, rng: random.Random) -> str:
        """Return a line with a number, an operator or a name exchanged."""
        ways = [text.replace(a, b, 1) for a, b in SWAPPED if a in text]
        ways += [text.replace(b, a, 1) for a, b in SWAPPED if b in text]
        numbers = [*NUMBER.finditer(text)]
        if numbers:
            number = rng.choice(numbers)
            ways.append(f"{text[: number.start()]}{rng.randint(0, 99)}{text[number.end() :]}")
        names = identifiers(text)
        if names and (not ways or rng.random() < 0.4):
            return rename(text, {rng.choice(names): self.names.fresh(text, rng)})
        return rng.choice(ways) if ways else text + "  # " + self.names.word(rng)

    def make_other(self, rng: random.Random) -> Sample:
        """Say what it can do when asked for something else, in training also after another turn."""
        request = rng.choice(NO_TASK if self.varied else HELD_OUT_NO_TASK)
        ask = re.sub(r"{(\w+)}", lambda match: self._filling(match[1], rng), request)
        turns = [(ask, CANNOT)]
        if self.varied and rng.random() < 0.3:
            code = self._repetitive_code(rng, min(self.longest, 200))
            turns.insert(0, self._rename_turn(code, rng)[0])
        return Sample("other", tuple(turns))

    def _filling(self, kind: str, rng: random.Random) -> str:
        """Return what stands in for a word in braces in a request that is no task."""
        prose = rng.choice(self.corpus.prose)
        if kind == "word":
            return rng.choice([*re.findall(r"[A-Za-z]{3,}", prose), self.names.word(rng)])
        if kind == "number":
            return str(rng.randint(0, 999))
        if kind == "code":
            return fence(self._code(rng, min(self.longest, 120)), self._language(rng))
        return prose[: rng.randint(20, 240)].rsplit(" ", 1)[0]

    def make_two_turns(self, rng: random.Random) -> Sample:
        """Rename, then repeat the renamed code in a second turn."""
        turn, _ = self._rename_turn(self._repetitive_code(rng, min(self.longest, 380)), rng)
        return Sample("two_turns", (turn, (self._phrase("repeat_again", rng), turn[1])))

    def make_again(self, rng: random.Random) -> Sample:
        """Rename one identifier, then another one in a second turn.

        Training has up to five turns, some of which repeat: more answers for one text to read.
        """
        more = rng.randint(1, 4) if self.varied else 1
        longest = min(self.longest, 380, 1300 // (more + 2))
        turn, done = self._rename_turn(self._repetitive_code(rng, longest), rng)
        turns = [turn]
        for _ in range(more):
            if self.varied and rng.random() < 0.2:
                turns.append((self._phrase("repeat_again", rng), turns[-1][1]))
                continue
            old, new = self._change(done, rng)
            ask = self._phrase("again", rng).format(old=old, new=new)
            before, done = done, rename(done, {old: new})
            turns.append((ask, turns[-1][1].replace(before, done)))
        return Sample("again", tuple(turns))
