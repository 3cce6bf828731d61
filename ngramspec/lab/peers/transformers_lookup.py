"""transformers' prompt lookup, as assisted generation calls it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ngramspec.lab.replay.player import FixedSubject, GrowingText, Subject, Tokens

ENDLESS = 1 << 30


def open_subject(name: str, **settings: Any) -> Subject:
    """Return the subject; raises ImportError without torch or transformers."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.generation.candidate_generator")
    torch.set_num_threads(1)

    def opener() -> _Lookup:
        generator = module.PromptLookupCandidateGenerator(**settings, max_length=ENDLESS)
        return _Lookup(torch, generator)

    return FixedSubject(name, opener)


class _Lookup:
    def __init__(self, torch: Any, generator: Any) -> None:
        self._tensor, self._generator = torch.from_numpy, generator
        self._text = GrowingText(np.int64)
        self.begin = self._text.begin

    def propose(self, limit: int) -> Tokens:
        text = self._text.view()
        candidates, _ = self._generator.get_candidates(self._tensor(text)[None])
        draft: Tokens = candidates[0, len(text) :].numpy().astype(np.int32)
        return draft

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        self._text.add(tokens)

    def end(self) -> None:
        """Keep nothing."""

    def nbytes(self) -> int:
        return 0
