"""Batches: many drafts in one call, and whole recorded requests."""

from libc.string cimport memcmp, memcpy

from ngramspec._arguments cimport token_view
from ngramspec._driver cimport ReplayC, SlotC, draft_right, driver_accept, driver_propose, driver_replay
from ngramspec._offers cimport offers_learn, offers_share
from ngramspec._types cimport STATUS_OK, Status, int32_t, int64_t, token_t, uint64_t

import numpy as np

from ngramspec.errors import InputError
from ngramspec.stats import Replay

cdef enum:
    TAIL = 32     # newest tokens of a history that are compared with a row
    PROBES = 4    # and older ones, others each time
    MANY = 64     # of those where slots are to be told apart


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
        with self._lock:  # once: a draft that another call makes in between may be longer than a row
            if self._policy is not None:
                offers_share(self, self._policy, slot_view, limits, rows.shape[1])
            with nogil:
                for i in range(slot_view.shape[0]):
                    if self._policy is None:
                        limit = limits[i] if limits[i] < rows.shape[1] else rows.shape[1]
                        driver_propose(&self.d, slot_view[i], limit)
                    length = self.d.slots[slot_view[i]].draft_len
                    if length:
                        memcpy(&rows[i, 0], self.d.slots[slot_view[i]].draft, <size_t>length * sizeof(token_t))
                    lens[i] = <int32_t>length

    def follow_batch(self, slots, token_ids, lengths, accepted):
        """Take up what the rows of an engine's token table have more than their slots.

        For engines that show whole texts without saying whose they are. A row continues its slot
        where it holds the newest tokens of the slot's history at their places, and some older ones,
        others on each call; `accept` is called for what follows. Other rows are left to the caller.

        Args:
            slots: int32, shape (b,), the slot of each row, -1 for none; each slot once at most.
            token_ids: int32, shape (r, w), C-contiguous, r >= b. Not kept; read only at a few places.
            lengths: int32, shape (b,), tokens in each row, 0..w.
            accepted: int32, shape (b,), writable. Receives how many tokens of the pending draft were
                right, at most the new tokens but one; -1 where the row does not continue the slot,
                or has an id below 0: the slot is unchanged then.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            MemoryError: No room. The rows before are done, `accepted` says which.

        Cost: O(b + new tokens), independent of the histories. Threads: keeps the GIL with a policy.
        """
        cdef const int32_t[::1] slot_view, length_view
        cdef const token_t[:, ::1] rows
        cdef int32_t[::1] done
        cdef Py_ssize_t i, emitted = 0, batch_tokens = 0
        cdef bint full = False
        try:
            slot_view, rows, length_view, done = slots, token_ids, lengths, accepted
        except (ValueError, TypeError, BufferError) as error:
            raise _bad_rows("accepted", error) from None
        if not slot_view.shape[0] == length_view.shape[0] == done.shape[0] <= rows.shape[0]:
            raise InputError(f"slots, lengths and accepted must have one length, at most that of token_ids, got "
                             f"{slot_view.shape[0]}, {length_view.shape[0]}, {done.shape[0]} and {rows.shape[0]}")
        for i in range(slot_view.shape[0]):
            _check_row(self, slot_view[i], length_view[i], rows.shape[1])
            done[i] = -1
        with self._lock:
            if self._policy is None:
                with nogil:
                    for i in range(slot_view.shape[0]):
                        done[i] = _follow(self, slot_view[i], &rows[i, 0], length_view[i])
                        if done[i] == NO_ROOM:
                            full = True
                            break
            else:
                for i in range(slot_view.shape[0]):
                    full = _follow_taught(self, slot_view[i], &rows[i, 0], length_view[i], &done[i], &emitted,
                                          &batch_tokens)
                    if full:
                        break
                if batch_tokens:
                    self._policy.add_step(emitted, batch_tokens, 0.0)
        if full:
            done[i] = -1
            raise MemoryError(f"follow_batch: no memory for the tokens of row {i}")

    def find_slots(self, slots, token_ids, lengths, rows, found):
        """Find the slots whose histories rows of an engine's token table begin with.

        For rows that moved, came back or go on with an earlier text. Histories are compared at
        their newest tokens and at some places spread over the others.

        Args:
            slots: int32, shape (s,), the slots to choose from, active or not.
            token_ids: int32, shape (r, w), C-contiguous. Not kept.
            lengths: int32, shape (l,), tokens in each row, 0..w.
            rows: int32, shape (m,), the rows to find slots for, below r and l.
            found: int32, shape (m,), writable. Receives the slot with the longest such history, the
                first of them in `slots`, each slot once; -1 for none. Empty histories are not found.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.

        Cost: O(m * s), independent of the histories. Threads: releases the GIL.
        """
        cdef const int32_t[::1] slot_view, length_view, row_view
        cdef const token_t[:, ::1] table
        cdef int32_t[::1] out
        cdef Py_ssize_t i
        try:
            slot_view, table, length_view, row_view, out = slots, token_ids, lengths, rows, found
        except (ValueError, TypeError, BufferError) as error:
            raise _bad_rows("found", error) from None
        if out.shape[0] != row_view.shape[0]:
            raise InputError(f"rows and found must have one length, got {row_view.shape[0]} and {out.shape[0]}")
        for i in range(row_view.shape[0]):
            if not 0 <= row_view[i] < min(table.shape[0], length_view.shape[0]):
                raise InputError(f"rows must be in 0..{min(table.shape[0], length_view.shape[0]) - 1}, got {row_view[i]}")
            _check_row(self, -1, length_view[row_view[i]], table.shape[1])
        for i in range(slot_view.shape[0]):
            self._slot(slot_view[i])
        with nogil, self._lock:
            for i in range(row_view.shape[0]):
                out[i] = _longest(self, slot_view, &table[row_view[i], 0], length_view[row_view[i]], out, i)

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


