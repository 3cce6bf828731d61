"""Verifier: choose the tokens of all slots from a decode's rows and commit them."""

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ngramspec._auto cimport AutoPolicy
from ngramspec._driver cimport SlotC, draft_right, driver_accept
from ngramspec._figures cimport EngineStats, Timings
from ngramspec._gate cimport policy_record
from ngramspec._offers cimport offers_learn
from ngramspec._plan cimport Plan
from ngramspec._rows cimport Rows
from ngramspec._sampler cimport SamplerC
from ngramspec._slot cimport Slot
from ngramspec._transcript cimport ENDING_FULL, ENDING_IMPOSSIBLE, ENDING_NONE, Transcript
from ngramspec._types cimport STATUS_OK, int64_t, ngs_now_ns, token_t
from ngramspec._verify cimport MUCH_TO_READ, verify_rows

import time

from ngramspec.errors import InputError

# One slot's rows.
cdef struct CheckC:
    const float* row
    const token_t* draft
    Py_ssize_t draft_len
    SamplerC* sampler
    token_t* chosen
    Py_ssize_t made        # as verify_rows returns it


@cython.final
cdef class Verifier:
    """Verifier(plan, rows, policy, stats): verifies and accepts. The last part of a step.

    Args:
        plan: The step's.
        rows: Where the target's logits are after the decode.
        policy: A DraftPolicy; learns what came of drafts.
        stats: Counters.

    Raises:
        MemoryError: No room.
    """

    cdef Plan plan
    cdef Rows rows
    cdef object policy
    cdef AutoPolicy auto  # the policy, where it is one
    cdef EngineStats stats
    cdef CheckC* checks
    cdef object clock

    def __cinit__(self, Plan plan not None, Rows rows not None, policy, EngineStats stats not None):
        self.plan, self.rows, self.policy, self.stats = plan, rows, policy, stats
        self.auto = policy if isinstance(policy, AutoPolicy) else None
        self.clock = time.perf_counter
        self.checks = <CheckC*>calloc(<size_t>len(plan.slots) + 1, sizeof(CheckC))
        if self.checks == NULL:
            raise MemoryError("no memory for verification")

    def __dealloc__(self):
        free(self.checks)

    def verify(self):
        """Choose and commit tokens for every slot of the plan whose last pending token was decoded.

        Each token is chosen from its own row by the request's sampler, for as long as the draft
        guessed the token before. Texts, transcripts, native drafters, policy and counters learn of
        them here.

        Returns:
            list: Slots that are not done: their answer ends or is streamed, wants log-probabilities, a
            rejected draft must be taken back, or their sources are not native. What happened is in
            `emitted`, `num_drafted`, `num_accepted`, `num_added`, `ending`, `begun` and `taught`; their
            drafts are the caller's to clear.

        Raises:
            InputError: A row is missing. Nothing is changed then.
            MemoryError: No room.

        Cost: O(slots) and one sampling per emitted token. Threads: releases the GIL to read much.
        """
        cdef Slot slot
        cdef Py_ssize_t i = 0, n
        cdef int64_t started = ngs_now_ns()
        cdef double now
        cdef list left = []
        n = self.choose()
        if n:
            now = self.clock()
            if self.auto is not None:
                self.note_step(n)
            for slot in self.plan.work:
                if slot.first_row >= 0:
                    self.commit(slot, self.checks[i].made)
                    i += 1
                    if self.emit(slot, now):
                        left.append(slot)
                    else:
                        slot.forget_draft()
        self.stats.verify_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return left

    cdef Py_ssize_t choose(self) except -1:
        """Fill checks and choose; return their number."""
        cdef Slot slot
        cdef CheckC* check
        cdef Py_ssize_t n = 0, read = 0, vocab_size = self.rows.c.vocab_size
        for slot in self.plan.work:
            if slot.first_row < 0:
                continue
            if slot.first_row + slot.num_guessed >= self.rows.c.num_rows:
                raise InputError(f"a draft of {slot.num_guessed} tokens needs as many rows after {slot.first_row} of "
                                 f"{self.rows.c.num_rows}")
            check = &self.checks[n]
            check.row = self.rows.c.data + slot.first_row * vocab_size
            check.draft, check.draft_len = slot.guess, slot.num_guessed
            check.sampler = &slot.sampler.c
            check.chosen = slot.chosen
            read += (slot.num_guessed + 1) * vocab_size
            n += 1
        if read < MUCH_TO_READ:
            check_all(self.checks, n, vocab_size)
        else:
            with nogil:
                check_all(self.checks, n, vocab_size)
        return n

    cdef int commit(self, Slot slot, Py_ssize_t made) except -1:
        """Add the tokens to the slot's text and tell the native drafter and the policy."""
        cdef Py_ssize_t drafted = slot.num_guessed
        cdef Py_ssize_t count = made if made >= 0 else -1 - made
        cdef Py_ssize_t accepted = count - 1 if made >= 0 else min(count, drafted)
        slot.ending = ENDING_NONE if made >= 0 else ENDING_IMPOSSIBLE
        slot.num_out, slot.num_drafted, slot.num_accepted = count, drafted, accepted
        slot.begun = count > 0 and not slot.decoding
        memcpy(slot.data + slot.length, slot.chosen, <size_t>count * sizeof(token_t))
        slot.length += count
        slot.decoding = slot.decoding or count > 0
        slot.taught = not slot._sources or not slot.decoding
        if slot.native is not None and slot.decoding and not slot.begun:
            slot.taught = teach(slot, self.auto)
        if drafted and slot.draft_source is not None:
            policy_record(self.policy, slot.id, slot.draft_source.name, drafted, accepted)
            self.count_draft(slot)
        return 0

    cdef int note_step(self, Py_ssize_t n) except -1:
        """Tell an AutoPolicy how many tokens the pass gave, unless it read prompts too."""
        cdef Py_ssize_t emitted = 0, tokens = 0, i
        cdef Slot slot
        for slot in self.plan.work:
            if not slot.decoding or slot.first_row < 0 or slot.count != 1:
                return 0
            tokens += 1 + slot.num_guessed
        for i in range(n):
            emitted += self.checks[i].made if self.checks[i].made >= 0 else -1 - self.checks[i].made
        self.auto.add_step(emitted, tokens, 0.0)
        return 0

    cdef int count_draft(self, Slot slot) except -1:
        cdef Timings timings = slot.timings
        self.stats.add_draft(slot.num_drafted, slot.num_accepted)
        timings.num_drafts += 1
        timings.num_draft_tokens += slot.num_drafted
        timings.num_accepted_tokens += slot.num_accepted
        if slot.native is None and slot.draft_source.name == "prediction":
            timings.num_prediction_accepted += slot.num_accepted
            timings.num_prediction_rejected += slot.num_drafted - slot.num_accepted
        return 0

    cdef bint emit(self, Slot slot, double now) except -1:
        """Add the tokens to the answer; tell whether more is to be done than that."""
        cdef Transcript transcript = slot.transcript
        cdef Py_ssize_t before = transcript.c.len
        cdef int reason = transcript.add_tokens(slot.chosen, slot.num_out, slot.num_accepted)
        slot.num_added = transcript.c.len - before
        if reason != ENDING_NONE:
            slot.ending = reason
        elif slot.ending == ENDING_NONE and slot.length >= slot.size:
            slot.ending = ENDING_FULL
        self.note_time(slot, now)
        return (slot.ending != ENDING_NONE or slot.on_chunk is not None or slot.with_logprobs or not slot.taught
                or slot.num_accepted < slot.num_drafted or slot.saved is not None)

    cdef void note_time(self, Slot slot, double now):
        cdef Timings timings = slot.timings
        cdef EngineStats stats = self.stats
        stats.num_emitted_tokens += slot.num_added
        stats.num_slot_steps += 1
        timings.num_steps += 1
        if timings.first_token == 0.0:
            timings.first_token = now
            stats.time_to_first_token.add(now - timings.submitted, 1)
        elif slot.num_added:
            stats.inter_token_latency.add((now - timings.last_token) / <double>slot.num_added, slot.num_added)
        timings.last_token = now


cdef void check_all(CheckC* checks, Py_ssize_t n, Py_ssize_t vocab_size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        checks[i].made = verify_rows(checks[i].row, vocab_size, checks[i].draft, checks[i].draft_len,
                                     checks[i].sampler, checks[i].chosen)


cdef bint teach(Slot slot, AutoPolicy auto) except -1:
    """Tell the slot's native drafter what was emitted; False when it must be told in Python, to hear its error.

    An AutoPolicy learns what came of all drafts, sent or not.
    """
    cdef SlotC* s = &slot.native.d.slots[slot.id]
    cdef bint taught, asked
    with slot.native._lock:
        if not s.active or slot.num_accepted > draft_right(s, slot.chosen, slot.num_out):
            return False
        asked = s.asked
        taught = driver_accept(&slot.native.d, slot.id, slot.chosen, slot.num_out, slot.num_accepted) == STATUS_OK
        if taught and asked and auto is not None:
            offers_learn(slot.native, auto, slot.id, slot.chosen, slot.num_out)
    return taught
