"""Tokenising with llama.cpp, through its C interface and without the GIL.

A C++ exception that reaches ctypes ends the process, so everything that makes llama.cpp throw is
refused before it is called: vocabularies that cannot encode every text, token ids out of range and
text that is not Unicode. Many vocabularies (deepseek, falcon, starcoder and more) are split by
std::regex, which recurses once per character of a run: some 26,000 of them overflow a stack of
8 MiB. So llama.cpp never gets more than MAX_CHARS at a time.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.errors import BackendError, FormatError, StateError
from ngramspec.tokenizers.fingerprint import WORD_PIECE, fingerprint_of_tokens, read_gguf_tokens
from ngramspec.tokenizers.tokenizer import TokenIds, checked_ids

MAX_CHARS = 8 << 10
_NEEDS_BYTES = "llama"  # SentencePiece throws where a byte has no token
_BUSY = threading.Lock()  # llama.cpp has one log callback per process
_IDS = ctypes.POINTER(ctypes.c_int32)


class LlamaTokenizer:
    """The tokenizer of a GGUF file; only its vocabulary is loaded.

    Args:
        path: The file.

    Raises:
        FormatError: Not GGUF, damaged, or its vocabulary cannot encode every text.
        BackendError: llama-cpp-python is not installed or cannot load the file.
        OSError: The file cannot be read.

    Cost: as llama.cpp's loading of a vocabulary: about 0.4 s for 150,000 tokens.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._model: Any = None
        self.path = Path(path)
        self.name = self.path.name
        tokens, kind = read_gguf_tokens(self.path)
        check_vocabulary(self.path, tokens, kind)
        self.fingerprint = fingerprint_of_tokens(tokens, word_piece=kind == WORD_PIECE)
        self._lib = _library()
        self._model = _load(self._lib, self.path)
        self._vocab = self._lib.llama_model_get_vocab(self._model)

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text.

        Args:
            text: A text of more than 8,192 characters is cut at line ends and tokenised in parts.
                Lone surrogates become "?".

        Returns:
            numpy int32 array: No begin or end token; special tokens are not parsed.

        Raises:
            BackendError: llama.cpp gave no token for a part of it.
            StateError: The tokenizer is closed.

        Cost: 2 to 8 MB/s, without the GIL.
        """
        if len(text) <= MAX_CHARS:
            return self._encode(text)
        return np.concatenate([self._encode(part) for part in _parts(text)])

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text; raises as encode."""
        return [self.encode(text) for text in texts]

    def decode(self, token_ids: Sequence[int] | TokenIds) -> str:
        """Return the text of token ids, special tokens included, with every space that they have.

        Raises:
            InputError: An id is not in the vocabulary.
            StateError: The tokenizer is closed.

        Cost: about 2 us per token.
        """
        ids = checked_ids(token_ids, self.fingerprint.vocab_size)
        return b"".join(map(self._piece, ids)).decode("utf-8", "replace")

    def close(self) -> None:
        """Free the vocabulary; no call may be running."""
        model, self._model = self._model, None
        if model is not None:
            self._lib.llama_model_free(model)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[LlamaTokenizer], tuple[Path]]:
        return type(self), (self.path,)

    def _encode(self, text: str) -> TokenIds:
        data = text.encode("utf-8", "replace")
        ids = np.empty(len(data) + 8, dtype=np.int32)
        count = self._tokenize(data, ids)
        if count < 0:  # more tokens than bytes
            ids = np.empty(-count, dtype=np.int32)
            count = self._tokenize(data, ids)
        ids = ids[:count].copy()
        if count and not self._in_range(ids):
            raise BackendError(f"{self.name}: llama.cpp has no token for a part of the text")
        return ids

    def _tokenize(self, data: bytes, ids: TokenIds) -> int:
        return int(
            self._lib.llama_tokenize(
                self._open(), data, len(data), ids.ctypes.data_as(_IDS), ids.size, False, False
            )
        )

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._lib.llama_token_to_piece(self._open(), token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def _in_range(self, ids: TokenIds) -> bool:
        return 0 <= int(ids.min()) <= int(ids.max()) < self.fingerprint.vocab_size

    def _open(self) -> Any:
        if self._model is None:
            raise StateError(f"the tokenizer of {self.name} is closed")
        return self._vocab


def _parts(text: str) -> Iterator[str]:
    """Cut a long text behind line ends, or anywhere in very long lines."""
    start = 0
    while len(text) - start > MAX_CHARS:
        stop = start + MAX_CHARS
        stop = text.rfind("\n", start + MAX_CHARS // 2, stop) + 1 or stop
        yield text[start:stop]
        start = stop
    yield text[start:]


def check_vocabulary(path: Path, tokens: Sequence[bytes], kind: str) -> None:
    """Refuse what makes llama.cpp end the process, at loading or later."""
    # A text ends before its first NUL there, and empty ones are named by their id.
    texts = {text.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, text in enumerate(tokens)}
    if len(texts) != len(tokens):
        raise FormatError(f"{path}: {len(tokens) - len(texts)} tokens have the text of another")
    if kind == _NEEDS_BYTES:
        for byte in range(256):
            if not texts & {b"<0x%02X>" % byte, bytes([byte])}:
                raise FormatError(f"{path}: the vocabulary has no token for byte 0x{byte:02X}")


def _load(lib: Any, path: Path) -> Any:
    params = lib.llama_model_default_params()
    params.vocab_only = True
    params.n_gpu_layers = 0
    with _BUSY, _log_of(lib) as said:
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        reason = next((line for line in said if "error" in line), "")
        reason = reason.rpartition("error loading model: ")[2]
        raise BackendError(f"llama.cpp cannot load {path}: {reason}".rstrip(": "))
    return model


@contextmanager
def _log_of(lib: Any) -> Iterator[list[str]]:
    """Collect what llama.cpp logs instead of printing it."""
    said: list[str] = []

    def note(_: int, text: bytes | None, __: Any) -> None:
        said.append((text or b"").decode("utf-8", "replace").strip())

    callback = lib.llama_log_callback(note)
    old, data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(old), ctypes.byref(data))
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield said
    finally:
        lib.llama_log_set(old, data)


def _library() -> Any:
    try:
        import llama_cpp.llama_cpp as lib
    except ImportError as error:
        raise BackendError(
            "this needs llama-cpp-python, which is not installed: pip install 'ngramspec[llama]'"
        ) from error
    return lib
