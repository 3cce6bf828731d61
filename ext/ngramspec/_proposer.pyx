"""Proposer: drafts for all slots of a step; native drafters are asked without Python."""

cimport cython
from libc.string cimport memcpy

from ngramspec._driver cimport driver_propose
from ngramspec._figures cimport EngineStats
from ngramspec._gate cimport policy_limit
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
    cdef const uint8_t[::1] valid
    cdef Py_ssize_t most_behind
    cdef EngineStats stats

    def __cinit__(self, Plan plan not None, policy, const uint8_t[::1] valid not None, EngineStats stats not None,
                  Py_ssize_t most_behind=-1):
        self.plan, self.policy, self.valid, self.stats = plan, policy, valid, stats
        self.most_behind = most_behind

    def propose(self):
        """Set the drafts of slots with one native source; return the others that have sources, a list.

        Cost: O(slots + drafted tokens). Threads: keeps the GIL.
        """
        cdef Slot slot
        cdef list others = []
        cdef int64_t started = 0
        for slot in self.plan.work:
            if not (slot.decoding and slot._sources and slot.count == slot.length - slot.num_past):
                continue
            if 0 <= self.most_behind < slot.count:
                continue
            if started == 0:
                started = ngs_now_ns()
            if slot.native is None:
                others.append(slot)
            else:
                self.ask(slot)
        if started:
            self.stats.draft_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return others

    def limit(self, Slot slot not None, str source not None):
        """Return the longest draft that a slot may get from a source now."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity)
        return min(policy_limit(self.policy, slot.id, source), room)

    cdef int ask(self, Slot slot) except -1:
        cdef Py_ssize_t limit = policy_limit(self.policy, slot.id, slot.native_name)
        cdef Py_ssize_t length = 0, i
        cdef token_t* draft
        limit = min(limit, slot.draft_room(self.plan.capacity))
        if limit <= 0:
            return 0
        with slot.native._lock:
            if slot.native.d.slots[slot.id].active:
                length = min(limit, driver_propose(&slot.native.d, slot.id, limit))
                draft = slot.native.d.slots[slot.id].draft
                for i in range(length):
                    if draft[i] >= self.valid.shape[0] or not self.valid[draft[i]]:
                        length = i
                        break
                memcpy(slot.guess, draft, <size_t>length * sizeof(token_t))
        slot.num_guessed = length
        slot.draft_source = slot._sources[0] if length else None
        return 0
