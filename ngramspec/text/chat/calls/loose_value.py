"""Values written like JSON but not quite, as in Python or by Gemma: read from a stream as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ngramspec.text.chat.calls.json_value import escaped
from ngramspec.text.chat.text import Read, Sink, Stops, Text

MOST_WORD = 512  # characters of a number, a word or a bare key
_WORD = re.compile(r"[^\s,:;=(){}\[\]'\"<|>]*")
_CLOSED_BY = {"{": "}", "[": "]", "(": ")"}
_JSON = {"(": "[", ")": "]"}  # a tuple becomes a list
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Quote:
    """A mark around strings.

    text: The mark.
    escapes: A backslash in the string has a meaning.
    """

    text: str
    escapes: bool = True

    @property
    def ends(self) -> Stops:
        return Stops((self.text, "\\") if self.escapes else (self.text,))


PYTHON = tuple(map(Quote, ('"""', "'''", '"', "'")))


def loose_value(text: Text, sink: Sink, quotes: tuple[Quote, ...]) -> Read[bool]:
    """Pass a value on as JSON; return False if the text ends within it.

    Whatever does not belong to a value ends it: open brackets are closed.

    Args:
        text: Starts with the value.
        sink: Takes the JSON.
        quotes: Marks around strings, long ones first.
    """
    open_brackets: list[str] = []
    comma = key = False  # a comma is owed; a member's name is next
    while True:
        yield from text.space()
        quote = yield from _quote(text, quotes)
        char = yield from text.ahead(1)
        if quote is None and char and char in ",:" and open_brackets:
            text.skip(1)
            if char == ":":
                sink(": ")
            comma, key = comma or char == ",", char == "," and open_brackets[-1] == "}"
            continue
        if quote is None and char and char in ")]}":
            if not open_brackets:
                return True
            if char == open_brackets[-1]:
                text.skip(1)
                sink(_JSON.get(char, char))
                open_brackets.pop()
            else:
                break
        else:
            if comma:
                sink(", ")
                comma = False
            if quote is not None:
                if not (yield from _string(text, sink, quote)):
                    return False
            elif char and char in _CLOSED_BY:
                text.skip(1)
                sink(_JSON.get(char, char))
                open_brackets.append(_CLOSED_BY[char])
                key = char == "{"
                continue
            else:
                word = yield from text.match(_WORD, MOST_WORD)
                cut = any(text.is_cut(quote.text) for quote in quotes)
                if cut or not (yield from text.ahead(1)):
                    return False
                if not word:
                    break
                sink(json.dumps(word, ensure_ascii=False) if key else literal_json(word))
        if not open_brackets:
            return True
    sink("".join(_JSON.get(char, char) for char in reversed(open_brackets)))
    return True


def literal_json(word: str) -> str:
    """Return a number or a word as JSON: a word that is none becomes a string."""
    word = _WORDS.get(word, word)
    try:
        return json.dumps(json.loads(word), allow_nan=False)
    except ValueError:
        pass
    try:
        return json.dumps(
            float(word) if any(c in ".eE" for c in word) else int(word, 0), allow_nan=False
        )
    except (ValueError, OverflowError):
        return json.dumps(word, ensure_ascii=False)


def _quote(text: Text, quotes: tuple[Quote, ...]) -> Read[Quote | None]:
    for quote in quotes:
        if (yield from text.passes(quote.text)):
            return quote
    return None


def _string(text: Text, sink: Sink, quote: Quote) -> Read[bool]:
    """Pass a string on and read its end; return False if there is none."""

    def take(piece: str) -> None:
        sink(escaped(piece))

    sink('"')
    while True:
        mark = yield from text.until(quote.ends, take)
        if mark != "\\":
            sink('"' if mark else "")
            return bool(mark)
        char = yield from text.ahead(1)
        digits = yield from text.ahead(1 + _HEX_DIGITS.get(char, 0))
        if not char:
            return False
        text.skip(1)
        if len(digits) > 1 and _is_hex(digits[1:]):
            text.skip(len(digits) - 1)
            take(chr(int(digits[1:], 16)))
        elif char in _ESCAPES:
            take(_ESCAPES[char])
        elif char != "\n":  # which a backslash hides
            take(char if char in "\\'\"/" else "\\" + char)


def _is_hex(digits: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]+", digits) is not None and int(digits, 16) < 0x110000
