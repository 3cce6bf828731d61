"""DraftSource: the base of what proposes drafts; NativeSource: a native drafter as one.

PredictionSource: drafts from the answer that the user expects (OpenAI's `prediction`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.engine.decode import Sampler
from ngramspec.arrays import TokenIds
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import MAX_LENGTH
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.drafting.slot_pool import KEPT
from ngramspec.engine.info import DraftModelInfo
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.errors import StateError
from ngramspec.stats import SourceStats

Claims: TypeAlias = npt.NDArray[np.float32]
Pays: TypeAlias = Callable[[list[float]], bool]
MUCH_LONGER = 8  # times as long as a new prompt: the memory of such a text is freed
MATCH = 3  # tokens that must agree to find the place in the prediction
BORDER = np.array([0x3FFFFFFF], dtype=np.int32)  # no token: drafts are cut before it


class DraftSource:
    """Proposes drafts for many slots: the base of what an engine asks. Its thread makes all calls.

    A source of your own derives from it and overrides begin, draft (or propose), accept and end;
    the rest has defaults. One that raises is switched off for the slot's request.

    name: In the policy and in statistics.
    native: The native drafter behind it, which the engine asks without Python where it can.
    own_passes: Drafting takes time, such as passes of a model: it is asked only where its tokens
        are expected to be worth it. It is told what was emitted before it is asked, of what came
        of its drafts, and now and then: perhaps of the tokens of several steps at once.
    max_draft: Its longest draft, in tokens.
    extends: It has `extend`.
    stops: It ends its drafts as `bound` says.
    info: Of a draft model, for monitoring.
    """

    name: str = "own"
    native: Drafter | None = None
    own_passes = False
    max_draft: int = MAX_LENGTH
    extends = stops = False
    info: DraftModelInfo | None = None

    @property
    def nbytes(self) -> int:
        """Return its memory, for monitoring."""
        return 0

    def start(self, slot: int, request: Request, sampler: Sampler) -> None:
        """Hear of a request that gets the slot, before its prompt is read."""

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request whose prompt is token_ids (int32, not kept); the target has read it."""

    def draft(self, slot: int, limit: int) -> TokenIds:
        """Return a draft of at most `limit` tokens, empty for none."""
        return NO_TOKENS

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> list[TokenIds]:
        """Return one draft per slot, of at most limits[i] tokens: by default, `draft` of each."""
        return [self.draft(slot, limit) for slot, limit in zip(slots, limits, strict=True)]

    def extend(
        self, slots: Sequence[int], before: Sequence[TokenIds], limits: Sequence[int]
    ) -> list[TokenIds]:
        """Return drafts after before[i], which another source has drafted; asked with `extends`."""
        return [NO_TOKENS] * len(slots)

    def confidence(self, slot: int) -> Claims | None:
        """Return for each token of the last draft how likely it is right if those before it are.

        float32; None = they count as equally likely, by how often its tokens were right.
        """
        return None

    def bound(self, slot: int, pays: Pays) -> None:
        """End the next draft where pays(claims so far) is false: no more is worth its time."""

    def price(self) -> tuple[float, float] | None:
        """Return the seconds that the drafts of a call take, and each token; None = time them.

        Asked when a request begins and after tokens were told.
        """
        return None

    def backlog(self, slot: int) -> float:
        """Return the seconds that it takes to read what was not read of the slot's text.

        Asked as `price` is.
        """
        return 0.0

    def shorten(self, slot: int, length: int) -> None:
        """Hear that only the first `length` tokens of the last draft are sent."""

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens, of which the first num_accepted are the source's last draft."""

    def shift(self, slot: int, first: int, count: int) -> None:
        """Hear that the context has discarded `count` tokens from `first` on."""

    def end(self, slot: int) -> None:
        """End the slot's request."""

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name."""
        return {}


class NativeSource(DraftSource):
    """A native Drafter as a source.

    Args:
        drafter: Made for the engine's slots.
        name: Its name in the policy.
    """

    native: Drafter

    def __init__(self, drafter: Drafter, name: str = "ngram") -> None:
        self.native, self.name, self.max_draft = drafter, name, drafter.max_draft
        self.draft = drafter.propose  # type: ignore[method-assign, assignment]
        self.confidence = drafter.confidence  # type: ignore[method-assign]
        self.accept, self.shorten = drafter.accept, drafter.shorten  # type: ignore[method-assign]
        self.end, self.stats = drafter.end, drafter.stats  # type: ignore[method-assign]
        self._longest: dict[int, int] = {}  # text by slot since its memory was freed

    @property
    def nbytes(self) -> int:
        """Return the memory of histories and sources, without what they share."""
        return self.native.nbytes

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        self.make_room(slot, len(token_ids))
        self.native.begin(slot, token_ids)

    def make_room(self, slot: int, size: int) -> None:
        longest = max(self._longest.get(slot, 0), self.native.length(slot))
        self._longest[slot] = longest
        if longest > max(KEPT, MUCH_LONGER * size):
            self.forget(slot)

    def forget(self, slot: int) -> None:
        with suppress(StateError):  # a source that was shut out may not have ended its request
            self.native.end(slot)
        self.native.forget(slot)
        self._longest.pop(slot, None)


class PredictionSource(DraftSource):
    """A static source of one request: its predicted output.

    The prediction stands, in a history of its own, between two copies of the prompt's last tokens.
    So emitted text is found in it like any repetition: from its first token on, and again where the
    answer returns to it after a difference. Where the answer repeats itself, that is no prediction.

    Args:
        slots: Slots of the engine.
    """

    name = "prediction"

    def __init__(self, slots: int) -> None:
        self._drafter = create_drafter(
            "ngram-simple", slots=slots, size_n=MATCH, size_m=DEFAULT_MAX_DRAFT
        )
        self._predictions: dict[int, TokenIds] = {}
        self._lengths: dict[int, int] = {}  # of what each slot's answer is looked for in
        self._newest: dict[int, TokenIds] = {}  # the last tokens of each slot's text

    def start(self, slot: int, request: Request, sampler: Sampler) -> None:
        """Take the prediction of the request that begins next on the slot."""
        self._predictions[slot] = request.prediction_ids

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        start = token_ids[-MATCH:]
        prediction = self._predictions.pop(slot, NO_TOKENS)
        text = np.concatenate([start, prediction, BORDER])
        self._lengths[slot], self._newest[slot] = len(text), start
        self._drafter.begin(slot, np.concatenate([text, start]))

    def draft(self, slot: int, limit: int) -> TokenIds:
        return self._drafter.propose(slot, limit)

    def confidence(self, slot: int) -> Any:
        return self._drafter.confidence(slot)

    def shorten(self, slot: int, length: int) -> None:
        self._drafter.shorten(slot, length)

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens; only the last few stay, as the answer is no prediction."""
        self._drafter.accept(slot, token_ids, num_accepted)
        self._newest[slot] = np.concatenate([self._newest[slot], token_ids])[-MATCH:]
        self._drafter.truncate(slot, self._lengths[slot])
        self._drafter.accept(slot, self._newest[slot], 0)

    def end(self, slot: int) -> None:
        self._drafter.end(slot)

    def stats(self) -> dict[str, SourceStats]:
        stats = self._drafter.stats()["ngram-simple"]
        return {self.name: dataclasses.replace(stats, name=self.name)}
