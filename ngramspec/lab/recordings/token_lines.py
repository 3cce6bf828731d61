"""Requests as lines of numbers: prompt length, prompt ids, output ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ngramspec.lab.recordings.lines import Bad, BadLineError, Line
from ngramspec.lab.recordings.record import MAX_TOKEN
from ngramspec.lab.recordings.request import RecordedRequest


def token_lines(requests: Iterable[RecordedRequest]) -> Iterator[str]:
    """Yield requests as such lines."""
    for request in requests:
        ids = (len(request.prompt), *request.prompt.tolist(), *request.output.tolist())
        yield " ".join(map(str, ids)) + "\n"


def read_token_lines(lines: Iterable[Line], bad: Bad) -> Iterator[RecordedRequest]:
    """Yield the requests of such lines. bad: is told of lines that are not requests."""
    for line in lines:
        try:
            request = read_token_line(line.text)
        except BadLineError as error:
            bad(line.number, str(error))
        else:
            yield request


def read_token_line(text: str) -> RecordedRequest:
    """Return the request of a line.

    Raises:
        BadLineError: It is not one.
    """
    try:
        ids = np.array(text.split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise BadLineError(str(error)) from None
    if not len(ids):
        raise BadLineError("no numbers")
    prompt_len = int(ids[0])
    if not 0 <= prompt_len < len(ids):
        raise BadLineError(f"a prompt of {prompt_len} tokens in a line of {len(ids) - 1}")
    if ids.min() < 0 or ids.max() > MAX_TOKEN:
        raise BadLineError(f"token ids must be 0..{MAX_TOKEN}")
    tokens = ids[1:].astype(np.int32)
    return RecordedRequest(tokens[:prompt_len].copy(), tokens[prompt_len:].copy())
