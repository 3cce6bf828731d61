"""Changes texts by pieces: words of a language, lines, and runs of the text itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


def mutation(
    words: Sequence[str],
) -> Callable[[bytes, int, int, Callable[[bytes, int], bytes]], bytes]:
    """Return a Mutate for texts of a language with these words."""

    def mutate(data: bytes, most: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.25:
            return plain(data, most)
        text = data.decode("utf-8", "replace")
        for _ in range(rng.choice([1, 1, 2, 4])):
            text = _once(text, rng, words)
        mutant = text.encode("utf-8", "replace")
        return mutant if len(mutant) <= most else mutant[:most].decode("utf-8", "ignore").encode()

    return mutate


def _once(text: str, rng: random.Random, words: Sequence[str]) -> str:
    first, last = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    if rng.random() < 0.7:  # mostly small pieces
        last = min(last, first + rng.randint(0, 12))
    piece = text[first:last]
    choice = rng.randrange(7)
    if choice <= 2:
        return text[:first] + rng.choice(words) + text[first:]
    if choice == 3:
        return text[:first] + rng.choice(words) + text[last:]
    if choice == 4:
        return text[:first] + text[last:]
    if choice == 5:
        return text[:last] + piece * rng.choice([1, 1, 2, 30]) + text[last:]
    lines = text.split("\n")
    rng.shuffle(lines)
    return "\n".join(lines)
