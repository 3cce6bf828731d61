"""ArcticInference's suffix cache: a tree per request, and one of all answers so far."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ngramspec.lab.replay.player import FixedSubject, GrowingText, Subject, Tokens

MAX_TOKENS = 64  # of a draft, and of the matched context: the tree's depth


def open_subject(name: str, **settings: Any) -> Subject:
    """Return the subject; raises ImportError without arctic-inference."""
    module = importlib.import_module("arctic_inference.suffix_decoding")
    return FixedSubject(name, lambda: _Suffix(module.SuffixDecodingCache(MAX_TOKENS), settings))


class _Suffix:
    def __init__(self, cache: Any, settings: dict[str, Any]) -> None:
        self._cache, self._settings = cache, settings
        self._text, self._request = GrowingText(), -1

    def begin(self, prompt: Tokens) -> None:
        self._text.begin(prompt)
        self._request += 1
        self._cache.start_request(self._request, prompt)

    def propose(self, limit: int) -> Tokens:
        # The limit is left to the caller: here it would change which of the two trees is chosen.
        context = self._text.view()[-MAX_TOKENS:]
        draft = self._cache.speculate(
            self._request, context, max_spec_tokens=MAX_TOKENS, **self._settings
        )
        return np.array(draft.token_ids, dtype=np.int32)

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        self._text.add(tokens)
        self._cache.add_active_response(self._request, tokens)

    def end(self) -> None:
        self._cache.stop_request(self._request)

    def nbytes(self) -> int:
        trees = [self._cache._global_tree, *self._cache._local_trees.values()]
        return int(sum(tree.estimate_memory() for tree in trees))
