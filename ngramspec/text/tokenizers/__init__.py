"""Tokenizers of target models and the fingerprints that tell vocabularies apart."""

from __future__ import annotations

import os
from pathlib import Path

from ngramspec.errors import FormatError
from ngramspec.files.atomic import kind_unless_file
from ngramspec.text.tokenizers.fingerprint import Fingerprint, fingerprint_of, fingerprint_of_llama
from ngramspec.text.tokenizers.gguf import is_gguf
from ngramspec.text.tokenizers.tokenizer import Tokenizer

__all__ = ["Fingerprint", "Tokenizer", "fingerprint_of", "fingerprint_of_llama", "load_tokenizer"]


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
