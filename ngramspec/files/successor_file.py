"""Files of kind "successors": what the target held likeliest, from one run to the next."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec.errors import FormatError, InputError
from ngramspec.files.atomic import remove_temporaries
from ngramspec.files.cache_file import ABOUT, Origin, about_bytes, check_tokenizer, origin_kept
from ngramspec.files.container import Container, Header, new_container, open_container

KIND = "successors"
MOST = 16  # successors of a context
_SHAPE = struct.Struct("<IIQ")  # successors kept of a context, zero, contexts that fit


class SuccessorFile:
    """A pool of recycle in a file: loaded once, saved as a whole when something was observed.

    Args:
        path: The file; it need not exist. Of several processes, the one that saves last wins.
        capacity: Contexts that fit a new pool; a file has its own.
        top: Successors kept of a context, which a file must match.
        origin: The target's tokenizer; one that states none leaves the file's own in it.
        any_tokenizer: Accept a file of another tokenizer; it states the target's from the first
            save on.

    Attributes:
        pool: The SuccessorPool to draft from and to fill.
        save_error: Why the latest save failed, "" if it did not.

    Raises:
        InputError: The file keeps another number of successors.
        FormatError: The file is of another kind, incomplete or damaged.
        VocabMismatchError: It was made with another tokenizer.
        OSError: It cannot be read.

    Thread-safety: `close` may be called from any thread.
    """

    def __init__(
        self, path: str | os.PathLike[str], capacity: int, top: int, origin: Origin,
        any_tokenizer: bool = False,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.save_error = ""
        self._origin = origin
        self._process = os.getpid()
        self._saving = threading.Lock()
        remove_temporaries(self.path)
        if self.path.exists():
            container = open_container(self.path, KIND, verify=True)
            check_tokenizer(container, origin.fingerprint, any_tokenizer)
            self.pool = pool_of(container)
            self._origin = origin_kept(container, origin)
            if self.pool.top != top:
                raise InputError(f"{self.path} keeps {self.pool.top} successors, top is {top}")
        else:
            self.pool = SuccessorPool(capacity, top)
        self._num_saved = self.pool.num_observed

    def close(self) -> None:
        """Save, except in a fork of the process that opened the file. May be called again.

        Raises:
            InputError: A token was observed that the tokenizer does not have; the file is kept.
            OSError: The file cannot be written; an existing one is kept.

        What a failed save did not write stays in the pool for the next one.
        """
        if os.getpid() != self._process:
            return  # before the lock: in a fork nobody may ever release it
        with self._saving:
            observed = self.pool.num_observed
            if observed == self._num_saved:
                return
            try:
                write_successors(self.path, self.pool, self._origin)
            except BaseException as error:
                self.failed(error)
                raise
            self._num_saved, self.save_error = observed, ""

    def failed(self, error: BaseException) -> None:
        """Note that a save failed."""
        self.save_error = f"{type(error).__name__}: {error}"


def write_successors(path: str | os.PathLike[str], pool: SuccessorPool, origin: Origin) -> Header:
    """Write a pool: equal contents give equal bytes.

    Args:
        path: The file; an existing one is replaced once the new one is complete.
        pool: Others may observe meanwhile.
        origin: Tokenizer and provenance.

    Raises:
        InputError: A token is not below origin.vocab_size.
        OSError: The file cannot be written; an existing one is kept.

    Cost: O(capacity), and O(n log n) for n contexts.
    """
    entries = pool.entries()
    largest = _largest(entries, pool.top)
    if origin.vocab_size and largest >= origin.vocab_size:
        raise InputError(f"token id {largest} is not below {origin.vocab_size}")
    with new_container(path) as writer:
        writer.add("shape", _SHAPE.pack(pool.top, 0, pool.capacity))
        if origin.about:
            writer.add(ABOUT, about_bytes(origin.about))
        writer.add("entries", entries.astype("<u4", copy=False))
        pairs = int((entries[:, 2] & 0xFF).sum())
        header = Header(
            KIND, origin.fingerprint, origin.vocab_size or largest + 1, 1, 2, len(entries), pairs
        )
        writer.finish(header)
    return header


def pool_of(container: Container) -> SuccessorPool:
    """Return a pool with what an open container of this kind holds.

    Raises:
        FormatError: Its shape, or an entry, is impossible.
    """
    top, capacity = _shape(container)
    entries = _entries(container, top)
    try:
        pool = SuccessorPool(capacity, top)
        pool.insert(entries)
    except InputError as error:
        raise FormatError(f"{container.place('shape')}: {error}") from None
    if _largest(entries, top) >= container.header.vocab_size:
        raise FormatError(
            f"{container.path}: expected token ids below {container.header.vocab_size}, "
            f"found {_largest(entries, top)}"
        )
    return pool


def facts_of(container: Container) -> Mapping[str, Any]:
    """Return what the file holds: contexts by kind, successors kept, contexts that fit.

    Raises:
        FormatError: Its shape is impossible.
    """
    top, capacity = _shape(container)
    entries = _entries(container, top)
    single = int((entries[:, 0] == np.uint32(0xFFFFFFFF)).sum())
    return {
        "top": top,
        "capacity": capacity,
        "num_tokens": single,
        "num_pairs": len(entries) - single,
        "num_successors": int((entries[:, 2] & 0xFF).sum()),
    }


def _shape(container: Container) -> tuple[int, int]:
    top, _, capacity = container.shape(_SHAPE)
    if not 1 <= top <= MOST or not 64 <= capacity <= 1 << 26:
        place = container.place("shape")
        raise FormatError(f"{place}: {top} successors of {capacity} contexts: impossible")
    return top, capacity


def _entries(container: Container, top: int) -> NDArray[np.uint32]:
    return container.array("entries", "<u4", 3 + top + (top + 1) // 2).astype(np.uint32)


def _largest(entries: NDArray[np.uint32], top: int) -> int:
    if not len(entries):
        return 0
    ids = entries[:, [0, 1, *range(3, 3 + top)]].astype(np.int64)
    return int(ids[ids < 1 << 31].max())
