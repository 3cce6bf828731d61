"""Strings: patterns, formats and lengths, each alone or all together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ngramspec.text.structured import automaton as automata
from ngramspec.text.structured.automaton import STEP, Automaton, TooLargeError
from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.json_pattern import pattern_tree
from ngramspec.text.structured.lark_gbnf import LarkGrammar
from ngramspec.text.structured.regular import (
    AS_IS,
    IN_JSON,
    NOTHING,
    WRITABLE,
    Regular,
    fitted,
    gbnf,
    may_hold,
)

_WORDS = ("pattern", "format", "minLength", "maxLength")
MAX_FORMAT = 2000  # characters of a format's pattern

_OCTET = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
_IPV4 = f"{_OCTET}(\\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_YEAR = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
_LEAP = "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)"
    f"|02-(0[1-9]|1\\d|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,2}}"  # at most 253 characters
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"
_PLAIN = "a-zA-Z0-9._~!$&'()*+,;=-"  # what a URI holds as it is
_ENCODED = "%[0-9a-fA-F]{2}"
_DAYTIME = "T(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S)"
_DAYS = "(\\d{1,4}Y(\\d{1,4}M(\\d{1,4}D)?)?|\\d{1,4}M(\\d{1,4}D)?|\\d{1,4}D)"


def _ipv6() -> str:
    """Return the forms of RFC 4291: 8 groups, or :: in place of some."""
    forms = [f"({_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):  # groups before ::, up to 7 - before behind it
        head = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
        after = 7 - before
        tail = f"({_GROUP}(:{_GROUP}){{0,{after - 1}}})?" if after else ""
        forms.append(f"{head}::{tail}")
    return "|".join(forms)


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_DAYS}({_DAYTIME})?|{_DAYTIME}|\\d{{1,4}}W)",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "email": f"{_ATOM}(\\.{_ATOM}){{0,1}}@{_LABEL}(\\.{_LABEL}){{1,2}}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": (
        f"[a-zA-Z][a-zA-Z0-9+.-]{{1,20}}:(//({_HOST}|{_IPV4})(:\\d{{1,5}})?(/([:@/{_PLAIN}]|{_ENCODED}){{0,300}})?"
        f"|([:@{_PLAIN}]|{_ENCODED}){{1,100}})"
        f"(\\?([:@/?{_PLAIN}]|{_ENCODED}){{0,200}})?(#([:@/?{_PLAIN}]|{_ENCODED}){{0,50}})?"
    ),
}


@functools.cache
def format_tree(name: str) -> Regular:
    """Return the texts of one of FORMATS."""
    return pattern_tree(f"^({FORMATS[name]})$", MAX_FORMAT)


def string_text(schema: Mapping[str, Any], context: Context, name: str) -> str | None:
    """Return GBNF for the inside of a string, None if any will do.

    Raises:
        GrammarError: A keyword is not valid, or cannot be enforced in a strict request.
        NothingError: No text fits.
    """
    if isinstance(grammar := schema.get("pattern"), LarkGrammar):
        return grammar.gbnf(context.rules, name, IN_JSON)
    trees, (low, high) = _trees(schema, context), length_bounds(schema)
    if not trees:
        if not low and high is None:
            return None
        return context.rules.repeated(context.rules.primitive("char"), low, high)
    tree = fitted(trees[0], low, high) if len(trees) == 1 else None
    if tree is None:
        try:
            return automata.gbnf(_checked(_all(trees, low, high, context)), context.rules, name)
        except TooLargeError:
            words = " beside ".join(word for word in _WORDS if word in schema)
            context.cannot(words, "would take too large a grammar together")
            tree = trees[0]
    if tree == NOTHING:
        raise _nothing()
    return gbnf(tree, context.rules, name)


def bare_text(schema: Mapping[str, Any], context: Context, name: str, mark: str) -> str | None:
    """Return GBNF for a string as it is, without quotes, up to a mark; None if any will do.

    Raises:
        As string_text.
    """
    if isinstance(grammar := schema.get("pattern"), LarkGrammar):
        return grammar.gbnf(context.rules, name, AS_IS)
    trees, (low, high) = _trees(schema, context), length_bounds(schema)
    if not trees and not low and high is None:
        return None
    tree = fitted(trees[0], low, high) if len(trees) == 1 else None
    if tree is not None and tree != NOTHING and not may_hold(tree, mark):
        return gbnf(tree, context.rules, name, AS_IS)
    spend = context.rules.spend
    try:
        parts = [_all(trees, low, high, context), automata.lacking(mark, spend)]
        whole = _checked(automata.product(parts, spend, together=True))
        return automata.gbnf(whole, context.rules, name, AS_IS)
    except TooLargeError:
        if not trees and not low:  # what is behind a mark is read as something else
            return context.rules.repeated(AS_IS.chars(WRITABLE), 0, high)
        words = " beside ".join(word for word in _WORDS if word in schema)
        context.cannot(words, f"would take too large a grammar before {mark}")
        return None


def string_automaton(schema: Mapping[str, Any], context: Context) -> Automaton:
    """Return the texts of a string.

    Raises:
        GrammarError, NothingError: As for `string_text`.
        TooLargeError: The automaton would be too large.
    """
    low, high = length_bounds(schema)
    return _checked(_all(_trees(schema, context), low, high, context))


def fits(text: str, schema: Mapping[str, Any], context: Context) -> bool:
    """Tell whether a text has the length that a schema asks for and matches its patterns.

    Raises:
        GrammarError: A keyword is not valid, or nothing is left to spend.
        TooLargeError: A pattern is too large to tell.
    """
    low, high = length_bounds(schema)
    if len(text) < low or (high is not None and len(text) > high):
        return False
    for tree in _trees(schema, context):
        context.rules.spend(len(text) // STEP)
        if not context.automaton(tree).mask(text):
            return False
    return True


def length_bounds(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return minLength and maxLength. Raises: GrammarError if they are not valid."""
    return bounds_of(schema, "minLength", "maxLength")


