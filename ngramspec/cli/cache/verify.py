"""`ngramspec cache verify`: check that statistics files are complete and undamaged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.command import EXIT_FAILED, EXIT_USAGE, error_line
from ngramspec.cli.files import JsonOptions
from ngramspec.cli.options import argument, command
from ngramspec.cli.output import number_of, print_json, printable, size_text
from ngramspec.cli.progress import progress
from ngramspec.errors import FormatError

EPILOG = """\b
Examples:
  ngramspec cache verify docs.ngx
  ngramspec cache verify *.ngc --json
"""


@dataclass
class VerifyOptions(JsonOptions):
    """Options of `cache verify`."""

    files: tuple[Path, ...] = argument(metavar="FILE...", required=True)


@command("verify", EPILOG)
def verify(options: VerifyOptions) -> None:
    """Check that files are complete and undamaged.

    Compares checksums and checks every n-gram, follower, index word and cell. The exit code is 1 if
    a file is damaged, else 2 if one cannot be read. llama.cpp's lookup caches have no checksums:
    only their records are checked.
    """
    rows, is_damaged = [], False
    with progress("checking", len(options.files)) as steps:
        for path in options.files:
            steps.name(f"checking {path}")
            facts: dict[str, Any] = {"path": str(path), "error": None}
            try:
                facts |= _check(path)
            except FormatError as error:
                facts["error"] = error_line(error)
                is_damaged = True
            except OSError as error:
                error.filename = error.filename or str(path)  # reading does not name it
                facts["error"] = error_line(error)
            rows.append(facts)
            steps()
            if not options.as_json:
                with steps.paused():
                    _say(facts)
    if options.as_json:
        print_json(rows)
    if any(facts["error"] for facts in rows):
        raise click.exceptions.Exit(EXIT_FAILED if is_damaged else EXIT_USAGE)


def _check(path: Path) -> dict[str, Any]:
    """Check a file and return kind, bytes and how much it holds."""
    import numpy as np

    from ngramspec.files.statistics import INDEX_KIND, POOL_KIND, SUCCESSORS_KIND, open_statistics

    statistics = open_statistics(path, verify=True)
    statistics.check()
    facts: dict[str, Any] = {"kind": statistics.kind, "file_bytes": statistics.file_bytes}
    if statistics.kind == POOL_KIND:
        return facts | {"num_used": int(np.count_nonzero(statistics.cells))}
    if statistics.kind == INDEX_KIND:
        return facts | {"num_tokens": statistics.index.num_tokens}
    if statistics.kind == SUCCESSORS_KIND:
        return facts | {"num_contexts": statistics.opened(SUCCESSORS_KIND).header.num_ngrams}
    return facts | {"num_ngrams": len(statistics.cache)}


def _say(facts: dict[str, Any]) -> None:
    if facts["error"]:
        click.echo(f"Error: {facts['error']}", err=True)
        return
    nouns = {
        "num_used": "cell",
        "num_tokens": "token",
        "num_contexts": "key",
        "num_ngrams": "n-gram",
    }
    (held,) = (number_of(facts[key], noun) for key, noun in nouns.items() if key in facts)
    held += " in use" if "num_used" in facts else ""
    name, size = printable(facts["path"]), size_text(facts["file_bytes"])
    click.echo(f"{name}: {facts['kind']}, {size}, {held}: good")
