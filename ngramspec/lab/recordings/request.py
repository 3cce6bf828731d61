"""RecordedRequest: a prompt and what was answered, as token ids.

As a line of text: the number of prompt tokens, their ids, the ids of the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.lab.recordings.lines import Bad, BadLineError, Line

MAX_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class RecordedRequest:
    """One recorded request.

    key: a digest of the key that sent it, where there were several; or "".
    apart: whether what is learned from one key is not used for another.
    """

    prompt: TokenIds
    output: TokenIds
    key: str = ""
    apart: bool = False


def token_lines(requests: Iterable[RecordedRequest]) -> Iterator[str]:
    """Yield requests as lines."""
    for request in requests:
        ids = (len(request.prompt), *request.prompt.tolist(), *request.output.tolist())
        yield " ".join(map(str, ids)) + "\n"


def read_token_lines(lines: Iterable[Line], bad: Bad) -> Iterator[RecordedRequest]:
    """Yield the requests of lines. bad: is told of lines that are not requests."""
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
