"""The drafters' options, made from their parameter dataclasses, with llama.cpp's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.options import AT_LEAST_1, FILE, Decorator, option, options
from ngramspec.drafters.config import option_flag, options_of
from ngramspec.drafters.names import DRAFTER_NAMES, parse_names
from ngramspec.tokenizers import fingerprint_of

SECTION = "Drafts"
PARAMETERS = "Drafter parameters"
DEFAULT_SPEC = "suffix"
NO_DRAFTS = "none"
FILES = {  # field of DraftChoice -> drafter that reads it, its parameter, option
    "lookup_static": ("ngram-cache", "static", "--lookup-cache-static"),
    "lookup_dynamic": ("ngram-cache", "dynamic", "--lookup-cache-dynamic"),
    "pool_file": ("ngram-mod", "pool", "--pool-file"),
    "suffix_index": ("suffix", "static", "--suffix-index"),
}


@dataclasses.dataclass(frozen=True)
class DraftChoice:
    """The drafters and parameters that the options choose.

    params: by drafter, only those given.
    files: by name in FILES, only those given.
    any_tokenizer: accept files of another tokenizer.
    policy, max_draft: as for make_policy.
    """

    names: tuple[str, ...]
    order: str
    params: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    any_tokenizer: bool = False
    policy: str = "auto"
    max_draft: int = 62

    def parameters(self, model: Path) -> dict[str, dict[str, Any]]:
        """Return the parameters by drafter, with files and the model's tokenizer to check them by.

        Raises:
            FormatError, OSError: The model cannot be read.
        """
        made = {name: dict(values) for name, values in self.params.items()}
        known = fingerprint_of(model) if self.files else None
        for field, path in self.files.items():
            name, parameter, _ = FILES[field]
            own = made.setdefault(name, {})
            own.update({parameter: path, "any_tokenizer": self.any_tokenizer, "tokenizer": known})
        return made

    @property
    def label(self) -> str:
        """Return the names separated by commas, "none" without drafts."""
        return ",".join(self.names) or NO_DRAFTS


def drafter_options() -> Decorator:
    """Return --spec-type, the statistics files and all parameters of the drafters."""
    lookup = "Statistics file or lookup cache that ngram-cache reads."
    learned = "The same, but what is generated is also saved to it."
    return options(
        option(SECTION, "--spec-type", metavar="LIST", multiple=True,
               help=f"Comma-separated drafters: {', '.join(DRAFTER_NAMES)}; or none."
               f"  [default: {DEFAULT_SPEC}, plus any drafter whose options are given]"),
        option(SECTION, "--spec-order", type=click.Choice(["priority", "given"]),
               default="priority",
               help="Order in which drafters are tried: llama.cpp's, or that of the list."),
        option(SECTION, "--policy", type=click.Choice(["auto", "fixed"]), default="auto",
               help="Draft length: auto: as long as each token pays for its cost in a pass; fixed: "
               "as long as the drafters propose."),
        option(SECTION, "--max-draft", type=AT_LEAST_1, default=62,
               help="Longest draft of any drafter, in tokens."),
        option(SECTION, "-lcs", "--lookup-cache-static", "lookup_static", type=FILE, help=lookup),
        option(SECTION, "-lcd", "--lookup-cache-dynamic", "lookup_dynamic", type=FILE,
               help=learned),
        option(SECTION, "--pool-file", type=FILE,
               help="Pool of ngram-mod, shared by all processes that use the file."),
        option(SECTION, "--suffix-index", type=FILE, help="Index of a corpus that suffix reads."),
        option(SECTION, "--any-tokenizer", is_flag=True,
               help="Accept files that were built with another tokenizer."),
        *_parameters(),
    )  # fmt: skip


def take_draft_choice(values: dict[str, Any]) -> DraftChoice:
    """Remove the drafter options from a command's values and return them as a DraftChoice.

    Raises:
        InputError: An unknown or repeated drafter.
        click.UsageError: A parameter of a drafter that is not in the list.
    """
    params: dict[str, dict[str, Any]] = {}
    needed: list[tuple[str, str]] = []  # drafter, option that requires it
    for name in DRAFTER_NAMES:
        for field in options_of(name):
            value = values.pop(_key(name, field.name))
            if value is not None:
                needed.append((name, option_flag(name, field.name)))
                params.setdefault(name, {})[field.name] = value
    files = {key: path for key in FILES if (path := values.pop(key)) is not None}
    needed += [(FILES[key][0], FILES[key][2]) for key in files]
    order = values.pop("spec_order")
    names = _names(",".join(values.pop("spec_type")), order, needed)
    rest = {key: values.pop(key) for key in ("max_draft", "any_tokenizer", "policy")}
    return DraftChoice(names, order, params, files, **rest)


def _names(spec: str, order: str, needed: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the drafters: the list, or the default and every drafter whose options are given."""
    if not spec:
        added = dict.fromkeys(name for name, _ in needed if name != DEFAULT_SPEC)
        return parse_names((*added, DEFAULT_SPEC), order)
    names = () if spec == NO_DRAFTS else parse_names(spec, order)
    for name, flag in needed:
        if name not in names:
            chosen = ",".join(names) or NO_DRAFTS
            raise click.UsageError(f"{flag} requires {name}, but --spec-type is {chosen}")
    return names


def _parameters() -> Iterator[Decorator]:
    """Yield an option per parameter; None when not given, so that the drafter's default holds."""
    for name in DRAFTER_NAMES:
        for field in options_of(name):
            flag = option_flag(name, field.name)
            settings: dict[str, Any] = {"type": type(field.default), "metavar": "N"}
            shown = str(field.default)
            if isinstance(field.default, bool):
                settings, shown = {"default": None}, "on" if field.default else "off"
                flag = f"{flag}/{option_flag(name, field.name, False)}"
            elif isinstance(field.default, tuple):
                settings = {"callback": _split_numbers, "metavar": "N,N,N,N"}
                shown = ",".join(map(str, field.default))
            text = f"{field.metadata['help']}  [default: {shown}]"
            yield option(PARAMETERS, flag, _key(name, field.name), help=text, **settings)


def _split_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected comma-separated integers, got {value!r}") from None


def _key(name: str, field: str) -> str:
    return f"spec_{name}_{field}".replace("-", "_")
