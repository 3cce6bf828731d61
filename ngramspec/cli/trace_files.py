"""Reading traces for a command, with progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ngramspec.bench.traces import Cut, Trace, find_traces, load_trace
from ngramspec.cli.progress import progress


def read_traces(given: Sequence[Path], tokenizer_file: Path | None, cut: Cut) -> list[Trace]:
    """Read the sets that a command line names.

    Args:
        given: Files and folders.
        tokenizer_file: The target's, for sets with text.
        cut: What to keep of each set.

    Raises:
        InputError: No traces, or text without a tokenizer.
        FormatError: A damaged file.
        BackendError: The tokenizer cannot be loaded or refuses a text.
        OSError: A file cannot be read.
    """
    from ngramspec.tokenizers import load_tokenizer

    paths = find_traces(given)
    tokenizer = None if tokenizer_file is None else load_tokenizer(tokenizer_file)
    try:
        with progress("reading", len(paths)) as advance:
            traces = []
            for path in paths:
                traces.append(load_trace(path, tokenizer, cut))
                advance()
            return traces
    finally:
        if tokenizer is not None:
            tokenizer.close()
