"""ngramspec cache, all commands: their errors and exit codes, empty files, help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.cache_files import MODEL, flip, held_by
from helpers.cli import assert_one_error, cases

pytestmark = pytest.mark.usefixtures("cache_files")


WRONG = cases("""
2 inspect absent.ngc -> absent.ngc: No such file
1 inspect . -> .: expected a statistics file, found a directory
1 inspect tokenizer.json -> tokenizer.json: not a statistics file
2 verify absent.ngc -> absent.ngc: No such file
2 verify -> Missing argument 'FILE...'
2 merge a.ngc -o m.ngc -> give two files or more
2 merge a.ngc b.ngc -> Missing option '-o'
2 merge a.ngc b.ngc -o no/m.ngc -> no: No such folder
2 merge a.ngc b.ngc -o . -> .: is a folder, not a file
2 merge a.ngc b.ngc -o m.bin -> m.bin: names that end in .bin are for llama.cpp's
2 convert a.ngc c.ngc -> a.ngc is already a file of ngramspec
2 convert a.bin c.bin -> a.bin is already a lookup cache of llama.cpp
2 convert a.pool c.bin -> a hash-pool, which holds no n-grams to
2 convert a.ngc c.bin -m MODEL -> a lookup cache of llama.cpp cannot record a tokenizer
2 convert a.bin c.ngc --tokenizer tokenizer.json -> is not below vocab_size, 27
2 prune a.ngc -o p.ngc -> give --max-size, --min-count,
2 prune a.ngc -o p.ngc --ngram-max 1 -> a.ngc has no n-grams of 1 to 1 tokens, only of 2 3 4
2 prune a.ngc -o p.ngc --max-size 5K -> expected a size of 64K or more, got '5K'
2 prune a.pool -o p --min-count 2 -> no n-grams to prune
2 inspect a.ngc -m a --tokenizer b -> give either --model or --tokenizer
1 inspect other.ngc -m MODEL -> the file was made with another tokenizer
""")


@pytest.mark.parametrize(("arguments", "message", "code"), WRONG)
def test_wrong_command_line(invoke: Any, arguments: list[str], message: str, code: int) -> None:
    before = sorted(Path().iterdir())
    named = [MODEL[1] if word == "MODEL" else word for word in arguments]
    assert_one_error(invoke("cache", *named), message, code)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    "command", [("merge", "a.ngc"), ("convert",), ("prune", "--min-count", "2", "-o", "x.ngc")]
)
def test_damaged_files_are_not_worked_on(invoke: Any, command: tuple[str, ...]) -> None:
    flip("b.ngc", 2000)
    last = {"merge": ("-o", "x.ngc"), "convert": ("x.bin",), "prune": ()}[command[0]]
    result = invoke("cache", *command, "b.ngc", *last)
    assert_one_error(result, "b.ngc: section 'records2' at offset 1024: expected checksum", 1)


def test_file_without_n_grams(cache: Any, invoke: Any) -> None:
    cache("prune", "a.ngc", "-o", "empty.ngc", "--min-count", "999999")
    facts = cache("inspect", "empty.ngc")
    assert facts["num_ngrams"] == 0
    assert facts["bytes_per_ngram"] is None
    assert invoke("cache", "inspect", "empty.ngc").exit_code == 0
    assert cache("verify", "empty.ngc")[0]["error"] is None
    cache("merge", "empty.ngc", "a.ngc", "-o", "m.ngc")
    assert held_by("m.ngc", 3) == held_by("a.ngc", 3)
    cache("convert", "empty.ngc", "empty.bin")
    assert cache("inspect", "empty.bin")["num_ngrams"] == 0
    assert invoke("cache", "inspect", "empty.bin").exit_code == 0


COMMANDS = ("inspect", "verify", "merge", "convert", "prune")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_help_has_examples_and_fits_80_columns(invoke: Any, command: tuple[str, ...]) -> None:
    text = invoke("cache", *command, "--help").output
    options, examples = text.split("Examples:\n")
    assert " ".join(("ngramspec cache", *command)) in examples
    assert max(map(len, options.splitlines())) <= 80
    assert "..." not in options.partition("Commands:")[2]  # nothing cut off
    assert not command or "--json" in options
