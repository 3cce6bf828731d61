"""Sessions: which recorded text a prompt continues, so that it need not be written again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.lab.recordings.record import Place

MOST_TEXTS = 256
MOST_TOKENS = 1 << 22  # of all texts that are remembered, 16 MiB
LEAST_KEPT = 16  # fewer tokens are simply written again
FIRST_COMPARED = 64


@dataclass
class _Text:
    """The latest text of a session. num_prompt: tokens of it that were the prompt."""

    session: int
    turn: int
    ids: TokenIds
    num_prompt: int


class Sessions:
    """The latest texts of each key, oldest first; the least recently used are forgotten.

    For one thread. A prompt is the next turn of a session if it begins with all of that session's
    last prompt. It is compared with the texts of its own key only.
    """

    def __init__(self, most_texts: int = MOST_TEXTS, most_tokens: int = MOST_TOKENS) -> None:
        self._texts: OrderedDict[int, tuple[str, _Text]] = OrderedDict()
        self._most_texts, self._most_tokens = most_texts, most_tokens
        self._num_tokens = 0
        self._next = 0

    def place(self, key: str, prompt: TokenIds) -> Place:
        """Return where a prompt stands; nothing changes.

        Cost: O(texts + tokens in common), at most O(tokens remembered).
        """
        best: _Text | None = None
        most = LEAST_KEPT - 1
        for owner, text in reversed(self._texts.values()):
            if owner == key and (common := num_common(text.ids, prompt, most)) > most:
                best, most = text, common
        if best is None:
            return Place(self._next, 0)
        prefix = (best.session, best.turn, most)
        if most >= best.num_prompt:
            return Place(best.session, best.turn + 1, prefix)
        return Place(self._next, 0, prefix)

    def add(self, key: str, place: Place, prompt: TokenIds, output: TokenIds) -> None:
        """Remember a text that was written at a place."""
        self.forget(place.session)
        ids = np.concatenate([prompt, output])
        self._texts[place.session] = key, _Text(place.session, place.turn, ids, len(prompt))
        self._num_tokens += len(ids)
        self._next = max(self._next, place.session + 1)
        while len(self._texts) > self._most_texts or self._num_tokens > self._most_tokens:
            self.forget(next(iter(self._texts)))

    def forget(self, session: int) -> None:
        """Forget a session's text, if it is known."""
        entry = self._texts.pop(session, None)
        if entry is not None:
            self._num_tokens -= len(entry[1].ids)


def num_common(text: TokenIds, prompt: TokenIds, least: int = 0) -> int:
    """Return how many leading tokens two texts share; 0 if not more than `least`."""
    length = min(len(text), len(prompt))
    if length <= least or text[least] != prompt[least]:
        return 0
    start, size = 0, FIRST_COMPARED
    while start < length:
        stop = min(start + size, length)
        wrong = np.flatnonzero(text[start:stop] != prompt[start:stop])
        if len(wrong):
            common = start + int(wrong[0])
            return common if common > least else 0
        start, size = stop, 4 * size
    return length
