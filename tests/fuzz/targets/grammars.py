"""The guard of grammars beside llama.cpp: what passes is followed safely, and nothing else is lost.

What the guard takes, llama.cpp must take too, in bounded time and memory, and what llama.cpp takes
and can follow, the guard may refuse for its documented limits only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz import text_inputs
from fuzz.llama_grammar import SECONDS, Child
from fuzz.target import Finding, Run, Target
from ngramspec.adapters.llama_cpp.grammar import check_grammar
from ngramspec.errors import InputError

# Limits that are the guard's own: they keep the work small, llama.cpp would do it.
OWN_LIMITS = (
    *("characters, the most is", "NUL character", "not valid Unicode", "parentheses inside"),
    *("larger than", "is not one token", "too many ways to begin"),
    # llama.cpp counts what it writes out, here it is counted before.
    "repetitions",
)
# llama.cpp's own check refuses more than what would not end; that is told to the client as it is.
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
    child = Child()

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if not text:  # for llama.cpp no grammar at all
            return
        try:
            check_grammar(text, child.is_token)
            refusal = None
        except InputError as error:
            refusal = str(error)
            if any(limit in refusal for limit in OWN_LIMITS):
                return
        made = child.ask(text, data[-8:], SECONDS if refusal is None else 1)
        if refusal is None and made.died:
            raise Finding(f"llama.cpp dies of a grammar that passed: {made.died}")
        if refusal is None and not made.taken and LEFT_RECURSION not in made.text:
            raise Finding(f"llama.cpp refuses a grammar that passed: {made.text!r}")
        if refusal is not None and made.taken:
            reason = re.sub(r".*not valid: |'.*'|, in line.*", "", refusal)
            raise Finding(f"llama.cpp follows what is refused because {reason}")

    try:
        yield run
    finally:
        child.close()


TARGET = Target(
    opened=opened,
    instrumented=(
        "ngramspec.adapters.llama_cpp.grammar",
        "ngramspec.adapters.llama_cpp.grammar_rules",
    ),
    mutate=text_inputs.mutation(WORDS),
    words=WORDS,
    max_bytes=2048,
    seconds=60,
)
