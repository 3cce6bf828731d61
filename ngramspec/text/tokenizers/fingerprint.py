"""The fingerprint of a vocabulary: equal for a GGUF model and the tokenizer.json it came from.

Token ids only mean something with the tokenizer that made them. The fingerprint hashes the text of
every token id, in one canonical form for all sources:

- Placeholders are left out: gaps, empty texts, `[PAD123]` with its own id as number (llama.cpp's
  converter fills gaps and the tail with these, and llama.cpp itself names empty texts
  `[EMPTY_123]`).
- `\\u2581` is a space: the converter writes added tokens either way.
- A text ends before its first NUL, as it does in llama.cpp's C interface.
- WordPiece: `##ing` is `ing` and `the` is `\\u2581the` in a GGUF file; that form is used, except
  that texts in square brackets have no `\\u2581`.

Whether a token is special is not hashed: the converter and llama.cpp's loader both guess that
from the text, so it differs between two files of one model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.errors import BackendError, FormatError
from ngramspec.files.atomic import kind_unless_file
from ngramspec.text.tokenizers.gguf import is_gguf, read_metadata

WORD_PIECE = "bert"  # the GGUF name of that tokenizer
_TOKENS_KEY = "tokenizer.ggml.tokens"
_MODEL_KEY = "tokenizer.ggml.model"
_NO_TOKENIZER = "none"
_LOOKED_AT = 64  # bytes that tell a text from a model
_VERSION = b"ngramspec vocabulary 1\n"
_SPACE = "\u2581".encode()
_PLACEHOLDERS = (b"[PAD", b"[EMPTY_")


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a vocabulary.

    digest: 16 bytes, xxh3_128 of the canonical form.
    vocab_size: number of ids, padding included: every id is below it.
    name: of the file that it is of, for people; "" = not known.
    """

    digest: bytes
    vocab_size: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.digest.hex()

    def matches(self, other: Fingerprint) -> bool:
        """Return whether token ids mean the same in both; padding may differ."""
        return self.digest == other.digest


def fingerprint_of(path: str | os.PathLike[str]) -> Fingerprint:
    """Fingerprint the vocabulary of a file.

    Args:
        path: A GGUF file (the first of a split model) or a Hugging Face tokenizer.json.

    Returns:
        Fingerprint: Equal digests for both files of one model.

    Raises:
        FormatError: Neither of the two, damaged, or without a vocabulary.
        OSError: The file cannot be read.

    Cost: about 0.1 s for 150,000 tokens of a GGUF file, 0.3 s of a tokenizer.json.
    """
    path = Path(path)
    if what := kind_unless_file(path):
        raise FormatError(f"{path}: expected a GGUF file or tokenizer.json, found {what}")
    if not is_gguf(path):  # such files all have the same name
        return replace(_of_json(path), name=str(Path(path.absolute().parent.name, path.name)))
    tokens, model = read_gguf_tokens(path)
    fingerprint = fingerprint_of_tokens(tokens, word_piece=model == WORD_PIECE)
    return replace(fingerprint, name=path.name)


def fingerprint_of_llama(llama: Any) -> Fingerprint:
    """Fingerprint the vocabulary of a loaded model, from memory: its file may have changed.

    Args:
        llama: A llama_cpp.Llama.

    Returns:
        Fingerprint: Equal to that of the file it was loaded from.

    Raises:
        BackendError: The model has no vocabulary.

    Cost: about 0.1 s for 150,000 tokens.
    """
    import llama_cpp.llama_cpp as lib

    vocab = llama._model.vocab
    kind = lib.llama_vocab_type(vocab)
    if kind == lib.LLAMA_VOCAB_TYPE_NONE:
        raise BackendError("the model has no vocabulary, only token ids")
    num_tokens = int(lib.llama_vocab_n_tokens(vocab))
    get_text = lib.llama_vocab_get_text
    texts = [get_text(vocab, token) for token in range(num_tokens)]
    fingerprint = fingerprint_of_tokens(texts, word_piece=kind == lib.LLAMA_VOCAB_TYPE_WPM)
    return replace(fingerprint, name=Path(llama.model_path).name)


