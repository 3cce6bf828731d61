"""The drafters' options, made from their parameter dataclasses, with llama.cpp's names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.completion import in_list
from ngramspec.cli.options import AT_LEAST_1, COUNT, FILE, Decorator, NumberRange, option, options
from ngramspec.drafting.config import option_flag, options_of
from ngramspec.drafting.names import (
    DEFAULT_MAX_DRAFT,
    DEFAULT_ORDER,
    DEFAULT_POLICY,
    DEFAULT_SPEC,
    DRAFTER_NAMES,
    POLICY_NAMES,
    parse_names,
)

if TYPE_CHECKING:
    from ngramspec.runtime import DraftSettings

SECTION = "Drafts"
PARAMETERS = "Drafter parameters"
SPEC_DEFAULT = "ngram-mod"  # of llama-server's --spec-default
NO_DRAFTS = "none"
# Options for whichever drafters --spec-type names, and the parameters that they set.
OF_ALL = {
    "spec_ngram_size_n": ("size_n", "n_match"),
    "spec_ngram_size_m": ("size_m",),
    "spec_ngram_min_hits": ("min_hits",),
}
# Parameters that the bounds of all drafts set, as --draft-max did when ngram-mod came.
BOUNDS = {"draft_max": ("ngram-mod", "n_max"), "draft_min": ("ngram-mod", "n_min")}
FILES = {  # option's name -> drafter that reads it, its parameter, option
    "lookup_static": ("ngram-cache", "static", "--lookup-cache-static"),
    "lookup_dynamic": ("ngram-cache", "dynamic", "--lookup-cache-dynamic"),
    "pool_file": ("ngram-mod", "pool", "--pool"),
    "suffix_index": ("suffix", "static", "--suffix-index"),
    "recycle_file": ("recycle", "pool", "--recycle-file"),
}


class TreeType(click.ParamType):  # type: ignore[type-arg]
    """A number of branches, "auto" or "off"."""

    name = "N|auto|off"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return what Engine calls tree."""
        text = str(value)
        if text in ("auto", "off"):
            return text
        if text.isdecimal() and int(text) >= 1:
            return int(text)
        self.fail(f"{value!r} is neither a number >= 1 nor auto nor off", param, ctx)


TREE = TreeType()


def policy_option(more: str = "") -> Decorator:
    """Return --policy. more: rest of the help."""
    text = (
        "Draft length: auto: as long as each token pays for its cost in a pass; gate: longer while "
        "drafts are right, none for a while when they are not; fixed: as long as the drafters "
        f"propose.{more}"
    )
    choice = click.Choice(POLICY_NAMES)
    return option(SECTION, "--policy", type=choice, default=DEFAULT_POLICY, help=text)


def tree_option(**more: Any) -> Decorator:
    """Return --spec-tree, whose value is as for Engine."""
    return option(
        SECTION, "--spec-tree", type=TREE, metavar="[N|auto|off]", default="auto",
        help="Most branches of a draft, each one way in which the text may go on; auto: up "
        "to 4, if they pay and all slots share a cache; off: 1.", **more,
    )  # fmt: skip


