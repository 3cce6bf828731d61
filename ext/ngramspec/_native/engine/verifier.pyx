"""Verifier: chooses the tokens of all slots from a decode's rows and commits them; the last part of a step."""

import time

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ngramspec._native.core.types cimport STATUS_OK, int32_t, int64_t, ngs_now_ns, token_t
from ngramspec._native.drafter.commit cimport commit_tokens
from ngramspec._native.drafter.driver cimport SlotC, draft_right
from ngramspec._native.engine.decode cimport MUCH_TO_READ, CandidateC, Rows, SamplerC
from ngramspec._native.engine.figures cimport EngineStats, Timings
from ngramspec._native.engine.observation cimport slot_observe
from ngramspec._native.engine.plan cimport Plan
from ngramspec._native.engine.slot cimport Slot
from ngramspec._native.engine.transcript cimport ENDING_FULL, ENDING_IMPOSSIBLE, ENDING_NONE, Transcript
from ngramspec._native.engine.tree cimport branch_of
from ngramspec._native.engine.verify cimport next_row, verify_rows
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.costs cimport MOST_TOKENS, PassCosts

from ngramspec.errors import InputError

cdef double MOST_OFF = 16.0      # times what a pass is expected to take; what is beyond does not count
cdef double PLAIN_WINDOW = 32.0  # passes without drafts that tell what one takes


# One slot's rows.
cdef struct CheckC:
    const float* logits
    const token_t* draft
    const int32_t* parents  # NULL = no tree
    Py_ssize_t draft_len
    SamplerC* sampler
    token_t* chosen
    int32_t* rows
    CandidateC* candidates  # top + 1 places per token, NULL where top is -1
    Py_ssize_t top
    Py_ssize_t outcome      # as verify_rows returns it


