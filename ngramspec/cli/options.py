"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import errno
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ngramspec.cli import completion
from ngramspec.cli.command import Failure, SectionOption
from ngramspec.cli.model import pulled_model
from ngramspec.errors import FormatError, InputError

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]
OLD_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
COUNT = click.IntRange(0)
AT_LEAST_1 = click.IntRange(1)
LOOKUP_SUFFIX = ".bin"  # as formats.llama_lookup, which loads numpy
LEAST_FILE = 64 << 10  # head, provenance and some n-grams
MOST_SIZE = 1 << 62
MOST_HELD_OUT = 0.9
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)")


class NamedPath(click.Path):
    """A path; an empty one, as of an unset variable, is refused: to pathlib it is this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = NamedPath(path_type=Path)
NEW_FILE = NamedPath(dir_okay=False, path_type=Path)


def option(
    section: str, *flags: str, env: str | tuple[str, ...] = "", **settings: Any
) -> Decorator:
    """Return an option under a heading of --help.

    Args:
        section: The heading.
        flags: As for click.option.
        env: Environment variables that set it: what follows LLAMA_ARG_, or a full LLAMA_ name.
        settings: As for click.option; defaults are shown, and numbers have the metavar N.
    """
    if isinstance(settings.get("type"), (click.IntRange, click.FloatRange)):
        settings.setdefault("metavar", "N")
    default = settings.get("default")
    shown = default is not None and default is not False and default != ""
    settings.setdefault("show_default", shown)
    if env:
        names = (env,) if isinstance(env, str) else env
        names = tuple(one if one.startswith("LLAMA_") else f"LLAMA_ARG_{one}" for one in names)
        settings["envvar"] = names if len(names) > 1 else names[0]
    return click.option(*flags, cls=SectionOption, section=section, **settings)


def options(*decorators: Decorator) -> Callable[[Function], Function]:
    """Add options to a command, in this order."""

    def add(function: Function) -> Function:
        for one in reversed(decorators):
            function = one(function)
        return function

    return add


def given_words(*sections: str) -> list[str]:
    """Return options of the running command as words that give another command the same.

    Those count that the command line or the environment gives, with their values as understood.

    sections: Their headings.
    """
    context = click.get_current_context()
    words: list[str] = []
    for param in context.command.params:
        name = param.name or ""
        if not isinstance(param, SectionOption) or param.section not in sections:
            continue
        if context.get_parameter_source(name) in (None, ParameterSource.DEFAULT):
            continue
        value = context.params.get(name)
        flag = next(one for one in (*param.opts, *param.secondary_opts) if one.startswith("--"))
        off = next((one for one in param.secondary_opts if one.startswith("--")), None)
        if isinstance(value, bool):
            words += [flag] if value else [off] if off else []
        elif value is not None:
            each = value if param.multiple else (value,)
            words += [word for one in each for word in (flag, str(one))]
    return words


def json_option(section: str = "Options") -> Decorator:
    """Return the option --json."""
    text = "Print machine-readable results instead."
    return option(section, "--json", "as_json", is_flag=True, help=text)


def tokenizer_options(otherwise: str, section: str = "Options") -> Decorator:
    """Return --model and --tokenizer. otherwise: rest of the help: the default, or the use."""
    text = f"GGUF file of the model, or its name in Ollama; {otherwise}."
    other = "tokenizer.json of the model, instead of --model."
    return options(
        option(section, "-m", "--model", type=FILE, shell_complete=completion.model, help=text),
        option(section, "--tokenizer", type=FILE, help=other),
    )


def given_tokenizer(values: dict[str, Any]) -> Path | None:
    """Remove --model and --tokenizer from a command's values and return the file that is given.

    Raises:
        click.UsageError: Both are given.
        InputError, ModelNotFoundError, FormatError, OSError: As pulled_model.
    """
    model, tokenizer = values.pop("model"), values.pop("tokenizer")
    if model is not None and tokenizer is not None:
        raise click.UsageError("give either --model or --tokenizer")
    path: Path | None = tokenizer if model is None else pulled_model(model, "--model")[0]
    return path


def output_option(section: str = "Options") -> Decorator:
    """Return the option -o of a command that writes a statistics file."""
    text = "File to write; an existing statistics file is replaced once the new one is complete."
    return option(section, "-o", "--output", type=FILE, required=True, help=text)


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


def is_lookup_cache(path: Path) -> bool:
    """Return whether a file begins as a lookup cache of llama.cpp does."""
    from ngramspec.files.llama_lookup import may_hold_records

    return may_hold_records(path)


def is_costs(path: Path) -> bool:
    """Return whether a file is a table of costs."""
    from ngramspec.costs import load_costs

    try:
        load_costs(path)
    except FormatError:
        return False
    return True


def is_statistics(path: Path) -> bool:
    """Return whether a file is a statistics file of ngramspec."""
    from ngramspec.files.container import is_container

    return is_container(path)


def check_output(
    path: Path,
    kinds: Mapping[str, Callable[[Path], bool]] | None = None,
) -> None:
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
    if path.exists() and not path.is_file():
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


class NumberRange(click.FloatRange):
    """NumberRange(least, most): a finite number within bounds, also where one is left out."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {value!r}", param, ctx)
        return number


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """SizeType(least=1): a number such as 64M or 1.5G, in powers of 1024; becomes an int."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            self.fail(f"expected a size such as 64M, 2G or 1.5G, got {value!r}", param, ctx)
        size = float(match[1]) * 1024 ** UNITS[match[2].upper()]
        if size >= MOST_SIZE:  # perhaps infinite
            most = f"{MOST_SIZE >> 40}T"
            self.fail(f"expected a size below {most}, got {value[:40]!r}", param, ctx)
        number = int(size)
        if number < self.least:
            least = f"{self.least >> 10}K" if self.least >= 1024 else self.least
            self.fail(f"expected a size of {least} or more, got {value!r}", param, ctx)
        return number


class ShareType(click.ParamType):  # type: ignore[type-arg]
    """A share such as 5% or 0.05; becomes a float in 0..0.9."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share."""
        if isinstance(value, float):
            return value
        match = _SHARE.fullmatch(value.strip())
        if match is None:
            self.fail(f"expected a share such as 5% or 0.05, got {value!r}", param, ctx)
        share = float(match[1]) / (100 if match[2] else 1)
        if share > MOST_HELD_OUT:
            hint = "" if match[2] else f"; for percent write {match[1]}%"
            self.fail(f"expected a share of at most 90%, got {value!r}{hint}", param, ctx)
        return share
