"""Tokenising with llama.cpp, through its C interface and without the GIL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ngramspec.arrays import TokenIds
from ngramspec.errors import StateError
from ngramspec.text.tokenizers.fingerprint import (
    WORD_PIECE,
    fingerprint_of_tokens,
    read_gguf_tokens,
)
from ngramspec.text.tokenizers.llama_library import Handle, caught_log, load_library, load_model
from ngramspec.text.tokenizers.llama_vocabulary import Vocabulary, check_vocabulary


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
        self._handle: Handle | None = None
        self.path = Path(path)
        self.name = self.path.name
        tokens, kind = read_gguf_tokens(self.path)
        check_vocabulary(self.path, tokens, kind)
        self.fingerprint = fingerprint_of_tokens(tokens, word_piece=kind == WORD_PIECE)
        library = load_library()
        params = library.lib.llama_model_default_params()
        params.vocab_only = True
        params.n_gpu_layers = 0
        with caught_log(library.lib):
            self._handle = load_model(library, self.path, params)
        address = library.lib.llama_model_get_vocab(self._handle.address)
        self._vocabulary = Vocabulary(library, address)

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text.

        Args:
            text: Lone surrogates become "?". Runs of more than 4,096 characters without white
                space, or of white space only, are cut.

        Returns:
            numpy int32 array: No begin or end token; special tokens are not parsed.

        Raises:
            BackendError: llama.cpp gave no token for a part of it.
            StateError: The tokenizer is closed.

        Cost: 2 to 8 MB/s, without the GIL.
        """
        return self._open().tokenize(text, add_special=False, parse_special=False)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text; raises as encode."""
        return [self.encode(text) for text in texts]

    def decode(self, token_ids: Sequence[int] | TokenIds) -> str:
        """Return the text of token ids, special tokens and all spaces included.

        Raises:
            InputError: An id is not in the vocabulary.
            StateError: The tokenizer is closed.

        Cost: about 0.2 us per token; 2 us the first time for each id.
        """
        return self._open().detokenize(token_ids, special=True)

    def close(self) -> None:
        """Free the vocabulary; no call may be running."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._vocabulary.close()
            handle.free()

    def __reduce__(self) -> tuple[type[LlamaTokenizer], tuple[Path]]:
        return type(self), (self.path,)

    def _open(self) -> Vocabulary:
        if self._handle is None:
            raise StateError(f"the tokenizer of {self.name} is closed")
        return self._vocabulary
