"""Texts up to a mark, texts that go on from one, and parts in an order, against plain searches."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.json_schemas import matcher_of, takes
from helpers.machines import examples
from ngramspec.errors import GrammarError
from ngramspec.text.structured.lark_rules import (
    Rules,
    Times,
    either,
    in_order,
    many,
    optional,
    regex,
    row,
)

EXAMPLES = examples(100)
WORDS = st.text(st.sampled_from('ab "\\/\n\x7f'), min_size=1, max_size=5)
MARKS = st.text(st.sampled_from("ab"), min_size=1, max_size=3)
COUNTED = st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.none() | st.just(3))
TEXTS = st.text(st.sampled_from("aab é"), max_size=14)


def coded(text: str) -> str:
    """Return a pattern for a text."""
    return "".join(f"\\u{{{ord(char):X}}}" for char in text)


@given(st.lists(WORDS, min_size=1, max_size=3, unique=True), WORDS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_texts_are_taken_as_they_are(words: list[str], text: str) -> None:
    assert takes(Rules().grammar(either(*words)), text) == (text in words)
    assert takes(Rules().grammar(either(*words)), words[-1])
    assert takes(Rules().grammar(regex("|".join(map(coded, words)))), words[0])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.none() | st.just(3))), TEXTS
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_parts_come_as_often_as_they_may(
    parts: list[tuple[str, int, int | None]], text: str
) -> None:
    grammar = Rules().grammar(row("<", *(Times(one, low, high) for one, low, high in parts), ">"))
    pattern = "".join(f"{one}{{{low},{'' if high is None else high}}}" for one, low, high in parts)
    assert takes(grammar, f"<{text}>") == bool(re.fullmatch(f"<{pattern}>", f"<{text}>"))


@given(MARKS, TEXTS, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_until_ends_with_the_first_mark(mark: str, text: str, ending: bool) -> None:
    text += mark if ending else ""
    rules = Rules()
    matcher = matcher_of(rules.grammar(rules.until(mark)))
    for at, byte in enumerate(text.encode()):
        ended = mark.encode() in text.encode()[:at]
        assert matcher.may_end == ended
        assert matcher.accept(byte) != ended
        if ended:
            return
    assert matcher.may_end == (mark in text)


@given(MARKS, st.sampled_from(["", " ", "\n"]), TEXTS, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_is_fenced_has_no_mark_within(mark: str, before: str, text: str, ending: bool) -> None:
    text += before + mark if ending else ""
    rules = Rules()
    part = rules.fenced(rules.terminal("text", "/[ab ]*/"), before + mark, mark)
    is_one = text.endswith(before + mark) and text.find(mark) == len(text) - len(mark)
    is_one &= bool(re.fullmatch("[ab ]*", text[: -len(before + mark)]))
    assert takes(rules.grammar(part), text) == is_one


@given(st.sets(MARKS, max_size=2), st.sets(MARKS, max_size=2), TEXTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_text_goes_on_with_a_part_from_its_mark_on(
    marks: set[str], first: set[str], text: str
) -> None:
    rules = Rules()
    part = row(either(*marks, *first, "c"), many("!"), optional("?"))
    begun = rules.begun(marks, first, part)
    whole = rules.grammar(either(*begun, rules.anything))
    begins = [text.index(mark) + len(mark) for mark in marks if mark in text]
    bare = text.lstrip(" ")
    begins += [len(text) - len(bare) + len(mark) for mark in first if bare.startswith(mark)]
    rests = {text[at:] for at in begins if at == min(begins)}
    assert takes(whole, text) == (not begins or "" in rests)
    if begins:
        assert takes(whole, text[: min(begins)] + "!!?")
        assert not takes(whole, text[: min(begins)] + "?!")


@given(st.lists(st.booleans(), max_size=7), st.lists(st.integers(0, 6)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_parts_in_order_have_something_between_two(needed: list[bool], chosen: list[int]) -> None:
    rules = Rules()
    parts = [(str(at), one) for at, one in enumerate(needed)]
    grammar = rules.grammar(row("<", in_order(rules, parts, ", "), ">"))
    there = [at for at in chosen if at < len(needed)]
    fits = there == sorted(set(there)) and all(at in there for at, one in enumerate(needed) if one)
    assert takes(grammar, f"<{', '.join(map(str, there))}>") == fits


@pytest.mark.parametrize(
    ("count", "size", "reason"), [(5000, 1, "4000 rules"), (100, 20_000, "characters")]
)
def test_grammars_that_become_too_large_are_refused(count: int, size: int, reason: str) -> None:
    rules = Rules()

    def add_all() -> None:
        for at in range(count):
            rules.add("rule", json.dumps(at) * size)

    with pytest.raises(GrammarError, match=reason):
        add_all()


def test_what_llguidance_does_not_take_names_its_field() -> None:
    with pytest.raises(GrammarError, match=r"cannot be enforced: .*unclosed group") as caught:
        Rules().grammar(regex("(a"), "tools")
    assert caught.value.field == "tools"
