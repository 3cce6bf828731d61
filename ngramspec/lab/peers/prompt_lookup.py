"""llama-cpp-python's prompt lookup, as its `draft_model=` calls it."""

from __future__ import annotations

import importlib
from typing import Any

from ngramspec.lab.replay.player import FixedSubject, GrowingText, Subject, Tokens


def open_subject(name: str, **settings: Any) -> Subject:
    """Return the subject; raises ImportError without llama-cpp-python."""
    module = importlib.import_module("llama_cpp.llama_speculative")
    return FixedSubject(name, lambda: _Lookup(module.LlamaPromptLookupDecoding(**settings)))


class _Lookup:
    def __init__(self, lookup: Any) -> None:
        self._lookup, self._text = lookup, GrowingText()
        self.begin = self._text.begin

    def propose(self, limit: int) -> Tokens:
        draft: Tokens = self._lookup(self._text.view())
        return draft

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        self._text.add(tokens)

    def end(self) -> None:
        """Keep nothing."""

    def nbytes(self) -> int:
        return 0
