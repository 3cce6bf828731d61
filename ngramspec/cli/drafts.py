"""The drafters' options, with llama.cpp's names; parameters are those of their dataclasses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.command import SectionOption
from ngramspec.cli.options import flag, in_list, table
from ngramspec.drafting.config import option_flag, options_of
from ngramspec.drafting.names import (
    DEFAULT_MAX_DRAFT,
    DEFAULT_ORDER,
    DEFAULT_POLICY,
    DEFAULT_SPEC,
    DRAFTER_NAMES,
    POLICY_NAMES,
    REQUEST_NAMES,
    WITH_COSTS,
    parse_names,
)

if TYPE_CHECKING:
    from ngramspec.runtime import DraftSettings

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
complete_drafters = in_list(*DRAFTER_NAMES, "draft-mtp", NO_DRAFTS)


class TreeType(click.ParamType):  # type: ignore[type-arg]
    """A number of branches, "auto" or "off"."""

    name = "N|auto|off"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text in ("auto", "off"):
            return text
        if text.isdecimal() and int(text) >= 1:
            return int(text)
        self.fail(f"{value!r} is neither a number >= 1 nor auto nor off", param, ctx)


def policy_flag(more: str = "") -> Any:
    """Return --policy. more: rest of the help."""
    text = (
        "Draft length: auto: while each token pays for its cost in a pass; gate: longer while "
        "drafts are accepted, none for a while when they are not; fixed: as the drafters "
        "propose; shadow: as auto, but drafts are only judged, and none is sent: metrics, /props "
        f"and the log say what they would have brought.{more}"
    )
    return flag("--policy", text, default=DEFAULT_POLICY, choices=POLICY_NAMES)


def tree_flag(**more: Any) -> Any:
    """Return --spec-tree, whose value is as for Engine."""
    text = (
        "Most branches of a draft, each another continuation; auto: up to 4, if they pay and all "
        "slots share a cache; off: 1."
    )
    kind = {"type": TreeType(), "metavar": "[N|auto|off]"}
    return flag("--spec-tree", text, default="auto", **kind, **more)


def _parameters() -> Iterator[SectionOption]:
    """Yield an option per parameter; None when not given, so that the drafter's default holds."""
    for name in DRAFTER_NAMES:
        for field in options_of(name):
            word = option_flag(name, field.name)
            settings: dict[str, Any] = {"type": type(field.default), "metavar": "N"}
            shown = str(field.default)
            if isinstance(field.default, bool):
                settings, shown = {"default": None}, "on" if field.default else "off"
                word = f"{word}/{option_flag(name, field.name, False)}"
            elif isinstance(field.default, tuple):
                settings = {"callback": _split_numbers, "metavar": "N,N,N,N"}
                shown = ",".join(map(str, field.default))
            text = f"{field.metadata['help']}  [default: {shown}]"
            names = [word, _key(name, field.name)]
            yield SectionOption(names, section="Drafter parameters", help=text, **settings)


def _split_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected comma-separated integers, got {value!r}") from None


def _key(name: str, field: str) -> str:
    return f"spec_{name}_{field}".replace("-", "_")


