"""Files that commands read and write: a tokenizer's, the output, and what may be replaced by it."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.command import Failure
from ngramspec.cli.model import pulled_model
from ngramspec.cli.options import complete_model, flag
from ngramspec.cli.output import number_of, print_json, size_text
from ngramspec.errors import FormatError, InputError

if TYPE_CHECKING:
    from ngramspec.files.container import Header

LOOKUP_SUFFIX = ".bin"  # as formats.llama_lookup, which loads numpy


def tokenizer_flag(otherwise: str) -> Any:
    """Return --model of a command that needs its tokenizer. otherwise: the default, or the use."""
    text = f"GGUF file of the model, or its name in Ollama; {otherwise}."
    return flag("-m --model", text, shell_complete=complete_model)


@dataclass
class TokenizerOptions:
    """Whose tokenizer is used."""

    section = "Tokenizer"
    model: Path | None = tokenizer_flag("default: the embedded model's tokenizer")
    tokenizer: Path | None = flag("--tokenizer", "tokenizer.json of the model, instead of --model.")

    def resolve(self) -> Path | None:
        """Return the file that is given, and set `tokenizer` to it.

        Raises:
            click.UsageError: Both are given.
            InputError, ModelNotFoundError, FormatError, OSError: As pulled_model.
        """
        if self.model is not None and self.tokenizer is not None:
            raise click.UsageError("give either --model or --tokenizer")
        if self.model is not None:
            self.tokenizer = pulled_model(self.model, "--model")[0]
        return self.tokenizer


@dataclass
class JsonOptions:
    """How results are printed."""

    section = "Output"
    as_json: bool = flag("--json", "Print machine-readable results instead.", default=False)


@dataclass
class OutputOptions:
    """Which statistics file is written."""

    section = "Output"
    output: Path = flag(
        "-o --output",
        "File to write; an existing statistics file is replaced once the new one is complete.",
        required=True,
    )


def read_utf8(path: Path) -> str:
    """Return a text file, without its byte order mark.

    Raises:
        InputError: It is not UTF-8.
        OSError: It cannot be read.
    """
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8, found another byte at {error.start}") from None


def is_costs(path: Path) -> bool:
    from ngramspec.costs import load_costs

    try:
        load_costs(path)
    except FormatError:
        return False
    return True


def is_statistics(path: Path) -> bool:
    from ngramspec.files.container import is_container

    return is_container(path)


def check_output(path: Path, kinds: Mapping[str, Callable[[Path], bool]] | None = None) -> None:
    """Check that a file can be written there, before the work begins.

    Args:
        path: The output.
        kinds: What may be replaced: names of kinds, and what tells such a file. None = statistics
            files, whose names are not those of lookup caches.

    Raises:
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: It is a folder.
        click.UsageError: It is no regular file, the name is that of another format, or a file of
            another kind would be replaced.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file to write", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    in_devices = path.parent == Path("/dev")  # /dev/stdout may lead to a regular file
    if path.exists() and (in_devices or not path.is_file()):
        raise click.UsageError(f"{path} is no regular file: give another name")
    try:  # a new file is written beside it, under another name
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        folder = str(path.parent)
        raise Failure(f"{path}: no file can be written in {folder}: {error.strerror}") from error
    formats = {"statistics file": is_statistics} if kinds is None else kinds
    if path.exists() and path.stat().st_size and not any(fits(path) for fits in formats.values()):
        what = " or ".join(formats)
        raise click.UsageError(
            f"{path} is no {what} and would be replaced: give another name, or remove it"
        )
    if kinds is None and path.suffix == LOOKUP_SUFFIX:
        raise click.UsageError(
            f"{path}: names that end in .bin are for llama.cpp's lookup caches; "
            "`ngramspec cache convert` makes them"
        )


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
