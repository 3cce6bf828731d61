"""From regular expressions to GBNF, for strings with a `pattern`.

Python's own parser reads the expression. Characters that JSON writes with a backslash are matched
in that form. A grammar cannot express look-around, back references and word boundaries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ngramspec.server.errors import bad_request
from ngramspec.server.structured.gbnf import Rules, class_char, literal, repeated

MAX_PATTERN = 1000  # characters
ASCII_LAST = 0x10FFFF
CATEGORIES = {
    "CATEGORY_DIGIT": ((48, 57),),
    "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "CATEGORY_SPACE": ((9, 13), (32, 32)),
}
LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))  # what JavaScript's dot does not match
JSON_SPECIAL = ((0, 31), (34, 34), (92, 92), (127, 127))  # not plain in a JSON string


def pattern_text(pattern: Any, rules: Rules, name: str) -> str:
    """Return GBNF for the texts that a pattern matches, inside a JSON string.

    Raises:
        ApiError: It is not a regular expression, or a grammar cannot express it.
    """
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise bad_request(f"a pattern must be a text of at most {MAX_PATTERN} characters")
    try:
        parsed = _parser().parse(pattern)
    except Exception as error:
        raise bad_request(f"the pattern {pattern!r:.80} cannot be read: {error}") from error
    return _Pattern(pattern, rules, name).whole(list(parsed))


def _parser() -> Any:
    if sys.version_info >= (3, 11):
        import re._parser as parser  # type: ignore[import-not-found, unused-ignore]
    else:  # the same module under its old name
        import sre_parse as parser
    return parser


class _Pattern:
    def __init__(self, pattern: str, rules: Rules, name: str) -> None:
        self._pattern = pattern
        self._rules = rules
        self._name = name

    def whole(self, nodes: list[tuple[Any, Any]]) -> str:
        """Return the GBNF of a whole pattern; it can match anywhere unless it is anchored."""
        anywhere = f"{self._rules.primitive('char')}*"
        before = after = anywhere
        if nodes and _is_at(nodes[0], "BEGINNING"):
            nodes, before = nodes[1:], ""
        if nodes and _is_at(nodes[-1], "END"):
            nodes, after = nodes[:-1], ""
        text = " ".join(filter(None, (before, self._sequence(nodes), after)))
        return f"({text})" if text else ""

    def _sequence(self, nodes: Sequence[tuple[Any, Any]]) -> str:
        return " ".join(filter(None, (self._node(str(op), value) for op, value in nodes)))

    def _node(self, op: str, value: Any) -> str:
        if op == "LITERAL":
            return literal(json.dumps(chr(value), ensure_ascii=False)[1:-1])
        if op == "NOT_LITERAL":
            return self._class([(value, value)], True)
        if op == "ANY":
            return self._class(LINE_ENDS, True)
        if op == "IN":
            return self._in(value)
        if op == "BRANCH":
            return "(" + " | ".join(self._sequence(part) or '""' for part in value[1]) + ")"
        if op == "SUBPATTERN":
            return f"({self._sequence(value[-1])})" if len(value[-1]) else ""
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = value
            repeating = self._sequence(inner)
            if not repeating:
                return ""  # an empty text, however often it is repeated
            item = self._rules.add(f"{self._name}-part", repeating)
            return repeated(item, low, None if str(high) == "MAXREPEAT" else high)
        what = op.lower().replace("_", " ")
        raise bad_request(f"no grammar can express the {what} in the pattern {self._pattern!r:.80}")

    def _in(self, members: Sequence[tuple[Any, Any]]) -> str:
        negated = bool(members) and str(members[0][0]) == "NEGATE"
        ranges: list[tuple[int, int]] = []
        for op, value in members[1:] if negated else members:
            kind = str(op)
            if kind == "LITERAL":
                ranges.append((value, value))
            elif kind == "RANGE":
                ranges.append((value[0], value[1]))
            else:
                ranges += _category(str(value))
        return self._class(ranges, negated)

    def _class(self, ranges: Sequence[tuple[int, int]], negated: bool) -> str:
        plain = list(ranges) if not negated else _without([(0, ASCII_LAST)], ranges)
        shown = _without(plain, JSON_SPECIAL)
        escaped = [c for c in '"\\\n\t\r' if any(a <= ord(c) <= b for a, b in plain)]
        parts = [f"[{''.join(map(_range, shown))}]"] if shown else []
        parts += [literal(json.dumps(char)[1:-1]) for char in escaped]
        if not parts:
            raise bad_request(f"the pattern {self._pattern!r:.80} has a class without characters")
        return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _category(name: str) -> list[tuple[int, int]]:
    if name in CATEGORIES:
        return list(CATEGORIES[name])
    return _without([(0, ASCII_LAST)], CATEGORIES[name.replace("_NOT", "")])


def _without(
    ranges: Sequence[tuple[int, int]], holes: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return ranges of code points without the holes."""
    left = list(ranges)
    for low, high in holes:
        cut = []
        for a, b in left:
            cut += [(a, min(b, low - 1)), (max(a, high + 1), b)]
        left = [(a, b) for a, b in dict.fromkeys(cut) if a <= b]
    return left


def _range(span: tuple[int, int]) -> str:
    low, high = (class_char(chr(code)) for code in span)
    return low if low == high else f"{low}-{high}"


def _is_at(node: tuple[Any, Any], where: str) -> bool:
    return str(node[0]) == "AT" and str(node[1]).startswith(f"AT_{where}")
