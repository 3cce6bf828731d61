"""Files that commands write: what is wrong with a path is said before the work begins."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.options import Function
from ngramspec.cli.sizes import number_of, size_text

if TYPE_CHECKING:
    from ngramspec.formats.container import Header

LOOKUP_SUFFIX = ".bin"
POOL_KIND = "hash-pool"


def check_output(path: Path, *, statistics: bool = True) -> None:
    """Check that a file can be written there.

    Args:
        path: The output.
        statistics: It is not to be one of llama.cpp's lookup caches.

    Raises:
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: It is a folder.
        click.UsageError: The name is that of another format.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file to write", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    if statistics and path.suffix == LOOKUP_SUFFIX:
        raise click.UsageError(
            f"{path}: names that end in .bin are for llama.cpp's lookup caches; "
            "`ngramspec cache convert` makes them"
        )


def output_option(function: Function) -> Function:
    """Add -o to a command."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        help="The file to write; an old one is replaced when the new one is whole.",
    )(function)


def say_written(
    path: Path, header: Header | None, as_json: bool, *, before: int | None = None
) -> None:
    """Print what was written. header: None of a lookup cache. before: bytes of its source."""
    num_bytes = path.stat().st_size
    if as_json:
        facts: dict[str, Any] = {"path": str(path), "file_bytes": num_bytes, "header": None}
        if header is not None:
            fingerprint = header.fingerprint.hex() if header.fingerprint else None
            facts["header"] = asdict(header) | {"fingerprint": fingerprint}
        click.echo(json.dumps(facts))
        return
    parts = [size_text(num_bytes) + (f" of {size_text(before)}" if before is not None else "")]
    if header is not None and header.kind == POOL_KIND:
        parts.append(f"{number_of(header.num_ngrams, 'cell')} in use")
    elif header is not None:
        parts.append(number_of(header.num_ngrams, "n-gram"))
    click.echo(f"{path}: {', '.join(parts)}")
