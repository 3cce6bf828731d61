"""Convert statistics files to llama.cpp's lookup caches and back."""

from __future__ import annotations

import os

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec.errors import InputError
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.container import Header
from ngramspec.files.llama_lookup import write_lookup_cache
from ngramspec.files.statistics import LOOKUP_KIND, Statistics

MOST_NGRAMS = 1 << 30


def to_lookup_cache(statistics: Statistics, output: str | os.PathLike[str]) -> int:
    """Write the counts of a statistics file as a lookup cache of llama.cpp.

    Returns:
        int: Bytes written.

    Raises:
        InputError: The file holds no n-grams, or is already a lookup cache.
        OSError: The file cannot be written; an existing one is kept.

    Cost: memory for all n-grams.
    """
    statistics.need_ngrams("convert")
    if statistics.kind == LOOKUP_KIND:
        raise InputError(f"{statistics.path} is already a lookup cache of llama.cpp")
    cache = NgramCache(1, 4, MOST_NGRAMS)
    for size, source in statistics.sources().items():
        while len(entries := source.read()):
            cache.add_entries(entries, size)
    return write_lookup_cache(cache, output)


def from_lookup_cache(
    statistics: Statistics, output: str | os.PathLike[str], origin: Origin | None = None
) -> Header:
    """Write a lookup cache of llama.cpp as a statistics file.

    Args:
        statistics: The lookup cache.
        output: The file to write.
        origin: Tokenizer and provenance to record; a lookup cache has neither.

    Returns:
        Header: What was written.

    Raises:
        InputError: The file is already a statistics file, or a token id is not below
            origin.vocab_size.
        OSError: The file cannot be written; an existing one is kept.
    """
    statistics.need_ngrams("convert")
    if statistics.kind != LOOKUP_KIND:
        raise InputError(f"{statistics.path} is already a file of ngramspec")
    return write_cache(output, statistics.sources(), origin or Origin())
