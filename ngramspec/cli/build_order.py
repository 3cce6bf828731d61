"""What a command line of `ngramspec build-cache` asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.outputs import check_output
from ngramspec.cli.vocabulary import given_path
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.build import BuildOptions, Means

OF_KINDS = {
    ("ngram-cache",): ("ngram_min", "ngram_max"),
    ("ngram-cache", "hash-pool"): ("min_count",),
    ("ngram-cache", "suffix"): ("max_size",),
    ("hash-pool",): ("n_match", "capacity", "check_bits", "max_occupancy"),
}
LEAST_CELLS, MOST_CELLS = 1 << 10, 1 << 31
OF_LOCAL = ("jobs", "resume", "restart", "work")


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    corpus: tuple[str, ...]
    output: Path
    tokenizer: Path | None
    options: BuildOptions
    means: Means
    resume: bool
    restart: bool
    ray: bool
    ray_address: str | None


def take_order(options: dict[str, Any]) -> Order:
    """Check the options against each other and sort them.

    Raises:
        click.UsageError: Two do not go together.
        FileNotFoundError: There is no folder for the output.
        InputError: A value is out of its bounds.
    """
    from ngramspec.build import BuildOptions, Means

    output, ray = options["output"], options["executor"] == "ray"
    check_output(output)
    for kinds, names in OF_KINDS.items():
        _refuse(options, names, options["kind"] not in kinds, f"--kind {' or '.join(kinds)}")
    if ray and options["kind"] == "suffix":
        raise click.UsageError("--kind suffix is for --executor local")
    _refuse(options, OF_LOCAL, ray, "--executor local")
    _refuse(options, ("ray_address",), not ray, "--executor ray")
    if options["resume"] and options["restart"]:
        raise click.UsageError("give either --resume or --restart")
    work = (options["work"] or output.parent) / f".{output.name}.build"
    return Order(
        corpus=options["corpus"],
        output=output,
        tokenizer=given_path(options),
        options=BuildOptions(**_build_options(options)),
        means=Means(jobs=options["jobs"] or _num_cpus(), memory=options["memory"], work=str(work)),
        resume=options["resume"],
        restart=options["restart"],
        ray=ray,
        ray_address=options["ray_address"],
    )


def _build_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of BuildOptions; what was not given keeps its default."""
    from ngramspec.formats.pool_file import PoolShape

    names = ("n_match", "capacity", "check_bits", "max_occupancy")
    shape = {name: options[name] for name in names if options[name] is not None}
    cells = shape.get("capacity", LEAST_CELLS)
    if cells & (cells - 1) or not LEAST_CELLS <= cells <= MOST_CELLS:
        raise InputError(f"--capacity must be a power of two in 1K..2G, got {cells}")
    made = {
        "kind": options["kind"],
        "pool": PoolShape(**shape),
        "min_count": options["min_count"] or 1,
        "max_bytes": options["max_size"],
        "held_out": options["held_out"] or 0.0,
        "include": options["include"],
        "exclude": options["exclude"],
        "format": options["format"],
        "field": options["field"],
        "roles": options["role"],
        "follow_links": options["follow_links"],
        "provenance": not options["no_provenance"],
    }
    sizes = {name: options[name] for name in ("ngram_min", "ngram_max") if options[name]}
    return made | sizes


def _refuse(options: dict[str, Any], names: tuple[str, ...], wrong: bool, needed: str) -> None:
    for name in names:
        if wrong and options[name] not in (None, False):
            raise click.UsageError(f"--{name.replace('_', '-')} is for {needed}")


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
