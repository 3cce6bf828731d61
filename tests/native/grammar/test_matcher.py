"""Matcher beside a slow one that follows every way by itself, and what keeps it in bounds."""

from __future__ import annotations

import copy
import re
import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ngramspec._native.grammar.matcher import Matcher, Tokens
from ngramspec._native.grammar.rules import Rules
from ngramspec.errors import InputError
from ngramspec.text.grammar import read_grammar
from reference.grammar import Node, SlowMatcher, TooManyStacksError, gbnf

ALPHABET = "ab\u00e9\u00ea\u2603\U0001f600"
CHARS = st.sets(st.sampled_from(ALPHABET), min_size=1, max_size=4).map(frozenset)
LEAVES = st.one_of(
    st.tuples(st.just("chars"), CHARS, st.booleans()),
    st.tuples(st.just("token"), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("rule"), st.integers(0, 2)),
)


def _more(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(inner, min_size=1, max_size=3).map(tuple)
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 0)])
    return st.one_of(
        st.tuples(st.sampled_from(["all", "one"]), some),
        st.tuples(inner, counts).map(lambda pair: ("repeat", pair[0], *pair[1])),
    )


GRAMMARS = st.lists(st.recursive(LEAVES, _more, max_leaves=6), min_size=3, max_size=3)
PIECES = st.text(ALPHABET, max_size=3).map(str.encode)
CUT = st.tuples(PIECES, st.integers(0, 3), st.integers(0, 3)).map(
    lambda t: t[0][t[1] :][: 9 - t[2]]
)
TEXTS = st.lists(st.one_of(PIECES, CUT, st.just(b"a\0")), min_size=13, max_size=13)


@pytest.mark.hypothesis
@given(st.data(), GRAMMARS, TEXTS)
def test_the_matcher_allows_what_a_slow_one_allows(
    data: st.DataObject, rules: list[Node], texts: list[bytes]
) -> None:
    ends = [i == 12 for i in range(13)]
    try:
        grammar = read_grammar(gbnf(rules), lambda text: -1)
    except InputError as error:
        event(re.sub("'.*'", "", str(error)))
        return  # the root never ends, or a rule begins with itself
    matcher = Matcher(grammar, Tokens(texts, ends))
    try:
        check_beside(matcher, SlowMatcher(rules, texts, ends), data)
    except TooManyStacksError:
        event("too many stacks")


def check_beside(matcher: Matcher, slow: SlowMatcher, data: st.DataObject) -> None:
    """Write a few tokens, and compare what may come next."""
    for _ in range(6):
        allowed = [slow.allows(token) for token in range(13)]
        assert matcher.mask().tolist() == allowed
        assert [matcher.allows(token) for token in range(13)] == allowed
        assert matcher.may_end == slow.may_end
        if not any(allowed):
            break
        check_draft(matcher, slow, data)
        token = data.draw(st.sampled_from(np.flatnonzero(allowed).tolist()))
        forbidden = [other for other in range(13) if not allowed[other]]
        assert not any(map(matcher.accept, forbidden))  # and nothing changes
        assert matcher.accept(token)
        slow.accept(token)
    assert matcher.problem == ""


def check_draft(matcher: Matcher, slow: SlowMatcher, data: st.DataObject) -> None:
    """Compare which tokens of a tree, and of a chain, may come after those before them."""
    draft = data.draw(st.lists(st.integers(0, 11), max_size=6))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(draft))]
    for above, given_parents in (
        (parents, np.array(parents, np.int32)),
        (range(-1, len(draft) - 1), None),
    ):
        after: list[SlowMatcher | None] = []
        for token, parent in zip(draft, above, strict=False):
            before = after[parent] if parent >= 0 else slow
            if before is None or not before.allows(token):
                after.append(None)
                continue
            after.append(copy.deepcopy(before))
            after[-1].accept(token)
        expected = [one is not None for one in after]
        assert matcher.fits(draft, given_parents).tolist() == expected


BYTES = [bytes([byte]) for byte in range(256)]
VOCABULARY = Tokens([*BYTES, b"ab", b"d d d d d d d d", b" " * 64, b"</s>"], [False] * 259 + [True])


