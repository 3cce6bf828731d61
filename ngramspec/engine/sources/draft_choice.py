"""DraftChoice: which token of a model's row a draft goes on with."""

from __future__ import annotations

import math
from typing import NamedTuple

from ngramspec._native.engine.decode import Rows, Sampler
from ngramspec.arrays import TokenIds

MEMORY = 0.98  # weight of the places seen before, where drawn and likeliest tokens differed
# What is assumed to have been seen before: places, right drawn tokens, right likeliest ones.
PLACES, DRAWN, LIKELIEST = 6.0, 3.0, 2.0


class Parting(NamedTuple):
    """The first place of a draft where the likeliest token is not the drawn one."""

    place: int
    likeliest: int
    drawn: int


class DraftChoice:
    """Takes the likeliest token, or the one that the request's own sampler would draw.

    At temperatures above 0 the target's tokens are drawn. A draft that is drawn with the same
    random numbers, from a model much like it, meets them more often than the likeliest tokens do.
    Where the two differ, the target's own token tells which was right. The way that was right more
    often, over all requests, is taken.

    Args:
        vocab_size: Of the model's rows.
        slots: How many slots there are.
    """

    def __init__(self, vocab_size: int, slots: int) -> None:
        self._vocab_size = vocab_size
        self._samplers: list[Sampler | None] = [None] * slots
        self._partings: list[Parting | None] = [None] * slots
        self._lengths = [0] * slots
        self._places, self._drawn, self._likeliest = PLACES, DRAWN, LIKELIEST

    def start(self, slot: int, sampler: Sampler) -> None:
        """Take the sampler of the request that gets a slot."""
        self._samplers[slot] = sampler.for_drafts(self._vocab_size)

    def begin(self, slot: int, before: TokenIds) -> None:
        """Begin a draft after tokens that another source has drafted."""
        self._partings[slot], self._lengths[slot] = None, 0
        sampler = self._samplers[slot]
        if sampler is not None:
            sampler.begin_draft(before)

    def forget(self, slot: int) -> None:
        """Forget the draft: what comes next was not said in its place."""
        self._partings[slot] = None

    def end(self, slot: int) -> None:
        """End the slot's request: nothing of it is held any longer."""
        self._samplers[slot] = self._partings[slot] = None

    def take(self, slot: int, rows: Rows, row: int) -> tuple[int, float]:
        """Return the draft's next token and how probable it is that the target chooses it.

        Of a token that was drawn against the odds: how often such tokens were right lately.
        """
        token, sampler, place = rows.argmax(row), self._samplers[slot], self._lengths[slot]
        self._lengths[slot] += 1
        against = False
        if sampler is not None:
            drawn = sampler.choose(rows, row)
            if drawn >= 0 and drawn != token:
                if self._partings[slot] is None:
                    self._partings[slot] = Parting(place, token, drawn)
                against = self._drawn >= self._likeliest
                token = drawn if against else token
            sampler.accept(token)
        if against:
            return token, self._drawn / self._places
        logprob, _ = rows.logprobs(row, token, 0)
        return token, min(math.exp(logprob), 1.0)

    def judge(self, slot: int, right: int, emitted: TokenIds) -> None:
        """Learn which way was right from what came in the draft's place.

        right: Tokens of the draft that were, before the first wrong one.
        """
        parting, self._partings[slot] = self._partings[slot], None
        if parting is not None and parting.place <= right and parting.place < emitted.size:
            token = int(emitted[parting.place])
            self._places = MEMORY * self._places + 1.0
            self._drawn = MEMORY * self._drawn + (token == parting.drawn)
            self._likeliest = MEMORY * self._likeliest + (token == parting.likeliest)
