"""From regular expressions to trees, for strings with a `pattern`.

Python's own parser reads the expression. A pattern holds for a part of the text unless it is
anchored. Look-around, back references, word boundaries and flags are refused. Of the properties
that \\p and \\P name in ECMA-262, Python knows the general categories.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.regular import (
    ANY_TEXT,
    EMPTY,
    WRITABLE,
    Chars,
    Choice,
    Range,
    Regular,
    Repeat,
    Row,
    meet,
    without,
)

MAX_PATTERN = 1000  # characters
MAX_BRANCHES = 100  # that anchors make
CATEGORIES: dict[str, tuple[Range, ...]] = {
    "CATEGORY_DIGIT": ((48, 57),),
    "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "CATEGORY_SPACE": ((9, 13), (32, 32)),
}
# White space for JavaScript or Python, but not always for both: neither \s nor \S writes it.
SPACES: tuple[Range, ...] = (
    (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))  # what JavaScript's dot does not match
_NAMED_GROUP = re.compile(  # outside escapes and classes
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\(\?<(?=[A-Za-z_$])", re.DOTALL
)
_PROPERTY = re.compile(r"\\(?:([pP])\{([^{}]*)\}|.)", re.DOTALL)
PROPERTIES = 0xDB80  # for the parser a property is this code, or one after it: no characters
# General categories with their other names; a name of one letter is for all that begin with it.
_NAMES = """
C Other, Cc Control cntrl, Cf Format, Cn Unassigned, Co Private_Use, Cs Surrogate, L Letter,
LC Cased_Letter, Ll Lowercase_Letter, Lm Modifier_Letter, Lo Other_Letter, Lt Titlecase_Letter,
Lu Uppercase_Letter, M Mark Combining_Mark, Mc Spacing_Mark, Me Enclosing_Mark, Mn Nonspacing_Mark,
N Number, Nd Decimal_Number digit, Nl Letter_Number, No Other_Number, P Punctuation punct,
Pc Connector_Punctuation, Pd Dash_Punctuation, Pe Close_Punctuation, Pf Final_Punctuation,
Pi Initial_Punctuation, Po Other_Punctuation, Ps Open_Punctuation, S Symbol, Sc Currency_Symbol,
Sk Modifier_Symbol, Sm Math_Symbol, So Other_Symbol, Z Separator, Zl Line_Separator,
Zp Paragraph_Separator, Zs Space_Separator
"""
GENERAL = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}
ALL_GENERAL = frozenset(name for name in GENERAL.values() if len(name) == 2 and name != "LC")
Node = tuple[Any, Any]


def pattern_tree(
    pattern: Any,
    most: int = MAX_PATTERN,
    whole: bool = False,
    line_ends: Sequence[Range] = LINE_ENDS,
) -> Regular:
    """Return the texts that a pattern matches.

    Args:
        pattern: A regular expression.
        most: Its characters at most.
        whole: It matches whole texts, not parts of them.
        line_ends: What its dot does not match.

    Raises:
        GrammarError: It is not a regular expression, or a grammar cannot express it.
    """
    if not isinstance(pattern, str) or len(pattern) > most:
        raise GrammarError(f"a pattern must be a text of at most {most} characters")
    codes: dict[frozenset[str], int] = {}

    def coded(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0]
        names = _categories(match[2], match[1] == "P", pattern)
        return chr(codes.setdefault(names, PROPERTIES + len(codes)))

    # JavaScript's way to name a group
    read = _NAMED_GROUP.sub(lambda match: match[1] or "(?P<", _PROPERTY.sub(coded, pattern))
    try:
        parsed = _parser().parse(read)
        if whole:  # it is an expression by itself
            parsed = _parser().parse(f"^(?:{read})$")
    except Exception as error:
        raise GrammarError(f"the pattern {pattern!r:.80} cannot be read: {error}") from error
    if parsed.state.flags & ~re.UNICODE:
        raise GrammarError(f"the pattern {pattern!r:.80} has flags, which a schema does not know")
    properties = {code: names for names, code in codes.items()}
    return _Pattern(pattern, line_ends, properties).whole(list(parsed))


def _parser() -> Any:
    if sys.version_info >= (3, 11):
        import re._parser as parser  # type: ignore[import-not-found, unused-ignore]
    else:  # the same module under its old name
        import sre_parse as parser
    return parser


class _Pattern:
    def __init__(
        self,
        pattern: str,
        line_ends: Sequence[Range],
        properties: Mapping[int, frozenset[str]],
    ) -> None:
        self._pattern = pattern
        self._line_ends = line_ends
        self._properties = properties
        self._branches = 0

    def whole(self, nodes: list[Node]) -> Regular:
        """Return a whole pattern; branches with anchors of their own become whole patterns."""
        for at, node in enumerate(nodes):
            branches = _branches(node) if _has_anchor(node) else []
            if branches:
                self._branches += len(branches)
                if self._branches > MAX_BRANCHES:
                    raise self._refused(f"anchors in more than {MAX_BRANCHES} branches")
                around = nodes[:at], nodes[at + 1 :]
                return Choice(tuple(self.whole([*around[0], *one, *around[1]]) for one in branches))
        before: Regular = ANY_TEXT
        after: Regular = ANY_TEXT
        while nodes and _is_at(nodes[0], "BEGINNING"):
            nodes, before = nodes[1:], EMPTY
        while nodes and _is_at(nodes[-1], "END"):
            nodes, after = nodes[:-1], EMPTY
        parts = (before, *map(self._node, nodes), after)
        return Row(tuple(part for part in parts if part != EMPTY))

    def _row(self, nodes: Sequence[Node]) -> Regular:
        return Row(tuple(self._node(node) for node in nodes))

    def _node(self, node: Node) -> Regular:
        op, value = str(node[0]), node[1]
        if op == "LITERAL":
            return self._chars(self._literal(value, False))
        if op == "NOT_LITERAL":
            return self._chars(without(WRITABLE, self._literal(value, True)))
        if op == "ANY":
            return self._chars(without(WRITABLE, self._line_ends))
        if op == "IN":
            return self._in(value)
        if op == "BRANCH":
            return Choice(tuple(map(self._row, value[1])))
        if op == "SUBPATTERN":
            if value[1] or value[2]:
                raise self._refused("flags")
            return self._row(value[-1])
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, inner = value
            return Repeat(self._row(inner), low, None if str(high) == "MAXREPEAT" else high)
        raise self._refused(f"the {op.lower().replace('_', ' ')}")

    def _in(self, members: Sequence[Node]) -> Regular:
        negated = bool(members) and str(members[0][0]) == "NEGATE"
        ranges: list[Range] = []
        named = {str(value) for op, value in members if str(op) == "CATEGORY"}
        if not negated and {"CATEGORY_SPACE", "CATEGORY_NOT_SPACE"} <= named:
            ranges += SPACES  # which are one or the other
        for op, value in members[1:] if negated else members:
            kind = str(op)
            if kind == "LITERAL":
                ranges += self._literal(value, negated)
            elif kind == "RANGE":
                if not self._properties.keys().isdisjoint(value):
                    raise self._refused("a range from or to a property")
                ranges.append((value[0], value[1]))
            else:
                ranges += _category(str(value), negated)
        return self._chars(without(WRITABLE, ranges) if negated else ranges)

    def _literal(self, code: int, negated: bool) -> Sequence[Range]:
        """Return a character, or those of a property, or all that may have it in a negated class.

        What has no category yet may get any: it is in no property, but in all of negated classes.
        """
        if code not in self._properties:
            return ((code, code),)
        categories = self._properties[code]
        return _in_categories(categories | {"Cn"} if negated else categories - {"Cn"})

    def _chars(self, ranges: Sequence[Range]) -> Regular:
        chars = meet(without(ranges, ()), WRITABLE)
        if not chars:
            raise GrammarError(f"the pattern {self._pattern!r:.80} has a class without characters")
        return Chars(chars)

    def _refused(self, what: str) -> Exception:
        return GrammarError(f"no grammar can express {what} in the pattern {self._pattern!r:.80}")


def _categories(name: str, negated: bool, pattern: str) -> frozenset[str]:
    """Return the general categories that a property names; negated: all others.

    Raises:
        GrammarError: It is another property.
    """
    word, _, value = name.rpartition("=")
    short = GENERAL.get(value)
    if short is None or word not in ("", "gc", "General_Category"):
        raise GrammarError(
            f"the pattern {pattern!r:.80} names {name!r:.40}, which is not a general category such "
            "as L, Lu or Letter; other properties cannot be expressed"
        )
    own = {"Lu", "Ll", "Lt"} if short == "LC" else {n for n in ALL_GENERAL if n.startswith(short)}
    return ALL_GENERAL - own if negated else frozenset(own)


@functools.cache
def _in_categories(names: frozenset[str]) -> tuple[Range, ...]:
    """Return the characters of general categories. Cost: 0.2 s for the first ones."""
    return without(((low, high) for low, high, name in _runs() if name in names), ())


@functools.cache
def _runs() -> tuple[tuple[int, int, str], ...]:
    """Return all characters as ranges of one general category each."""
    categories = map(unicodedata.category, map(chr, range(sys.maxunicode + 1)))
    sizes = [(name, sum(1 for _ in run)) for name, run in itertools.groupby(categories)]
    ends = itertools.accumulate(size for _, size in sizes)
    return tuple((end - size, end - 1, name) for (name, size), end in zip(sizes, ends, strict=True))


def _category(name: str, negated: bool) -> Sequence[Range]:
    """Return the characters of a category, or all that may be in it where the class is negated."""
    if name == "CATEGORY_SPACE":
        return (*CATEGORIES[name], *SPACES) if negated else CATEGORIES[name]
    if name in CATEGORIES:
        return CATEGORIES[name]
    excluded = CATEGORIES[name.replace("_NOT", "")]
    unsure = SPACES if name == "CATEGORY_NOT_SPACE" and not negated else ()
    return without(WRITABLE, (*excluded, *unsure))


def _branches(node: Node) -> list[list[Node]]:
    """Return the alternatives of a node that is a group, none for other nodes."""
    op, value = str(node[0]), node[1]
    if op == "BRANCH":
        return [list(one) for one in value[1]]
    return [list(value[-1])] if op == "SUBPATTERN" and not (value[1] or value[2]) else []


def _has_anchor(node: Node) -> bool:
    if str(node[0]) == "AT":
        return True
    return any(_has_anchor(one) for branch in _branches(node) for one in branch)


def _is_at(node: Node, where: str) -> bool:
    return str(node[0]) == "AT" and str(node[1]).startswith(f"AT_{where}")