def matcher_of(text: str) -> Matcher:
    return Matcher(read_grammar(text, lambda text: -1), VOCABULARY)


def followed(text: str, chars: str, times: int) -> Matcher:
    matcher = matcher_of(text)
    for _ in range(times):
        for char in chars:
            matcher.mask()
            if not matcher.accept(ord(char)):
                return matcher
    return matcher


@pytest.mark.parametrize(
    "text",
    [
        "root ::= [a-z ]* " + "[a-z ]? " * 20 + '"0"',
        "root ::= " + "x " * 17 + '"d" [\u00e9_]\nx ::= "d"? [ \\t]?',
        'root ::= (("a"* "b"*)* [a-z ]*)* "0"',
        "root ::= " + "([a-z ]* | " * 20 + '"x"' + ")" * 20 + ' "0"',
        'root ::= [a-z ] root "x" | [a-z ]',
    ],
    ids=str,
)
def test_ambiguous_grammars_are_followed_as_others_are(text: str) -> None:
    """llama.cpp's own engine needs minutes for one token of some of these."""
    started = time.process_time()
    matcher = followed(text, "d ", 8)
    assert matcher.problem == ""
    assert matcher.mask()[[*b"d ", 257]].all()
    assert followed(text, "d ", 500).problem == ""
    assert time.process_time() - started < 5.0


def test_a_text_may_nest_deeply_and_go_on_for_long() -> None:
    matcher = followed('root ::= "(" root ")" | ""', "(", 30_000)
    assert matcher.problem == ""
    assert [chr(byte) for byte in np.flatnonzero(matcher.mask()[:256])] == ["(", ")"]
    for _ in range(30_000):
        assert matcher.accept(ord(")"))
    assert matcher.may_end
    assert np.flatnonzero(matcher.mask()).tolist() == [259]


def test_what_a_text_has_passed_is_forgotten() -> None:
    """Every character leads to stacks of its own."""
    matcher = matcher_of('root ::= "x" ' + " ".join(f'[ab]{{{n}}}"c"' for n in range(900, 1000)))
    assert matcher.accept(ord("x"))
    sizes = []
    for n in range(900, 1000):
        for _ in range(n):
            assert matcher.accept(ord("a"))
            matcher.mask()
        sizes.append(matcher.nbytes)
        assert not matcher.allows(ord("a"))
        assert matcher.accept(ord("c"))
    assert matcher.may_end
    assert sum(before > after for before, after in pairwise(sizes)) > 2
    assert max(sizes) < 9 << 20


def test_the_end_is_not_forgotten_with_the_rest() -> None:
    texts = [*BYTES, *(b"x%d" % number for number in range(60_000)), b"</s>"]
    tokens = Tokens(texts, [False] * (len(texts) - 1) + [True])  # whose masks have 7 KB each
    matcher = Matcher(read_grammar("root ::= [ab]{0,1500}", lambda text: -1), tokens)
    sizes = []
    for _ in range(1500):
        matcher.mask()
        sizes.append(matcher.nbytes)
        assert matcher.accept(len(texts) - 1)  # forgets, and the text stays where it is
        assert matcher.may_end
        assert matcher.accept(ord("b"))
    assert matcher.may_end
    assert any(before > after for before, after in pairwise(sizes))
    assert np.flatnonzero(matcher.mask()).tolist() == [len(texts) - 1]


