"""Tokenizers of target models and the fingerprints that tell vocabularies apart."""

from ngramspec.text.tokenizers.fingerprint import Fingerprint, fingerprint_of, fingerprint_of_llama
from ngramspec.text.tokenizers.load import load_tokenizer
from ngramspec.text.tokenizers.tokenizer import Tokenizer

__all__ = [
    "Fingerprint",
    "Tokenizer",
    "fingerprint_of",
    "fingerprint_of_llama",
    "load_tokenizer",
]
