"""Grammars beside llama.cpp: both take the same texts, and allow the same tokens.

llama.cpp follows them in a process of its own, for some grammars end or hang it; what it does not
survive is followed here alone, in bounded time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fuzz import text_inputs
from fuzz.grammar_writer import Writer
from fuzz.llama_grammar import Child, Verdict, is_whole
from fuzz.target import Finding, Run, Target
from ngramspec._native.grammar.matcher import Matcher
from ngramspec.errors import InputError
from ngramspec.text.grammar.gbnf import _Reader
from ngramspec.text.grammar.rules import Rule, native_rules

SECONDS = 2  # of processor time for llama.cpp

# Limits that are our own: they keep the work small, llama.cpp would do it.
OWN_LIMITS = (
    *("characters, the most is", "NUL character", "not valid Unicode", "parentheses inside"),
    *("larger than", "is not one token", "too many ways to begin"),
    # llama.cpp follows what never ends for as long as it goes on.
    "can never be completed",
    # llama.cpp counts what it writes out, here it is counted before.
    "repetitions",
)
# llama.cpp refuses more of it than what would not end.
LEFT_RECURSION = b"left recursion"
WORDS = (
    *("root", "root ::= ", "\nroot ::= ", "\na ::= ", "a", "b", "a1-x", " | ", "|", "(", ")", ") "),
    *('"a"', '""', '"\\n"', '"\\x41"', '"\\u00e9"', '"\\U0001F600"', '"é"', "[a-z]", "[^a]", "[]"),
    *("[^]", "[\\]\\-]", "[a-]", "[-a]", "[\\x00-\\x7F]", "*", "+", "?", "{2}", "{0,}", "{0}"),
    *("{1,3}", "{,2}", "{2000}", "{2001}", "{0,99999}", "{3,1}", "{ 1 , 2 }", ".", "<|im_end|>"),
    *("<[5]>", "!<[5]>", "<x>", "!", "# x", "\n", "\r\n", "\r", "\t", "\\", '"', "::=", "\0", "☃"),
)


@contextmanager
def opened() -> Iterator[Run]:
    child, writer = Child(), Writer()
    whole = np.array([is_whole(piece) for piece in writer.pieces]) | writer.ends

    def compare(grammar: str, reply: Verdict) -> None:
        reader = _Reader(grammar, writer.token_of)
        rules = reader.read()
        before = num_alternatives(rules)
        matcher = Matcher(native_rules(rules, reader.characters), writer.tokens)
        if num_alternatives(rules) < before:
            return  # llama.cpp keeps the alternatives that never end
        for step, allowed in enumerate(reply.masks):
            mask = matcher.mask()
            if matcher.problem:
                return
            # In the middle of a character llama.cpp allows what no character goes on with, and
            # forbids [^a-z] all that begin as an excluded one does.
            if (mask[whole] != allowed[whole]).any():
                raise Finding(f"other tokens are allowed than by llama.cpp, in step {step}")
            if step < len(reply.tokens) and not matcher.accept(reply.tokens[step]):
                raise Finding(f"a token of the mask is refused, in step {step}")

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if not text:  # for llama.cpp no grammar at all
            return
        try:
            writer.write(text, data[-8:])
            refusal = None
        except InputError as error:
            refusal = str(error)
            if any(limit in refusal for limit in OWN_LIMITS):
                return
        reply = child.ask(text, data[-8:], SECONDS if refusal is None else 1)
        if reply.died:
            return
        if refusal is None and not reply.taken and LEFT_RECURSION not in reply.log:
            raise Finding(f"llama.cpp refuses a grammar that passed: {reply.log!r}")
        if refusal is not None and reply.taken:
            reason = re.sub(r".*not valid: |'.*'|, in line.*", "", refusal)
            raise Finding(f"llama.cpp follows what is refused because {reason}")
        if reply.taken and "<" not in text:  # it takes tokens by their ids in the middle of others
            compare(text, reply)

    try:
        yield run
    finally:
        child.close()
        writer.close()


def num_alternatives(rules: list[Rule]) -> int:
    return sum(len(rule.alternatives) for rule in rules)


TARGET = Target(
    opened=opened,
    instrumented=(
        "ngramspec.text.grammar.gbnf",
        "ngramspec.text.grammar.rules",
    ),
    mutate=text_inputs.mutation(WORDS),
    words=WORDS,
    max_bytes=2048,
    seconds=60,
)