LARGE = Tokens(
    [*BYTES, *(b"x%d" % number for number in range(60_000))], [i == 9 for i in range(60_256)]
)
LETTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"\\')


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (" | ".join(f"<[{token}]>" for token in range(20_000)), 19_999),
        (" | ".join(f"!<[{token}]>" for token in range(20_000)), 60_255),
        ("!<[7]> | !<[7]>", 60_254),
        ("!<[7]> | <[7]>", 60_255),
        ("!<[4294967295]>", 60_255),
        ("<[4294967295]> | <[9]>", 0),  # 9 ends a text
        ("|".join(f'"{LETTERS[i % len(LETTERS)]}"' for i in range(5_000)), len(LETTERS)),
        ("|".join('"\u00e9"' for i in range(5_000)), 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mask_takes_no_longer_for_many_alternatives(text: str, allowed: int) -> None:
    matcher = Matcher(read_grammar(f"root ::= {text}", lambda text: -1), LARGE)
    started = time.thread_time()
    mask = matcher.mask()
    assert time.thread_time() - started < 1.0
    assert matcher.problem == ""
    assert np.count_nonzero(mask) == allowed
    tokens = [0, 7, 9, 65, 195, 19_999, 20_000, 60_255]
    assert mask[tokens].tolist() == list(map(matcher.allows, tokens))


@pytest.mark.parametrize("literal", "!\u00e9")
def test_a_grammar_with_far_too_many_alternatives_is_given_up(literal: str) -> None:
    text = "|".join(f'"{LETTERS[i % len(LETTERS)]}{literal}"' for i in range(40_000))
    matcher = Matcher(read_grammar(f"root ::= {text}", lambda text: -1), LARGE)
    started = time.thread_time()
    assert not matcher.mask().any()
    assert time.thread_time() - started < 1.0
    assert "too ambiguous" in matcher.problem


@pytest.mark.parametrize("choice", ["", '"a"'])
def test_alternatives_of_a_rule_named_many_times_are_given_up(choice: str) -> None:
    """Each place that names the rule looks at all of its alternatives."""
    names, choices = "|".join(["x"] * 3000), "|".join([choice] * 3000)
    rules = f"y ::= {names}\nx ::= {choices}"
    matcher = matcher_of(f'root ::= "a" y\n{rules}')
    matcher.accept(ord("a"))
    assert "too ambiguous" in matcher.problem
    assert not matcher.mask().any()
    with pytest.raises(InputError, match="too many ways to begin"):
        matcher_of(f"root ::= y\n{rules}")


def test_a_token_before_a_rule_that_never_begins_is_not_allowed() -> None:
    matcher = matcher_of('root ::= <[65]> x | !<[66]> x | <[67]> "a"\nx ::= x')
    assert np.flatnonzero(matcher.mask()).tolist() == [67]
    assert [matcher.allows(token) for token in (65, 66, 67, 68)] == [False, False, True, False]
    assert not matcher.accept(65)
    assert matcher.accept(67)


def test_a_token_that_is_asked_for_goes_on_by_its_text_as_well() -> None:
    matcher = matcher_of('root ::= <[65]> "x" | "A"')
    assert matcher.accept(65)
    assert np.flatnonzero(matcher.mask()).tolist() == [ord("x"), 259]  # 259 ends the text


def test_tokens_may_have_the_same_text() -> None:
    tokens = Tokens([b"a", b"ab", b"a", b"b", b"a", b"ab"], [False] * 6)
    matcher = Matcher(read_grammar('root ::= "ab"', lambda text: -1), tokens)
    assert np.flatnonzero(matcher.mask()).tolist() == [0, 1, 2, 4, 5]
    assert matcher.accept(2)
    assert np.flatnonzero(matcher.mask()).tolist() == [3]


def test_stacks_that_double_with_every_character_are_given_up() -> None:
    started = time.process_time()
    text = 'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "c"'
    matcher = followed(text, "a", 60)
    assert "too ambiguous" in matcher.problem
    assert matcher.nbytes < 32 << 20  # the steps have ended it, not the memory, which may be 64 MB
    assert not matcher.mask().any()
    assert not matcher.allows(ord("a"))
    assert not matcher.accept(ord("a"))
    assert not matcher.may_end
    assert time.process_time() - started < 10.0


def test_a_grammar_may_have_too_many_ways_to_begin() -> None:
    text = "".join(f'r{i} ::= r{i + 1} | r{i + 1} "x"\n' for i in range(40))
    with pytest.raises(InputError, match="too many ways to begin"):
        matcher_of(text + 'r40 ::= "a"\nroot ::= r0')


@pytest.mark.parametrize("first", ["allows", "accept", "mask", "fits", "may_end"])
def test_a_large_beginning_takes_no_memory_until_it_is_asked_for(first: str) -> None:
    """Many requests may wait with a grammar each."""
    many = " | ".join(f'a "{chr(0x4E00 + i)}"' for i in range(300))
    each = " | ".join(f'"{chr(0x5E00 + i)}"' for i in range(300))
    grammar = read_grammar(f'root ::= {many} | ""\na ::= {each}', lambda _: -1)
    texts = [chr(0x5E00).encode(), chr(0x4E00).encode()]
    tokens = Tokens([*texts, b""], [False, False, True])
    matcher = Matcher(grammar, tokens)
    assert matcher.nbytes < 1 << 16
    calls: dict[str, Any] = {
        "allows": lambda: matcher.allows(0),
        "accept": lambda: matcher.accept(0),
        "mask": lambda: matcher.mask().tolist() == [True, False, True],
        "fits": lambda: matcher.fits([0, 1]).all(),
        "may_end": lambda: matcher.may_end,
    }
    assert calls[first]()
    assert matcher.nbytes > 1 << 20
    if first != "accept":
        assert matcher.accept(0)
    assert matcher.accept(1)
    assert matcher.may_end
    assert matcher.problem == ""


def test_rules_and_tokens_may_be_shared_by_threads() -> None:
    rules = read_grammar('root ::= ([a-c]+ " "?)* "0"', lambda text: -1)
    problems: list[str] = []

    def follow() -> None:
        matcher = Matcher(rules, VOCABULARY)
        for byte in b"abc ab c" * 300:
            matcher.mask()
            assert matcher.accept(byte)
        problems.append(matcher.problem)

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [""] * 4


GOOD_RULES = ([2, 0], [0, 0], [0, 1], [0], [0, 1], [[97, 97, -1]])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, []), (0, [2, 2]), (0, [9, 0]), (1, [0]), (1, [5, 0]), (2, [0]), (2, [1, 1]),
        (2, [0, 2]), (3, [7]), (3, [-1]), (4, [0, 2]), (5, [[97, 300, -1]]),
        (5, [[97, 97, 4]]), (5, [97, 97]),
    ],
)  # fmt: skip
def test_rules_whose_arrays_do_not_fit_are_refused(at: int, value: list[int]) -> None:
    assert Rules(*GOOD_RULES).num_elements == 2
    arrays = list(GOOD_RULES)
    arrays[at] = value  # type: ignore[call-overload]
    with pytest.raises(InputError):
        Rules(*arrays)


