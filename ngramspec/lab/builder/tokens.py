"""Build a statistics file from texts that are token ids already, in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ngramspec._native.files.entries import EntryMerger, Tally
from ngramspec.errors import InputError
from ngramspec.files.cache_file import KIND as CACHE_KIND
from ngramspec.files.cache_file import Origin
from ngramspec.files.entries import ArraySource
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.suffix_file import BORDER, write_suffix_index
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.lab.builder.checkpoint import TokenArray
from ngramspec.lab.builder.feed import Totals
from ngramspec.lab.builder.finish import ALL_HELD_OUT, write_output
from ngramspec.lab.builder.held_out import measure
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.builder.result import BuildResult, Seconds
from ngramspec.lab.builder.runs import counted
from ngramspec.lab.corpus import Problems, is_held_out
from ngramspec.text.tokenizers import Fingerprint

_BORDER = np.array([BORDER], dtype=np.int32)


def build_from_tokens(
    texts: Iterable[TokenArray],
    output: str | os.PathLike[str],
    tokenizer: Fingerprint | None,
    options: BuildOptions | None = None,
    about: Mapping[str, Any] | None = None,
) -> BuildResult:
    """Build a statistics file; equal texts count once.

    Args:
        texts: Token ids, int32.
        output: The file; an existing one is replaced once the new one is complete.
        tokenizer: Whose token ids they are; None = unknown.
        options: What to count. How a corpus is read means nothing here.
        about: Its provenance, to which the totals are added; None = it states none.

    Raises:
        InputError: There is no text, or a token id that the tokenizer lacks.
        OSError: The file cannot be written.

    Cost: memory of 4 bytes per token for an index, of about 16 per n-gram otherwise.
    """
    from xxhash import xxh3_128_digest

    options, started, totals = options or BuildOptions(), time.perf_counter(), Totals()
    distinct: dict[bytes, TokenArray] = {}
    for text in texts:
        totals.documents += 1
        distinct.setdefault(xxh3_128_digest(text.tobytes()), text)
    totals.duplicates = totals.documents - len(distinct)
    totals.documents = len(distinct)
    aside = [text for key, text in distinct.items() if is_held_out(key, options.held_out)]
    corpus = [text for key, text in distinct.items() if not is_held_out(key, options.held_out)]
    totals.held_out, totals.tokens = len(aside), sum(map(len, corpus))
    if not totals.tokens:
        raise InputError(f"there is no text to count{ALL_HELD_OUT if aside else ''}")
    most = max(int(text.max(initial=0)) for text in corpus)
    if tokenizer is not None and most >= tokenizer.vocab_size:
        size = tokenizer.vocab_size
        raise InputError(f"token id {most} is not below {size}, the tokenizer's size: give its own")
    if about is not None:
        about = {
            **about,
            "documents": len(corpus),
            "duplicates": totals.duplicates,
            "held_out_documents": len(aside),
            "tokens": totals.tokens,
            "options": _counting(options),
        }
    origin = Origin(about=about)
    if tokenizer is not None:
        origin = Origin(tokenizer.digest, tokenizer.vocab_size, about)
    if options.kind == INDEX_KIND:
        parts = np.concatenate([part for text in corpus for part in (text, _BORDER)])
        header = write_suffix_index(output, parts, origin, max_bytes=options.max_bytes)
    else:
        tally = Tally()
        for text in corpus:
            tally.add(text)
        sources = {
            label: EntryMerger([ArraySource(counted(tally, label, options))], options.min_count)
            for label in options.labels
        }
        header = write_output(output, sources, origin, options)
    held_out = measure(output, aside, options) if aside else None
    size, seconds = os.stat(output).st_size, Seconds(total=time.perf_counter() - started)
    return BuildResult(
        os.fspath(output), header, size, totals, Problems(), seconds, held_out=held_out
    )


def _counting(options: BuildOptions) -> dict[str, Any]:
    names = ["kind", "max_bytes", "held_out"]
    if options.kind == CACHE_KIND:
        names += ["ngram_min", "ngram_max"]
    if options.kind == POOL_KIND:
        names.append("pool")
    if options.kind != INDEX_KIND:
        names.append("min_count")
    values = options.as_dict()
    return {name: values[name] for name in names}
