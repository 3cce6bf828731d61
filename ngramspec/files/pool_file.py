"""Files of kind "hash-pool": the pool of ngram-mod, mapped shared by all processes that use it."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.image import PoolImage
from ngramspec._native.mod.pool import HashPool
from ngramspec.errors import FormatError, InputError
from ngramspec.files.cache_file import ABOUT, Origin, about_bytes, check_tokenizer
from ngramspec.files.container import Container, Header, new_container, open_container
from ngramspec.files.entries import EntrySource

KIND = "hash-pool"
MAX_VOCAB = TOKEN_MASK = 0x3FFFFF  # of a cell, whose lowest bits hold token + 1
CONFIDENCE_SHIFT = np.uint32(30)  # of a cell, whose highest bits hold the confidence
NUM_COUNTERS = 5
_SHAPE = struct.Struct("<IId")  # cell_bits, check_bits, max_occupancy


@dataclass(frozen=True)
class PoolShape:
    """The fixed properties of a pool file.

    n_match: tokens hashed per lookup, 1..65535. capacity: cells, a power of two, 1024..2**31.
    """

    n_match: int = 24
    capacity: int = 1 << 22
    check_bits: int = 8
    max_occupancy: float = 0.5

    @property
    def cell_bits(self) -> int:
        """Return the binary logarithm of the capacity."""
        return self.capacity.bit_length() - 1


def open_pool(
    path: str | os.PathLike[str],
    *,
    n_match: int | None = None,
    fingerprint: bytes | None = None,
    any_tokenizer: bool = False,
) -> HashPool:
    """Map a pool file shared: what one process learns, all others draft from.

    Args:
        path: A file of kind hash-pool, on a local disk of this host. It changes in place and is
            never left half-written: every entry is one word. Do not truncate it while it is open:
            that kills the processes that have it mapped.
        n_match: Tokens hashed per lookup, which the file must match; None = any.
        fingerprint: Of the target's tokenizer, 16 bytes; None = not known, nothing is compared.
        any_tokenizer: Accept a file made with another tokenizer.

    Returns:
        HashPool: Works in the file and keeps it mapped. The operating system writes it back.

    Raises:
        FormatError: The file is of another kind, incomplete or damaged.
        InputError: It was made for another n_match.
        VocabMismatchError: It was made with another tokenizer.
        OSError: It cannot be read or written.

    Cost: O(cells), to recount those in use.
    """
    container = open_container(path, KIND, writable=True)
    header = container.header
    check_tokenizer(container, fingerprint, any_tokenizer)
    if n_match is not None and n_match != header.ngram_min:
        raise InputError(
            f"{path} was made for n_match={header.ngram_min}, got n_match={n_match}: "
            "no lookup would find anything"
        )
    shape = shape_of(container)
    cells, counters = container.array("cells", "<u4"), container.array("counters", "<i8")
    try:
        pool = HashPool(
            shape.capacity, shape.check_bits, shape.max_occupancy, header.vocab_size,
            cells, counters,
        )  # fmt: skip
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None
    pool.recount()
    return pool


def create_pool(path: str | os.PathLike[str], shape: PoolShape, origin: Origin) -> None:
    """Write an empty pool file. If several processes do so at once, one succeeds.

    Raises:
        InputError: The shape is impossible.
        FileExistsError: The file is already there; it stays as it is.
        OSError: It cannot be written.
    """
    write_pool(path, np.zeros(shape.capacity, np.uint32), shape, origin, replace=False)


def write_pool(
    path: str | os.PathLike[str],
    cells: NDArray[np.uint32],
    shape: PoolShape,
    origin: Origin,
    *,
    replace: bool = True,
) -> Header:
    """Write the cells of a pool as a file: equal cells give equal bytes.

    Raises:
        InputError: The shape is impossible.
        FileExistsError: The file exists, and `replace` is False.
        OSError: The file cannot be written; an existing one is kept.
    """
    _check(shape)
    used = int(np.count_nonzero(cells))
    counters = np.zeros(NUM_COUNTERS, "<i8")
    counters[0] = used
    vocab_size = min(origin.vocab_size or MAX_VOCAB, MAX_VOCAB)
    with new_container(path, replace=replace) as writer:
        writer.add("shape", _SHAPE.pack(shape.cell_bits, shape.check_bits, shape.max_occupancy))
        if origin.about:
            writer.add(ABOUT, about_bytes(origin.about))
        writer.add("counters", counters, checked=False)
        writer.add("cells", cells.astype("<u4", copy=False), checked=False)
        n = shape.n_match
        header = Header(KIND, origin.fingerprint, vocab_size, n, n, used, used)
        writer.finish(header)
    return header


def cells_of(source: EntrySource, shape: PoolShape) -> NDArray[np.uint32]:
    """Return the cells that hold the most frequent continuations of sorted entries."""
    image = PoolImage(shape.cell_bits, shape.check_bits, shape.max_occupancy)
    while len(entries := source.read()):
        image.feed(entries)
    return image.finish()


def shape_of(container: Container) -> PoolShape:
    """Return the shape of a pool file.

    Raises:
        FormatError: It is impossible.
    """
    cell_bits, check_bits, max_occupancy = container.shape(_SHAPE)
    place, n_match = container.place("shape"), container.header.ngram_min
    shape = PoolShape(n_match, 1 << min(cell_bits, 63), check_bits, max_occupancy)
    try:
        _check(shape)
    except InputError as error:
        raise FormatError(f"{place}: {error}") from None
    if (size := len(container.view("counters"))) != 8 * NUM_COUNTERS:
        raise FormatError(
            f"{container.place('counters')}: expected {8 * NUM_COUNTERS} bytes, found {size}"
        )
    if len(container.view("cells")) != 4 * shape.capacity:
        raise FormatError(f"{place}: expected {shape.capacity} cells of 4 bytes in section 'cells'")
    return shape


def check_pool(container: Container) -> None:
    """Check that every cell is empty or holds a token of the vocabulary. O(bytes).

    Raises:
        FormatError: One does not; names file and offset.
    """
    shape_of(container)
    cells = np.frombuffer(container.view("cells"), "<u4")
    tokens = cells & TOKEN_MASK
    wrong = np.flatnonzero((cells != 0) & ((tokens == 0) | (tokens > container.header.vocab_size)))
    if wrong.size:
        at = container.sections["cells"].offset + 4 * int(wrong[0])
        raise FormatError(f"{container.path}: cell at offset {at}: expected a token id")


def _check(shape: PoolShape) -> None:
    if not 1 <= shape.n_match <= 65535:
        raise InputError(f"n_match must be in 1..65535, got {shape.n_match}")
    if shape.capacity != 1 << shape.cell_bits or not 10 <= shape.cell_bits <= 31:
        raise InputError(f"capacity must be a power of two in 1024..2**31, got {shape.capacity}")
    if not 0 <= shape.check_bits <= 8:
        raise InputError(f"check_bits must be in 0..8, got {shape.check_bits}")
    if not (math.isfinite(shape.max_occupancy) and 0 < shape.max_occupancy <= 0.95):
        raise InputError(
            f"max_occupancy must be above 0 and at most 0.95, got {shape.max_occupancy}"
        )
