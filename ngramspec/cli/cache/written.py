"""What merge, convert and prune print about the file they wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.output import number_of, print_json, size_text

if TYPE_CHECKING:
    from ngramspec.files.container import Header


def say_written(
    path: Path, header: Header | None, as_json: bool, *, before: int | None = None
) -> None:
    """Print what was written. header: None for a lookup cache. before: bytes of its source."""
    num_bytes = path.stat().st_size
    if as_json:
        facts: dict[str, Any] = {"path": str(path), "file_bytes": num_bytes, "header": None}
        if header is not None:
            fingerprint = header.fingerprint.hex() if header.fingerprint else None
            facts["header"] = asdict(header) | {"fingerprint": fingerprint}
        return print_json(facts)
    parts = [size_text(num_bytes) + (f" of {size_text(before)}" if before is not None else "")]
    if header is not None:
        is_pool = header.kind == "hash-pool"
        cells = f"{number_of(header.num_ngrams, 'cell')} in use"
        parts.append(cells if is_pool else number_of(header.num_ngrams, "n-gram"))
    click.echo(f"{path}: {', '.join(parts)}")
