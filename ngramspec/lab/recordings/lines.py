"""The lines of a file of any compression, and what becomes of a wrong one.

RecordedRequest: a prompt and what was answered, as token ids. As a line of text: the number of
prompt tokens, their ids, the ids of the output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError
from ngramspec.messages import size_text

if TYPE_CHECKING:
    from ngramspec.lab.corpus.problems import Problems
    from ngramspec.lab.corpus.streams import OpenUnit

MOST_LINE_BYTES = 256 << 20
MOST_BYTES = 1 << 30  # of a file that is read whole; packed, some megabytes may be that many
PACKED = {".gz": "gz", ".zst": "zst", ".xz": "xz", ".bz2": "bz2"}
CUT = "the last line is cut off"
Bad = Callable[[int, str], None]  # is told the number of a line and what is wrong with it
MAX_TOKEN = 2**31 - 1


class BadLineError(ValueError):
    """A line is not what the format says; the message says why."""


class Line(NamedTuple):
    """A line that is not empty. whole: it has an end, as all but a cut last one have."""

    number: int
    text: str
    whole: bool


def refuse(path: str | os.PathLike[str]) -> Bad:
    """Return a function that raises FormatError for the first wrong line."""

    def bad(number: int, why: str) -> None:
        if why != CUT:
            raise FormatError(f"{os.fspath(path)}, line {number}: {why}")

    return bad


def collect(path: str | os.PathLike[str], problems: Problems) -> Bad:
    """Return a function that notes wrong lines."""
    name = os.fspath(path)
    return lambda number, why: problems.record(name, f"line {number}", why)


def read_lines(path: Path, bad: Bad) -> Iterator[Line]:
    """Yield the lines of a file; bytes that are not UTF-8 become U+FFFD.

    Raises:
        FormatError: Its compression is damaged.
        BackendError: zstandard is needed and not installed.
        OSError: It cannot be read.
    """
    with _open(path) as source:
        number = 0
        while data := source.read_line(MOST_LINE_BYTES):
            number += 1
            whole = data.endswith(b"\n")
            if not whole and len(data) >= MOST_LINE_BYTES:
                bad(number, f"longer than {MOST_LINE_BYTES >> 20} MiB")
                while data and not data.endswith(b"\n"):
                    data = source.read_line(MOST_LINE_BYTES)
                continue
            text = data.decode("utf-8", "replace")
            if number == 1:
                text = text.removeprefix("\ufeff")
            if text := text.strip("\r\n\t "):
                yield Line(number, text, whole)


def read_start(path: Path, num_bytes: int) -> str:
    """Return the first bytes of a file as text, and raise as read_lines."""
    with _open(path) as source:
        return source.read(num_bytes).decode("utf-8", "replace").removeprefix("\ufeff")


def read_all(path: Path) -> str:
    """Return a whole file as text, and raise as read_lines, also if it has more than 1 GiB."""
    with _open(path) as source:
        parts: list[bytes] = []
        while part := source.read(1 << 24):
            parts.append(part)
            if sum(map(len, parts)) > MOST_BYTES:
                raise FormatError(
                    f"{path}: more than {size_text(MOST_BYTES)} of one JSON value, which is read "
                    "whole: write its items as JSON Lines, each on a line of its own"
                )
    return b"".join(parts).decode("utf-8", "replace").removeprefix("\ufeff")


def parse(line: Line) -> Any:
    """Return the JSON value of a line.

    Raises:
        BadLineError: It has none.
    """
    try:
        return json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"not JSON: {error}" if line.whole else CUT) from None


def _open(path: Path) -> AbstractContextManager[OpenUnit]:
    from ngramspec.lab.corpus.inputs import Unit
    from ngramspec.lab.corpus.streams import open_unit

    return open_unit(Unit(os.fspath(path), path.name, "text", PACKED.get(path.suffix, "")))


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
