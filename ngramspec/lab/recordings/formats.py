"""Which format a file of recorded requests has, by what it holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.errors import FormatError
from ngramspec.lab.recordings.chats import looks_like_chat
from ngramspec.lab.recordings.lines import read_start
from ngramspec.lab.recordings.record import is_head

TOKENS, REQUESTS, CHATS = "tokens", "requests", "chats"
FORMATS = {
    TOKENS: "lines of token ids",
    REQUESTS: "recorded requests",
    CHATS: "chats",
}
LOOKED_AT = 1 << 18  # bytes
LINES = 50
_MEMBERS = {"session", "turn"}


@dataclass(frozen=True)
class InputFile:
    """A file and its format.

    about: What it holds, in words.
    whole: Whether it is one JSON value and not one in each line.
    """

    path: Path
    format: str
    about: str
    whole: bool = False


def recognise(path: Path, format: str | None = None) -> InputFile:
    """Return a file's format.

    Args:
        path: A file, perhaps compressed.
        format: One of FORMATS, if it is known; None = find out.

    Raises:
        FormatError: It has none of the formats, or its compression is damaged.
        BackendError: zstandard is needed and not installed.
        OSError: It cannot be read.
    """
    start = read_start(path, LOOKED_AT)
    guess = _guess(start)
    if format is not None and (guess is None or guess[0] != format):
        return InputFile(path, format, FORMATS[format], _is_whole(start))
    if guess is None:
        kinds = "; ".join(f"{name}: {about}" for name, about in FORMATS.items())
        raise FormatError(
            f"{path}: no recorded requests were recognised in it; --format tells what it holds "
            f"({kinds})"
        )
    return InputFile(path, *guess, _is_whole(start))


def is_recorded(start: str) -> bool:
    """Return whether a file that begins so holds recorded requests, and no texts for a corpus.

    Lines of chats and of token ids may be either, so they are texts.
    """
    guess = _guess(start)
    if guess is None or guess[0] == TOKENS:
        return False
    return guess[0] != CHATS or _is_whole(start)


def _guess(start: str) -> tuple[str, str] | None:
    """Return the format, and what it is in words."""
    if not start.strip():
        return TOKENS, "nothing"
    for value in _values(start):
        if is_head(value):
            about = f"requests that ngramspec serve recorded with {value.get('model')}"
            return REQUESTS, about
        if isinstance(value, dict) and value.keys() >= _MEMBERS:
            return REQUESTS, FORMATS[REQUESTS]
        if looks_like_chat(value):
            return CHATS, _kind_of_chat(value)
    if start.split(maxsplit=1)[0].lstrip("-").isdigit():
        return TOKENS, FORMATS[TOKENS]
    return None


def _values(start: str) -> Iterator[Any]:
    """Yield what the first lines hold, or the first item of an array over several lines."""
    lines = [line for line in start.splitlines() if line.strip()][:LINES]
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and not looks_like_chat(value):
            yield from value[:LINES]
        else:
            yield value
    text = start.lstrip()
    if text[:1] in ("[", "{"):
        at = len(text) - len(text[1:].lstrip()) if text[0] == "[" else 0
        try:
            yield json.JSONDecoder().raw_decode(text, at)[0]
        except (ValueError, RecursionError):
            if '"conversations"' in text or '"messages"' in text:  # an item longer than the start
                yield {"conversations" if '"conversations"' in text else "messages": []}


def _is_whole(start: str) -> bool:
    """Return whether a file is one JSON value over several lines, or an array of items."""
    first, end, rest = start.lstrip().partition("\n")
    if first[:1] not in ("[", "{"):
        return False
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):  # cut by the end of what is looked at, or goes on below
        return (bool(end) and not _are_lines(end + rest)) or first[0] == "["
    return isinstance(value, list) and not looks_like_chat(value)


def _are_lines(text: str) -> bool:
    """Return whether most lines are values by themselves: then one before them is damaged."""
    lines = [line for line in text.splitlines() if line.strip()][:LINES]
    whole = 0
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            whole += isinstance(json.loads(line), dict | list)
    return 2 * whole > len(lines)


def _kind_of_chat(value: Any) -> str:
    names = value.keys() if isinstance(value, dict) else {"messages"}
    if "conversations" in names or "conversation" in names:
        return "ShareGPT's conversations"
    if "messages" in names or "request" in names or "body" in names:
        return "chats in OpenAI's format"
    return "prompts and answers"
