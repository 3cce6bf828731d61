"""Recorded requests as arguments of commands: reading them, and telling what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.files import TokenizerOptions
from ngramspec.cli.options import flag
from ngramspec.cli.output import number_of, printable
from ngramspec.cli.progress import progress
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.lab.corpus.problems import Problems
    from ngramspec.lab.recordings.traces import Cut, Loaded, Trace
    from ngramspec.text.tokenizers import Fingerprint, Tokenizer

FORMATS = ("tokens", "requests", "chats")
UNKNOWN = "an unknown tokenizer"
ABOUT_FILES = """\
What `ngramspec serve --record` writes, chats (a line each, with OpenAI's messages,
ShareGPT's conversations, or a prompt and its answer; or one JSON array of them), or lines
of token ids (prompt length, prompt ids, output ids); also packed (gz, zst, xz, bz2).
Wrong lines are left out and counted."""


@dataclass
class RecordedOptions(TokenizerOptions):
    """How recorded requests are read."""

    section = "Recorded requests"
    # fmt: off
    format: str | None = flag(
        "--format", "What the files hold; default: as each is recognised.", choices=FORMATS)
    keys: tuple[str, ...] = flag("--key", "Read only the requests of this key, as `serve --record` "
        "writes it (repeatable).", default=(), metavar="DIGEST")


def recorded_files(names: Sequence[str], format: str | None) -> list[Path]:
    """Return the files if they are recorded requests and not text, [] if they are text.

    Lines of chats and of token ids are text for a corpus unless `format` says otherwise.

    Raises:
        InputError: Some are, and some are not.
        OSError: A file cannot be read.
    """
    if format in FORMATS:
        return [Path(name) for name in names]
    recorded: list[Path] = []
    others: list[Path] = []
    for name in names:
        path = Path(name)
        is_file = format is None and path.is_file()
        (recorded if is_file and _is_recorded(path) else others).append(path)
    if recorded and others:
        raise InputError(
            f"{recorded[0]} holds recorded requests and {others[0]} does not: build a file of "
            "each, and merge them with `ngramspec cache merge`, or give --format text to count all "
            "as text"
        )
    return recorded


def _is_recorded(path: Path) -> bool:
    from ngramspec.errors import BackendError, FormatError
    from ngramspec.lab.recordings.formats import LOOKED_AT, is_recorded
    from ngramspec.lab.recordings.lines import read_start

    try:
        return is_recorded(read_start(path, LOOKED_AT))
    except (FormatError, BackendError):
        return False


def load_recorded(
    paths: Sequence[Path], options: RecordedOptions, cut: Cut
) -> tuple[list[Loaded], Problems]:
    """Read files of recorded requests, with a bar.

    Args:
        paths: Files and folders.
        options: The command's, resolved.
        cut: What to keep of each set.

    Raises:
        As find_traces and load_files.
    """
    from ngramspec.lab.corpus.problems import Problems
    from ngramspec.lab.recordings.traces import find_traces, load_files
    from ngramspec.text.tokenizers import fingerprint_of

    files, problems = find_traces(paths), Problems()
    path = options.tokenizer
    fingerprint = None if path is None else fingerprint_of(path)
    with _tokenizer(path) as tokenizer, progress("reading", len(files)) as advance:
        loaded = load_files(
            files,
            tokenizer,
            cut,
            format=options.format,
            fingerprint=fingerprint,
            problems=problems,
            keys=options.keys,
            advance=advance,
        )
    return loaded, problems


@contextmanager
def _tokenizer(tokenizer_path: Path | None) -> Iterator[Callable[[], Tokenizer]]:
    """Hand out a function that returns the tokenizer of a file, or of the embedded model."""
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import load_tokenizer

    opened: list[Tokenizer] = []

    def tokenizer() -> Tokenizer:
        if not opened:
            if tokenizer_path is None:
                name = embedded_model().name
                line = f"no --model or --tokenizer given: using the embedded model {name}"
                click.echo(line, err=True)
            opened.append(load_tokenizer(tokenizer_path or embedded_model()))
        return opened[0]

    try:
        yield tokenizer
    finally:
        for one in opened:
            one.close()


def tokenizer_of(tokenizer_path: Path | None, loaded: Sequence[Loaded]) -> Fingerprint | None:
    """Return whose token ids were loaded, None if nothing tells.

    Raises:
        InputError: The files state several.
    """
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import fingerprint_of

    if tokenizer_path is not None:
        return fingerprint_of(tokenizer_path)
    stated = {fingerprint for one in loaded for fingerprint in one.tokenizers}
    if len(stated) > 1:
        raise InputError("the files were recorded with several tokenizers: give them one by one")
    if stated:
        return next(iter(stated))
    # Texts were read with the embedded model's; token ids tell nothing.
    return fingerprint_of(embedded_model()) if _hold_texts(loaded) else None


def _hold_texts(loaded: Sequence[Loaded]) -> bool:
    return any(one.source.format == "chats" for one in loaded)


def provenance_of(tokenizer_path: Path | None, loaded: Sequence[Loaded]) -> dict[str, Any]:
    from ngramspec.models import embedded_model

    stated = {str(head.get("model")) for one in loaded for head in one.heads}
    name = tokenizer_path.name if tokenizer_path else ", ".join(sorted(stated))
    return {
        "tokenizer": name or (embedded_model().name if _hold_texts(loaded) else UNKNOWN),
        "corpus": [one.source.path.name for one in loaded],
        "what": "answers of recorded requests",
    }


def refuse_mixed_keys(traces: Sequence[Trace], mix_keys: bool) -> None:
    """Refuse to put into one file what keys keep apart.

    Raises:
        InputError: The requests are of several keys that learn for themselves.
    """
    keys = {one.key for trace in traces for one in trace.requests if one.apart}
    if len(keys) > 1 and not mix_keys:
        raise InputError(
            f"the requests are of {len(keys)} keys that learn for themselves, and one file would "
            f"hold the answers to all: choose with --key ({', '.join(sorted(keys)[:5])}), or allow "
            "it with --mix-keys"
        )


def say_recorded(loaded: Sequence[Loaded], problems: Problems, *, brief: bool = False) -> None:
    """Print what was recognised, and what was left out, on stderr. brief: only the latter."""
    for line in _lines(loaded, problems, brief):
        click.echo(printable(line), err=True)


def _lines(loaded: Sequence[Loaded], problems: Problems, brief: bool) -> Iterator[str]:
    for one in loaded:
        if one.source.format != "tokens" and not brief:
            yield one.about
    if problems.total:
        first = f"; the first is {problems.first[0]}"
        yield f"{number_of(problems.total, 'line')} left out{first}"
