"""The tokenizer of a statistics file, and its token ids as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.errors import BackendError, VocabMismatchError

if TYPE_CHECKING:
    from ngramspec.text.tokenizers import Fingerprint, Tokenizer


def embedded_fingerprint() -> Fingerprint | None:
    """Return the fingerprint of the embedded model, None when the package has none."""
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import fingerprint_of

    try:
        return fingerprint_of(embedded_model())
    except FileNotFoundError:
        return None


def tokenizer_of(fingerprint: bytes | None, tokenizer_path: Path | None) -> Tokenizer | None:
    """Return the tokenizer of a file: the given one, or the embedded model's if it matches.

    Args:
        fingerprint: The file's, None = unknown.
        tokenizer_path: --model or --tokenizer.

    Raises:
        VocabMismatchError: The given one is not the file's.
        FormatError, BackendError, OSError: As load_tokenizer.
    """
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import load_tokenizer

    if tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path)
        mine = tokenizer.fingerprint.digest
        if fingerprint not in (None, mine):
            raise VocabMismatchError(
                f"the file was made with another tokenizer than {tokenizer_path}: its fingerprint "
                f"is {(fingerprint or b'').hex()}, not {mine.hex()}"
            )
        return tokenizer
    embedded = embedded_fingerprint()
    if fingerprint is None or embedded is None or embedded.digest != fingerprint:
        return None
    try:
        return load_tokenizer(embedded_model())
    except BackendError:
        return None  # without llama-cpp-python: token ids instead of text


def text_of(tokenizer: Tokenizer, token_ids: Iterable[int]) -> str:
    """Return the text of token ids; ids beyond the vocabulary become <id>."""
    parts: list[str] = []
    ids: list[int] = []
    for token in token_ids:
        if 0 <= token < tokenizer.fingerprint.vocab_size:
            ids.append(token)
            continue
        parts += [tokenizer.decode(ids), f"<{token}>"]
        ids = []
    return "".join([*parts, tokenizer.decode(ids)])


def quoted(tokenizer: Tokenizer | None, token_ids: Sequence[int]) -> str:
    """Return token ids as text in quotes with nothing invisible, or as numbers."""
    if tokenizer is None:
        return " ".join(map(str, token_ids))
    return repr(text_of(tokenizer, token_ids))
