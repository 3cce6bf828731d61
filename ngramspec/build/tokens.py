"""Build a statistics file from texts that are token ids already, in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ngramspec._native.files.tally import Tally
from ngramspec.build.checkpoint import TokenArray
from ngramspec.build.options import BuildOptions
from ngramspec.build.output import write_output
from ngramspec.build.runs import counted
from ngramspec.errors import InputError
from ngramspec.formats.cache_file import Origin
from ngramspec.formats.container import Header
from ngramspec.formats.entries import ArraySource
from ngramspec.formats.suffix_file import BORDER, write_suffix_index
from ngramspec.formats.suffix_file import KIND as INDEX_KIND
from ngramspec.tokenizers import Fingerprint

_BORDER = np.array([BORDER], dtype=np.int32)


def build_from_tokens(
    texts: Iterable[TokenArray],
    output: str | os.PathLike[str],
    tokenizer: Fingerprint | None,
    options: BuildOptions | None = None,
    about: Mapping[str, Any] | None = None,
) -> Header:
    """Build a statistics file; equal texts count once.

    Args:
        texts: Token ids, int32.
        output: The file; an existing one is replaced once the new one is complete.
        tokenizer: Whose token ids they are; None = unknown.
        options: What to count. Of these, corpus and held_out mean nothing here.
        about: Its provenance.

    Raises:
        InputError: There is no text.
        OSError: The file cannot be written.

    Cost: memory of 4 bytes per token for an index, of about 16 per n-gram otherwise.
    """
    options = options or BuildOptions()
    distinct = {text.tobytes(): text for text in texts if len(text)}
    if not distinct:
        raise InputError("there is no text to count")
    origin = Origin(about=about)
    if tokenizer is not None:
        origin = Origin(tokenizer.digest, tokenizer.vocab_size, about)
    if options.kind == INDEX_KIND:
        parts = [part for text in distinct.values() for part in (text, _BORDER)]
        return write_suffix_index(
            output, np.concatenate(parts), origin, max_bytes=options.max_bytes
        )
    tally = Tally()
    for text in distinct.values():
        tally.add(text)
    sources = {label: ArraySource(counted(tally, label, options)) for label in options.labels}
    return write_output(output, sources, origin, options)
