"""The drafters' options, made from their parameter dataclasses, with llama.cpp's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ngramspec.cli.group import SectionOption
from ngramspec.drafters.config import CONFIGS
from ngramspec.drafters.names import DRAFTER_NAMES, parse_names
from ngramspec.tokenizers import fingerprint_of

Function = TypeVar("Function", bound=Callable[..., Any])
SECTION = "Drafts"
PARAMETERS = "Drafter parameters"
DEFAULT_SPEC = "suffix"
NO_DRAFTS = "none"
NOT_AN_OPTION = ("pool", "tokenizer", "any_tokenizer", "save_interval", "static", "dynamic")
FILES = {  # field of DraftChoice -> drafter that reads it, its parameter, option
    "lookup_static": ("ngram-cache", "static", "--lookup-cache-static"),
    "lookup_dynamic": ("ngram-cache", "dynamic", "--lookup-cache-dynamic"),
    "pool_file": ("ngram-mod", "pool", "--pool-file"),
    "suffix_index": ("suffix", "static", "--suffix-index"),
}
HELP = {
    "size_n": "Tokens matched.",
    "size_m": "Longest draft, in tokens.",
    "min_hits": "Earlier occurrences needed.",
    "max_values": "Continuations told apart per key.",
    "window": "Latest occurrences that vote.",
    "n_match": "Tokens hashed per lookup.",
    "n_min": "Tokens in a row that the pool must know.",
    "n_max": "Longest draft, in tokens.",
    "capacity": "Cells of the pool, 4 bytes each.",
    "check_bits": "Bits per cell against false hits.",
    "max_occupancy": "Filled share at which old cells give way.",
    "n_draft": "Longest draft, in tokens.",
    "ngram_min": "Shortest n-gram, in tokens.",
    "ngram_max": "Longest n-gram, in tokens.",
    "lax_min_sample": "Counts needed in the text, by n-gram size 1 to 4.",
    "lax_min_percent": "Share needed in the text, by size.",
    "strict_min_sample": "Counts needed in the dynamic cache, by size.",
    "strict_min_percent": "Share needed in the dynamic cache, by size.",
    "static_min_sample": "Counts needed in the static cache alone.",
    "static_min_percent": "Share needed in the static cache alone.",
    "static_veto": "Let the static cache outvote a follower that passes.",
    "dynamic_update": "Let the dynamic cache learn what is generated.",
    "max_ngrams": "N-grams kept in the dynamic cache at most.",
    "max_draft": "Longest draft, in tokens.",
    "min_probability": "End drafts that are less likely right as a whole.",
    "share": "Draft from other requests too.",
    "pool_prompts": "Draft from their prompts too, not from outputs alone.",
}
HELP_OF = {("suffix", "capacity"): "Tokens of other requests that are kept, 31 bytes each."}


@dataclasses.dataclass(frozen=True)
class DraftChoice:
    """What the options say: which drafters with which parameters, or none.

    params: by drafter, only what was given. lookup_static, lookup_dynamic: files of ngram-cache.
    pool_file: of ngram-mod. suffix_index: of suffix. any_tokenizer: take files of another
    tokenizer. policy: as for make_policy.
    """

    names: tuple[str, ...]
    order: str
    params: Mapping[str, Mapping[str, Any]]
    max_draft: int = 62
    lookup_static: Path | None = None
    lookup_dynamic: Path | None = None
    pool_file: Path | None = None
    any_tokenizer: bool = False
    suffix_index: Path | None = None
    policy: str = "auto"

    def parameters(self, model: Path) -> dict[str, dict[str, Any]]:
        """Return the parameters by drafter, files included, which must be of the model's tokenizer.

        Raises:
            FormatError, OSError: The model cannot be read.
        """
        made = {name: dict(values) for name, values in self.params.items()}
        given = {field: path for field in FILES if (path := getattr(self, field)) is not None}
        known = fingerprint_of(model) if given else None
        for field, path in given.items():
            name, parameter, _ = FILES[field]
            own = made.setdefault(name, {})
            own.update({parameter: path, "any_tokenizer": self.any_tokenizer, "tokenizer": known})
        return made

    @property
    def label(self) -> str:
        """Return the names with commas, "none" without drafts."""
        return ",".join(self.names) or NO_DRAFTS


def drafter_options(function: Function) -> Function:
    """Add --spec-type, its parameters and the lookup caches to a command."""
    for option in reversed(list(_options())):
        function = option(function)
    return function


def take_draft_choice(values: dict[str, Any]) -> DraftChoice:
    """Remove the drafter options from a command's values and return what they say.

    Raises:
        InputError: An unknown or repeated drafter.
        click.UsageError: A parameter of a drafter that is not in the list.
    """
    params: dict[str, dict[str, Any]] = {}
    needed: list[tuple[str, str]] = []  # drafter, option that is of it
    for name in DRAFTER_NAMES:
        for field in _fields(name):
            value = values.pop(_key(name, field.name))
            if value is not None:
                needed.append((name, _flag(name, field.name)))
                params.setdefault(name, {})[field.name] = value
    files = {key: values.pop(key) for key in FILES}
    needed += [(FILES[key][0], FILES[key][2]) for key, path in files.items() if path is not None]
    order = values.pop("spec_order")
    names = _names(",".join(values.pop("spec_type")), order, needed)
    rest = {key: values.pop(key) for key in ("max_draft", "any_tokenizer", "policy")}
    return DraftChoice(names, order, params, **files, **rest)


def _names(spec: str, order: str, needed: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the drafters: those of the list, else the default and what has options of its own."""
    if not spec:
        added = dict.fromkeys(name for name, _ in needed if name != DEFAULT_SPEC)
        return parse_names((*added, DEFAULT_SPEC), order)
    names = () if spec == NO_DRAFTS else parse_names(spec, order)
    for name, option in needed:
        if name not in names:
            chosen = ",".join(names) or NO_DRAFTS
            raise click.UsageError(f"{option} is of {name}, but --spec-type is {chosen}")
    return names


