"""Strings: patterns, formats and lengths, each alone or all together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ngramspec.text.structured import automaton as automata
from ngramspec.text.structured.automaton import STEP, Automaton, TooLargeError
from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.formats import FORMATS
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
