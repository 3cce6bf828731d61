"""For the tests of the commands: corpora, slow counts of them, what an error looks like."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from helpers.paths import CORPORA
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import load_tokenizer

CODE = str(CORPORA / "python")
FEW = (str(CORPORA / "python/copy.py"), str(CORPORA / "python/csv.py"))
BY_JSONL = ("-", "--format", "jsonl", "--held-out", "3%")
NO_TOKENIZER = "no --model or --tokenizer given: using the embedded model"
Counts = dict[tuple[int, ...], Counter[int]]


def invoke(*arguments: str | Path, stdin: str | None = None, **environment: str) -> Result:
    """Run the command in this process."""
    from ngramspec.cli import main

    words = [*map(str, arguments)]
    return CliRunner().invoke(main, words, input=stdin, env=environment, prog_name="ngramspec")


def succeed(*arguments: str | Path, stdin: str | None = None, **environment: str) -> Result:
    """Run the command in this process; it must end well."""
    result = invoke(*arguments, stdin=stdin, **environment)
    assert result.exit_code == 0, result.output
    return result


def slow_counts(texts: Iterable[str], size: int) -> Counts:
    """Count slowly what followed each n-gram, each text by itself."""
    tokenizer = load_tokenizer(embedded_model())
    counts: Counts = {}
    for text in texts:
        tokens = tokenizer.encode(text).tolist()
        for i in range(size, len(tokens)):
            counts.setdefault(tuple(tokens[i - size : i]), Counter())[tokens[i]] += 1
    return counts


def bytes_of(name: str = "out.ngc") -> bytes:
    return Path(name).read_bytes()


def assert_one_error(result: Any, message: str, code: int) -> None:
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, result.stderr
    assert message in errors[0]
    assert "Traceback" not in result.output
    assert result.stdout == ""


def cases(table: str) -> list[Any]:
    """Return what a table says: arguments, words of the error, and the exit code.

    Each line is `CODE ARGUMENTS -> WORDS`; words that do not fit are in the next line. Without
    a code it is 2.
    """
    entries = []
    for line in table.strip("\n").replace("->\n   ", "->").splitlines():
        command, _, words = line.partition("-> ")
        arguments = shlex.split(command)
        code = int(arguments.pop(0)) if line[0].isdigit() else 2
        entries.append((arguments, words, code))
    return entries