@cython.final
cdef class Verifier:
    """Verifier(plan, rows, policy, stats): verify and accept. The last part of a step.

    Args:
        plan: The step's plan.
        rows: Where the target's logits are after the decode.
        policy: Learns what came of drafts.
        stats: Counters.

    Raises:
        MemoryError: No room.
    """

    cdef Plan plan
    cdef Rows rows
    cdef AutoPolicy policy
    cdef EngineStats stats
    cdef CheckC* checks
    cdef object clock
    cdef double plain      # a running mean of what passes without drafts take, in what they cost by the policy's first table
    cdef double num_plain  # passes in it

    def __cinit__(self, Plan plan not None, Rows rows not None, AutoPolicy policy not None, EngineStats stats not None):
        self.plan, self.rows, self.policy, self.stats = plan, rows, policy, stats
        self.clock = time.perf_counter
        self.checks = <CheckC*>calloc(<size_t>len(plan.slots) + 1, sizeof(CheckC))
        if self.checks == NULL:
            raise MemoryError("no memory for verification")

    def __dealloc__(self):
        free(self.checks)

    def verify(self):
        """Choose and commit tokens for every slot of the plan whose last pending token was decoded.

        Each token is chosen from its own row by the request's sampler, for as long as the draft
        guessed the token before. Texts, transcripts, native drafters, policy and counters are updated
        here.

        Returns:
            list: Slots that need more work: they have sources that take time or are not native, their answer ends, is
            streamed or wants log-probabilities, their context is full, or a rejected draft must be rolled back.
            `emitted`, `num_drafted`, `num_accepted`, `num_added`, `ending`, `begun` and `taught` hold the results; the caller
            clears their drafts.

        Raises:
            InputError: A row is missing. Nothing is changed then.
            MemoryError: No room.

        Cost: O(slots) and one sampling per emitted token. Threads: releases the GIL where there is much to read.
        """
        cdef Slot slot
        cdef Py_ssize_t i = 0, n
        cdef int64_t started = ngs_now_ns()
        cdef int64_t drafted = self.stats.num_draft_tokens, accepted = self.stats.num_accepted_tokens
        cdef double now
        cdef list left = []
        n = self.choose()
        if n:
            now = self.clock()
            if self.policy._weighs():
                self.note_step(n)
            for slot in self.plan.work:
                slot.num_drafted = slot.num_credited = 0
                if slot.first_row >= 0:
                    self.commit(slot, self.checks[i].outcome)
                    i += 1
                    if self.emit(slot, now):
                        left.append(slot)
                    else:
                        slot.forget_draft()
            drafted = self.stats.num_draft_tokens - drafted
            if self.policy._weighs():
                self.note_saved(n, drafted, self.stats.num_accepted_tokens - accepted)
        self.stats.verify_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return left

    cdef Py_ssize_t choose(self) except -1:
        """Fill the checks and choose tokens; return the number of checks."""
        cdef Slot slot
        cdef CheckC* check
        cdef Py_ssize_t n = 0, read = 0, vocab_size = self.rows.c.vocab_size
        for slot in self.plan.work:
            if slot.first_row < 0:
                continue
            if slot.first_row + slot.num_guessed >= self.rows.c.num_rows:
                raise InputError(f"a draft of {slot.num_guessed} tokens reads rows {slot.first_row}.."
                                 f"{slot.first_row + slot.num_guessed}, but there are {self.rows.c.num_rows}")
            check = &self.checks[n]
            check.logits = self.rows.c.data + slot.first_row * vocab_size
            check.draft, check.draft_len = slot.guess, slot.num_guessed
            check.parents = slot.parents if slot.branched else NULL
            check.sampler = &slot.sampler.c
            check.chosen, check.rows = slot.chosen, slot.rows
            slot.reserve_candidates()
            check.candidates, check.top = slot.candidates, slot.num_candidates
            read += (slot.num_guessed + 1) * vocab_size
            n += 1
        if read < MUCH_TO_READ:
            check_all(self.checks, n, vocab_size)
        else:
            with nogil:
                check_all(self.checks, n, vocab_size)
        return n

    cdef int commit(self, Slot slot, Py_ssize_t outcome) except -1:
        """Add the tokens to the slot's text; update the native drafter and the policy."""
        cdef Py_ssize_t drafted = slot.num_guessed
        cdef Py_ssize_t count = outcome if outcome >= 0 else -1 - outcome
        cdef Py_ssize_t accepted = count - 1 if outcome >= 0 else min(count, drafted)
        cdef Py_ssize_t last = 0  # row after the accepted tokens
        slot.ending = ENDING_NONE if outcome >= 0 else ENDING_IMPOSSIBLE
        slot.num_out, slot.num_drafted, slot.num_accepted = count, drafted, accepted
        slot.begun = count > 0 and not slot.decoding
        slot_observe(slot, &self.rows.c, count)
        slot.branch = 0
        if slot.branched and accepted:
            last = next_row(slot.guess, slot.parents, drafted, slot.rows[accepted - 1], slot.chosen[accepted - 1])
            slot.branch = branch_of(slot.tree[last - 1].branches)
        memcpy(slot.data + slot.length, slot.chosen, <size_t>count * sizeof(token_t))
        slot.length += count
        slot.decoding = slot.decoding or count > 0
        self.add(slot, accepted if slot.draft_source is not None else 0)
        slot.taught = not slot._sources or not slot.decoding
        if slot.native is not None and slot.draft_source is slot.native_source and slot.num_own == 0:
            slot.num_own = drafted  # drafted in Python
        slot.num_own_right = own_right(slot, last)
        if slot.native is not None and slot.decoding and not slot.begun:
            slot.taught = teach(slot)
        if drafted and slot.draft_source is not None:
            self.policy.note_sent(slot.id, slot.draft_source.name, drafted, accepted)
        return 0

    cdef int note_step(self, Py_ssize_t n) except -1:
        """Report to the policy how many tokens the pass emitted, unless it read prompts too."""
        cdef Py_ssize_t emitted = 0, tokens = 0, i
        cdef Slot slot
        for slot in self.plan.work:
            if not slot.decoding or slot.first_row < 0 or slot.count != 1:
                return 0
            tokens += 1 + slot.num_guessed
        for i in range(n):
            emitted += self.checks[i].outcome if self.checks[i].outcome >= 0 else -1 - self.checks[i].outcome
        self.policy.add_step(emitted, tokens, 0.0)
        return 0

    cdef int add(self, Slot slot, Py_ssize_t guessed) except -1:
        """Add the tokens to the answer, of which drafts had guessed some; those behind its end credit nobody."""
        cdef Transcript transcript = slot.transcript
        cdef Py_ssize_t before = transcript.c.len
        cdef int reason = transcript.add_tokens(slot.chosen, slot.num_out, guessed)
        slot.num_added = transcript.c.len - before
        slot.num_credited = min(guessed, slot.num_added)
        if reason != ENDING_NONE:
            slot.ending = reason
        elif slot.ending == ENDING_NONE and slot.length >= slot.size and not slot.shifts:
            slot.ending = ENDING_FULL
        return 0

    cdef int note_saved(self, Py_ssize_t n, int64_t drafted, int64_t accepted) except -1:
        """Count what a pass with drafts of n slots saved: an accepted token its share of a pass without drafts.

        A request has its part by its accepted tokens, and of what drafts added by all its drafted ones. What a pass without
        drafts takes is the mean of the latest ones. The policy's costs would not do: they are too low for sizes that it has
        seen a few times on a busy machine.
        """
        cdef PassCosts costs = self.policy._costs
        cdef Py_ssize_t without = self.plan.tokens - drafted
        cdef double expected = costs.at(self.plan.tokens), seconds = self.plan.seconds, alone
        cdef double each_accepted, each_drafted
        cdef Slot slot
        if costs.timed:  # a halt of the machine is no part of what passes take
            seconds = min(seconds, MOST_OFF * costs.pace * expected)
        if not drafted:
            if without == n:  # no prompt was read
                self.num_plain = min(self.num_plain + 1.0, PLAIN_WINDOW)
                self.plain += (seconds / costs.first[min(n, MOST_TOKENS)] - self.plain) / self.num_plain
            return 0
        alone = self.plain * costs.first[min(n, MOST_TOKENS)]
        if not self.num_plain:
            alone = seconds * min(costs.at(n) / expected, 1.0)
        each_accepted = alone / <double>n
        each_drafted = (seconds - (alone if without == n else seconds * min(costs.at(without) / expected, 1.0))) / <double>drafted
        self.stats.accepted_seconds += each_accepted * <double>accepted
        self.stats.drafted_seconds += each_drafted * <double>drafted
        if costs.timed:
            for slot in self.plan.work:
                slot.timings.saved_seconds += each_accepted * <double>slot.num_credited - each_drafted * <double>slot.num_drafted
        return 0

    cdef int count_draft(self, Slot slot) except -1:
        """Count the slot's draft."""
        cdef Timings timings = slot.timings
        cdef Py_ssize_t own = slot.num_drafted, right = slot.num_credited
        self.stats.add_draft(slot.num_drafted, slot.num_credited)
        timings.num_drafts += 1
        timings.num_draft_tokens += slot.num_drafted
        timings.num_accepted_tokens += slot.num_credited
        if slot.native is None and slot.draft_source.name == "prediction":
            if slot.added_source is not None:
                own, right = slot.num_own, slot.num_own_right
            timings.num_prediction_accepted += right
            timings.num_prediction_rejected += own - right
        return 0

    cdef bint emit(self, Slot slot, double now) except -1:
        """Count what came of the step; return whether the slot needs more work."""
        if slot.num_drafted and slot.draft_source is not None:
            self.count_draft(slot)
        self.note_time(slot, now)
        return (slot.ending != ENDING_NONE or slot.priced or slot.on_chunk is not None or slot.with_logprobs or not slot.taught
                or slot.num_accepted < slot.num_drafted or slot.saved is not None or slot.length >= slot.size)

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
        checks[i].outcome = verify_rows(checks[i].logits, vocab_size, checks[i].draft, checks[i].parents,
                                        checks[i].draft_len, checks[i].sampler, checks[i].chosen, checks[i].rows,
                                        checks[i].candidates, checks[i].top)


cdef Py_ssize_t own_right(Slot slot, Py_ssize_t last) noexcept nogil:
    """Return how many right tokens are among the first num_own of the draft, where two sources may have made it."""
    cdef Py_ssize_t i, row, right = 0
    if not slot.branched:
        return min(slot.num_credited, slot.num_own)
    for i in range(slot.num_credited):  # what comes after an added token was added, too
        row = slot.rows[i + 1] if i + 1 < slot.num_accepted else last
        right += not slot.tree[row - 1].added
    return right


cdef bint teach(Slot slot):
    """Commit the emitted tokens to the slot's native drafter; False if Python must do it, to raise its error."""
    cdef SlotC* s = &slot.native.d.slots[slot.id]
    cdef Py_ssize_t credited = slot.num_own_right
    with slot.native._lock:
        if not s.active or credited > draft_right(s, slot.chosen, slot.num_out):
            return False
        return commit_tokens(&slot.native.d, slot.native._judge, slot.id, slot.chosen, slot.num_out, credited,
                             NULL) == STATUS_OK
