"""Lark grammars of custom tools: what they allow, what is refused, what hostile ones cost."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest

from helpers.json_schemas import takes
from ngramspec.errors import GrammarError
from ngramspec.text.structured.lark import COMMON, MAX_LARK
from ngramspec.text.structured.lark_input import lark_input
from ngramspec.text.structured.lark_rules import Rules

SUMS = r"""
// Sums and products.
?start: sum
?sum: product
    | sum "+" product   -> add
    | sum "-" product   -> sub
?product: atom
    | product "*" atom  -> mul
?atom: NUMBER           -> number
    | "-" atom          -> neg
    | "(" sum ")"
%import common.NUMBER
%import common.WS
%ignore WS
"""
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: add | delete
add: "*** Add: " name LF ("+" /(.*)/ LF -> line)+
delete: "*** Delete: " name LF
name: /(.+)/

%import common.LF
"""
CASES = [
    ("sums", SUMS, ["1", "1+2*3", " ( 1 + 2 ) * -4.5e3\n"], ["", "1+", "a", "1 2", "(1"]),
    (
        "patch",
        PATCH,
        ["*** Begin\n*** Add: a\n+x\n+\n*** End\n", "*** Begin\n*** Delete: a b\n*** End"],
        ["*** Begin\n*** Add: a\nx\n*** End", "*** Begin\n*** Delete: \n*** End", "*** Begin\n"],
    ),
    ("strings", r'start: "a\"\n" "\x41\u00e9" "b"i', ['a"\nAéb', 'a"\nAéB'], ['a"\nAéc', "a"]),
    ("ranges", 'start: "a".."c"+ ["0".."9"]', ["abc", "a7"], ["d", "a77", "7"]),
    ("times", 'start: "a"~2 "b"~1..3 "c"*', ["aab", "aabbbcc"], ["ab", "aabbbb", "aa"]),
    ("empty", "start: | a\na: \"x\"?", ["", "x"], ["xx"]),
    ("flags", "start: /ab?./is", ["AB\n", "ac"], ["\n", "b"]),
    ("dot", "start: /a.b/", ["a b"], ["a\nb"]),
    ("slashes", r"start: /a\/b/", ["a/b"], [r"a\/b"]),
    (
        "terminals",
        "start: (WORD _SEP)* WORD\nWORD.2: LETTER+\nLETTER: \"a\"..\"c\"\n_SEP: /,/ \" \"?",
        ["a", "ab, c,b"],
        ["", "a ,b", "a,"],
    ),
    ("groups", 'start: (\n  "a"\n  | "b"\n)~2', ["ab", "bb"], ["a", "abc"]),
    ("nested lists", 'start: "[" [start ("," start)*] "]"', ["[]", "[[],[[]]]"], ["[", "[]]"]),
    ("left recursion", 'start: start "," item | item\nitem: "x" | item "!"', ["x,x!!,x"], [",x"]),
    ("itself through others", 'start: a\na: b "x"\nb: a? "y"', ["yx", "yxyx"], ["y", "xy"]),
    ("itself behind a rule", 'start: c? start "x" | "z"\nc: "y"', ["z", "yzx", "zxx"], ["x"]),
    ("imports", "start: INT N CNAME\n%import common (INT, CNAME)\n%import common.LF -> N",
     ["12\n_a1"], ["12a"]),
    ("escapes", 'start: ESCAPED_STRING\n%import common.ESCAPED_STRING', [r'"a\"b"'], [r'"a\"']),
    ("comments", '# one\nstart: "a" // two\n  | "b"\n// three\n', ["a", "b"], ["ab"]),
]  # fmt: skip


