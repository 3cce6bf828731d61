"""The protocol of tokenizers, and the check of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Protocol

from ngramspec.arrays import TokenIds
from ngramspec.errors import InputError
from ngramspec.text.tokenizers.fingerprint import Fingerprint


class Tokenizer(Protocol):
    """Turns text into token ids as a model sees it in the middle of a prompt.

    No begin or end token is added, and a literal `<|im_end|>` in a text stays text. Calls may come
    from several threads at once; pickling reopens the file.
    """

    @property
    def name(self) -> str:
        """The file name."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    def encode(self, text: str) -> TokenIds: ...

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]: ...

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
