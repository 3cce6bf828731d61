"""GBNF, llama.cpp's format of grammars: read_grammar has rules of it, one_of writes it.

Texts are read in llama.cpp's way, and bounded in size before they are written out.
Source: llama.cpp src/llama-grammar.cpp, grammars/README.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ngramspec._native.grammar.rules import Rules
from ngramspec.errors import InputError
from ngramspec.text.grammar.characters import LAST, Characters
from ngramspec.text.grammar.rules import BITS, CHAR, NOT_TOKEN, RULE, TOKEN, Rule, native_rules
from ngramspec.text.structured.guidance import check_text

MAX_NESTING = 64
MAX_ELEMENTS = 1 << 20  # of all rules, repetitions written out
MAX_REPETITIONS = 2000  # as in llama.cpp
MAX_TOKEN_CHARS = 256
MAX_GROUPS = 30  # of what one_of writes

_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr\\"\[\]-])'
_LITERAL = re.compile(rf'"((?:{_ESCAPE}|[^"\\])*)"')
_CHARS = re.compile(rf"\[(\^?)((?:{_ESCAPE}|[^\]\\])*)\]")
_CHAR = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
_TOKEN_ID = re.compile(r"!?<\[([0-9]{1,10})\]>")
_TOKEN = re.compile(r"!?(<[^>]*>)")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_OR_LINE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"[0-9]{1,9}")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})

TokenOf = Callable[[str], int]


def read_grammar(text: str, token_of: TokenOf) -> Rules:
    """Return the rules of a grammar.

    Args:
        text: GBNF with a rule "root".
        token_of: Returns the id of a text such as "<think>" if it is one token, -1 if not.

    Raises:
        InputError: llama.cpp would not take the text, or it is too large.

    Cost: about 2 us per character, and 0.1 us per element that repetitions write out.
    """
    check_text(text)
    reader = _Reader(text, token_of)
    return native_rules(reader.read(), reader.characters)


@dataclass
class _Reader:
    """Reads a grammar in llama.cpp's way.

    num_symbols counts what llama.cpp gives a symbol id, generated rules included.
    """

    text: str
    token_of: TokenOf
    characters: Characters = field(default_factory=Characters)
    position: int = 0
    nesting: int = 0
    num_symbols: int = 0
    num_elements: int = 0
    names: dict[str, int] = field(default_factory=dict)
    rules: list[Rule | None] = field(default_factory=list)

    def read(self) -> list[Rule]:
        """Return the rules, "root" first.

        Raises:
            InputError: llama.cpp would not take the text.
        """
        root = self.symbol("root")
        self.num_symbols -= 1
        self.skip(True)
        while self.position < len(self.text):
            self.rule()
        if self.rules[root] is None:
            raise InputError('the grammar has no rule named "root"')
        for name, index in self.names.items():
            if self.rules[index] is None:
                raise InputError(f"the grammar lacks the rule {name!r}")
        return [rule for rule in self.rules if rule is not None]

    def rule(self) -> None:
        name = self.match(_NAME, "a rule name")
        index = self.symbol(name.group())
        self.skip(False)
        if not self.text.startswith("::=", self.position):
            raise self.error("expected ::=")
        self.position += 3
        self.skip(True)
        self.rules[index] = self.alternatives(name.group(), nested=False)
        if self.position < len(self.text) and self.text[self.position] not in "\r\n":
            raise self.error("expected the end of the line")
        self.skip(True)

    def alternatives(self, name: str, nested: bool) -> Rule:
        """Read sequences with | between them."""
        rule = Rule(name, [self.sequence(name, nested)])
        while self.text.startswith("|", self.position):
            self.position += 1
            self.skip(True)
            rule.alternatives.append(self.sequence(name, nested))
        return rule

    def sequence(self, name: str, nested: bool) -> list[int]:
        items: list[int] = []
        last, weight = 0, 1  # where the last symbol starts; the rules that it stands for
        while self.position < len(self.text):
            char = self.text[self.position]
            if char in "*+?{":
                weight *= self.repetition(name, items, last, weight, nested)
                continue
            last = len(items)
            before = self.num_symbols
            if not self.symbol_here(char, name, items):
                break
            weight = max(1, self.num_symbols - before) if char == "(" else 1
            self.skip(nested)
        return items

    def symbol_here(self, char: str, name: str, items: list[int]) -> bool:
        """Read one symbol into items; False when there is none."""
        if char == '"':
            for one in map(_code, _CHAR.findall(self.match(_LITERAL, "a literal").group(1))):
                self.add(items, CHAR, self.characters.one_of([(one, one)]))
        elif char == "[":
            self.character_class(items)
        elif char in "<!":
            self.add(items, NOT_TOKEN if char == "!" else TOKEN, self.token())
        elif char == ".":
            self.position += 1
            self.add(items, CHAR, self.characters.one_of([(0, LAST)]))
        elif char == "(":
            self.group(name, items)
        elif match := _NAME.match(self.text, self.position):
            self.position = match.end()
            self.add(items, RULE, self.symbol(match.group()))
        else:
            return False
        return True

    def character_class(self, items: list[int]) -> None:
        """Read a class such as [^a-z_]; an empty one is nothing."""
        negated, inside = self.match(_CHARS, "a character class").groups()
        chars = _CHAR.findall(inside)
        ranges, at = [], 0
        while at < len(chars):
            is_range = chars[at + 1 : at + 2] == ["-"] and at + 2 < len(chars)
            end = at + 2 if is_range else at
            ranges.append((_code(chars[at]), _code(chars[end])))
            at = end + 1
        if ranges:
            self.add(items, CHAR, self.characters.one_of(ranges, bool(negated)))

    def group(self, name: str, items: list[int]) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.error(f"more than {MAX_NESTING} parentheses inside one another")
        self.position += 1
        self.skip(True)
        index = self.new_rule()
        self.rules[index] = self.alternatives(name, nested=True)
        if not self.text.startswith(")", self.position):
            raise self.error("expected )")
        self.position += 1
        self.add(items, RULE, index)
        self.nesting -= 1

    def token(self) -> int:
        """Read `<[id]>` or `<text>`, optionally after `!`; return the token's id."""
        match = _TOKEN_ID.match(self.text, self.position)
        token = int(match.group(1)) if match else -1
        if match is None or token > 0xFFFFFFFF:
            match = self.match(_TOKEN, "a token")
            text = match.group(1)
            plain = not text.startswith("<[") and len(text) <= MAX_TOKEN_CHARS
            token = self.token_of(text) if plain else -1
            if token < 0:
                raise self.error(f"{text[:40]!r} is not one token")
        self.position = match.end()
        return token

    def repetition(self, name: str, items: list[int], last: int, weight: int, nested: bool) -> int:
        """Read a repetition and apply it to items[last:]; return the rules that it makes."""
        least, most = self.counts(nested)
        if last == len(items):
            raise self.error("a repetition needs something before it")
        total = most or least or 1
        if weight * total > MAX_REPETITIONS:
            raise self.error(f"more than {MAX_REPETITIONS} repetitions")
        if most is not None and most < least:
            raise self.error(f"{most} repetitions are fewer than {least}")
        repeated = items[last:]
        optional = 1 if most is None else most - least
        self.count((max(0, least - 1) + optional) * (len(repeated) + 3))
        items[last:] = repeated * least
        more: list[int] = []  # after what is repeated, once more
        for _ in range(optional):
            index = self.new_rule()
            here = index << BITS | RULE
            self.rules[index] = Rule(name, [[*repeated, *([here] if most is None else more)], []])
            more = [here]
        items += more
        return total

    def counts(self, nested: bool) -> tuple[int, int | None]:
        """Read * + ? or {m}, {m,}, {m,n}; no upper bound is None."""
        char = self.text[self.position]
        self.position += 1
        self.skip(nested)
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        least = int(self.match(_COUNT, "a number").group())
        most: int | None = least
        self.skip(nested)
        if self.text.startswith(",", self.position):
            self.position += 1
            self.skip(nested)
            match = _COUNT.match(self.text, self.position)
            most = int(match.group()) if match else None
            self.position = match.end() if match else self.position
            self.skip(nested)
        if not self.text.startswith("}", self.position):
            raise self.error("expected }")
        self.position += 1
        self.skip(nested)
        if least > MAX_REPETITIONS:
            raise self.error(f"more than {MAX_REPETITIONS} repetitions")
        return least, None if most is not None and most > MAX_REPETITIONS else most

    def add(self, items: list[int], kind: int, value: int) -> None:
        self.count(1)
        items.append(value << BITS | kind)

    def count(self, size: int) -> None:
        self.num_elements += size
        if self.num_elements > MAX_ELEMENTS:
            raise InputError(f"the grammar is larger than {MAX_ELEMENTS} elements")

    def symbol(self, name: str) -> int:
        """Return the rule of a name, which may come later."""
        if name not in self.names:
            self.names[name] = self.new_rule()
        return self.names[name]

    def new_rule(self) -> int:
        self.num_symbols += 1
        self.rules.append(None)
        return len(self.rules) - 1

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.error(f"expected {expected}")
        self.position = match.end()
        return match

    def skip(self, lines: bool) -> None:
        match = (_SPACE_OR_LINE if lines else _SPACE).match(self.text, self.position)
        self.position = match.end() if match else self.position

    def error(self, reason: str) -> InputError:
        line = self.text.count("\n", 0, self.position) + 1
        here = self.text[self.position : self.position + 20]
        return InputError(f"the grammar is not valid: {reason}, in line {line} at {here!r}")


def _code(char: str) -> int:
    if len(char) == 1:
        return ord(char)
    return int(char[2:], 16) if char[1] in "xuU" else ord(_ESCAPED.get(char[1], char[1]))


def one_of(texts: Iterable[str]) -> str:
    """Return what stands for one of several texts in a rule of GBNF.

    A common beginning is written once, so that few alternatives are followed at a time.

    Cost: as for sorting them.
    """
    return _one_of(sorted(set(texts)), 0)


def _one_of(left: list[str], depth: int) -> str:
    if len(left) == 1 or depth == MAX_GROUPS:
        return " | ".join(map(_literal, left))
    parts = []
    for _, group in itertools.groupby(left, key=lambda text: text[:1]):
        same = list(group)
        pairs = enumerate(zip(same[0], same[-1], strict=False))  # first and last: they are sorted
        start = same[0][: next((at for at, (a, b) in pairs if a != b), None)]
        if len(same) == 1:
            parts.append(_literal(start))
        else:
            rest = _one_of([text[len(start) :] for text in same], depth + 1)
            parts.append(f"{_literal(start)} ({rest})")
    return " | ".join(parts)


def _literal(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