def bounds_of(schema: Mapping[str, Any], low_name: str, high_name: str) -> tuple[int, int | None]:
    """Return two bounds of a count, 0 and None where they are not given.

    Raises:
        GrammarError: They are not whole numbers of 0 or more, or the wrong way round.
    """
    low, high = (_count(schema.get(name), name) for name in (low_name, high_name))
    low = low or 0
    if high is not None and high < low:
        raise NothingError(f"{high_name} {high} is below {low_name} {low}")
    return low, high


def _count(value: Any, name: str) -> int | None:
    """Return a bound; 3.0 is an integer in JSON schemas."""
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or value < 0:
        raise GrammarError(f"{name} must be an integer of 0 or more, got {value!r:.80}")
    return int(value)


def _trees(schema: Mapping[str, Any], context: Context) -> list[Regular]:
    trees = [context.pattern(pattern) for pattern in several(schema.get("pattern"))]
    for format in several(schema.get("format")):
        if format in FORMATS:
            trees.append(format_tree(format))
        else:
            context.cannot("format", f"{format!r:.80} is not one of {', '.join(FORMATS)}")
    return trees


def several(value: Any) -> tuple[Any, ...]:
    """Return the values of a keyword, of which allOf may have brought together more than one."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _all(trees: list[Regular], low: int, high: int | None, context: Context) -> Automaton:
    spend = context.rules.spend
    parts = [context.automaton(tree) for tree in trees]
    if low or high is not None or not parts:
        parts.append(automata.of_lengths(low, high, spend))
    return parts[0] if len(parts) == 1 else automata.product(parts, spend, together=True)


def _checked(automaton: Automaton) -> Automaton:
    if automaton.is_empty:
        raise _nothing()
    return automaton


def _nothing() -> NothingError:
    return NothingError("no text has the pattern, the format and the length of a schema")
