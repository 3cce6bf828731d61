"""The slow twin of Translation: translates and tokenises the whole text each time."""

from __future__ import annotations

import codecs
from typing import Any


class SlowTranslation:
    """The text so far, as bytes of the target's."""

    def __init__(self, vocabulary: Any, pairs: list[tuple[str, str]]) -> None:
        self.vocabulary, self.pairs = vocabulary, pairs
        self.data = b""

    @property
    def text(self) -> str:
        """The draft model's text, without a begun character."""
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(self.data)
        exchanged, at = "", 0
        while at < len(whole):
            pairs = [(len(old), new) for old, new in self.pairs[::-1] if whole.startswith(old, at)]
            size, new = max(pairs, key=lambda one: one[0], default=(1, whole[at]))
            exchanged, at = exchanged + new, at + size
        return exchanged

    @property
    def partial(self) -> bytes:
        """The begun character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self.data)
        return decoder.getstate()[0]

    @property
    def ids(self) -> list[int]:
        """Its tokens."""
        tokens: list[int] = self.vocabulary.tokenize(
            self.text, add_special=False, parse_special=True
        ).tolist()
        return tokens
