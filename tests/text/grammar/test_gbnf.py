"""Grammars as llama.cpp writes them, and the reasons for which others are refused."""

from __future__ import annotations

import re
import time

import pytest

from ngramspec._native.grammar.matcher import Matcher, Tokens
from ngramspec.errors import InputError
from ngramspec.text.grammar import read_grammar
from ngramspec.text.structured.guidance import MAX_CHARS

TOKENS = {"<s>": 1, "<think>": 2}
BYTES = Tokens([bytes([byte]) for byte in range(256)], [False] * 256)
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws  # a comment
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
GOOD = {
    "json": JSON,
    "literal": 'root ::= "abc"',
    "nothing": "root ::= ",
    "empty literal": 'root ::= "" "a"',
    "empty class": "root ::= [] [^] [a]",
    "classes": r'root ::= [a-zA-Z_] [^"\\] [\]\-\[] [a-] "\u00e9\U0001F600\x41"',
    "any": "root ::= .+",
    "alternatives over lines": 'root ::= ("a" |\n  "b" |\n\n "c")\n',
    "carriage returns": 'root ::= a\r\na ::= "x"\r\n\r\n',
    "comments": '# one\nroot ::= "a" # two\n# three\n',
    "tokens": "root ::= <think> !<[5]> <[4294967295]>",
    "right recursion": 'root ::= "a" root | ""',
    "tail after nothing": 'root ::= x root | "a"\nx ::= "b" | ""',
    "repeated nothing": 'root ::= (("a"*)*)*',
    "counts": 'root ::= "a"{3} "b"{2,} "c"{0,4} "d"{0} "e"{ 1 , 2 } "f"{0,99999}',
    "many": 'root ::= "a"{2000} [b]{0,2000}',
    "later rule wins": 'root ::= nope-1\nnope-1 ::= "a"\nnope-1 ::= "b"',
    "digits and dashes": 'root ::= 1-a\n1-a ::= "x"',
    "unused rule": 'root ::= "a"\nother ::= "b" other | "c"',
    "unused rule that never comes to a character": 'root ::= ""\nx ::= c x\nc ::= d\nd ::= ""',
    "rule that is only itself": 'root ::= root | "a"',
    "many rules in a row": "".join(f"r{i} ::= r{i + 1}\n" for i in range(9000))
    + 'r9000 ::= "a"\nroot ::= r0',
}
BAD = {
    "no text": ("", 'no rule named "root"'),
    "comment only": ("# root", 'no rule named "root"'),
    "no root": ('rule ::= "a"', 'no rule named "root"'),
    "no rule": ('root ::= a\nb ::= "c"', "lacks the rule 'a'"),
    "no definition": ("root", "expected ::="),
    "other definition": ('root = "a"', "expected ::=, in line 1 at '= \"a\"'"),
    "no name": ('root ::= "a"\n::= "b"', "expected a rule name, in line 2"),
    "open literal": ('root ::= "a', "expected a literal"),
    "open class": ("root ::= [a-", "expected a character class"),
    "open group": ('root ::= ("a"', "expected )"),
    "closed group": ('root ::= "a")', "expected the end of the line"),
    "escape": (r'root ::= "\q"', "expected a literal"),
    "short escape": (r'root ::= "\x4"', "expected a literal"),
    "nothing repeated": ("root ::= *", "something before it"),
    "empty literal repeated": ('root ::= ""+', "something before it"),
    "no count": ('root ::= "a"{x}', "expected a number"),
    "open count": ('root ::= "a"{3', "expected }"),
    "negative count": ('root ::= "a"{5,3}', "3 repetitions are fewer than 5"),
    "too many": ('root ::= "a"{2001}', "more than 2000 repetitions"),
    "many too many": ('root ::= ("a"){100}{100}', "more than 2000 repetitions"),
    "huge count": ('root ::= "a"{99999999999999999999}', "expected }"),
    "unknown token": ("root ::= <nope>", "is not one token"),
    "token id": ("root ::= <[4294967296]>", "is not one token"),
    "long token": (f"root ::= <{'s' * 300}>", "is not one token"),
    "open token": ("root ::= <s", "expected a token"),
    "nul": ('root ::= "a\0"', "NUL"),
    "surrogate": ('root ::= "\ud800"', "not valid Unicode"),
    "long text": ("root ::= " + '"a" ' * (MAX_CHARS // 4), "characters, the most is"),
    "nesting": ("root ::= " + "(" * 50_000, "more than 64 parentheses"),
    "size": ('root ::= "' + "a" * 600_000 + '"{2}', "larger than 1048576 elements"),
    "sizes": ('root ::= ("' + "a" * 1000 + '"{2000})', "larger than 1048576 elements"),
    "classes": (
        "root ::= " + "".join(f"[^\\u{code:04x}]" for code in range(0x100, 0xD000)),
        "too many different classes of characters",
    ),
    "itself": ('root ::= root "a" | "b"', "rule 'root' begins with itself"),
    "by way of another": ('root ::= a "x"\na ::= root "y" | "z"', "begins with itself"),
    "after nothing": ('root ::= b root "x" | "y"\nb ::= c\nc ::= ""', "begins with itself"),
    "in a group": ('root ::= ("a"? root "b")? "c"', "begins with itself"),
    "only itself": ("root ::= a\na ::= b\nb ::= a", "its rule 'a' always leads back to itself"),
    "for ever": ("root ::= [a-z] root", "its rule 'root' always leads back to itself"),
    "for ever later": ('root ::= "a" x\nx ::= c x\nc ::= d\nd ::= ""', "its rule 'x'"),
    "two for ever": ('root ::= "a" (x | y)\nx ::= "b" y\ny ::= "c" x', "its rule 'x'"),
    "no such character": (r'root ::= "a" b' + "\n" + r"b ::= [^\x00-\U0010FFFF]", "its rule 'b'"),
    "no character in order": ("root ::= [c-a]", "or to a character that does not exist"),
    "surrogates": (r"root ::= [\uD800-\uDFFF]*  [\uD800]", "its rule 'root'"),
}
# What they allow as the next byte.
ALLOWED = {
    "json": "{",
    "classes": "AZaz_",
    "empty class": "a",
    "nothing": "",
    "empty literal": "a",
    "tail after nothing": "ab",
    "repeated nothing": "a",
    "later rule wins": "b",
    "digits and dashes": "x",
    "counts": "a",
    "rule that is only itself": "a",
    "many rules in a row": "a",
}


def allowed(text: str) -> set[str]:
    mask = Matcher(read_grammar(text, lambda text: TOKENS.get(text, -1)), BYTES).mask()
    return {chr(byte) for byte in range(256) if mask[byte]}


@pytest.mark.parametrize("name", GOOD)
def test_grammars_that_llama_cpp_takes_are_read(name: str) -> None:
    asked: list[str] = []

    def token_of(text: str) -> int:
        asked.append(text)
        return TOKENS.get(text, -1)

    read_grammar(GOOD[name], token_of)
    assert set(asked) <= set(TOKENS)


@pytest.mark.parametrize("name", ALLOWED)
def test_they_mean_what_they_mean_for_llama_cpp(name: str) -> None:
    assert allowed(GOOD[name]) >= set(ALLOWED[name])
    assert len(allowed(GOOD[name])) <= 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"[\x61-c]", "abc"),
        (r"[a\-c]", "a-c"),
        ("[a-]", "a-"),
        ("[-a]", "-a"),
        ('[c-a] | "b"', "b"),
        (r'"a" [^\x00-\U0010FFFF] | "b"', "b"),
        (r'"a"* ("b" [c-a])? "d"', "ad"),
        (r"[\]\[\"\\]", ']["\\'),
        (r"[\t\n\r]", "\t\n\r"),
        (r'"\u0041"', "A"),
        (r'"\U00000041"', "A"),
        (r'"\x41"', "A"),
        ('""', ""),
        ('"a"{0} "b"', "b"),
        ('"a"? "b"', "ab"),
        ('("a" | "b")+', "ab"),
        ('"a"{0,2} "b"{1,}', "ab"),
    ],
)
def test_what_may_come_first(text: str, expected: str) -> None:
    assert allowed(f"root ::= {text}") == set(expected)


def test_no_text_begins_what_can_never_be_completed() -> None:
    assert allowed('root ::= a | b | c\na ::= "a" a\nb ::= "b" a?\nc ::= "c" a') == {"b"}
    matcher = Matcher(read_grammar('root ::= "b" a?\na ::= "a" a', lambda text: -1), BYTES)
    assert matcher.accept(ord("b"))
    assert matcher.may_end
    assert not matcher.mask().any()


@pytest.mark.parametrize("name", BAD)
def test_others_are_refused_with_a_reason_and_at_once(name: str) -> None:
    text, reason = BAD[name]
    started = time.process_time()
    with pytest.raises(InputError, match=re.escape(reason)):
        read_grammar(text, lambda text: TOKENS.get(text, -1))
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_hostile_sizes_take_linear_time(size: int) -> None:
    """Every rule waits for the next one to turn out empty."""
    rules = [f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(size)]
    text = "".join([*rules, f'r{size} ::= ""\n', 'root ::= "a" r0'])
    started = time.process_time()
    read_grammar(text, lambda text: -1)
    assert time.process_time() - started < 10.0