def _options() -> Any:
    own: dict[str, Any] = {"cls": SectionOption, "section": SECTION}
    yield click.option(
        "--spec-type",
        metavar="LIST",
        multiple=True,
        help=f"Drafters with commas between: {', '.join(DRAFTER_NAMES)}; or none."
        f"  [default: {DEFAULT_SPEC}, and those that other options are of]",
        **own,
    )
    yield click.option(
        "--spec-order",
        type=click.Choice(["priority", "given"]),
        default="priority",
        show_default=True,
        help="Which drafter is asked first: llama.cpp's order, or that of the list.",
        **own,
    )
    yield click.option(
        "--policy",
        type=click.Choice(["auto", "fixed"]),
        default="auto",
        show_default=True,
        help="How long drafts are: as far as tokens pay for what they add to a pass, or as far as "
        "the drafters go.",
        **own,
    )
    yield click.option(
        "--max-draft",
        type=click.IntRange(1),
        metavar="N",
        default=62,
        show_default=True,
        help="Longest draft of any drafter, in tokens.",
        **own,
    )
    for short, role, text in (
        ("-lcs", "static", "Statistics file or lookup cache that ngram-cache reads."),
        ("-lcd", "dynamic", "The same, read and extended: what is generated is added at the end."),
    ):
        flags = (short, f"--lookup-cache-{role}", f"lookup_{role}")
        yield click.option(*flags, type=click.Path(path_type=Path), help=text, **own)
    yield click.option(
        "--pool-file",
        type=click.Path(path_type=Path),
        help="Pool of ngram-mod, shared by all processes that use the file.",
        **own,
    )
    yield click.option(
        "--suffix-index",
        type=click.Path(path_type=Path),
        help="Index of a corpus that suffix reads.",
        **own,
    )
    yield click.option(
        "--any-tokenizer",
        is_flag=True,
        help="Take files that were built with another tokenizer.",
        **own,
    )
    for name in DRAFTER_NAMES:
        for field in _fields(name):
            yield _parameter(name, field)


def _parameter(name: str, field: dataclasses.Field[Any]) -> Any:
    """Return the option of one parameter; None when not given: the default is the drafter's."""
    flag = _flag(name, field.name)
    settings: dict[str, Any] = {"type": type(field.default), "metavar": "N"}
    shown = str(field.default)
    if isinstance(field.default, bool):
        settings, shown = {"default": None}, "on" if field.default else "off"
        flag = f"{flag}/{flag.replace('--spec-', '--no-spec-', 1)}"
    elif isinstance(field.default, tuple):
        settings = {"callback": _split_numbers, "metavar": "N,N,N,N"}
        shown = ",".join(map(str, field.default))
    text = HELP_OF.get((name, field.name)) or HELP[field.name]
    return click.option(
        flag,
        _key(name, field.name),
        cls=SectionOption,
        section=PARAMETERS,
        help=f"{text}  [default: {shown}]",
        **settings,
    )


def _split_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected integers with commas between, got {value!r}") from None


def _fields(name: str) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(CONFIGS[name]) if field.name not in NOT_AN_OPTION]


def _flag(name: str, field: str) -> str:
    return f"--spec-{name}-{field}".replace("_", "-")


def _key(name: str, field: str) -> str:
    return f"spec_{name}_{field}".replace("-", "_")
