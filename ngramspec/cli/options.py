"""Options are the fields of dataclasses: a command is a function of one such class.

    @dataclass
    class CutOptions:
        section = "Cut"
        longest: int = flag("-n --longest", "Longest text, in tokens.", default=80, low=1)

    @command("cut", EPILOG)
    def cut(options: CutOptions) -> None: ...

Type, bounds and default are those of the field; commands that share options inherit their class.
"""

from __future__ import annotations

import csv
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ngramspec.cli.command import SectionCommand, SectionOption
from ngramspec.errors import InputError

Block = TypeVar("Block")
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
LEAST_FILE = 64 << 10  # head, provenance and some n-grams
MOST_SIZE = 1 << 62
MOST_HELD_OUT = 0.9
ON = ("on", "enabled", "true", "1")
OFF = ("off", "disabled", "false", "0")
AUTO = ("auto", "-1")
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)")


def flag(names: str, help: str = "", *, default: Any = None, **settings: Any) -> Any:
    """Return a field that is an option.

    Args:
        names: Its flags, with blanks between them.
        help: Its line of --help.
        default: Shown in --help unless it is empty; None: not given.
        settings: As for click.Option, and: `low`, `high`, `min_open` and `clamp` bound a number,
            `choices` a text; `env` names variables that set it, with blanks between them: what
            follows LLAMA_ARG_, or a full LLAMA_ name.
    """
    return field(default=default, metadata={"names": names, "help": help, **settings})


def argument(**settings: Any) -> Any:
    """Return a field that is an argument; settings: as for click.Argument."""
    return field(default=None, metadata={"names": "", **settings})


def table(options: Callable[[], Iterable[SectionOption]]) -> Any:
    """Return a field that is a dictionary: the values of options that are made from a table."""
    return field(default_factory=dict, metadata={"table": tuple(options())})


def command(
    name: str,
    epilog: str = "",
    *,
    everyday: tuple[str, ...] = (),
    more: Iterable[click.Parameter] = (),
    any_hyphens: bool = False,
) -> Callable[[Callable[..., None]], SectionCommand]:
    """Make a command of a function whose argument `options` is of a class of options.

    Args:
        name: Of the command.
        epilog: What follows the options in --help.
        everyday: Names of the options that --help shows, if not all.
        more: Options that the function does not get.
        any_hyphens: Flags can have _ for -.
    """
    hyphens = {"token_normalize_func": lambda word: word.replace("_", "-")}

    def make(function: Callable[..., None]) -> SectionCommand:
        block = get_type_hints(function)["options"]

        def run(**values: Any) -> None:
            function(options_from(block, values))

        return SectionCommand(
            name,
            callback=run,
            params=[*params_of(block), *more],
            help=function.__doc__,
            epilog=epilog,
            everyday=everyday,
            context_settings=hyphens if any_hyphens else {},
        )

    return make


def options_from(block: type[Block], values: Mapping[str, Any]) -> Block:
    own: dict[str, Any] = {}
    for name, (one, _) in _members(block).items():
        options = one.metadata.get("table")
        own[name] = {each.name: values[each.name] for each in options} if options else values[name]
    return block(**own)


def params_of(block: type[Any]) -> list[click.Parameter]:
    """Return the options and arguments of a class: those of its bases, then its own."""
    members, params = _members(block), list[click.Parameter]()
    for owner in (*block.__mro__[1:], block):
        section = vars(owner).get("section", "Options")
        for name in inspect.get_annotations(owner):
            if name in members:
                one, hint = members.pop(name)
                params += one.metadata.get("table") or [_param(one, hint, section)]
    return params


def _members(block: type[Any]) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields that are options and their types, as the nearest class declares them."""
    members: dict[str, tuple[Field[Any], Any]] = {}
    for owner in filter(is_dataclass, reversed(block.__mro__)):
        own = {one.name: one for one in fields(owner) if one.metadata}
        names = vars(sys.modules[owner.__module__])
        for name, hint in inspect.get_annotations(owner).items():
            if name in own:
                members[name] = own[name], eval(hint, names)
    return members


def _param(one: Field[Any], hint: Any, section: str) -> click.Parameter:
    settings = dict(one.metadata)
    words = [f" {word}" if word[0] == "/" else word for word in settings.pop("names").split()]
    if type(None) in get_args(hint):
        hint = get_args(hint)[0]
    several = get_origin(hint) is tuple
    if several:
        hint = get_args(hint)[0]
    if "type" not in settings:
        settings["type"] = _type(hint, settings)
    if not words:
        return click.Argument([one.name], nargs=-1 if several else 1, **settings)
    if several:
        settings["multiple"] = True
    if hint in (int, float):
        settings.setdefault("metavar", "N")
    if hint is bool:
        settings["is_flag"] = True
    default: Any = one.default
    if isinstance(settings["type"], SizeType) and default is not None:
        default = size_word(default)
    if default is not None or hint is bool:
        settings["default"] = default
        settings["show_default"] = default is not False and default not in (None, "", ())
    variables = [
        name if name.startswith("LLAMA_") else f"LLAMA_ARG_{name}"
        for name in settings.pop("env", "").split()
    ]
    return SectionOption([*words, one.name], section=section, envvar=variables or None, **settings)


def _type(hint: Any, settings: dict[str, Any]) -> Any:
    """Return the type of values: that of the field, within bounds or of choices."""
    if choices := settings.pop("choices", ()):
        return click.Choice(choices)
    bounds = {name: settings.pop(name) for name in ("min_open", "clamp") if name in settings}
    low, high = settings.pop("low", None), settings.pop("high", None)
    if low is None and high is None:
        return FILE if hint is Path else hint if hint in (int, float) else None
    return (click.IntRange if hint is int else NumberRange)(low, high, **bounds)


def is_set(name: str) -> bool:
    """Return whether line, environment or --config set an option of the running command."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT)


