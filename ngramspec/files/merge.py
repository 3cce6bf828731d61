"""Merging statistics files: the sum of their counts, or the most confirmed cells of pools."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.entries import EntryMerger
from ngramspec.errors import InputError, VocabMismatchError
from ngramspec.files.cache_file import Origin
from ngramspec.files.container import Header
from ngramspec.files.entries import EntrySource, OnRead, WatchedSource, ignored
from ngramspec.files.pool_file import CONFIDENCE_SHIFT, write_pool
from ngramspec.files.prune import write_within
from ngramspec.files.statistics import POOL_KIND, Statistics

CELLS = 1 << 20  # pool cells merged at a time
Cells = NDArray[np.uint32]


def merge_statistics(
    files: Sequence[Statistics],
    output: str | os.PathLike[str],
    *,
    min_count: int = 1,
    max_bytes: int | None = None,
    any_tokenizer: bool = False,
    on_read: OnRead = ignored,
) -> Header:
    """Write the summed counts of several files, or the most confirmed cells of several pools.

    The order of the files does not matter, and merging in steps gives the same bytes as one merge.

    Args:
        files: Two files or more, all pools or none, opened with verify=True.
        output: The file to write; it may be one of them.
        min_count: Leave out followers with smaller total counts; not for pools.
        max_bytes: Keep the most useful n-grams within this size, None = all; not for pools.
        any_tokenizer: Also merge files of different tokenizers; the result then names none.
        on_read: Told how many more entries were read, of Statistics.num_entries; not of pools.

    Returns:
        Header: What was written.

    Raises:
        InputError: An index, pools mixed with files of n-grams, pools of different shapes, or a
            bound that is not for pools.
        VocabMismatchError: The files are of different tokenizers.
        FormatError: A file is damaged.
        OSError: The file cannot be written; an existing one is kept.
    """
    for one in files:
        one.need_statistics("merge")
        if (one.kind == POOL_KIND) is not (files[0].kind == POOL_KIND):
            raise InputError(
                f"{files[0].path} is a {files[0].kind}, {one.path} is a {one.kind}: pools can only "
                "be merged with pools"
            )
    origin = _merged_origin(files, any_tokenizer)
    about = _merged_about(files, min_count, max_bytes)
    origin = Origin(origin.fingerprint, origin.vocab_size, about)
    if files[0].kind == POOL_KIND:
        if min_count > 1 or max_bytes is not None:
            raise InputError("min_count and max_bytes are not for hash pools")
        return _merge_pools(files, output, origin)
    by_size: dict[int, list[EntrySource]] = {}
    for one in files:
        for size, source in one.sources().items():
            by_size.setdefault(size, []).append(WatchedSource(source, on_read))
    merged = {size: EntryMerger(sources, min_count) for size, sources in by_size.items()}
    return write_within(output, merged, origin, max_bytes)


def _merged_origin(files: Sequence[Statistics], any_tokenizer: bool) -> Origin:
    named = [one for one in files if one.fingerprint is not None]
    others = [one for one in named if one.fingerprint != named[0].fingerprint]
    if others and not any_tokenizer:
        raise VocabMismatchError(
            f"{others[0].path} was made with another tokenizer than {named[0].path}: counts of "
            "different tokens cannot be added up (any_tokenizer overrides)"
        )
    fingerprint = named[0].fingerprint if named and not others else None
    sized = files if any_tokenizer or not named else named
    vocab_size = max(one.vocab_size for one in sized)
    if not named or (any_tokenizer and not all(one.vocab_size for one in files)):
        vocab_size = 0  # without a tokenizer it is no bound, and a lookup cache has none
    return Origin(fingerprint, vocab_size)


def _merged_about(
    files: Sequence[Statistics], min_count: int, max_bytes: int | None
) -> dict[str, Any] | None:
    """Return the provenance of all files, sorted; merging in steps gives the same."""
    parts: list[dict[str, Any]] = []
    pruned: list[Any] = []  # how files were that are merged already
    for one in files:
        about = one.about
        flat = "merged" in about and set(about) <= {"merged", "pruned"}
        parts += about["merged"] if flat else [about]
        pruned += about.get("pruned", ()) if flat else ()
    if not any(parts):
        return None
    provenance: dict[str, Any] = {"merged": sorted(parts, key=_by_json)}
    pruned.sort(key=_by_json)
    if min_count > 1 or max_bytes is not None:
        pruned.append({"min_count": min_count, "max_bytes": max_bytes})
    if pruned:
        provenance["pruned"] = [one for i, one in enumerate(pruned) if one not in pruned[:i]]
    return provenance


def _by_json(part: Any) -> str:
    return json.dumps(part, sort_keys=True)


def _merge_pools(
    pools: Sequence[Statistics], output: str | os.PathLike[str], origin: Origin
) -> Header:
    shape = pools[0].shape
    for other in pools[1:]:
        for name, mine in vars(shape).items():
            theirs = getattr(other.shape, name)
            if mine != theirs:
                raise InputError(
                    f"{other.path} has {name} {theirs}, {pools[0].path} has {mine}: only pools of "
                    "one shape can be merged"
                )
    cells = pools[0].cells.astype(np.uint32)  # a copy
    for other in pools[1:]:
        more = other.cells
        for at in range(0, len(cells), CELLS):
            part = slice(at, at + CELLS)
            cells[part] = _more_confirmed(cells[part], more[part])
    _free_rarest(cells, int(shape.capacity * shape.max_occupancy))
    return write_pool(output, cells, shape, origin)


def _more_confirmed(one: Cells, other: Cells) -> Cells:
    """Return the more confirmed of each two cells, on ties the smaller; empty cells lose."""
    first, second = one >> CONFIDENCE_SHIFT, other >> CONFIDENCE_SHIFT
    takes = (second > first) | ((second == first) & (other < one))
    takes = (takes & (other != 0)) | (one == 0)
    return np.where(takes, other, one).astype(np.uint32, copy=False)


def _free_rarest(cells: Cells, most: int) -> None:
    """Empty cells until at most `most` are in use: the least confirmed first, from the end."""
    surplus = int(np.count_nonzero(cells)) - most
    for level in range(4):
        if surplus <= 0:
            return
        at = np.flatnonzero((cells != 0) & (cells >> CONFIDENCE_SHIFT == level))[-surplus:]
        cells[at] = 0
        surplus -= len(at)
