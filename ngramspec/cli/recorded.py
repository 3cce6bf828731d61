"""Recorded requests as arguments of commands: reading them, and telling what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.options import Decorator, option, options
from ngramspec.cli.output import number_of, progress

if TYPE_CHECKING:
    from ngramspec.bench.traces import Cut, Loaded, Trace
    from ngramspec.corpus.problems import Problems
    from ngramspec.tokenizers import Tokenizer

FORMATS = ("tokens", "requests", "chats", "llama-log")
ABOUT_FILES = """\
What `ngramspec serve --record` writes, chats (a line each, with OpenAI's messages,
ShareGPT's conversations, or a prompt and its answer; or one JSON array of them), the log
of a llama-server that ran with -v, lines of token ids (prompt length, prompt ids, output
ids), or records with text (session, turn, messages, output); also packed (gz, zst, xz,
bz2). Each file is recognised by what it holds. Text needs the target's tokenizer; if none
is given, the embedded model's is used. Wrong lines are left out and counted."""


def recorded_options(section: str = "Options") -> Decorator:
    """Return the options on how recorded requests are read."""
    return options(
        option(section, "--format", type=click.Choice(FORMATS),
               help="What the files hold; default: as each is recognised."),
        option(section, "--key", "keys", multiple=True, metavar="DIGEST",
               help="Read only the requests of this key, as `serve --record` writes it "
               "(repeatable)."),
    )  # fmt: skip


def load_recorded(
    paths: Sequence[Path], values: Mapping[str, Any], cut: Cut
) -> tuple[list[Loaded], Problems]:
    """Read files of recorded requests, with a bar.

    Args:
        paths: Files and folders.
        values: The command's, with those of recorded_options, tokenizer and perhaps model.
        cut: What to keep of each set.

    Raises:
        As find_traces and load_files.
    """
    from ngramspec.bench.traces import find_traces, load_files
    from ngramspec.corpus.problems import Problems
    from ngramspec.tokenizers import fingerprint_of

    files, problems = find_traces(paths), Problems()
    given = values["tokenizer"] or values.get("model")
    known = None if given is None else fingerprint_of(given)
    with _tokenizer(given) as tokenizer, progress("reading", len(files)) as advance:
        found = load_files(
            files,
            tokenizer,
            cut,
            format=values["format"],
            known=known,
            problems=problems,
            keys=values["keys"],
            advance=advance,
        )
    return found, problems


@contextmanager
def _tokenizer(given: Path | None) -> Iterator[Callable[[], Tokenizer]]:
    """Hand out a function that returns the tokenizer of a file, or of the embedded model."""
    from ngramspec.models import embedded_model
    from ngramspec.tokenizers import load_tokenizer

    opened: list[Tokenizer] = []

    def tokenizer() -> Tokenizer:
        if not opened:
            if given is None:
                name = embedded_model().name
                line = f"no --model or --tokenizer given: using the embedded model {name}"
                click.echo(line, err=True)
            opened.append(load_tokenizer(given or embedded_model()))
        return opened[0]

    try:
        yield tokenizer
    finally:
        for one in opened:
            one.close()


def say_recorded(found: Sequence[Loaded], problems: Problems, *, brief: bool = False) -> None:
    """Print what was recognised, and what was left out, on stderr. brief: only the latter."""
    for line in _lines(found, problems, brief):
        click.echo(line, err=True)


def _lines(found: Sequence[Loaded], problems: Problems, brief: bool) -> Iterator[str]:
    for one in found:
        if one.source.format != "tokens" and not brief:
            yield one.about
        yield from (f"{one.source.path}: {note}" for note in one.notes)
    if problems.total:
        first = f"; the first is {problems.first[0]}"
        yield f"{number_of(problems.total, 'line')} left out{first}"


def recorded_json(found: Sequence[Loaded], problems: Problems) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        "files": [
            {
                "file": str(one.source.path),
                "format": one.source.format,
                "about": one.source.about,
                "requests": sum(len(trace.requests) for trace in one.sets),
                "notes": list(one.notes),
            }
            for one in found
        ],
        "lines_left_out": problems.total,
        "first_problem": str(problems.first[0]) if problems.first else None,
    }


def traces_of(found: Sequence[Loaded]) -> list[Trace]:
    """Return all sets."""
    return [trace for one in found for trace in one.sets]
