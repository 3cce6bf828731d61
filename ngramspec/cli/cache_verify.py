"""`ngramspec cache verify`: whether statistics files are whole and unharmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import EXIT_FAILED, SectionCommand
from ngramspec.cli.sizes import number_of, size_text
from ngramspec.cli.vocabulary import json_option
from ngramspec.errors import FormatError

EPILOG = """\b
Examples:
  ngramspec cache verify code.ngc
  ngramspec cache verify *.ngc --json
"""


@click.command("verify", cls=SectionCommand, epilog=EPILOG)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@json_option()
def verify(files: tuple[Path, ...], as_json: bool) -> None:
    """Tell whether files are whole and unharmed.

    Checksums are compared, and every n-gram, follower, index word and cell is looked at. The exit
    code is 1 if one is damaged. A lookup cache of llama.cpp has no checksums, only records.
    """
    made = []
    for path in files:
        facts: dict[str, Any] = {"path": str(path), "error": None}
        try:
            facts |= _check(path)
        except FormatError as error:
            facts["error"] = " ".join(str(error).split())
        made.append(facts)
        if not as_json:
            _say(facts)
    if as_json:
        import json

        click.echo(json.dumps(made))
    if any(facts["error"] for facts in made):
        raise click.exceptions.Exit(EXIT_FAILED)


def _check(path: Path) -> dict[str, Any]:
    """Check a file and return kind, bytes and the number of n-grams, cells in use or tokens.

    Raises:
        FormatError: Something cannot be right.
        OSError: It cannot be read.
    """
    import numpy as np

    from ngramspec.cli.cache_open import CACHE_KIND, INDEX_KIND, POOL_KIND, open_statistics
    from ngramspec.formats.cache_file import about_of, check_cache
    from ngramspec.formats.pool_file import check_pool
    from ngramspec.formats.suffix_file import check_index

    found = open_statistics(path, verify=True)
    facts: dict[str, Any] = {"kind": found.kind, "file_bytes": found.file_bytes}
    if found.container is not None:
        about_of(found.container)
    if found.kind == POOL_KIND:
        check_pool(found.pool)
        return facts | {"num_used": int(np.count_nonzero(found.cells()))}
    if found.kind == INDEX_KIND:
        check_index(found.opened)
        return facts | {"num_tokens": found.opened.header.num_pairs}
    if found.kind == CACHE_KIND:
        check_cache(found.cache)
    return facts | {"num_ngrams": len(found.cache)}


def _say(facts: dict[str, Any]) -> None:
    if facts["error"]:
        click.echo(f"Error: {facts['error']}", err=True)
        return
    if "num_used" in facts:
        held = f"{number_of(facts['num_used'], 'cell')} in use"
    else:
        key, noun = ("num_ngrams", "n-gram") if "num_ngrams" in facts else ("num_tokens", "token")
        held = number_of(facts[key], noun)
    click.echo(f"{facts['path']}: {facts['kind']}, {size_text(facts['file_bytes'])}, {held}: good")