def fingerprint_of_tokens(texts: Sequence[bytes], *, word_piece: bool = False) -> Fingerprint:
    """Fingerprint the token texts of a GGUF file, one per id."""
    return _make(enumerate(texts), len(texts), word_piece=word_piece)


def read_gguf_tokens(path: Path) -> tuple[list[bytes], str]:
    """Read the token texts of a GGUF file and the kind of its tokenizer, such as "gpt2".

    Raises:
        FormatError: Not GGUF, damaged, or without a vocabulary.
        OSError: The file cannot be read.
    """
    metadata = read_metadata(path, (_TOKENS_KEY, _MODEL_KEY).__contains__)
    tokens, model = metadata.get(_TOKENS_KEY), metadata.get(_MODEL_KEY)
    if not isinstance(tokens, list) or not tokens or model in (None, _NO_TOKENIZER):
        raise FormatError(f"{path}: the file has no vocabulary, only token ids")
    return tokens, str(model)


def _of_json(path: Path) -> Fingerprint:
    try:
        with path.open("rb") as file:
            if b"\0" in file.read(_LOOKED_AT):  # perhaps a model, of any size
                raise ValueError
        tokenizer = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: neither a GGUF file nor a tokenizer.json") from None
    try:
        tokens = _json_tokens(tokenizer)
    except KeyError as error:
        raise FormatError(f"{path}: not a tokenizer.json: it has no {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: not a tokenizer.json: {error!r}") from None
    if not tokens:
        raise FormatError(f"{path}: the vocabulary is empty")
    return _make(sorted(tokens.items()), max(tokens) + 1)


def _json_tokens(tokenizer: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the text of every id of a tokenizer.json, as a GGUF file would have it."""
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of text and score
        tokens = {i: _utf8(entry[0]) for i, entry in enumerate(vocab)}
    else:
        tokens = {_id(token): _utf8(text) for text, token in vocab.items()}
    if model.get("type") == "WordPiece":
        prefix = _utf8(model.get("continuing_subword_prefix", "##"))
        tokens = {token: _word_piece(text, prefix) for token, text in tokens.items()}
    for added in tokenizer.get("added_tokens") or ():
        tokens[_id(added["id"])] = _utf8(added["content"])
    return tokens


def _word_piece(text: bytes, prefix: bytes) -> bytes:
    if text.startswith(prefix):
        return text[len(prefix) :]
    return text if _bracketed(text) else _SPACE + text


def _bracketed(text: bytes) -> bool:
    return text.startswith(b"[") and text.endswith(b"]")


def _make(
    entries: Iterable[tuple[int, bytes]], vocab_size: int, *, word_piece: bool = False
) -> Fingerprint:
    """Hash the canonical form of ids, ascending, and texts."""
    import xxhash

    pairs = [entry for entry in entries if entry[1] and not _is_placeholder(*entry)]
    ids = [token for token, _ in pairs]
    texts = [text for _, text in pairs]
    joined = b"".join(texts)
    if word_piece or b"\0" in joined:
        texts = [_bare(text.partition(b"\0")[0], word_piece) for text in texts]
        return _make(zip(ids, texts, strict=True), vocab_size)
    if _SPACE in joined:
        texts = [text.replace(_SPACE, b" ") for text in texts]
        joined = b"".join(texts)
    digest = xxhash.xxh3_128(_VERSION)
    digest.update(np.array([len(ids)], dtype="<u8").tobytes())
    digest.update(np.array(ids, dtype="<u4").tobytes())
    digest.update(np.array([*map(len, texts)], dtype="<u4").tobytes())
    digest.update(joined)
    return Fingerprint(digest.digest(), vocab_size)


def _bare(text: bytes, word_piece: bool) -> bytes:
    if word_piece and text.startswith(_SPACE) and _bracketed(text[len(_SPACE) :]):
        return text[len(_SPACE) :]
    return text


def _is_placeholder(token: int, text: bytes) -> bool:
    return text.startswith(_PLACEHOLDERS) and text in (b"[PAD%d]" % token, b"[EMPTY_%d]" % token)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _id(token: Any) -> int:
    if not isinstance(token, int) or not 0 <= token < 1 << 31:
        raise ValueError(f"{token!r} is no token id")
    return token
