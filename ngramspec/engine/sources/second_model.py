"""SecondModel: the base of sources that run a model beside the target.

DraftChoice: which token of a model's row a draft goes on with. DraftCounts and DraftTimes: what
such a source counts, and what its drafts take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows, Sampler
from ngramspec.arrays import TokenIds
from ngramspec.engine.info import DraftModelInfo
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.engine.sources.source import DraftSource, Pays
from ngramspec.errors import InputError
from ngramspec.stats import SourceStats

LATEST = 0.1  # weight of the latest call in what drafting takes
EARLY = 4  # calls of which the shortest counts
MOST_DRAFTED = 1024  # tokens of a draft
CLAMP = 4.0  # a later call is clamped to within this factor of the mean, as passes are

MEMORY = 0.98  # weight of the places seen before, where drawn and likeliest tokens differed
# What is assumed to have been seen before: places, right drawn tokens, right likeliest ones.
PLACES, DRAWN, LIKELIEST = 6.0, 3.0, 2.0


class DraftCounts:
    """Counts of one source, for all slots.

    begins, calls: Requests, and times it was asked.
    drafts, drafted: Drafts that were verified, and their tokens.
    ns: Spent in drafting.
    """

    def __init__(self, n_max: int) -> None:
        self.begins = self.calls = 0
        self.drafts = self.drafted = 0
        self.ns = 0
        self._positions = [0] * n_max

    def judged(self, length: int, num_accepted: int) -> None:
        """Count a draft of which `length` tokens were verified, the first `num_accepted` right."""
        if not length:
            return
        self.drafts += 1
        self.drafted += length
        for position in range(num_accepted):
            self._positions[position] += 1

    def stats(self, name: str) -> SourceStats:
        per_position = tuple(self._positions)
        while per_position and not per_position[-1]:
            per_position = per_position[:-1]
        return SourceStats(
            name=name,
            begin_calls=self.begins,
            propose_calls=self.calls,
            accept_calls=self.drafts,
            num_drafts=self.drafts,
            num_accepted_drafts=self._positions[0],
            num_draft_tokens=self.drafted,
            num_accepted_tokens=sum(self._positions),
            accepted_per_position=per_position,
            begin_ns=0,
            propose_ns=self.ns,
            accept_ns=0,
        )


class Duration:
    """What a call takes, in seconds; 0.0 = none was seen yet.

    The shortest of the first few counts: early calls are often slow, as memory is touched first.
    Later ones move a running mean; a stall counts as a few times the mean at most.
    """

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def note(self, seconds: float, count: int = 1) -> None:
        """Learn what each of `count` calls in a row took."""
        if not count:
            return
        seconds /= count
        self.calls += 1
        if self.calls <= EARLY:
            self.seconds = min(self.seconds, seconds) if self.seconds else seconds
        else:
            latest = min(max(seconds, self.seconds / CLAMP), self.seconds * CLAMP)
            self.seconds = followed(self.seconds, latest)


class DraftTimes:
    """What drafting takes.

    first: The decode that gives the first token.
    each: Every further decode.
    read: A token of the text that is only read.
    """

    def __init__(self) -> None:
        self.first, self.each, self.read = Duration(), Duration(), Duration()

    def price(self) -> tuple[float, float]:
        """Return what a draft takes beside its tokens, and each token, in seconds."""
        first = self.first.seconds
        each = self.each.seconds or first
        return max(first - each, 0.0), each


def followed(mean: float, latest: float) -> float:
    """Return a running mean; 0.0 = nothing was seen yet."""
    return mean + LATEST * (latest - mean) if mean else latest


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


class DraftingModel(Protocol):
    """What a model needs to draft, for several sequences."""

    vocab_size: int
    num_sequences: int
    max_batch: int  # tokens in one decode

    def is_end(self, token_id: int) -> bool:
        """Return whether the token ends a generation."""


@dataclass(slots=True)
class SlotDraft:
    """A slot's last draft.

    p_min: It ends before a token that is less probable.
    draft, claims: Its tokens, and how probable it is that each is right.
    sent: How many of them are verified.
    pays: Tells from the claims so far whether another token is worth its time; None = all are.
    """

    p_min: float
    draft: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    sent: int = 0
    pays: Pays | None = None

    def drop(self) -> None:
        self.draft, self.claims, self.sent = [], [], 0


class SecondModel(DraftSource):
    """What sources share that draft with a model beside the target, for all slots at once.

    Args:
        model: With one sequence for each slot of the engine; closed by its owner.
        most: Longest draft that the model can make.
        needs: "a draft model needs" or the like, for errors.

    The rest is as for DraftModel. A class derived from it sets `_drafts`, by slot.
    """

    own_passes = stops = True
    info: DraftModelInfo
    _drafts: Sequence[SlotDraft]

    def __init__(
        self,
        model: DraftingModel,
        n_max: int,
        n_min: int,
        p_min: float,
        most: int,
        label: str,
        path: str,
        nbytes: int,
        needs: str,
    ) -> None:
        if not 1 <= n_max <= MOST_DRAFTED or not 0 <= n_min <= n_max or not 0.0 <= p_min <= 1.0:
            raise InputError(
                f"{needs} 1 <= n_max <= {MOST_DRAFTED}, 0 <= n_min <= n_max and 0 <= p_min <= 1, "
                f"got {n_max}, {n_min} and {p_min}"
            )
        n_max, n_min = min(n_max, most), min(n_min, most)
        self._n_max, self._n_min, self._p_min = n_max, n_min, p_min
        self.info = DraftModelInfo(
            name=label,
            path=path,
            nbytes=nbytes,
            n_max=n_max,
            n_min=n_min,
            p_min=p_min,
            kind=self.name,
        )
        self._is_end = model.is_end
        self._batch = Batch(model.max_batch)
        self._rows = Rows(model.vocab_size)
        self._choice = DraftChoice(model.vocab_size, model.num_sequences)
        self._counts, self._times = DraftCounts(n_max), DraftTimes()

    def start(self, slot: int, request: Request, sampler: Sampler) -> None:
        self._choice.start(slot, sampler)
        p_min = request.speculation.p_min
        self._drafts[slot].p_min = self._p_min if p_min is None else p_min

    def price(self) -> tuple[float, float]:
        # the first token comes with what is read of the text
        return self._times.price()

    def bound(self, slot: int, pays: Pays) -> None:
        self._drafts[slot].pays = pays

    def shorten(self, slot: int, length: int) -> None:
        one = self._drafts[slot]
        one.sent = min(one.sent, length)

    def confidence(self, slot: int) -> npt.NDArray[np.float32]:
        return np.array(self._drafts[slot].claims, dtype=np.float32)

    def end(self, slot: int) -> None:
        self._drafts[slot].drop()
        self._choice.end(slot)

    def stats(self) -> dict[str, SourceStats]:
        return {self.name: self._counts.stats(self.name)}

    def _extend(self, slot: int, row: int, most: int) -> bool:
        """Add the next token to the slot's draft; True when it may go on."""
        one = self._drafts[slot]
        token, probability = self._choice.take(slot, self._rows, row)
        if probability < one.p_min:
            return False
        one.draft.append(token)
        one.claims.append(probability)
        if len(one.draft) >= most or self._is_end(token):
            return False
        return one.pays is None or len(one.draft) < self._n_min or one.pays(one.claims)

    def _finished(self, slot: int, most: int) -> TokenIds:
        one = self._drafts[slot]
        if len(one.draft) < max(1, self._n_min):
            return NO_TOKENS
        one.sent = len(one.draft)
        return np.array(one.draft, dtype=np.int32)


def count_right(guessed: TokenIds, tokens: TokenIds) -> int:
    """Return how many tokens were guessed before the first wrong one."""
    size = min(guessed.size, tokens.size)
    differs = guessed[:size] != tokens[:size]
    return int(differs.argmax()) if differs.any() else size
