"""PredictionSource: drafts from the answer that the user expects (OpenAI's `prediction`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Sampler
from ngramspec.arrays import TokenIds
from ngramspec.drafting import create_drafter
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.engine.sources.source import DraftSource
from ngramspec.stats import SourceStats

MATCH = 3  # tokens that must agree to find the place in the prediction
BORDER = np.array([0x3FFFFFFF], dtype=np.int32)  # no token: drafts are cut before it


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
        """Start the request."""
        start = token_ids[-MATCH:]
        prediction = self._predictions.pop(slot, NO_TOKENS)
        text = np.concatenate([start, prediction, BORDER])
        self._lengths[slot], self._newest[slot] = len(text), start
        self._drafter.begin(slot, np.concatenate([text, start]))

    def draft(self, slot: int, limit: int) -> TokenIds:
        """Draft what follows in the prediction."""
        return self._drafter.propose(slot, limit)

    def confidence(self, slot: int) -> Any:
        """Return how likely the tokens of the last draft are right, float32."""
        return self._drafter.confidence(slot)

    def shorten(self, slot: int, length: int) -> None:
        """Count only the first `length` tokens of the last draft as drafted."""
        self._drafter.shorten(slot, length)

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens; only the last few stay, as the answer is no prediction."""
        self._drafter.accept(slot, token_ids, num_accepted)
        self._newest[slot] = np.concatenate([self._newest[slot], token_ids])[-MATCH:]
        self._drafter.truncate(slot, self._lengths[slot])
        self._drafter.accept(slot, self._newest[slot], 0)

    def end(self, slot: int) -> None:
        """End the request."""
        self._drafter.end(slot)

    def stats(self) -> dict[str, SourceStats]:
        """Return its counts under its own name."""
        stats = self._drafter.stats()["ngram-simple"]
        return {self.name: dataclasses.replace(stats, name=self.name)}
