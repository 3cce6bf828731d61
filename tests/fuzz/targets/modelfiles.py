"""Modelfiles: refused with the line, or read so that what is written of them reads as the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz import text_inputs
from fuzz.target import Finding, Run, Target
from ngramspec.errors import InputError
from ngramspec.models.ollama.modelfile import KEYWORDS, parse_modelfile
from ngramspec.models.ollama.parameters import KINDS

MOST_SECONDS = 5.0  # of processor time for 4 KB
WORDS = (
    *(f"{keyword} " for keyword in KEYWORDS),
    *(f"\nPARAMETER {name} " for name in KINDS),
    *(
        "\nFROM x\n",
        "\n",
        "\r\n",
        "\r",
        '"',
        '"""',
        "#",
        "user ",
        "system ",
        "assistant ",
        " ",
        "\t",
    ),
    *("0", "1", "-1", "1e400", "nan", "inf", "true", "99999999999999999999", "0x10", "1_000", "٣"),
    *("\ufeff", "\u2028", "\x0b", "\x85", "é", "{{ .Prompt }}", "from", "\0", "\\"),
)


@contextmanager
def opened() -> Iterator[Run]:
    def run(data: bytes) -> None:
        started = time.process_time()
        try:
            modelfile = parse_modelfile(data.decode("utf-8", "replace"))
        except InputError:
            return
        finally:
            if time.process_time() - started > MOST_SECONDS:
                raise Finding("a small Modelfile takes seconds")
        try:
            text = modelfile.to_text()
        except InputError:
            return
        again = parse_modelfile(text)
        if again != modelfile:
            raise Finding(f"what is written reads as another: {text!r}")

    yield run


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.models.ollama",),
    mutate=text_inputs.mutation(WORDS),
    words=WORDS,
)