def allows(grammar: str, text: str, in_json: bool = False) -> bool:
    rules = Rules()
    return takes(rules.grammar(lark_input(grammar).part(rules, in_json)), text)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_grammars_allow_what_lark_reads(grammar: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert allows(grammar, text), text
        assert allows(grammar, json.dumps(text, ensure_ascii=False)[1:-1], in_json=True), text
    for text in bad:
        assert not allows(grammar, text), text
        assert not allows(grammar, json.dumps(text, ensure_ascii=False)[1:-1], in_json=True), text


def test_all_common_terminals_are_there() -> None:
    samples = {
        "DECIMAL": "1.5", "ESCAPED_STRING": '"a"', "WS_INLINE": " \t", "WS": " \n", "CR": "\r",
        "LF": "\n", "NEWLINE": "\r\n", "SH_COMMENT": "# a", "CPP_COMMENT": "// a",
        "C_COMMENT": "/* a * b **/", "SQL_COMMENT": "-- a", "FLOAT": "1e5", "SIGNED_FLOAT": "-.5",
        "SIGNED_INT": "-1", "SIGNED_NUMBER": "+1", "LCASE_LETTER": "a", "UCASE_LETTER": "A",
        "LETTER": "a", "WORD": "aB", "CNAME": "_a1", "HEXDIGIT": "f",
    }  # fmt: skip
    for name in COMMON:
        grammar = f"start: {name}\n%import common.{name}"
        assert allows(grammar, samples.get(name, "7")), name
        assert not allows(grammar, "?"), name


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "no rule 'start'"),
        ("begin: \"a\"", "no rule 'start'"),
        ("start: other", "lacks the rule 'other'"),
        ('start: start "x"', "the rule 'start' never comes to an end"),
        ('start: "x" | a\na: "y" b\nb: a', "the rule 'a' never comes to an end"),
        ("".join(f"r{i}: r{i + 1}\n" for i in range(300)) + "start: r0\nr300: /a/", "lead deeper"),
        ("start: /(?=a)b/", "the rule 'start': no grammar can express"),
        ("start: /a/m", "the flag 'm'"),
        ("start: /[/", "the rule 'start': the pattern"),
        ("start: A\nA: b\nb: \"x\"", "the terminal 'A' has the rule 'b'"),
        ("start: _sep{a}\n", "the rule 'start' uses a template"),
        ("_sep{x}: x\nstart: \"a\"", "the rule '_sep' is a template"),
        ("start[lazy]: /a/", "the rule 'start' has attributes"),
        ('start: %json {"type": "object"}', "the rule 'start' has '%json'"),
        ("start: <think>", "the rule 'start' has '<'"),
        ("%declare A\nstart: A", "%declare in line 1"),
        ("%import python.NAME\nstart: NAME", "only common is"),
        ("%import common.NAMES\nstart: NAMES", "common has no terminal 'NAMES'"),
        ('start: "a"\nstart: "b"', "the rule 'start' is there twice"),
        ('start: "a" )', "the rule 'start' cannot be read in line 1 at ')'"),
        ('start: ("a"', "cannot be read"),
        ("start: (", "the rule 'start' cannot be read in line 1 at "),
        ("start: [\n", "the rule 'start' cannot be read in line "),
        ('start: "b".."a"', "the rule 'start' has a range"),
        ('start: "a"~3..2', "the rule 'start' repeats 3..2 times"),
        ('start: "a"~1001', "the most is 1000"),
        ("start: \"\\x01\"", "the rule 'start' has a control character"),
        ("start: \"\\Uffffffff\"", "which is no character"),
        ("start: ;", "cannot be read in line 1"),
        ('"a"', "a rule must begin in line 1"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "nests groups deeper than 48"),
        ("start: " + "a" * MAX_LARK, "more than 32768 characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(grammar: str, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        lark_input(grammar)
    assert words in caught.value.message


def chain(count: int) -> str:
    """Return rules that depend on the next one, the first on all."""
    names = " ".join(f"r{i}" for i in range(count))
    return (
        f"start: {names}\n" + "".join(f"r{i}: r{i + 1}?\n" for i in range(count)) + f"r{count}:\n"
    )


HOSTILE = {
    "alternatives": lambda n: "start: " + " | ".join('"a"' for _ in range(n)),
    "sequence": lambda n: "start: " + " ".join('"a"?' for _ in range(n)),
    "chain": lambda n: chain(n // 3),
    "groups": lambda n: "start: " + "(" * 40 + '"a"?' * (n // 2) + ")*" * 40,
    "ignores": lambda n: 'start: "a"' + "\n%ignore /b*/" * (n // 3),
    "comments": lambda n: "//" + "\n//" * n + '\nstart: "a"',
    "lines": lambda n: "\n" * n + 'start: "a"' + "\n" * n,
    "classes": lambda n: "start: /" + "[a-z]" * (n // 2) + "/",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_cost_of_a_grammar_is_linear(name: str) -> None:
    """Compare with one that is four times as long, which may also be refused as too large."""

    def cost(size: int) -> float:
        best = 9e9
        for _ in range(3):
            start = time.process_time()
            with suppress(GrammarError):
                lark_input(HOSTILE[name](size))
            best = min(best, time.process_time() - start)
        return best

    assert cost(1600) < 12 * cost(400) + 0.02


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"~1000 b\nb: c~1000\nc: d~1000\nd: "x"~1000',
        "start: /((a{900}){900}){900}/",
        'start: (("a"~999)~999)~999',
        'start: x\nx: ((x "a"~999)~999)~999 | "b"',
    ],
)
def test_repetitions_inside_one_another_cost_little(grammar: str) -> None:
    start = time.process_time()
    with suppress(GrammarError):
        assert not allows(grammar, "a")
    assert time.process_time() - start < 2
