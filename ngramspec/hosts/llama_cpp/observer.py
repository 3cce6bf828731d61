"""Observer: shows the logits of a Llama's passes to a drafter that learns from them.

A draft model is called after each pass, so the pass of the last draft can be seen then: before the
drafter learns the new text, while the draft is still pending. llama.cpp keeps a batch's rows until
the next one, in the order of its tokens, as the model made them: samplers, penalties and logits
processors work on copies. llama-cpp-python writes every batch into the same arrays. Together they
tell which row follows which token, also of rejected drafts, with no attribute replaced and no row
copied.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.arrays import TokenIds
from ngramspec.hosts.llama_cpp.streams import Host, Stream

MOST_ROWS = 16  # of a pass, as the engine shows

Logits = npt.NDArray[np.float32]


class LastBatch:
    """The batch that a Llama decoded last; holds the Llama weakly.

    n_vocab: Logits of a row.
    """

    __slots__ = ("_arrays", "_llama", "n_vocab")

    def __init__(self, llama: Any) -> None:
        self._llama = weakref.ref(llama)
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

        llama = self._llama()
        context = None if llama is None else llama._ctx.ctx
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
        llama = self._llama()
        raw = None if llama is None else llama._batch.batch  # None once it is closed
        return 0 if raw is None else min(int(raw.n_tokens), self._arrays[0].size)


class Observer:
    """Shows rows to one drafter; does nothing if its sources learn nothing from logits."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self._useful = drafter.top > 0
        self._batches: weakref.WeakKeyDictionary[Host, LastBatch] = weakref.WeakKeyDictionary()

    def observe_draft(self, stream: Stream, ids: TokenIds) -> bool:
        """Show the pass that verified the stream's draft, right tokens and wrong ones.

        Call it before the drafter is told of `ids`.

        Returns:
            Whether there was such a pass: a host may have cut the draft, or read another text.

        Cost: about 45 us per row of 150,000. Copies no row.
        """
        batch = self._batch_of(stream.host)
        length, tail = stream.length, stream.tail[-2:]
        if batch is None or not 0 < length < ids.size:
            return False
        first, tokens = batch.tokens()
        at = length - 1 - first  # of the newest token that the draft follows
        if not batch.first_row() <= at < tokens.size or tokens[at] != tail[-1]:
            return False
        shown = tokens[at + 1 :]
        if not np.array_equal(shown, stream.draft[: shown.size]):
            return False
        if not np.array_equal(ids[length - tail.size : length], tail):
            return False
        rows = batch.rows(at, min(tokens.size, at + MOST_ROWS))
        if rows is not None:
            self._drafter.observe_logits(stream.slot, rows)
        return rows is not None

    def observe_text(self, stream: Stream, ids: TokenIds) -> None:
        """Show the newest rows of a pass over `ids` itself, such as a prompt; all rows it has.

        Call it when the drafter was told of `ids`.
        """
        batch = self._batch_of(stream.host)
        if batch is None:
            return
        first, tokens = batch.tokens()
        stop = min(tokens.size, ids.size - 1 - first)  # the newest token is not evaluated yet
        start = max(batch.first_row(), stop - MOST_ROWS)
        if start < stop and np.array_equal(tokens[:stop], ids[first : first + stop]):
            rows = batch.rows(start, stop)
            if rows is not None:
                self._drafter.observe_logits(stream.slot, rows, first + start)

    def _batch_of(self, host: Host) -> LastBatch | None:
        batch = self._batches.get(host)
        if batch is None and self._useful:
            llama = host.llama()
            if llama is not None and llama._batch.batch is not None:
                batch = self._batches[host] = LastBatch(llama)
        return batch
