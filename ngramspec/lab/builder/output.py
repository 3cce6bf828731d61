"""Write counted entries to the file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ngramspec.files.cache_file import Origin
from ngramspec.files.container import Header
from ngramspec.files.entries import EntrySource
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.pool_file import cells_of, write_pool
from ngramspec.files.prune import write_within
from ngramspec.lab.builder.options import POOL, BuildOptions


def write_output(
    output: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    options: BuildOptions,
) -> Header:
    """Write the counted entries as the file that the options ask for."""
    if options.kind == POOL_KIND:
        return write_pool(output, cells_of(sources[POOL], options.pool), options.pool, origin)
    return write_within(output, sources, origin, options.max_bytes)
