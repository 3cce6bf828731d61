"""Grammars in llguidance's Lark: what follows them, and the bounds of what llguidance reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ngramspec._native.grammar.matcher import Tokens
from ngramspec.errors import InputError

pytest.importorskip("llguidance")

from ngramspec._native.grammar.guidance import GuidanceMatcher
from ngramspec.text.grammar.lark import guidance_tokens, lark_matcher

TEXTS = [*(bytes([byte]) for byte in range(256)), b"<end>", b"<stop>", b"abc", b"<tool>", b""]
END, STOP, ABC, TOOL = 256, 257, 258, 259
TOKENS = guidance_tokens(Tokens(TEXTS, [token in (END, STOP) for token in range(len(TEXTS))]))


def matcher(lark: str) -> GuidanceMatcher:
    ids = {"<tool>": TOOL, "<end>": END}
    return lark_matcher(lark, TOKENS, lambda text: ids.get(text, -1))[0]


def takes(lark: str, text: str) -> bool:
    following = matcher(lark)
    return all(map(following.accept, text.encode())) and following.may_end


def allowed(following: GuidanceMatcher) -> list[int]:
    tokens: list[int] = np.flatnonzero(following.mask()).tolist()
    return tokens


def test_a_text_is_followed_token_by_token() -> None:
    following = matcher('start: "abc" /[x-z]+/ "end" <tool>')
    assert allowed(following) == [ord("a"), ABC]
    assert following.allows(ABC)
    assert not following.allows(END)
    assert not following.accept(ord("x"))
    for token in (ABC, *b"xend", TOOL):
        assert not following.may_end
        assert following.accept(token)
    assert following.may_end
    assert allowed(following) == [END, STOP]
    assert following.allows(STOP)
    assert following.accept(END)
    assert following.problem == ""


def test_a_token_is_its_text_or_what_a_rule_asks_for() -> None:
    assert allowed(matcher('start: "<tool>"')) == [ord("<"), TOOL]
    assert allowed(matcher("start: <tool>")) == [TOOL]
    assert allowed(matcher(f"start: <[{TOOL}]>")) == [TOOL]
    assert allowed(matcher('start: "<end>"')) == [ord("<")]  # no text ends a generation


def test_a_draft_is_cut_where_it_does_not_fit() -> None:
    following = matcher('start: "abc" /[x-z]+/ "end"')
    draft = np.array([*b"abcxend", END, 97], np.int32)
    assert following.fits(draft).tolist() == [True] * 8 + [False]
    draft = np.array([ABC, ord("x"), ord("a"), ord("y"), ord("z"), ord("e")], np.int32)
    parents = np.array([-1, 0, 0, 1, 3, 1], np.int32)
    assert following.fits(draft, parents).tolist() == [True, True, False, True, True, True]
    assert following.fits(np.array([END], np.int32)).tolist() == [False]
    assert following.accept(ABC)  # the text stays where it was


def test_a_copy_goes_its_own_way() -> None:
    following = matcher('start: "a" | "b" "c"')
    other = following.copy()
    assert other.accept(ord("b"))
    assert allowed(other) == [ord("c")]
    assert allowed(following) == [ord("a"), ord("b")]


def test_a_vocabulary_without_an_end_token_still_ends() -> None:
    tokens = guidance_tokens(Tokens(TEXTS[:256], [False] * 256))
    following, _ = lark_matcher('start: "a"', tokens, lambda text: -1)
    assert following.accept(ord("a"))
    assert allowed(following) == []
    assert following.may_end
    assert following.problem == ""


def test_schemas_in_a_text_of_a_client_have_the_meaning_that_they_have_elsewhere() -> None:
    lark = 'start: "x" schema\nschema: %json {"properties": {"a": {"format": "date"}}}'
    assert takes(lark, 'x{"a": "2024-02-29"}')
    assert not takes(lark, 'x{"a": "2023-02-29"}')
    assert not takes(lark, 'x{"b": 1}')
    assert takes('start: /"multipleOf": ..-/', '"multipleOf": ab-')
    assert takes('start: "\\"%json {" /[#<>]/ // a comment with "quotes"\n', '"%json {#')


NESTED: Any = {}
for _ in range(100):
    NESTED = {"items": NESTED, "minItems": 1}
BAD = {
    "an unknown rule": ("start: nope", "unknown name"),
    "no JSON": ("start: %json {", "expected JSON"),
    "no schema": ('start: %json {"type": "frob"}', "'frob' is not a JSON schema type"),
    "a deep schema": (f"start: %json {json.dumps(NESTED)}", "nested deeper than 64"),
    "schemas that are large together": (
        "start: "
        + " | ".join(f'%json {{"type": "integer", "multipleOf": {9001 + i}}}' for i in range(20)),
        "more than 100000 parts together",
    ),
    "no token": ("start: <nothing>", "'<nothing>' is not one token"),
    "no expression": ("start: /[/", "unclosed character class"),
    "look-around": ("start: /(?=a)/", "look-around"),
    "a chain of rules": (
        "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(20_000)),
        "characters|deeper|rules",
    ),
    "a shorter chain": (
        "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(900)) + 'a900: "x"',
        "lead deeper than 400",
    ),
    "a chain of terminals": (
        "start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(900)) + 'A900: "x"',
        "lead deeper than 400",
    ),
    "groups": ("start: " + "(" * 900 + '"x"' + ")" * 900, "lead deeper than 400"),
    "literals": ("start: " + ' "x"' * 9000, "literals"),
    "characters": ("start: /" + "a" * 70_000 + "/", "characters"),
    "NUL": ('start: "\0"', "NUL"),
    "a surrogate": ('start: "\ud800"', "Unicode"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_llguidance_cannot_take_is_refused(name: str) -> None:
    lark, reason = BAD[name]
    with pytest.raises(InputError, match=f"the (rules of the )?grammar.*(?:{reason})"):
        matcher(f"%llguidance {{}}\n{lark}")
