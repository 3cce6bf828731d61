"""What a build reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace

from ngramspec.errors import InputError
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.corpus import CorpusPlan, find_units


def plan_of(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: BuildOptions,
) -> CorpusPlan:
    """Find what to read: not the output, which a build before may have left among it.

    Raises:
        InputError: There is nothing else; or as find_units.
        As find_units.
    """
    plan = find_units(
        paths, include=options.include, exclude=options.exclude, format=options.format,
        gitignore=options.gitignore, follow_links=options.follow_links,
    )  # fmt: skip
    units = tuple(unit for unit in plan.units if not _is_file(unit.path, output))
    if len(units) == len(plan.units):
        return plan
    if not units:
        raise InputError(f"there is nothing to read but {os.fspath(output)}, the output itself")
    num_bytes = sum(unit.num_bytes for unit in units)
    return replace(plan, units=units, num_files=plan.num_files - 1, num_bytes=num_bytes)


def _is_file(path: str, output: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of the output; one with another name is not looked at."""
    if os.path.basename(path) == os.path.basename(output):
        with contextlib.suppress(OSError):  # there is no output yet
            return os.path.samefile(path, output)
    return False
