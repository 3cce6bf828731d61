"""Writer: writes random texts by a grammar, with the embedded model's vocabulary."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import numpy as np

from fuzz.target import Finding
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import Grammars
from ngramspec.models import embedded_model

STEPS = 20  # tokens written at most
MOST_SECONDS = 2.0  # of processor time for one token; a tenth of it is the most on a quiet machine
CLOSING = b'"]},:'  # tokens that a writer likes, as they bring a text to its end


@dataclass(frozen=True)
class Written:
    """A text, and whether the grammar allows it to end there."""

    text: bytes
    ended: bool


class Writer:
    """Writes texts; makes what it needs of the vocabulary once."""

    def __init__(self) -> None:
        self._model = LlamaModel(embedded_model(), vocab_only=True)
        self._grammars = Grammars(self._model)
        self.tokens = self._model.vocabulary.grammar_tokens
        size = self._model.vocab_size
        self.pieces = [self._model.piece(token, True) for token in range(size)]
        self.ends = np.array([self._model.is_end(token) for token in range(size)])
        closing = {bytes([byte]) for byte in CLOSING}
        self._closing = np.array([piece in closing for piece in self.pieces])
        self._firsts = np.array([piece[0] if piece else 0 for piece in self.pieces])

    def token_of(self, text: str) -> int:
        """Return the id of a text that is one token, -1 for others."""
        ids = self._model.tokenize(text, add_special=False, parse_special=True)
        return int(ids[0]) if ids.size == 1 else -1

    def write(self, grammar: str, choices: bytes) -> Written:
        """Return a text by a grammar.

        choices: Say which tokens are written.

        Raises:
            InputError: The grammar is refused.
            Finding: A token took long.
        """
        matcher, rng = self._grammars.constraint(grammar), random.Random(choices)
        text = b""
        for _ in range(STEPS):
            started = time.thread_time()
            allowed = matcher.mask()
            if time.thread_time() - started > MOST_SECONDS:
                raise Finding("a token takes long")
            going = np.flatnonzero(allowed & ~self.ends)
            if matcher.may_end and (rng.random() < 0.6 or not len(going)):
                return Written(text, True)
            if not len(going):
                break
            closing = np.flatnonzero(allowed & self._closing)
            if not len(closing) or rng.random() < 0.5:  # equal chances for all that may come next
                firsts = self._firsts[going]
                closing = going[firsts == rng.choice(np.unique(firsts))]
            token = int(rng.choice(closing))
            if not matcher.accept(token):
                if matcher.problem:
                    break
                raise Finding(f"a token of the mask is refused: {self.pieces[token]!r}")
            text += self.pieces[token]
        return Written(text, False)

    def close(self) -> None:
        """Free the vocabulary."""
        self._grammars.close()
        self._model.close()