def test_tokens_need_a_flag_each() -> None:
    for texts, ends in (([], []), ([b"a"], []), ([b"a"], [False, True])):
        with pytest.raises(InputError, match="one entry for each"):
            Tokens(texts, ends)
    assert len(VOCABULARY) == 260


@pytest.mark.parametrize("token", [-1, 260, 1 << 31])
def test_a_token_must_exist(token: int) -> None:
    matcher = matcher_of('root ::= "a"')
    for call in (matcher.allows, matcher.accept):
        with pytest.raises(InputError, match=r"token must be in 0\.\.259"):
            call(token)


@pytest.mark.parametrize(("times", "exact"), [(20, True), (400, False)])
def test_a_draft_costs_little_and_ends_no_text_whatever_the_grammar(
    times: int, exact: bool
) -> None:
    """What is not found out in a few thousand steps may fit."""
    matcher = matcher_of("root ::= " + "x " * times + '"0"\nx ::= "d"? [ \t]?')
    assert matcher.fits([257, ord("9")]).tolist() == [True, not exact]  # 15 bytes, then a wrong one
    assert matcher.problem == ""
    assert matcher.accept(257)
    assert not matcher.accept(ord("9"))
    assert matcher.accept(ord("0"))


@pytest.mark.parametrize(
    ("draft", "parents", "message"),
    [
        ([260], None, r"token must be in 0\.\.259, got 260"),
        ([-1], None, "got -1"),
        ([1, 2], np.array([-1], np.int32), "expected a parent for each of 2 tokens"),
        ([1, 2], np.array([-1, 1], np.int32), r"parents\[1\] must be in -1\.\.0, got 1"),
    ],
)
def test_a_bad_draft_is_refused(draft: list[int], parents: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        matcher_of('root ::= "a"').fits(draft, parents)
