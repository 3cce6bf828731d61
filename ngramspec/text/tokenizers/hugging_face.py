"""Tokenising with a Hugging Face tokenizer.json."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.errors import BackendError, StateError
from ngramspec.messages import not_installed
from ngramspec.text.tokenizers.fingerprint import fingerprint_of
from ngramspec.text.tokenizers.tokenizer import checked_ids


class HfTokenizer:
    """The tokenizer of a tokenizer.json.

    Like llama.cpp without special tokens: a literal `<|im_end|>` in a text is text, while added
    tokens that are not special, such as `<tool_call>`, are still recognised.

    Args:
        path: The file.

    Raises:
        FormatError: Not a tokenizer.json.
        BackendError: tokenizers is not installed or refuses the file.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.fingerprint = fingerprint_of(self.path)
        self._tokenizer: Any = _load(self.path)

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text; lone surrogates become "?".

        Raises:
            StateError: The tokenizer is closed.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text; the library spreads them over the cores.

        Raises:
            StateError: The tokenizer is closed.
        """
        encode = self._open().encode_batch_fast
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        encodings = encode(clean, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def decode(self, token_ids: Sequence[int] | TokenIds) -> str:
        """Return the text of token ids, special tokens included.

        Raises:
            InputError: An id is not in the vocabulary.
            StateError: The tokenizer is closed.
        """
        ids = checked_ids(token_ids, self.fingerprint.vocab_size)
        return str(self._open().decode(ids, skip_special_tokens=False))

    def close(self) -> None:
        self._tokenizer = None

    def __reduce__(self) -> tuple[type[HfTokenizer], tuple[Path]]:
        return type(self), (self.path,)

    def _open(self) -> Any:
        if self._tokenizer is None:
            raise StateError(f"the tokenizer of {self.name} is closed")
        return self._tokenizer


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BackendError(not_installed("tokenizer.json needs tokenizers", "corpus")) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise BackendError(f"tokenizers cannot load {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # as text
    return tokenizer
