"""JSON read from a stream: strings, and values of which the text is passed on as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from ngramspec.text.chat.calls.format import NotACallError
from ngramspec.text.chat.text import Read, Sink, Stops, Text

_IN_STRING = Stops(('"', "\\"))
_CONTROL = re.compile(r"[\x00-\x1f]")
_SCALAR = re.compile(r"[^\s,;:\"{}\[\]<>]*")
_BRACKETS = {"{": "}", "[": "]"}
MOST_SCALAR = 64  # characters of a number or a word


def json_string(text: Text) -> Read[str]:
    """Read a string and return its value.

    Raises:
        NotACallError: There is none, or it has no end.
    """
    pieces: list[str] = []
    if not (yield from text.passes('"')) or not (yield from _string(text, pieces.append)):
        raise NotACallError
    return unquoted("".join(pieces))


def json_value(text: Text, sink: Sink, stops: Sequence[str] = ()) -> Read[bool]:
    """Pass a value on, as it is written; return False if the text ends within it.

    Marks outside its strings end it too, as does a wrong bracket: the open ones are closed.
    """
    outside, open_brackets = _outside(tuple(stops)), list[str]()
    while True:
        char = yield from text.ahead(1)
        if not open_brackets and char not in ("{", "[", '"'):
            sink((yield from text.match(_SCALAR, MOST_SCALAR)) or "null")
            return True
        mark = yield from text.until(outside, sink)
        if mark == "":
            return False
        if mark == '"':
            sink(mark)
            if not (yield from _string(text, sink)):
                return False
            sink(mark)
        elif mark in _BRACKETS:
            sink(mark)
            open_brackets.append(_BRACKETS[mark])
        elif open_brackets and mark == open_brackets[-1]:
            sink(open_brackets.pop())
        else:
            text.skip(-len(mark))
            sink("".join(reversed(open_brackets)))
            return True
        if not open_brackets:
            return True


def escaped(text: str) -> str:
    """Return a text as it is written within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def unquoted(text: str) -> str:
    """Return the value of a JSON string's inner text, or the text if it is not valid."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


@lru_cache(256)
def _outside(stops: tuple[str, ...]) -> Stops:
    return Stops((*'"{}[]', *stops))


def _string(text: Text, sink: Sink) -> Read[bool]:
    """Pass the inner text of a string on and read its end; return False if there is none."""

    def clean(piece: str) -> None:
        sink(_CONTROL.sub(lambda match: escaped(match[0]), piece))

    while True:
        mark = yield from text.until(_IN_STRING, clean)
        if mark != "\\":
            return mark == '"'
        after = yield from text.ahead(1)
        if not after:
            return False
        text.skip(1)
        sink("\\")
        clean(after)
