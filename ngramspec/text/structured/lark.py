"""Lark grammars: from their text to rules that `lark_input` writes as parts of a grammar.

Names, literals, ranges, regular expressions, groups, repetitions, %import from common and %ignore
are read. Templates, %declare, attributes and what else Lark has are refused by name.
Source: Lark's grammar reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeAlias

from ngramspec.errors import GrammarError
from ngramspec.text.structured.lark_rules import Either, Name, Row, Times, regex
from ngramspec.text.structured.pattern import text_pattern

MAX_LARK = 1 << 15  # characters
MAX_NESTING = 48  # groups inside one another
MAX_TIMES = 1000  # of a repetition with ~
MAX_REGEX = 4000  # characters
_TOKENS = re.compile(
    r"""
    (?P<skip>[ \t\f]+|//[^\n]*|\\\r?\n)
    |(?P<line>(?:\r?\n[ \t\f]*(?:(?://|\#)[^\n]*)?)+)
    |(?P<directive>%[a-z_]+)
    |(?P<name>[!?]*(?:_*[a-z][_a-z0-9]*|_*[A-Z][_A-Z0-9]*))
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[a-z]*)
    |(?P<number>[0-9]{1,9})
    |(?P<sign>->|\.\.|[:|()\[\]*+?~.,{}<>=&-])
    """,
    re.VERBOSE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b"}
_INT, _EXP = "[0-9]+", "[eE][+-]?[0-9]+"
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = f"([0-9]+{_EXP}|{_DECIMAL}({_EXP})?)"
# The terminals of Lark's library `common`, as regular expressions of our own.
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"({_FLOAT}|{_INT})",
    "SIGNED_NUMBER": f"[+-]?({_FLOAT}|{_INT})",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}


@dataclass(frozen=True)
class Text:
    """Text that a literal, a range or a regular expression matches.

    plain, in_json: Terminals in the syntax of llguidance: as it is, and within a string of JSON.
    """

    plain: str
    in_json: str


Part: TypeAlias = "Text | Name | Row[Part] | Either[Part] | Times[Part]"


@dataclass
class Lark:
    """A grammar that was read.

    rules: By name; those of terminals are in capital letters.
    ignored: Parts that may stand between terminals.
    """

    rules: dict[str, Part] = field(default_factory=dict)
    ignored: list[Part] = field(default_factory=list)


class Token(NamedTuple):
    """A token of a grammar's text."""

    kind: str
    text: str
    line: int


def is_terminal(name: str) -> bool:
    return name.strip("_")[:1].isupper()


def read_lark(text: str) -> Lark:
    """Return a grammar.

    Raises:
        GrammarError: It is not one, is too large, or has what a grammar here cannot have; names the
            rule or the line.

    Cost: linear in the text.
    """
    if len(text) > MAX_LARK:
        raise GrammarError(f"the grammar has more than {MAX_LARK} characters")
    return _Reader(list(_tokens(text))).read()


def _tokens(text: str) -> Iterator[Token]:
    at, line = 0, 1
    if text.startswith("#"):
        at = len(text.partition("\n")[0])
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise GrammarError(
                f"the grammar cannot be read in line {line} at {text[at : at + 20]!r}"
            )
        kind = str(match.lastgroup)
        if kind != "skip":
            yield Token(kind, match[0], line)
        line += match[0].count("\n")
        at = match.end()
    yield Token("line", "\n", line)


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._nesting = 0
        self._place = ""  # the rule that is read
        self._lark = Lark()

    def read(self) -> Lark:
        while self._at < len(self._tokens):
            if self._takes("line"):
                continue
            token = self._next()
            if token.kind == "directive":
                self._directive(token)
            elif token.kind == "name":
                self._rule(token)
            else:
                self._refuse(f"a rule must begin in line {token.line}, not {token.text!r:.40}")
        return self._lark

    def _rule(self, token: Token) -> None:
        name = self._place = token.text.lstrip("!?")
        if self._takes("sign", "."):
            self._expect("number")
        for sign, what in (("{", "is a template"), ("[", "has attributes")):
            if self._sees("sign", sign):
                self._refuse(f"the rule {name!r} {what}, which is not supported")
        self._expect("sign", ":")
        if name in self._lark.rules:
            self._refuse(f"the rule {name!r} is there twice")
        self._lark.rules[name] = self._either()
        if not self._sees("line"):
            self._wrong()
        self._place = ""

    def _directive(self, token: Token) -> None:
        if token.text == "%import":
            self._import()
        elif token.text == "%ignore":
            self._place = "%ignore"
            self._lark.ignored.append(self._either())
        else:
            self._refuse(f"{token.text} in line {token.line} is not supported")
        if not self._sees("line"):
            self._wrong()
        self._place = ""

    def _import(self) -> None:
        library = self._expect("name").text
        if library != "common":
            self._refuse(f"%import from {library!r} is not supported: only common is")
        if self._takes("sign", "."):
            name = self._expect("name").text
            self._add_common(name, self._expect("name").text if self._takes("sign", "->") else name)
            return
        self._expect("sign", "(")
        while True:
            name = self._expect("name").text
            self._add_common(name, name)
            if not self._takes("sign", ","):
                break
        self._expect("sign", ")")

    def _add_common(self, name: str, alias: str) -> None:
        if name not in COMMON:
            self._refuse(f"common has no terminal {name!r:.40}")
        if alias in self._lark.rules:
            self._refuse(f"the rule {alias!r} is there twice")
        self._lark.rules[alias] = _pattern(COMMON[name], "")

    def _either(self) -> Part:
        """Read alternatives, which may stand on lines of their own."""
        parts = [self._sequence()]
        while self._goes_on():
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _goes_on(self) -> bool:
        """Read a | on this line or the next; return whether it is there."""
        before = self._at
        while self._takes("line"):
            pass
        if self._takes("sign", "|"):
            return True
        self._at = before
        return False

    def _sequence(self) -> Part:
        parts = []
        while (part := self._atom()) is not None:
            parts.append(self._repeated(part))
            if self._nesting:  # a group may have lines
                self._skip_lines_before_group_end()
        if self._takes("sign", "->"):
            self._expect("name")
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _skip_lines_before_group_end(self) -> None:
        before = self._at
        while self._takes("line"):
            pass
        if not (self._sees("sign", ")") or self._sees("sign", "]")):
            self._at = before

    def _atom(self) -> Part | None:
        if self._at >= len(self._tokens):
            return None
        token = self._tokens[self._at]
        if token.kind == "sign" and token.text in "([":
            self._at += 1
            self._nesting += 1
            if self._nesting > MAX_NESTING:
                self._refuse(f"{self._where()} nests groups deeper than {MAX_NESTING}")
            while self._takes("line"):
                pass
            part = self._either()
            while self._takes("line"):
                pass
            self._expect("sign", ")" if token.text == "(" else "]")
            self._nesting -= 1
            return part if token.text == "(" else Times(part, 0, 1)
        if token.kind == "name":
            self._at += 1
            if self._sees("sign", "{"):
                self._refuse(f"{self._where()} uses a template, which is not supported")
            return Name(token.text.lstrip("!?"))
        if token.kind == "string":
            self._at += 1
            return self._string(token)
        if token.kind == "regex":
            self._at += 1
            pattern, flags = token.text[1:].rsplit("/", 1)
            return self._regex(pattern.replace("\\/", "/"), flags)
        if (token.kind, token.text) in (("sign", "<"), ("directive", "%json")):
            self._refuse(f"{self._where()} has {token.text!r}, which is not supported")
        return None

    def _string(self, token: Token) -> Part:
        text, flag = self._unescaped(token)
        if not self._takes("sign", ".."):
            return _pattern(re.escape(text), "i" if flag else "")
        last, _ = self._unescaped(self._expect("string"))
        if len(text) != 1 or len(last) != 1 or last < text:
            self._refuse(f"{self._where()} has a range that is not of two characters in order")
        return self._regex(f"[\\u{{{ord(text):X}}}-\\u{{{ord(last):X}}}]", "")

    def _unescaped(self, token: Token) -> tuple[str, bool]:
        """Return what a literal stands for, and whether upper and lower case are the same."""

        def char(match: re.Match[str]) -> str:
            code = match[1] or match[2] or match[3]
            if code and int(code, 16) > 0x10FFFF:
                self._refuse(f"{self._where()} has {match[0]}, which is no character")
            return chr(int(code, 16)) if code else _ESCAPED.get(match[4], match[4])

        flag = token.text.endswith("i")
        text = _ESCAPE.sub(char, token.text[1 : -2 if flag else -1])
        if _CONTROL.search(text):
            self._refuse(f"{self._where()} has a control character, which cannot be written")
        return text, flag

    def _regex(self, pattern: str, flags: str) -> Text:
        try:
            return _pattern(pattern, flags)
        except GrammarError as error:
            self._refuse(f"{self._where()}: {error.message}")

    def _repeated(self, part: Part) -> Part:
        if self._takes("sign", "?"):
            return Times(part, 0, 1)
        if self._takes("sign", "*"):
            return Times(part, 0, None)
        if self._takes("sign", "+"):
            return Times(part, 1, None)
        if not self._takes("sign", "~"):
            return part
        low = high = int(self._expect("number").text)
        if self._takes("sign", ".."):
            high = int(self._expect("number").text)
        if not low <= high <= MAX_TIMES:
            self._refuse(f"{self._where()} repeats {low}..{high} times; the most is {MAX_TIMES}")
        return Times(part, low, high)

    def _where(self) -> str:
        if self._place.startswith("%"):
            return self._place
        return f"the rule {self._place!r}" if self._place else f"line {self._line}"

    @property
    def _line(self) -> int:
        return self._tokens[min(self._at, len(self._tokens) - 1)].line

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _sees(self, kind: str, text: str = "") -> bool:
        if self._at >= len(self._tokens):
            return False
        token = self._tokens[self._at]
        return token.kind == kind and (not text or token.text == text)

    def _takes(self, kind: str, text: str = "") -> bool:
        taken = self._sees(kind, text)
        self._at += taken
        return taken

    def _expect(self, kind: str, text: str = "") -> Token:
        if not self._sees(kind, text):
            self._wrong()
        return self._next()

    def _wrong(self) -> NoReturn:
        token = self._tokens[min(self._at, len(self._tokens) - 1)]
        self._refuse(f"{self._where()} cannot be read in line {token.line} at {token.text!r:.40}")

    def _refuse(self, words: str) -> NoReturn:
        raise GrammarError(words)


def _pattern(pattern: str, flags: str) -> Text:
    """Return the whole texts that a regular expression matches."""
    if unknown := set(flags) - set("isu"):
        raise GrammarError(f"the flag {min(unknown)!r} of a regular expression is not supported")
    return regex_text(pattern, flags)


def regex_text(pattern: str, flags: str = "") -> Text:
    """Return the whole texts of a regular expression; flags: "i" and "s" count.

    Raises:
        GrammarError: No grammar can express it.
    """
    plain, in_json = (text_pattern(pattern, MAX_REGEX, one, "s" in flags) for one in (False, True))
    if "i" in flags:
        plain, in_json = f"(?i:{plain})", f"(?i:{in_json})"
    return Text(regex(plain).text, regex(in_json).text)
