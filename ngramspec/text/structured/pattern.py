"""From patterns of JSON schemas, as ECMA-262 has them, to the regular expressions of llguidance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ngramspec.errors import GrammarError

MAX_PATTERN = 1000  # characters
LETTERS = "dDwWsStnvfr"  # behind a backslash; others differ between JavaScript and Python
MAX_GROUPS = 100  # within one another
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
_NO_LEAST = re.compile(r"\{,[0-9]*\}")  # a count for Python, characters or a mistake for JavaScript
_GROUP = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)")
_PROPERTY = re.compile(r"[pP]\{[\w=]+\}", re.ASCII)
_HIGH = re.compile(r"u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
UNBALANCED = "has an unbalanced parenthesis"
Members = list[tuple[int, str]]  # of a class: characters, or -1 and the name of a set
_DASH, _DASHED = (
    (-2, ""),
    (ord("-"), ""),
)  # one without a backslash, which may be between two; one as itself
_OUTSIDE = "^$|()*+?"  # means the same in both, outside of classes
_ESCAPED = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t"}  # in a string of JSON
_PLAIN = r"[^\x00-\x1F\x22\x5C\x7F]"  # what needs no escape there
_PARTS = re.compile(r"\\[upP]\{[^}]*\}|\[(?:\[[^\]]*\]|[^\]])*\]|.", re.DOTALL)
_NUL = r"\u{0}"
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


def text_pattern(pattern: str, most: int, in_json: bool, dot_all: bool = False) -> str:
    """Return a pattern for whole texts, as people write it in Python and in Lark.

    Args:
        pattern: The pattern.
        most: Its characters at most.
        in_json: For texts within a string of JSON.
        dot_all: A dot matches the end of a line too.

    Raises:
        GrammarError: As for rust_pattern.
    """
    if len(pattern) > most:
        raise GrammarError(f"a pattern must be a text of at most {most} characters")
    return whole_pattern(
        _Reader(pattern, _ANY if dot_all else r"[^\n]", in_json).whole(), inside=""
    )


def whole_pattern(pattern: str, inside: str = "(?s:.*)") -> str:
    """Return a pattern for whole texts from one with anchors.

    Args:
        pattern: As rust_pattern writes it.
        inside: What may stand where there is no anchor.

    Raises:
        GrammarError: An anchor is not at an end.
    """
    branches: list[list[str]] = [[]]
    depth = 0
    for token in _PARTS.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            branches.append([])
        else:
            branches[-1].append(token)
    return "|".join(_unanchored(branch, inside) for branch in branches)


def _unanchored(tokens: list[str], inside: str) -> str:
    start, end = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    inner = tokens[start : len(tokens) - end]
    text = "".join(inner)
    if "^" in inner or "$" in inner:
        if not start and not end and inner[0] == "(" and _closes(inner) == len(inner) - 1:
            return f"(?:{whole_pattern(text[1:-1].removeprefix('?:'), inside)})"
        raise GrammarError(f"no grammar can express an anchor within the pattern {text!r:.80}")
    return f"{'' if start else inside}(?:{text}){'' if end else inside}"


def _closes(tokens: list[str]) -> int:
    """Return where the group closes that is opened first."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if not depth:
            return at
    return -1


