"""A tokenizer of single characters."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from ngramspec.arrays import TokenIds


class Letters:
    """Characters below 128 are tokens; above them lie the special ones."""

    name = "letters"

    def __init__(self, *special: str) -> None:
        self.special = special
        self.fingerprint = SimpleNamespace(vocab_size=128 + len(special), digest=b"letters")

    def encode(self, text: str) -> TokenIds:
        return np.array([ord(letter) % 128 for letter in text], dtype=np.int32)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        return "".join(chr(i) if i < 128 else self.special[i - 128] for i in ids)
