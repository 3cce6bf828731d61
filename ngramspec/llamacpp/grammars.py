"""Grammars: what texts must follow, in GBNF or in llguidance's Lark, with a model's vocabulary."""

from __future__ import annotations

import threading

from ngramspec._native.grammar.constraint import Constraint
from ngramspec._native.grammar.guidance import GuidanceMatcher, GuidanceTokens
from ngramspec._native.grammar.matcher import Matcher
from ngramspec._native.grammar.rules import Rules
from ngramspec.llamacpp.kept import Kept
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.text.grammar.gbnf import MAX_ELEMENTS, read_grammar
from ngramspec.text.grammar.lark import MARK, guidance_tokens, lark_matcher

MOST = 16  # grammars that are kept
# Texts that most vocabularies write in tokens of the same text, wherever they stand.
PROBES = ('{"', '"a', ' "b"', "\n  ", "true,", "}", "\u00e9", " 1.5e3]")


class Grammars:
    """Reads grammars for one model, and keeps the latest.

    Args:
        model: The model; stays open until close.

    Thread-safety: safe.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._kept: Kept[Rules | GuidanceMatcher] = Kept(MOST, MAX_ELEMENTS)
        self._making = threading.Lock()  # guards the next
        self._tokens: GuidanceTokens | None = None

    def constraint(self, text: str) -> Constraint:
        """Return what one text follows, at the beginning of a grammar.

        Args:
            text: GBNF with a rule "root", or Lark of llguidance, which begins with "%llguidance".

        Raises:
            InputError: The grammar is not valid, or too large.
            BackendError: It needs llguidance, which is not installed.

        Cost: some us; a grammar is read the first time, 2 us per character. The first one for
            llguidance waits for its vocabulary, some 100 ms.
        """

        def make() -> tuple[Rules | GuidanceMatcher, int]:
            if text.startswith(MARK):
                return lark_matcher(text, self._guidance_tokens(), self._token_of), len(text)
            rules = read_grammar(text, self._token_of)
            return rules, rules.num_elements

        grammar = self._kept.get(text, make)
        if isinstance(grammar, Rules):
            return Matcher(grammar, self._model.vocabulary.grammar_tokens)
        return grammar.copy()

    def close(self) -> None:
        """Drop what is kept, because llama.cpp's vocabulary is about to be freed."""
        self._kept.clear()
        with self._making:
            if self._tokens is not None:
                self._tokens.close()

    def _token_of(self, text: str) -> int:
        ids = self._model.vocabulary.tokenize(text, add_special=False, parse_special=True)
        return int(ids[0]) if ids.size == 1 else -1

    def _guidance_tokens(self) -> GuidanceTokens:
        vocabulary = self._model.vocabulary
        with self._making:
            if self._tokens is None:
                write = (0, 0)
                if all(vocabulary.writes(text) for text in PROBES):
                    write = self._model.library.calls["llama_tokenize"], vocabulary.address
                self._tokens = guidance_tokens(vocabulary.grammar_tokens, *write)
            return self._tokens
