"""Proposer: drafts for all slots of a step; native drafters are asked without Python."""

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ngramspec._auto cimport AutoPolicy
from ngramspec._candidate cimport CandidateC
from ngramspec._driver cimport SlotC, driver_propose, driver_shorten
from ngramspec._figures cimport EngineStats
from ngramspec._gate cimport policy_limit
from ngramspec._offers cimport offers_ask, offers_best
from ngramspec._plan cimport Plan
from ngramspec._slot cimport Slot
from ngramspec._types cimport int64_t, ngs_now_ns, token_t, uint8_t


@cython.final
cdef class Proposer:
    """Proposer(plan, policy, valid, stats, most_behind=-1): asks for drafts. The second part of a step.

    Args:
        plan: The step's; its slots are asked.
        policy: A DraftPolicy.
        valid: uint8, one per token of the vocabulary: 1 where a draft may hold it. Drafts are cut
            before the first other token.
        stats: Counters.
        most_behind: A slot that has more pending tokens gets no draft, -1 = no bound.
    """

    cdef Plan plan
    cdef object policy
    cdef AutoPolicy auto          # the policy, where it is one
    cdef CandidateC* candidates   # one per slot, of an AutoPolicy
    cdef const uint8_t[::1] valid
    cdef Py_ssize_t most_behind
    cdef readonly Py_ssize_t bare, decoding  # tokens of the pass without drafts, and slots that share it
    cdef EngineStats stats

    def __cinit__(self, Plan plan not None, policy, const uint8_t[::1] valid not None, EngineStats stats not None,
                  Py_ssize_t most_behind=-1):
        self.plan, self.policy, self.valid, self.stats = plan, policy, valid, stats
        self.most_behind = most_behind
        self.auto = policy if isinstance(policy, AutoPolicy) else None
        self.candidates = <CandidateC*>calloc(<size_t>len(plan.slots) + 1, sizeof(CandidateC))
        if self.candidates == NULL:
            raise MemoryError("no memory for drafts")

    def __dealloc__(self):
        free(self.candidates)

    def propose(self):
        """Set the drafts of slots with one native source; return the others that have sources, a list.

        Cost: O(slots + drafted tokens). Threads: keeps the GIL.
        """
        cdef Slot slot
        cdef list others = []
        cdef list asked = []
        cdef int64_t started = 0
        if self.auto is not None:
            self.count_tokens()
        for slot in self.plan.work:
            if not (slot.decoding and slot._sources and slot.count == slot.length - slot.num_past):
                continue
            if 0 <= self.most_behind < slot.count:
                continue
            if started == 0:
                started = ngs_now_ns()
            if slot.native is None:
                others.append(slot)
            elif self.auto is None:
                self.ask(slot)
            elif self.offer(slot, &self.candidates[len(asked)]):
                asked.append(slot)
        if asked:
            self.choose(asked)
        if started:
            self.stats.draft_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return others

    def limit(self, Slot slot not None, str source not None):
        """Return the longest draft that a slot may get from a source now."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity)
        return min(policy_limit(self.policy, slot.id, source), room)

    def batch_tokens(self):
        """Return how many tokens the pass holds now, the drafts that are set included."""
        cdef Py_ssize_t total = self.bare
        cdef Slot slot
        for slot in self.plan.work:
            total += slot.num_guessed
        return total

    cdef bint offer(self, Slot slot, CandidateC* candidate) except -1:
        """Let a slot's sources draft as far as they can; tell whether there is something to choose from."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity)
        cdef Py_ssize_t longest = self.auto.limit(slot.id, slot.native_name)
        cdef Py_ssize_t i
        cdef SlotC* s
        if room <= 0 or longest <= 0:
            return False
        with slot.native._lock:
            s = &slot.native.d.slots[slot.id]
            if not (s.active and offers_ask(slot.native, slot.id, min(room, longest))):
                return False
            for i in range(slot.native.d.num_sources):
                s.made[i] = self.leading_valid(s.rows + i * slot.native.d.max_draft, s.made[i])
            if not offers_best(slot.native, self.auto, slot.id, room, self.bare, self.decoding, candidate):
                return False
            # Copied now: once the lock is given back, another call may put another draft in its place.
            memcpy(slot.guess, s.draft, <size_t>min(s.draft_len, room) * sizeof(token_t))
        return True

    cdef int choose(self, list asked) except -1:
        """Share the pass among the slots' candidates, and cut their drafts to what each was given."""
        cdef Py_ssize_t i = 0
        cdef Slot slot
        self.auto.choose_all(self.candidates, len(asked), self.bare, self.decoding, self.plan.capacity)
        for slot in asked:
            with slot.native._lock:
                driver_shorten(&slot.native.d, slot.id, self.candidates[i].chosen)
            slot.num_guessed = self.candidates[i].chosen
            slot.draft_source = slot._sources[0] if slot.num_guessed else None
            i += 1
        return 0

    cdef int count_tokens(self) except -1:
        """Set what the pass holds without drafts."""
        cdef Slot slot
        self.bare = self.decoding = 0
        for slot in self.plan.work:
            self.bare += slot.count
            self.decoding += slot.decoding
        self.decoding = max(self.decoding, <Py_ssize_t>1)
        return 0

    cdef Py_ssize_t leading_valid(self, const token_t* draft, Py_ssize_t n):
        """Return how many of n tokens come before the first one that a draft may not hold."""
        cdef Py_ssize_t i
        for i in range(n):
            if draft[i] >= self.valid.shape[0] or not self.valid[draft[i]]:
                return i
        return n

    cdef int ask(self, Slot slot) except -1:
        cdef Py_ssize_t limit = policy_limit(self.policy, slot.id, slot.native_name)
        cdef Py_ssize_t length = 0
        cdef token_t* draft
        limit = min(limit, slot.draft_room(self.plan.capacity))
        if limit <= 0:
            return 0
        with slot.native._lock:
            if slot.native.d.slots[slot.id].active:
                length = driver_propose(&slot.native.d, slot.id, limit)
                draft = slot.native.d.slots[slot.id].draft
                length = self.leading_valid(draft, length)
                driver_shorten(&slot.native.d, slot.id, length)
                memcpy(slot.guess, draft, <size_t>length * sizeof(token_t))
        slot.num_guessed = length
        slot.draft_source = slot._sources[0] if length else None
        return 0
