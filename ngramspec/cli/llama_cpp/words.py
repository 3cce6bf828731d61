"""Values as llama.cpp's options have them: on/off/auto, counts of threads, escapes, lists."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Any

import click

from ngramspec.errors import InputError

ON = ("on", "enabled", "true", "1")
OFF = ("off", "disabled", "false", "0")
AUTO = ("auto", "-1")
MOST_THREADS = 512
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""")


class Switch(click.ParamType):  # type: ignore[type-arg]
    """Switch(auto=True): on or off, and auto if there is one, in any of llama.cpp's words."""

    name = "switch"

    def __init__(self, *, auto: bool = True) -> None:
        self.words = {"on": ON, "off": OFF, **({"auto": AUTO} if auto else {})}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return on, off or auto."""
        for word, same in self.words.items():
            if str(value).lower() in same:
                return word
        return self.fail(f"expected {', '.join(self.words)}, got {value!r}", param, ctx)


class Threads(click.IntRange):
    """A count of threads; 0 and -1 leave it to the program and become None."""

    def __init__(self) -> None:
        super().__init__(-1, MOST_THREADS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the count."""
        count = super().convert(value, param, ctx)
        return count if count > 0 else None


def unescaped(text: str) -> str:
    r"""Return a text with \n, \t, \", \x41 and the like replaced by what they stand for."""
    return _ESCAPE.sub(_replaced, text)


def names_in(text: str | None) -> tuple[str, ...]:
    """Return the parts of a list with commas, without spaces around them."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def rows_in(texts: Iterable[str]) -> list[str]:
    """Return the parts of lists with commas, where quotes keep a comma in a part."""
    return [part for text in texts for row in csv.reader([text]) for part in row if part]


def numbers_in(text: str | None, flag: str) -> tuple[float, ...]:
    """Return the numbers of a list with commas or slashes.

    Raises:
        InputError: One is no number.
    """
    try:
        return tuple(float(part) for part in re.split("[,/]", text)) if text else ()
    except ValueError:
        raise InputError(f"{flag} must be numbers with commas, got {text!r}") from None


def _replaced(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else _ESCAPED[code]
