"""From counted entries to the file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ngramspec.build.options import POOL, BuildOptions
from ngramspec.formats.cache_file import Origin, fill_cache, open_cache, write_cache
from ngramspec.formats.container import ContainerWriter, Header
from ngramspec.formats.entries import EntrySource
from ngramspec.formats.files import commit, temporary_file
from ngramspec.formats.pool_file import KIND as POOL_KIND
from ngramspec.formats.pool_file import cells_of, write_pool
from ngramspec.formats.prune import write_pruned


def write_output(
    output: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    options: BuildOptions,
) -> Header:
    """Write the counted entries as the file that the options ask for."""
    if options.kind == POOL_KIND:
        return write_pool(output, cells_of(sources[POOL], options.pool), options.pool, origin)
    if options.max_bytes is None:
        return write_cache(output, sources, origin)
    with temporary_file(output) as whole:
        header = fill_cache(ContainerWriter(whole), output, sources, origin)
        if whole.seek(0, os.SEEK_END) <= options.max_bytes:
            commit(whole, output)
            return header
        whole.flush()
        return write_pruned(output, open_cache(whole.name), origin, options.max_bytes)
