"""The protocol of tokenizers, how one is loaded, and the check of token ids."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Protocol

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError, InputError
from ngramspec.files.atomic import kind_unless_file
from ngramspec.text.tokenizers.fingerprint import Fingerprint
from ngramspec.text.tokenizers.gguf import is_gguf


class Tokenizer(Protocol):
    """Turns text into token ids as a model sees it in the middle of a prompt.

    No begin or end token is added, and a literal `<|im_end|>` in a text stays text. Calls may come
    from several threads at once; pickling reopens the file.
    """

    @property
    def name(self) -> str:
        """The file name."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What identifies the vocabulary."""

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text."""

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text."""

    def decode(self, token_ids: Sequence[int] | TokenIds) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD."""

    def close(self) -> None:
        """Free the vocabulary; a second call does nothing."""


def checked_ids(token_ids: Sequence[int] | TokenIds, vocab_size: int) -> list[int]:
    """Return token ids as a list.

    Raises:
        InputError: One is not in the vocabulary.
    """
    ids = [index(token) for token in token_ids]
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InputError(f"token ids must be 0..{vocab_size - 1}")
    return ids


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a model.

    Args:
        path: A GGUF file (only its vocabulary is loaded) or a Hugging Face tokenizer.json.

    Returns:
        Tokenizer: Several threads may use it at once.

    Raises:
        FormatError: Neither of the two, damaged, or a vocabulary that cannot tokenise.
        BackendError: llama-cpp-python or tokenizers is not installed, or refuses the file.
        OSError: The file cannot be read.
    """
    path = Path(path)
    if what := kind_unless_file(path):
        raise FormatError(f"{path}: expected a GGUF file or tokenizer.json, found {what}")
    if is_gguf(path):
        from ngramspec.text.tokenizers.llama import LlamaTokenizer

        return LlamaTokenizer(path)
    from ngramspec.text.tokenizers.hugging_face import HfTokenizer

    return HfTokenizer(path)
