"""Rules: a GBNF grammar under construction; functions that write texts and characters in GBNF."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.guidance import GrammarText

MAX_RULES = 4000
MAX_CHARS = 1 << 20  # of all rules; an element that a repetition writes out is as one
MAX_STEPS = 100_000  # parts of schemas that are visited or copied
MAX_GROUPS = 30  # nested groups in one_of
MAX_NAME = 40  # characters; longer rule names are cut
MAX_REPEAT = 2000  # llama.cpp's own limit
MAX_TIMES = 1_000_000  # of larger counts, which are written in blocks
BLOCK = 1000
SHARED = 32  # times from which on equal repetitions have a rule together
LONG = 200  # characters from which on equal elements have a rule together
ELEMENTS = 4  # of a grammar that is read, for each time that something is repeated
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = r"\x00-\x1F\x7F"
CHAR = rf'[^"\\{_CONTROL}] | "\\" (["\\/bfnrt] | "u" code)'
# A code of UTF-16 that is a character, or two that make one.
_CODE = (
    '[0-9a-ce-fA-CE-F] hex{3} | [dD] ([0-7] hex{2} | [89abAB] hex{2} "\\\\u" [dD] [c-fC-F] hex{2})'
)
NEVER = r"[^\x00-\U0010FFFF]"  # a character that does not exist
# Rules that JSON grammars can use: text, and the other rules it needs.
PRIMITIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "space": ('| " " | "\\n" [ \\t]{0,20}', ()),
    "hex": ("[0-9a-fA-F]", ()),
    "code": (_CODE, ("hex",)),
    "char": (CHAR, ("code",)),
    "string": ('"\\"" char* "\\""', ("char",)),
    "digits": ("[0-9] | [1-9] [0-9]{0,15}", ()),
    "integer": ('"-"? digits', ("digits",)),
    "number": ('"-"? digits ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?', ("digits",)),
    "positive": ('digits ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?', ("digits",)),
    "boolean": ('"true" | "false"', ()),
    "null": ('"null"', ()),
    "member": ('string space ":" space value', ("string", "space", "value")),
    "object": ('"{" space (member (space "," space member)* space)? "}"', ("member", "space")),
    "array": ('"[" space (value (space "," space value)* space)? "]"', ("value", "space")),
    "value": (
        "object | array | string | number | boolean | null",
        ("object", "array", "string", "number", "boolean", "null"),
    ),
}


class Rules:
    """Named rules; equal names get a number.

    All schemas of one grammar share its bounds: rules, characters, and steps of conversion.
    """

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # the last one of each name
        self._repeated: dict[tuple[str, int, int | None], str] = {}  # rules of repetitions
        self._num_chars = 0
        self._num_steps = 0

    def spend(self, steps: int) -> None:
        """Take some of the steps that the conversion can take.

        Raises:
            GrammarError: None are left.
        """
        self._num_steps += steps
        if self._num_steps > MAX_STEPS:
            raise GrammarError(
                f"the schema has more than {MAX_STEPS} parts, repeated ones included"
            )

    def primitive(self, name: str) -> str:
        """Add a rule of PRIMITIVES, with the rules it needs, and return its name."""
        if name not in self._rules:
            text, needs = PRIMITIVES[name]
            self._rules[name] = text
            for other in needs:
                self.primitive(other)
        return name

    def reserve(self, name: str) -> str:
        """Return a free name like `name`, for a rule without texts that is set later."""
        base = re.sub(r"[^a-zA-Z0-9-]+", "-", name[:MAX_NAME]).strip("-") or "rule"
        free, number = base, self._numbers.get(base, 1)
        while free in self._rules or free in PRIMITIVES or free == "root":
            number += 1
            free = f"{base}-{number}"
        self._numbers[base] = number
        if len(self._rules) >= MAX_RULES:
            raise too_many_rules()
        self._rules[free] = NEVER
        return free

    def set(self, name: str, text: str) -> str:
        """Set a reserved rule and return its name.

        Raises:
            GrammarError: The grammar becomes too large.
        """
        self._count(len(text))
        self._rules[name] = text or '""'  # an empty line would continue on the next one
        return name

    def add(self, name: str, text: str) -> str:
        """Add a rule and return the name that it got."""
        return self.set(self.reserve(name), text)

    def repeated(self, item: str, low: int, high: int | None) -> str:
        """Return an item between `low` and `high` times; more than MAX_REPEAT come in blocks.

        item: A name, or what else is one element of a grammar.

        Raises:
            GrammarError: That is more than MAX_TIMES, or the grammar becomes too large.
        """
        if low > MAX_TIMES or (high or 0) > MAX_TIMES:
            raise GrammarError(f"a schema can repeat at most {MAX_TIMES} times")
        times = max(low, high or 0)
        if times < SHARED:
            return self._written(item, low, high)
        key = item, low, high
        if key not in self._repeated:
            write = self._blocks if times > MAX_REPEAT else self._written
            self._repeated[key] = self.add("times", write(item, low, high))
        return self._repeated[key]

    def shared(self, item: str) -> str:
        """Return an item, or a rule for all that are like it where it is long."""
        if len(item) < LONG:
            return item
        key = item, 1, 1
        if key not in self._repeated:
            self._repeated[key] = self.add("chars", item)
        return self._repeated[key]

    def _written(self, item: str, low: int, high: int | None) -> str:
        self._count(ELEMENTS * max(low, high or 1))
        if high is None:
            return f"{item}*" if low == 0 else f"{item}{{{low},}}"
        if low == high:
            return item if low == 1 else f"{item}{{{low}}}" if low else ""
        return f"{item}{{{low},{high}}}"

    def _blocks(self, item: str, low: int, high: int | None) -> str:
        block = self.repeated(item, BLOCK, BLOCK)
        whole, rest = divmod(low, BLOCK)
        must = [self.repeated(block, whole, whole), self.repeated(item, rest, rest)]
        if high is None:
            return " ".join(filter(None, (*must, f"{item}*")))
        whole, rest = divmod(high - low, BLOCK)
        part = self.repeated(item, 0, BLOCK - 1) if whole else ""
        more = self.repeated(item, 0, rest) if rest else '""'
        for _ in range(whole):  # each further block begins where the one before is full
            more = self.add("blocks", f"{part} | {block} {more}")
        return " ".join(filter(None, (*must, more)))

    def _count(self, chars: int) -> None:
        """Take room for characters, and for what counts as some."""
        if self._num_chars + chars > MAX_CHARS:
            raise too_many_chars()
        self._num_chars += chars

    def grammar(self, root: str, field: str = "") -> GrammarText:
        """Return the grammar with the given text as its root rule; field: what it was made of."""
        lines = [f"{name} ::= {rule}" for name, rule in self._rules.items()]
        text = GrammarText("\n".join([f"root ::= {root}", *lines, ""]))
        text.field = field
        return text


def too_many_rules() -> GrammarError:
    """Return the error of a grammar that would have too many rules."""
    return GrammarError(f"the grammar would have more than {MAX_RULES} rules")


def too_many_chars() -> GrammarError:
    """Return the error of a grammar that would have too many characters."""
    return GrammarError(
        f"the grammar would have more than {MAX_CHARS} characters, repetitions written out"
    )


def literal(text: str) -> str:
    """Return a text as a GBNF literal."""
    return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'


def json_text(value: Any) -> str:
    """Return a JSON value as text.

    Raises:
        GrammarError: It holds a number that is not finite, which JSON cannot represent.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise GrammarError("a schema must hold finite numbers") from None


def json_literal(value: Any) -> str:
    """Return a JSON value as a GBNF literal."""
    return literal(json_text(value))


def one_of(texts: Iterable[str], depth: int = 0) -> str:
    """Return GBNF for one of several texts.

    A common beginning is written once, so that llama.cpp follows few alternatives at a time.
    """
    left = sorted(set(texts))
    if len(left) == 1 or depth == MAX_GROUPS:
        return " | ".join(map(literal, left))
    parts = []
    for _, group in itertools.groupby(left, key=lambda text: text[:1]):
        same = list(group)
        start = _common_start(same[0], same[-1])  # also of those between: they are sorted
        if len(same) == 1:
            parts.append(literal(start))
        else:
            rest = one_of([text[len(start) :] for text in same], depth + 1)
            parts.append(f"{literal(start)} ({rest})")
    return " | ".join(parts)


def _common_start(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))]


def class_char(char: str) -> str:
    """Return a character as a member of a GBNF character class."""
    if char.isalnum() and char.isascii():
        return char
    code = ord(char)
    return (
        f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}" if code < 65536 else f"\\U{code:08X}"
    )
