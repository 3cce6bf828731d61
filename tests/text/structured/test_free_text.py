"""Texts up to a mark and texts without marks, as grammars, against plain searches."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import examples
from ngramspec._native.grammar.matcher import Matcher, Tokens
from ngramspec.text.grammar import read_grammar
from ngramspec.text.structured import GrammarError
from ngramspec.text.structured.gbnf import Rules
from ngramspec.text.structured.until import until, without

EXAMPLES = examples(100)
BYTES = Tokens([bytes([byte]) for byte in range(256)], [False] * 256)
WORDS = st.text(st.sampled_from("ab "), min_size=1, max_size=5)
MARKS = WORDS.map(str.lstrip).filter(bool)
TEXTS = st.text(st.sampled_from("aab é"), max_size=14)


def accepts(grammar: str, text: str) -> bool:
    matcher = Matcher(read_grammar(grammar, lambda _: -1), BYTES)
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.may_end


@given(WORDS, TEXTS, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_until_ends_with_the_first_mark(mark: str, text: str, ending: bool) -> None:
    text += mark if ending else ""
    rules = Rules()
    place = text.find(mark)
    assert accepts(rules.grammar(until(rules, mark)), text) == (
        place >= 0 and place == len(text) - len(mark)
    )


@pytest.mark.parametrize(
    ("marks", "first", "reason"),
    [
        (["a" * 20_000], [], "4000 rules"),
        (["x"], ["a" * 20_000], "4000 rules"),
        (["b" * 1000, *map(chr, range(0x4E00, 0x5600))], [], "characters"),
    ],
)
def test_marks_that_take_too_many_rules_are_refused_before_they_take_memory(
    marks: list[str], first: list[str], reason: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(GrammarError, match=reason):
            without(Rules(), marks, first)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@given(st.sets(MARKS, min_size=1, max_size=4), TEXTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_without_marks(marks: set[str], text: str) -> None:
    rules = Rules()
    assert accepts(rules.grammar(without(rules, marks)), text) == (
        not any(mark in text for mark in marks)
    )


@given(
    st.sets(MARKS, max_size=3),
    st.sets(MARKS, min_size=1, max_size=3),
    TEXTS,
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_without_marks_and_not_beginning_with_others(
    marks: set[str], first: set[str], text: str
) -> None:
    rules = Rules()
    assert accepts(rules.grammar(without(rules, marks, first)), text) == (
        not any(mark in text for mark in marks) and not text.lstrip().startswith(tuple(first))
    )