cdef enum:
    OTHER = -1    # the row does not continue the slot
    NO_ROOM = -2  # no memory


cdef bint _fits(const SlotC* s, const token_t* row, Py_ssize_t length, Py_ssize_t probes) noexcept nogil:
    """Tell whether a row holds the history as far as its newest tokens and `probes` of the others say."""
    cdef Py_ssize_t held = s.history.len, known = s.base + held
    cdef Py_ssize_t tail = held if held < TAIL else TAIL
    cdef Py_ssize_t i, place
    if length < known or memcmp(row + known - tail, s.history.tokens + held - tail, <size_t>tail * sizeof(token_t)):
        return False
    for i in range(probes if held > tail else 0):
        place = <Py_ssize_t>((((<uint64_t>known + <uint64_t>i) * <uint64_t>0x9E3779B97F4A7C15) >> 33)
                             * <uint64_t>(held - tail) >> 31)
        if row[s.base + place] != s.history.tokens[place]:
            return False
    return True


cdef int32_t _follow(Batches drafter, Py_ssize_t slot, const token_t* row, Py_ssize_t length) noexcept nogil:
    """Take up the rest of a row; return the accepted tokens, OTHER or NO_ROOM."""
    cdef SlotC* s = &drafter.d.slots[slot]
    cdef Py_ssize_t known, i, accepted
    if slot < 0 or not s.active or not _fits(s, row, length, PROBES):
        return OTHER
    known = s.base + s.history.len
    for i in range(known, length):
        if row[i] < 0:
            return OTHER
    if length == known:
        return 0
    accepted = draft_right(s, row + known, length - known - 1)
    if driver_accept(&drafter.d, slot, row + known, length - known, accepted) != STATUS_OK:
        return NO_ROOM
    return <int32_t>accepted


cdef int _follow_taught(Batches drafter, Py_ssize_t slot, const token_t* row, Py_ssize_t length, int32_t* accepted,
                        Py_ssize_t* emitted, Py_ssize_t* batch_tokens) except -1:
    """The same, and teach the policy about the sources; add up the pass. True when there is no room."""
    cdef SlotC* s = &drafter.d.slots[slot]
    cdef Py_ssize_t known, drafted
    cdef bint asked
    if slot < 0:
        return False
    known, drafted, asked = s.base + s.history.len, s.draft_len, s.asked
    accepted[0] = _follow(drafter, slot, row, length)
    if accepted[0] >= 0 and asked and length > known:
        offers_learn(drafter, drafter._policy, slot, row + known, length - known)
        emitted[0] += length - known
        batch_tokens[0] += 1 + drafted
    return accepted[0] == NO_ROOM


cdef int32_t _longest(Batches drafter, const int32_t[::1] slots, const token_t* row, Py_ssize_t length,
                      const int32_t[::1] taken, Py_ssize_t num_taken) noexcept nogil:
    """Return the slot with the longest history that a row begins with, none of those taken."""
    cdef SlotC* s
    cdef Py_ssize_t i, j, known, longest = 0
    cdef int32_t best = -1
    for i in range(slots.shape[0]):
        s = &drafter.d.slots[slots[i]]
        known = s.base + s.history.len
        if s.history.len == 0 or not longest < known <= length or not _fits(s, row, length, MANY):
            continue
        for j in range(num_taken):
            if taken[j] == slots[i]:
                break
        else:
            best, longest = slots[i], known
    return best


cdef int _check_row(Batches drafter, Py_ssize_t slot, Py_ssize_t length, Py_ssize_t width) except -1:
    if slot < -1:
        raise InputError(f"slots must be -1 or a slot, got {slot}")
    if slot >= 0:
        drafter._slot(slot)
    if not 0 <= length <= width:
        raise InputError(f"lengths must be in 0..{width} (the width of token_ids), got {length}")
    if width == 0:
        raise InputError("token_ids must have a width of at least 1")
    return 0


cdef object _bad_rows(str result, error):
    return InputError(f"token_ids must be int32 of shape (r, w), {result} writable int32 and all others int32, "
                      f"C-contiguous: {error}")
