"""Patterns of JSON schemas: refused, or made into a grammar whose texts match in Python's re."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz import text_inputs
from fuzz.grammar_writer import Writer
from fuzz.target import Finding, Run, Target
from fuzz.targets.schemas import grammar_of, written

WORDS = (
    *(
        "^",
        "$",
        "a",
        "b",
        "ab",
        ".",
        "*",
        "+",
        "?",
        "*?",
        "+?",
        "??",
        "{2}",
        "{1,3}",
        "{2,}",
        "{,2}",
    ),
    *("(", ")", "(?:", "|", "(a|b)", "[abc]", "[^a]", "[a-z]", "[\\d_]", "[^\\w]", "[^\\S]", "\\d"),
    *(
        "\\w",
        "\\s",
        "\\D",
        "\\W",
        "\\S",
        "\\n",
        "\\t",
        "\\\\",
        "\\.",
        "\\/",
        '"',
        "\\x41",
        "\\u00e9",
    ),
    *("é", "☃", "(?i)", "(?s)", "(?x)", "(?a)", "(?m)", "(?=a)", "(?!a)", "\\b", "\\1", "\\Z", "-"),
    *(
        "[\\]]",
        "[]]",
        "[\\-a]",
        " ",
        "\n",
        "(?P<n>a)",
        "(?#x)",
        "(?>a)",
        "\\p{L}",
        "\\P{Lu}",
        "a*+",
        "{2000}",
        "\x7f",
    ),
)
# Python gives these another meaning than a grammar can, or none: only crashes are looked for.
NOT_COMPARED = re.compile(r"\(\?[aimsxuL-]*[):]|\(\?>|[*+?}]\+|\\[cpP]")


@contextmanager
def opened() -> Iterator[Run]:
    writer = Writer()

    def run(data: bytes) -> None:
        pattern = data.decode("utf-8", "replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd patterns, which Python tells at every reading
            grammar = grammar_of({"type": "string", "pattern": pattern})
            for text in [] if grammar is None else written(writer, grammar, data):
                if not NOT_COMPARED.search(pattern) and not re.search(pattern, text, re.ASCII):
                    raise Finding(f"the text does not match the pattern: {text!r}")

    try:
        yield run
    finally:
        writer.close()


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.text.structured.pattern",),
    mutate=text_inputs.mutation(WORDS),
    words=WORDS,
    max_bytes=300,
    seconds=60,
)
