"""Batches: many drafts in one call, and whole recorded requests."""

from libc.string cimport memcpy

from ngramspec._arguments cimport token_view
from ngramspec._driver cimport ReplayC, driver_propose, driver_replay
from ngramspec._offers cimport offers_share
from ngramspec._types cimport STATUS_OK, Status, int32_t, int64_t, token_t

import numpy as np

from ngramspec.errors import InputError
from ngramspec.stats import Replay


cdef class Batches(Trees):
    """Batches(sources, slots, max_history, policy): slots that draft together; base of Drafter."""

    def propose_batch(self, slots, max_tokens, out, out_lens):
        """Draft for many slots in one call; with a policy they share the pass that verifies.

        Args:
            slots: int32, shape (b,). Each must have an active request.
            max_tokens: Longest draft wanted, >= 0. int32, shape (b,), one per slot, or one int for all.
            out: int32, shape (b, w), C-contiguous, writable. Row i receives the draft of slots[i];
                drafts are cut to w tokens; what lies behind a draft is left as it was.
            out_lens: int32, shape (b,), writable. Receives the draft lengths.

        Raises:
            InputError: An array is not as described, or a slot is out of range. Nothing is changed.
            StateError: A slot has no active request. Nothing is changed.

        Cost: O(b + drafted tokens). Threads: releases the GIL.
        """
        cdef const int32_t[::1] slot_view = token_view(slots, "slots")
        if isinstance(max_tokens, int):
            max_tokens = [max_tokens] * slot_view.shape[0]
        cdef const int32_t[::1] limits = token_view(max_tokens, "max_tokens")
        cdef int32_t[:, ::1] rows
        cdef int32_t[::1] lens
        cdef Py_ssize_t i, limit, length
        try:
            rows = out
            lens = out_lens
        except (ValueError, TypeError, BufferError) as error:
            raise InputError(f"out must be writable int32 of shape (b, w) and out_lens of shape (b,): {error}") from None
        if not slot_view.shape[0] == limits.shape[0] == rows.shape[0] == lens.shape[0]:
            raise InputError(f"slots, max_tokens, out and out_lens must have one length, got {slot_view.shape[0]}, "
                             f"{limits.shape[0]}, {rows.shape[0]} and {lens.shape[0]}")
        for i in range(slot_view.shape[0]):
            self._active(slot_view[i], "propose_batch")
        if self._policy is not None:
            with self._lock:
                offers_share(self, self._policy, slot_view, limits, rows.shape[1])
        with nogil, self._lock:
            for i in range(slot_view.shape[0]):
                limit = limits[i] if limits[i] < rows.shape[1] else rows.shape[1]
                if self._policy is None:
                    driver_propose(&self.d, slot_view[i], limit)
                length = self.d.slots[slot_view[i]].draft_len
                if length:
                    memcpy(&rows[i, 0], self.d.slots[slot_view[i]].draft, <size_t>length * sizeof(token_t))
                lens[i] = <int32_t>length

    def replay(self, prompt, output, Py_ssize_t max_tokens=0, Py_ssize_t slot=0):
        """Run a recorded request as if the target had chosen its output, and count the steps.

        Begins on the slot, then drafts and accepts the longest right prefix of each draft plus one
        token until the output is used up. The slot is left active with the whole text.

        Args:
            prompt: int32, shape (n,).
            output: int32, shape (m,). The first token counts as sampled before the first draft.
            max_tokens: Longest draft per step; 0 = only the rest of the output limits it.
            slot: 0 <= slot < slots.

        Returns:
            Replay: steps, drafts, drafted and accepted tokens, draft lengths and times.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            MemoryError: No room; the slot holds the part replayed so far.

        Cost: O(changed prompt tokens + m). Threads: releases the GIL.
        """
        cdef const token_t[::1] prompt_view = token_view(prompt, "prompt")
        cdef const token_t[::1] output_view = token_view(output, "output")
        cdef const token_t* before = &prompt_view[0] if prompt_view.shape[0] else NULL
        cdef const token_t* after = &output_view[0] if output_view.shape[0] else NULL
        cdef int64_t[::1] lengths
        cdef ReplayC r
        cdef Status status
        self._slot(slot)
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        draft_lengths = np.zeros(self.d.max_draft + 1, dtype=np.int64)
        lengths = draft_lengths
        with nogil, self._lock:
            status = driver_replay(&self.d, slot, before, prompt_view.shape[0], after, output_view.shape[0],
                                   max_tokens, &r, &lengths[0])
        if status != STATUS_OK:
            raise MemoryError("replay: no memory for the session")
        return Replay(r.tokens, r.steps, r.drafts, r.drafted, r.accepted, draft_lengths, r.begin_ns, r.step_ns)