def drafter_options() -> Decorator:
    """Return --spec-type, the statistics files and all parameters of the drafters."""
    lookup = "Counts for ngram-cache: a file of build-cache, or a lookup cache of llama.cpp."
    learned = "The same, but what is generated is also saved to it; it need not exist."
    return options(
        option(SECTION, "--spec-type", env="SPEC_TYPE", metavar="LIST", multiple=True,
               shell_complete=in_list(*DRAFTER_NAMES, "draft-mtp", NO_DRAFTS),
               help=f"Comma-separated drafters: {', '.join(DRAFTER_NAMES)}; draft-mtp: the model's "
               "MTP heads, asked where they are worth their time; or none: no n-gram drafts."
               f"  [default: {DEFAULT_SPEC}, plus any drafter whose options are given]"),
        option(SECTION, "--spec-default", is_flag=True,
               help="ngram-mod with 24/48/64, as in llama-server."),
        option(SECTION, "--spec-order", type=click.Choice(["priority", "given"]),
               default=DEFAULT_ORDER,
               help="Order in which drafters are tried: llama.cpp's, or that of the list."),
        policy_option(),
        option(SECTION, "--calibrate", env="CALIBRATE", type=NumberRange(0),
               metavar="SECONDS", default=2.0,
               help="Most time that the first start of a model in a setting spends on measuring "
               "what passes cost, for --policy auto; what was measured is kept. 0: none."),
        tree_option(env="SPEC_TREE"),
        option(SECTION, "--draft-max", "--draft", "--draft-n", "--draft-n-max", "--max-draft",
               "draft_max", env="DRAFT_MAX", type=AT_LEAST_1,
               help="Longest draft of any drafter, in tokens; for ngram-mod also its n-max."
               f"  [default: {DEFAULT_MAX_DRAFT}]"),
        option(SECTION, "--draft-min", "--draft-n-min", "draft_min", env="DRAFT_MIN", type=COUNT,
               help="Shortest draft of any drafter, in tokens; for ngram-mod also its n-min."
               "  [default: 0]"),
        option(SECTION, "--spec-ngram-size-n", type=AT_LEAST_1,
               help="Length of the n-gram looked up, for those of --spec-type that have one: their "
               "size-n, or n-match."),
        option(SECTION, "--spec-ngram-size-m", type=AT_LEAST_1,
               help="The same for their size-m, the longest draft."),
        option(SECTION, "--spec-ngram-min-hits", type=AT_LEAST_1,
               help="The same for their min-hits."),
        option(SECTION, "-lcs", "--lookup-cache-static", "lookup_static", type=FILE, help=lookup),
        option(SECTION, "-lcd", "--lookup-cache-dynamic", "lookup_dynamic", type=FILE,
               help=learned),
        option(SECTION, "--pool", "--pool-file", "pool_file", type=FILE,
               help="Pool of ngram-mod, shared by all processes that use the file; it need not "
               "exist."),
        option(SECTION, "--suffix-index", type=FILE,
               help="Index for suffix, from build-cache --kind suffix."),
        option(SECTION, "--recycle-file", type=FILE,
               help="Pool of recycle: what it learns is saved to it; it need not exist."),
        option(SECTION, "--any-tokenizer", is_flag=True,
               help="Accept files that were built with another tokenizer."),
        *_parameters(),
    )  # fmt: skip


def take_draft_settings(values: dict[str, Any]) -> DraftSettings:
    """Remove the drafter options from a command's values and return what they say.

    A line on stderr tells about options that no drafter uses.

    Raises:
        InputError: An unknown or repeated drafter.
        click.UsageError: A parameter of a drafter that is not in the list, or options that
            contradict one another.
    """
    from ngramspec.runtime import DraftSettings

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
    order, spec = values.pop("spec_order"), ",".join(values.pop("spec_type"))
    if values.pop("spec_default"):
        spec = spec or SPEC_DEFAULT
        if SPEC_DEFAULT not in map(str.strip, spec.split(",")):
            raise click.UsageError(
                f"--spec-default stands for --spec-type {SPEC_DEFAULT}: name it in --spec-type, or "
                "give one of the two"
            )
    names = _names(spec, order, needed)
    shared = {key: values.pop(key) for key in OF_ALL}
    draft_max, draft_min = values.pop("draft_max"), values.pop("draft_min")
    longest = DEFAULT_MAX_DRAFT if draft_max is None else draft_max
    if draft_min is not None and draft_min > longest:
        raise click.UsageError(
            f"--draft-min {draft_min} is above --draft-max {longest}: no draft would be sent"
        )
    for key, value in {**shared, "draft_max": draft_max, "draft_min": draft_min}.items():
        if value is not None and not _share(key, value, names, params) and key in OF_ALL:
            flag, chosen = key.replace("_", "-"), ",".join(names) or NO_DRAFTS
            click.echo(f"--{flag} does nothing for {chosen}", err=True)
    any_tokenizer, policy = values.pop("any_tokenizer"), values.pop("policy")
    for key, path in files.items():
        name, parameter, _ = FILES[key]
        own = params.setdefault(name, {})
        own.update({parameter: path, "any_tokenizer": any_tokenizer})
    return DraftSettings(
        drafter=names,
        order=order,
        params=params,
        policy=policy,
        max_draft=longest,
        min_draft=draft_min or 0,
        tree=tree_of(values.pop("spec_tree"), [policy] if names else []),
        calibrate=values.pop("calibrate"),
    )


def tree_of(tree: int | str, policies: Collection[str]) -> int | str:
    """Return --spec-tree, "off" where nothing that drafts can choose branches.

    policies: those of all that draft.
    """
    return tree if policies and (tree != "auto" or "auto" in policies) else "off"


def _share(key: str, value: int, names: Sequence[str], params: dict[str, dict[str, Any]]) -> bool:
    """Set a parameter of all drafters that have it and were not given it; False if none has it."""
    shared = False
    for name in names:
        for field in options_of(name):
            if field.name in OF_ALL.get(key, ()) or BOUNDS.get(key) == (name, field.name):
                params.setdefault(name, {}).setdefault(field.name, value)
                shared = True
    return shared


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
