"""From patterns of JSON schemas, as ECMA-262 has them, to the regular expressions of llguidance."""

from __future__ import annotations

import re
from typing import Any

from ngramspec.text.structured.errors import GrammarError

MAX_PATTERN = 1000  # characters
# White space for JavaScript or Python; what is so for one of them only, neither \s nor \S matches.
_SPACE = r"\t-\r\x20"
_SPACES = (
    _SPACE
    + r"\u{85}\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}"
)
_SETS = {"d": "0-9", "w": "0-9A-Za-z_"}
_ANY = "(?s:.)"
_DOT = r"[^\n\r\u{2028}\u{2029}]"
_SPACE_OR_NOT = re.compile(r"(?<!\\)\((?:\?:)?(?:\\s\|\\S|\\S\|\\s)\)")
_COUNT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)")
_PROPERTY = re.compile(r"[pP]\{[\w=]+\}", re.ASCII)
_HIGH = re.compile(r"u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_OUTSIDE = "^$|()*+?"  # means the same in both, outside of classes
_REFUSED = {"b": "word boundaries", "B": "word boundaries", "k": "back references"}


def rust_pattern(pattern: Any, most: int = MAX_PATTERN) -> str:
    """Return a pattern in the syntax of Rust's regular expressions.

    Anchors stay as they are: what is not anchored matches a part of the text.

    Args:
        pattern: A pattern of a JSON schema.
        most: Its characters at most.

    Raises:
        GrammarError: It is not a pattern, or no grammar can express it: look-around, back
            references, word boundaries and flags. Other mistakes are left to llguidance.

    Cost: linear.
    """
    if not isinstance(pattern, str) or len(pattern) > most:
        raise GrammarError(f"a pattern must be a text of at most {most} characters")
    return _Reader(_SPACE_OR_NOT.sub(r"[\\s\\S]", pattern)).whole()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> str:
        """Return the whole pattern."""
        parts = []
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == "\\":
                code, chars = self._escape()
                parts.append(_written(code) if code >= 0 else self._set(chars))
            elif char == "[":
                parts.append(self._class())
            elif char == "(":
                parts.append(self._open())
            elif match := _COUNT.match(self._pattern, self._at):
                parts.append(self._take(match))
            else:
                self._at += 1
                dot = _DOT if char == "." else _written(ord(char))
                parts.append(char if char in _OUTSIDE else dot)
        return "".join(parts)

    def _take(self, match: re.Match[str]) -> str:
        self._at = match.end()
        return match.group()

    def _open(self) -> str:
        if match := _GROUP.match(self._pattern, self._at):
            self._at = match.end()
            return "(?:"
        if self._pattern.startswith("(?", self._at):
            around = self._pattern[self._at + 2 : self._at + 4] in ("<=", "<!")
            around |= self._pattern[self._at + 2 : self._at + 3] in ("=", "!")
            raise self._refused("look-around" if around else "flags")
        self._at += 1
        return "("

    def _escape(self) -> tuple[int, str]:
        """Read an escape; return its character, or -1 and the letter or name of its set."""
        self._at += 1
        text, at = self._pattern, self._at
        char = text[at : at + 1]
        if match := _HIGH.match(text, at):
            self._at = match.end()
            high, low = (int(half, 16) & 0x3FF for half in match.groups())
            return 0x10000 + (high << 10 | low), ""
        if match := _CODE.match(text, at):
            self._at = match.end()
            return int(next(filter(None, match.groups())), 16), ""
        if match := _PROPERTY.match(text, at):
            return -1, self._take(match)
        if char in _REFUSED or (char.isdigit() and char != "0"):
            raise self._refused(_REFUSED.get(char, "back references"))
        if char == "c" and text[at + 1 : at + 2].isalpha():
            self._at += 2
            return ord(text[at + 1]) & 31, ""
        if not char or char in "pPxuc":
            raise GrammarError(f"the pattern {text!r:.80} has an escape without a meaning")
        self._at += 1
        if char in "dDwWsS":
            return -1, char
        return _CONTROLS.get(char, ord(char)), ""

    def _class(self) -> str:
        """Read a class such as [^a-z]."""
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        members: list[tuple[int, str]] = []
        while not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise GrammarError(f"the pattern {self._pattern!r:.80} has an open class")
            if self._pattern[self._at] == "\\":
                members.append((8, "") if self._is_backspace() else self._escape())
            else:
                members.append((ord(self._pattern[self._at]), ""))
                self._at += 1
        self._at += 1
        if not members:
            if negated:
                return _ANY
            raise GrammarError(f"the pattern {self._pattern!r:.80} has a class without characters")
        return f"[{'^' * negated}{''.join(self._members(members, negated))}]"

    def _is_backspace(self) -> bool:
        is_backspace = self._pattern.startswith("b", self._at + 1)
        self._at += 2 * is_backspace
        return is_backspace

    def _members(self, members: list[tuple[int, str]], negated: bool) -> list[str]:
        parts, at = [], 0
        both = {"s", "S"} <= {chars for _, chars in members}
        while at < len(members):
            code, chars = members[at]
            is_range = members[at + 1 : at + 2] == [(ord("-"), "")] and at + 2 < len(members)
            if is_range:
                end, other = members[at + 2]
                if chars or other:
                    raise self._refused("a range from or to a set")
                parts.append(f"{_written(code)}-{_written(end)}")
                at += 3
                continue
            parts.append(self._set(chars, True, negated or both) if chars else _written(code))
            at += 1
        return parts

    def _set(self, name: str, inside: bool = False, wide: bool = False) -> str:
        """Return a set; wide: with what may be in it, as a negated class must leave out."""
        if len(name) > 1:
            return f"\\{name}"
        if name in "sS":
            surely = (name == "s") != wide
            chars = _SPACE if surely else _SPACES
        else:
            chars = _SETS[name.lower()]
        if name.isupper():
            return f"[^{chars}]"
        return chars if inside else f"[{chars}]"

    def _refused(self, what: str) -> GrammarError:
        return GrammarError(f"no grammar can express {what} in the pattern {self._pattern!r:.80}")


def _written(code: int) -> str:
    """Return a character as it stands for itself, in a class or not."""
    char = chr(code) if code <= 0x10FFFF else ""
    return char if char.isalnum() and char.isascii() else f"\\u{{{code:X}}}"
