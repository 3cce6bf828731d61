"""Identifiers: find them, replace them, and make up new ones."""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterable

NAME = re.compile(r"\b[A-Za-z_]\w*\b")
WORD = re.compile(r"[A-Z]?[a-z]{2,}")
KEPT = set(keyword.kwlist) | {"self", "b", "f", "r", "u", "rb", "br"}
NONSENSE = """
ba be bo ca co da de do fi fo ga go ha he ki ko la le lo ma me mi mo na ne ni no pa pe po qua
ra re ri ro sa se si so ta te ti to tu va ve vi wo xa xe yo za zo zu
"""
SYLLABLES = NONSENSE.split()
PIECES = 0.4  # share of words that are tokens, where these are known


def identifiers(code: str) -> list[str]:
    """Return the distinct names that may be replaced, in order of appearance."""
    return list(dict.fromkeys(name for name in NAME.findall(code) if name not in KEPT))


def rename(code: str, changes: dict[str, str]) -> str:
    """Replace whole names everywhere, in strings and comments too."""
    return NAME.sub(lambda match: changes.get(match[0], match[0]), code)


class NameMaker:
    """Makes up identifiers out of the words of a corpus and out of nonsense."""

    def __init__(self, texts: Iterable[str], pieces: Iterable[str] = ()) -> None:
        """Collect the words that occur in the identifiers of the texts.

        pieces: A tokenizer's tokens. Those that a name can have are words, too, each as often as
            any other: a token that is hardly ever seen is not copied either.
        """
        words: set[str] = set()
        for text in texts:
            for name in identifiers(text):
                words.update(word.lower() for word in WORD.findall(name))
        self.words = sorted(words) or ["name"]
        self.pieces = [piece for piece in pieces if re.fullmatch(r"[A-Za-z_]+", piece)]

    def word(self, rng: random.Random) -> str:
        """Draw a word of the corpus, or make up a nonsense word."""
        if self.pieces and rng.random() < PIECES:
            return rng.choice(self.pieces)
        style = rng.random()
        if style < 0.75:
            return rng.choice(self.words)
        if style < 0.85:
            letters = "abcdefghijklmnopqrstuvwxyz"
            return "".join(rng.choice(letters) for _ in range(rng.randint(1, 5)))
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))

    def name(self, rng: random.Random) -> str:
        """Make up an identifier in one of the usual styles."""
        words = [self.word(rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 2)))]
        style = rng.random()
        if style < 0.1:
            name = "".join(word.capitalize() for word in words)
        elif style < 0.15:
            name = "_".join(words).upper()
        else:
            name = "_".join(words)
        if rng.random() < 0.08:
            name += str(rng.randint(0, 99))
        return ("_" + name) if rng.random() < 0.06 or keyword.iskeyword(name) else name

    def fresh(self, text: str, rng: random.Random) -> str:
        """Make up an identifier that does not occur in the text."""
        taken = set(NAME.findall(text)) | KEPT
        while (name := self.name(rng)) in taken:
            pass
        return name

    def like(self, name: str, text: str, rng: random.Random) -> str:
        """Make up an identifier that begins like another one and does not occur in the text."""
        ends = ("s", "_", str(rng.randint(0, 9)), "_" + self.word(rng), self.word(rng))
        new = name + rng.choice(ends)
        return new if new not in set(NAME.findall(text)) | KEPT else self.fresh(text, rng)

    def scramble(self, code: str, rng: random.Random, share: float) -> str:
        """Replace about `share` of the identifiers, so that only copying helps."""
        changes: dict[str, str] = {}
        taken = set(NAME.findall(code)) | KEPT
        for old in identifiers(code):
            new = self.name(rng)
            if rng.random() < share and new not in taken:
                taken.add(new)
                changes[old] = new
        return rename(code, changes)