@dataclass
class DraftOptions:
    """What drafts, how long drafts are, and the files that drafters read."""

    section = "Drafts"
    # fmt: off
    spec_type: tuple[str, ...] = flag(
        "--spec-type", f"Drafters, comma-separated: {', '.join(DRAFTER_NAMES)}; draft-mtp: the "
        "model's MTP heads; or none: no n-gram drafts."
        f"  [default: {DEFAULT_SPEC}, and those whose options are given]", env="SPEC_TYPE",
        default=(), metavar="LIST", shell_complete=complete_drafters)
    spec_default: bool = flag(
        "--spec-default", "ngram-mod with 24/48/64, as in llama-server.", default=False)
    policy: str = policy_flag()
    calibrate: float = flag("--calibrate", "Most time to measure what passes cost, for --policy "
        "auto, at the first start of a model with these options; kept for later ones. 0: none.",
        env="CALIBRATE", default=2.0, low=0, metavar="SECONDS")
    spec_tree: int | str = tree_flag(env="SPEC_TREE")
    draft_max: int | None = flag(
        "--draft-max --draft --draft-n --draft-n-max --max-draft", "Longest draft of any drafter, "
        f"in tokens; for ngram-mod also its n-max.  [default: {DEFAULT_MAX_DRAFT}]",
        env="DRAFT_MAX", low=1)
    draft_min: int | None = flag("--draft-min --draft-n-min", "Shortest draft of any drafter, in "
        "tokens; for ngram-mod also its n-min.  [default: 0]", env="DRAFT_MIN", low=0)
    spec_ngram_size_n: int | None = flag("--spec-ngram-size-n", "Length of the n-gram looked up, "
        "of all drafters that have one.", low=1)
    spec_ngram_size_m: int | None = flag(
        "--spec-ngram-size-m", "Longest draft of all drafters that have a size-m.", low=1)
    spec_ngram_min_hits: int | None = flag(
        "--spec-ngram-min-hits", "Earlier occurrences needed, by all drafters that have min-hits.",
        low=1)
    lookup_static: Path | None = flag("-lcs --lookup-cache-static", "Counts for ngram-cache: a "
        "file of build-cache, or a lookup cache of llama.cpp.")
    lookup_dynamic: Path | None = flag("-lcd --lookup-cache-dynamic", "The same, but what is "
        "generated is also saved to it; it need not exist.")
    pool_file: Path | None = flag("--pool --pool-file", "Pool of ngram-mod, shared by all "
        "processes that use the file; it need not exist.")
    suffix_index: Path | None = flag(
        "--suffix-index", "Index for suffix, from build-cache --kind suffix.")
    recycle_file: Path | None = flag(
        "--recycle-file", "Pool of recycle: what it learns is saved to it; it need not exist.")
    any_tokenizer: bool = flag(
        "--any-tokenizer", "Accept files that were built with another tokenizer.", default=False)
    parameters: dict[str, Any] = table(_parameters)
    # fmt: on

    def n_gram_drafts(self, chosen: Sequence[str] | None = None) -> DraftSettings:
        """Return what n-gram drafters do.

        A line on stderr tells about options that no drafter uses.

        chosen: Words of --spec-type; None: as it is given.

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
                value = self.parameters[_key(name, field.name)]
                if value is not None:
                    needed.append((name, option_flag(name, field.name)))
                    params.setdefault(name, {})[field.name] = value
        files = {key: path for key in FILES if (path := getattr(self, key)) is not None}
        needed += [(FILES[key][0], FILES[key][2]) for key in files]
        names = _names(self._spec(chosen), needed)
        longest, shortest = self.draft_max or DEFAULT_MAX_DRAFT, self.draft_min or 0
        if shortest > longest:
            raise click.UsageError(
                f"--draft-min {shortest} is above --draft-max {longest}: no draft would be sent"
            )
        for key in (*OF_ALL, *BOUNDS):
            if (value := getattr(self, key)) is None:
                continue
            sharing = _sharing(key, names)
            for name, parameter in sharing:
                params.setdefault(name, {}).setdefault(parameter, value)
            if not sharing and key in OF_ALL:
                word, drafters = key.replace("_", "-"), ",".join(names) or NO_DRAFTS
                click.echo(f"--{word} does nothing for {drafters}", err=True)
        for key, path in files.items():
            name, parameter, _ = FILES[key]
            own = params.setdefault(name, {})
            own.update({parameter: path, "any_tokenizer": self.any_tokenizer})
        return DraftSettings(
            drafter=names,
            params=params,
            policy=self.policy,
            max_draft=longest,
            min_draft=shortest,
            tree=tree_of(self.spec_tree, [self.policy] if names else []),
            calibrate=self.calibrate,
        )

    def _spec(self, chosen: Sequence[str] | None) -> str:
        spec = ",".join(self.spec_type if chosen is None else chosen)
        if not self.spec_default:
            return spec
        spec = spec or SPEC_DEFAULT
        if SPEC_DEFAULT not in map(str.strip, spec.split(",")):
            raise click.UsageError(
                f"--spec-default stands for --spec-type {SPEC_DEFAULT}: name it in --spec-type, or "
                "give one of the two"
            )
        return spec


def tree_of(tree: int | str, policies: Collection[str]) -> int | str:
    """Return --spec-tree, "off" where nothing that drafts can choose branches.

    policies: those of all that draft.
    """
    weighed = not set(WITH_COSTS).isdisjoint(policies)
    return tree if policies and (tree != "auto" or weighed) else "off"


def _sharing(key: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the parameters that an option for several drafters sets, after their drafters."""
    return [
        (name, field.name)
        for name in names
        for field in options_of(name)
        if field.name in OF_ALL.get(key, ()) or BOUNDS.get(key) == (name, field.name)
    ]


def _names(spec: str, needed: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the drafters: the list, or the default and every drafter whose options are given."""
    if not spec:
        added = dict.fromkeys(name for name, _ in needed if name != DEFAULT_SPEC)
        return parse_names((*added, DEFAULT_SPEC), DEFAULT_ORDER)
    if spec != NO_DRAFTS and NO_DRAFTS in spec.split(","):
        raise click.UsageError(f"--spec-type {NO_DRAFTS} stands alone, got {spec}")
    names = () if spec == NO_DRAFTS else parse_names(spec, DEFAULT_ORDER, REQUEST_NAMES)
    for name, word in needed:
        if name not in names:
            chosen = ",".join(names) or NO_DRAFTS
            raise click.UsageError(f"{word} requires {name}, but --spec-type is {chosen}")
    return names
