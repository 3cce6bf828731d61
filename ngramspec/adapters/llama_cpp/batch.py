"""What a Llama computed last, read in place: the tokens of its batch, and their logits.

llama.cpp keeps a batch's rows until the next one, in the order of its tokens, as the model made
them: samplers, penalties and logits processors work on copies. llama-cpp-python writes every batch
into the same arrays. Together they tell which row follows which token, also of rejected drafts,
with no attribute replaced and no row copied.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.arrays import TokenIds

Logits = npt.NDArray[np.float32]


class LastBatch:
    """The batch that a Llama decoded last; holds the Llama weakly.

    n_vocab: Logits of a row.
    """

    __slots__ = ("_arrays", "_llama", "_owner", "n_vocab")

    def __init__(self, llama: Any) -> None:
        self._llama = weakref.ref(llama)
        self._owner = weakref.ref(llama._batch)
        self.n_vocab = int(llama.n_vocab())
        raw, size = llama._batch.batch, int(llama.n_batch)
        self._arrays: tuple[TokenIds, TokenIds, npt.NDArray[np.int8]] = (
            np.ctypeslib.as_array(raw.token, shape=(size,)),
            np.ctypeslib.as_array(raw.pos, shape=(size,)),
            np.ctypeslib.as_array(raw.logits, shape=(size,)),
        )

    def tokens(self) -> tuple[int, TokenIds]:
        """Return the position of the batch's first token, and its tokens: a view, perhaps empty."""
        token, pos, _ = self._arrays
        size = self._size()
        return (int(pos[0]), token[:size]) if size else (0, token[:0])

    def first_row(self) -> int:
        """Return the first token from which on all of the batch have logits."""
        marks = self._arrays[2][: self._size()]
        without = np.flatnonzero(marks == 0)
        return int(without[-1]) + 1 if without.size else 0

    def rows(self, start: int, stop: int) -> Logits | None:
        """Return the logits after tokens start..stop - 1 of the batch, None where there are none.

        Valid until the Llama decodes again. start < stop.
        """
        import llama_cpp.llama_cpp as lib

        context = getattr(getattr(self._llama(), "_ctx", None), "ctx", None)
        if context is None:
            return None
        first = lib.llama_get_logits_ith(context, start)
        last = lib.llama_get_logits_ith(context, stop - 1)
        if not first or not last:
            return None
        size, at = (stop - start) * self.n_vocab, ctypes.addressof(first.contents)
        if ctypes.addressof(last.contents) - at != (size - self.n_vocab) * 4:
            return None  # another batch has been decoded, past the Llama
        memory = (ctypes.c_float * size).from_address(at)
        return np.ctypeslib.as_array(memory).reshape(stop - start, self.n_vocab)

    def _size(self) -> int:
        raw = getattr(self._owner(), "batch", None)  # None once the Llama is closed
        return 0 if raw is None else min(int(raw.n_tokens), self._arrays[0].size)