def option_words(names: Collection[str]) -> list[str]:
    """Return options of the running command as words that give another command the same.

    Those count that the command line or the environment gives, with their values as understood.

    names: Of the options.
    """
    context = click.get_current_context()
    words: list[str] = []
    for param in context.command.params:
        if param.name not in names or not is_set(param.name):
            continue
        value = context.params.get(param.name)
        word = next(one for one in (*param.opts, *param.secondary_opts) if one.startswith("--"))
        off = next((one for one in param.secondary_opts if one.startswith("--")), None)
        if isinstance(value, bool):
            words += [word] if value else [off] if off else []
        elif value is not None:
            each = value if param.multiple else (value,)
            words += [part for one in each for part in (word, str(one))]
    return words


class NamedPath(click.Path):
    """A path; an empty one, as of an unset variable, is refused: to pathlib it is this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = NamedPath(path_type=Path)
OLD_FILE = NamedPath(exists=True, dir_okay=False, path_type=Path)


class NumberRange(click.FloatRange):
    """NumberRange(least, most): a finite number within bounds, also where one is left out."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
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


def size_word(size: int) -> str:
    """Return a size as it is written, such as 64M."""
    unit = next(unit for unit in "TGMK" if not size % 1024 ** UNITS[unit])
    return f"{size // 1024 ** UNITS[unit]}{unit}"


class ShareType(click.ParamType):  # type: ignore[type-arg]
    """A share such as 5% or 0.05; becomes a float in 0..0.9."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
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


class Switch(click.ParamType):  # type: ignore[type-arg]
    """Switch(auto=True): on or off, and auto if there is one, in any of llama.cpp's words."""

    name = "switch"

    def __init__(self, *, auto: bool = True) -> None:
        self.words = {"on": ON, "off": OFF, **({"auto": AUTO} if auto else {})}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for word, same in self.words.items():
            if str(value).lower() in same:
                return word
        return self.fail(f"expected {', '.join(self.words)}, got {value!r}", param, ctx)


class AutoRange(click.IntRange):
    """AutoRange(least, most, *auto): a number; words of auto leave it to the program: None."""

    def __init__(self, least: int, most: int, *auto: str) -> None:
        super().__init__(least, most)
        self.auto = auto

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if str(value) in self.auto else super().convert(value, param, ctx)


THREADS = AutoRange(-1, 512, "0", "-1")


def unescaped(text: str) -> str:
    r"""Return a text with \n, \t, \", \x41 and the like replaced by what they stand for."""
    return _ESCAPE.sub(_replaced, text)


def names_in(text: str | None) -> tuple[str, ...]:
    """Return the parts of a list with commas, without spaces around them."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def rows_in(texts: Iterable[str]) -> list[str]:
    """Return the parts of lists with commas, where quotes keep a comma in a part."""
    return [part for text in texts for row in csv.reader([text]) for part in row if part]


def numbers_in(text: str | None, flag: str) -> tuple[float, ...]:
    """Return the numbers of a list with commas or slashes.

    Raises:
        InputError: One is no number.
    """
    try:
        return tuple(float(part) for part in re.split("[,/]", text)) if text else ()
    except ValueError:
        raise InputError(f"{flag} must be numbers with commas, got {text!r}") from None


def _replaced(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else _ESCAPED[code]


def in_list(*words: str) -> Complete:
    """Return what completes the last word of a comma-separated list, of those not yet in it."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        used = before.split(",")
        return [
            CompletionItem(before + comma + word)
            for word in words
            if word.startswith(last) and word not in used
        ]

    return complete


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a file, or the name of a model in Ollama's store once it has begun."""
    from ngramspec.models.ollama.store import default_roots, list_models

    names: set[str] = set()
    if incomplete and not incomplete.startswith((".", "/", "~")):
        roots = default_roots(os.environ.get("OLLAMA_MODELS"))
        names = {one.name.short() for one in list_models(roots)}
    matches = sorted(name for name in names if name.startswith(incomplete))
    return [*map(CompletionItem, matches), CompletionItem(incomplete, type="file")]
