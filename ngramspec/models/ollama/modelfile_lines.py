"""The instructions of a Modelfile: KEYWORD value; a value in quotes may have several lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ngramspec.errors import InputError

KEYWORDS = (
    *("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "MESSAGE", "LICENSE"),
    *("ADAPTER", "DRAFT", "CAPABILITY", "REQUIRES", "RENDERER", "PARSER"),
)

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_FIRST_WORD = re.compile(r"[ \t]*([^ \t]*)(?:[ \t](.*))?")
_WITH_WORD = {"PARAMETER": "a name and a value", "MESSAGE": "a role and a value"}
_MOST_SHOWN = 40


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    line: Where it starts, from 1.
    keyword: In capitals.
    word: The name of a PARAMETER or the role of a MESSAGE; "" for the others.
    value: Without quotes.
    """

    line: int
    keyword: str
    word: str
    value: str

    def error(self, reason: str) -> InputError:
        """Return the exception that names the line."""
        return _error(self.line, reason)


def read_instructions(text: str) -> Iterator[Instruction]:
    """Split a Modelfile.

    Args:
        text: With any kind of line ends; a byte order mark is left out.

    Yields:
        Instruction: Without comments and empty lines.

    Raises:
        InputError: An unknown keyword, nothing after one, or quotes that do not end; names the
            line.

    Cost: linear in the text.
    """
    lines = _LINE.findall(text.removeprefix("\ufeff"))
    at = 0
    while at < len(lines):
        start, line = at + 1, lines[at][0]
        at += 1
        keyword, rest = _split(line)
        if not keyword or keyword.startswith("#"):
            continue
        keyword = _keyword(keyword, start)
        word = ""
        if keyword in _WITH_WORD and rest is not None:
            word, rest = _split(rest)
        if rest is None or (keyword in _WITH_WORD and not word):
            raise _error(start, f"expected {_WITH_WORD.get(keyword, 'a value')} after {keyword}")
        value, at = _value(lines, at, rest)
        if value is None:
            raise _error(start, f"expected {_opening(rest.strip())} to end the value of {keyword}")
        yield Instruction(start, keyword, word, value)


def _value(lines: list[tuple[str, str]], at: int, rest: str) -> tuple[str | None, int]:
    """Return the value that starts with `rest`, and the index of the line after it.

    Quotes end where a line ends with them. None: they do not end.
    """
    value = rest.strip()
    quote = _opening(value)
    if quote and not (len(value) >= 2 * len(quote) and value.endswith(quote)):
        until = at
        while until < len(lines) and not lines[until][0].rstrip().endswith(quote):
            until += 1
        if until == len(lines):
            return None, until
        pairs = pairwise(lines[at - 1 : until + 1])
        value = rest.lstrip() + "".join(f"{end}{line}" for (_, end), (line, _) in pairs)
        value, at = value.rstrip(), until + 1
    return value[len(quote) : len(value) - len(quote)], at


def quoted(value: str) -> str | None:
    """Return a value, quoted so that read_instructions returns it, or None if impossible.

    It is impossible if quotes at the end of a line inside the value would end it.
    """
    for written in (value, f'"{value}"', f'"""{value}"""'):
        try:
            if list(read_instructions(f"SYSTEM {written}")) == [
                Instruction(1, "SYSTEM", "", value)
            ]:
                return written
        except InputError:
            continue
    return None


def _split(line: str) -> tuple[str, str | None]:
    """Return the first word of a line and the text after the next blank; None: no blank."""
    match = _FIRST_WORD.match(line)
    return (match[1], match[2]) if match else (line, None)


def _opening(value: str) -> str:
    return next((quote for quote in ('"""', '"') if value.startswith(quote)), "")


def _keyword(word: str, line: int) -> str:
    if word.upper() in KEYWORDS:
        return word.upper()
    near = difflib.get_close_matches(word.upper()[:_MOST_SHOWN], KEYWORDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(KEYWORDS)}"
    raise _error(line, f"unknown instruction {word[:_MOST_SHOWN]!r}: {hint}")


def _error(line: int, reason: str) -> InputError:
    return InputError(f"Modelfile, line {line}: {reason}")