class _Reader:
    def __init__(self, pattern: str, dot: str = _DOT, in_json: bool = False) -> None:
        self._pattern, self._dot, self._in_json = pattern, dot, in_json
        self._at = 0

    def whole(self) -> str:
        parts, depth = [], 0
        repeats = ""  # what may repeat what came before
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            is_count = char in "*+?" or bool(_COUNT.match(self._pattern, self._at))
            if is_count and (not repeats or char not in repeats):
                raise self._unread("has nothing to repeat")
            if _NO_LEAST.match(self._pattern, self._at):
                raise self._unread("has a count without its least")
            if is_count:
                repeats = "" if repeats == "?" else "?"
            else:
                repeats = "" if char in "(|^$" else "*+?{"
            depth += (char == "(") - (char == ")")
            if not 0 <= depth <= MAX_GROUPS:
                raise self._unread("nests groups too deep" if depth > 0 else UNBALANCED)
            if char == "\\":
                code, chars = self._escape()
                parts.append(self._one(code) if code >= 0 else self._some([(code, chars)], False))
            elif char == "[":
                parts.append(self._class())
            elif char == "(":
                parts.append(self._open())
            elif match := _COUNT.match(self._pattern, self._at):
                parts.append(self._take(match))
            else:
                self._at += 1
                if char == ".":
                    ends = "\r\n" if self._dot == _DOT else "" if self._dot == _ANY else "\n"
                    parts.append(
                        self._in_string(self._dot, [ord(c) for c in _ESCAPED if c not in ends])
                    )
                else:
                    parts.append(char if char in _OUTSIDE else self._one(ord(char)))
        if depth:
            raise self._unread(UNBALANCED)
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
        if not char or (char.isascii() and char.isalpha() and char not in LETTERS):
            raise self._unread("has an escape without a meaning")
        self._at += 1
        if char in "dDwWsS":
            return -1, char
        return _CONTROLS.get(char, ord(char)), ""

    def _class(self) -> str:
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        members: Members = []
        while not self._pattern.startswith("]", self._at):
            if self._at >= len(self._pattern):
                raise self._unread("has an open class")
            if self._pattern[self._at] == "\\":
                members.append((8, "") if self._is_backspace() else self._escape())
            else:
                char = self._pattern[self._at]
                members.append(_DASH if char == "-" else (ord(char), ""))
                self._at += 1
        self._at += 1
        if not members:  # for Python "]" is its first character
            raise self._unread("has a class without characters")
        return self._some(members, negated)

    def _some(self, members: Members, negated: bool) -> str:
        """Return one of some characters, or of all others."""
        inner = "".join(self._members(members, negated))
        if self._in_json:
            text = f"[{'^' * negated}{inner}]"
            codes = map(ord, _ESCAPED)
            return self._in_string(text, [c for c in codes if self._holds(members, c) != negated])
        # llguidance reads a class with all control characters as one with quotes and backslashes,
        # so NUL is left out of those without them.
        if negated:
            return f"[^{inner}{_NUL}]"
        ranges = list(self._ranges(members))
        has_quotes = any(name in ("D", "W", "S") for _, _, name in ranges)
        if not has_quotes and any(low == 0 or len(name) > 1 for low, _, name in ranges):
            return f"[[{inner}]&&[^{_NUL}]]"
        return f"[{inner}]"

    def _one(self, code: int) -> str:
        if code == 0 and not self._in_json:
            raise self._refused("a NUL character")
        escaped = _ESCAPED.get(chr(code)) if self._in_json and code <= 0x10FFFF else None
        return f"{_written(92)}{_written(ord(escaped))}" if escaped else _written(code)

    def _in_string(self, text: str, codes: Sequence[int]) -> str:
        """Return a class as its characters stand in a string; `codes`: those with an escape."""
        if not self._in_json:
            return text
        plain = _PLAIN if text == _ANY else f"[{_PLAIN}&&{text}]"
        return f"(?:{'|'.join([plain, *map(self._one, codes)])})"

    def _holds(self, members: Members, code: int) -> bool:
        """Tell whether a character that needs an escape is one of the members."""
        for low, high, name in self._ranges(members):
            if low <= code <= high or (name in ("s", "S") and (code < 32) == (name == "s")):
                return True
            if name in ("D", "W") or (len(name) > 1 and self._is_of(name)):
                return True
        return False

    def _is_of(self, name: str) -> bool:
        """Tell whether what needs an escape has a property; only those of letters and the like."""
        if name[2:].rpartition("=")[2].lstrip("{")[:1] not in tuple("LMNSZ"):
            raise self._refused(f"the property {name!r:.40}")
        return name[0] == "P"

    def _is_backspace(self) -> bool:
        is_backspace = self._pattern.startswith("b", self._at + 1)
        self._at += 2 * is_backspace
        return is_backspace

    def _members(self, members: Members, negated: bool) -> list[str]:
        both = {"s", "S"} <= {chars for _, chars in members}
        return [
            self._set(chars, True, negated or both)
            if chars
            else f"{_written(low)}-{_written(high)}"
            if high > low
            else _written(low)
            for low, high, chars in self._ranges(members)
        ]

    def _ranges(self, members: Members) -> Iterator[tuple[int, int, str]]:
        """Yield the members as first and last character, or -1 and the name of a set."""
        at = 0
        while at < len(members):
            low, name = _DASHED if members[at] == _DASH else members[at]
            high, at = low, at + 1
            if members[at : at + 1] == [_DASH] and at + 1 < len(members):
                high, other = _DASHED if members[at + 1] == _DASH else members[at + 1]
                if name or other:
                    raise self._refused("a range from or to a set")
                if high < low:
                    raise self._unread("has a range whose end comes first")
                at += 2
            yield low, high, name

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

    def _unread(self, why: str) -> GrammarError:
        return GrammarError(f"the pattern {self._pattern!r:.80} {why}")

    def _refused(self, what: str) -> GrammarError:
        return GrammarError(f"no grammar can express {what} in the pattern {self._pattern!r:.80}")


def _written(code: int) -> str:
    char = chr(code) if code <= 0x10FFFF else ""
    return char if char.isalnum() and char.isascii() else f"\\u{{{code:X}}}"
