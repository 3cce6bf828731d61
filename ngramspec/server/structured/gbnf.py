"""Rules: a GBNF grammar under construction; functions that write texts and characters in GBNF."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

from ngramspec.server.errors import bad_request

MAX_RULES = 4000
MAX_CHARS = 1 << 20  # of all rules
MAX_STEPS = 100_000  # parts of schemas that are visited or copied
MAX_GROUPS = 30  # nested groups in one_of
MAX_NAME = 40  # characters; longer rule names are cut
MAX_REPEAT = 2000  # llama.cpp's own limit
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = r"\x00-\x1F\x7F"
CHAR = rf'[^"\\{_CONTROL}] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)'
# Rules that JSON grammars can use: text, and the other rules it needs.
PRIMITIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "space": ('| " " | "\\n" [ \\t]{0,20}', ()),
    "hex": ("[0-9a-fA-F]", ()),
    "char": (CHAR, ("hex",)),
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
    "date": ('[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])', ()),
    "time": (
        '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})?'
        ' ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
        (),
    ),
    "date-time": ('date "T" time', ("date", "time")),
    "uuid": ('hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}', ("hex",)),
}


class Rules:
    """Named rules; equal names get a number.

    All schemas of one grammar share its bounds: rules, characters, and steps of conversion.
    """

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # the last one of each name
        self._num_chars = 0
        self._num_steps = 0

    def spend(self, steps: int) -> None:
        """Take some of the steps that the conversion can take.

        Raises:
            ApiError: None are left.
        """
        self._num_steps += steps
        if self._num_steps > MAX_STEPS:
            raise bad_request(f"the schema has more than {MAX_STEPS} parts, repeated ones included")

    def primitive(self, name: str) -> str:
        """Add a rule of PRIMITIVES, with the rules it needs, and return its name."""
        if name not in self._rules:
            text, needs = PRIMITIVES[name]
            self._rules[name] = text
            for other in needs:
                self.primitive(other)
        return name

    def reserve(self, name: str) -> str:
        """Return a free name like `name`, for a rule that is set later."""
        base = re.sub(r"[^a-zA-Z0-9-]+", "-", name[:MAX_NAME]).strip("-") or "rule"
        free, number = base, self._numbers.get(base, 1)
        while free in self._rules or free in PRIMITIVES or free == "root":
            number += 1
            free = f"{base}-{number}"
        self._numbers[base] = number
        if len(self._rules) >= MAX_RULES:
            raise bad_request(f"the grammar would have more than {MAX_RULES} rules")
        self._rules[free] = ""
        return free

    def set(self, name: str, text: str) -> str:
        """Set a reserved rule and return its name.

        Raises:
            ApiError: The grammar becomes too large.
        """
        self._num_chars += len(text)
        if self._num_chars > MAX_CHARS:
            raise bad_request(f"the grammar would have more than {MAX_CHARS} characters")
        self._rules[name] = text or '""'  # an empty line would continue on the next one
        return name

    def add(self, name: str, text: str) -> str:
        """Add a rule and return the name that it got."""
        return self.set(self.reserve(name), text)

    def grammar(self, root: str) -> str:
        """Return the grammar with the given text as its root rule."""
        lines = [f"{name} ::= {text}" for name, text in self._rules.items()]
        return "\n".join([f"root ::= {root}", *lines, ""])


def literal(text: str) -> str:
    """Return a text as a GBNF literal."""
    return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'


def json_text(value: Any) -> str:
    """Return a JSON value as text.

    Raises:
        ApiError: It holds a number that is not finite, which JSON cannot represent.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise bad_request("a schema must hold finite numbers") from None


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


def repeated(item: str, low: int, high: int | None) -> str:
    """Return an item between `low` and `high` times."""
    if low > MAX_REPEAT or (high or 0) > MAX_REPEAT:
        raise bad_request(f"a schema can repeat at most {MAX_REPEAT} times")
    if high is None:
        return f"{item}*" if low == 0 else f"{item}{{{low},}}"
    return f"{item}{{{low},{high}}}"
