"""Plan: which tokens of which slots are in the next decode; the first part of a step."""

import time

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._native.engine.decode cimport Batch
from ngramspec._native.engine.figures cimport EngineStats
from ngramspec._native.engine.slot cimport Slot
from ngramspec._native.engine.tree cimport tree_arrange

from ngramspec.errors import CapacityError, InputError


cdef void share_room(Py_ssize_t* claims, Py_ssize_t n, Py_ssize_t room) noexcept nogil:
    """Cut claims to fit room: claims up to a common level are met, larger ones are cut to it."""
    cdef Py_ssize_t total = 0, left = n, i, part
    cdef Py_ssize_t low = -1, smallest  # claims up to `low` are settled
    for i in range(n):
        total += claims[i]
    if total <= room:
        return
    # The smallest claims are met for as long as each is no more than an equal share of what is left.
    while left:
        smallest = -1
        for i in range(n):
            if claims[i] > low and (smallest < 0 or claims[i] < smallest):
                smallest = claims[i]
        if smallest * left > room:
            break
        for i in range(n):
            if claims[i] == smallest:
                room -= smallest
                left -= 1
        low = smallest
    for i in range(n):
        if claims[i] > low:
            part = room // left
            room -= part
            left -= 1
            claims[i] = part


def share(demands, Py_ssize_t room):
    """Share room among claims: those up to a common level are met, larger ones are cut to it.

    Args:
        demands: Claims, each >= 0.
        room: What there is to share, >= 0.

    Returns:
        list: What each claim gets; the sum is min(sum(demands), room).

    Raises:
        MemoryError: No room for the work.

    >>> share([8, 2, 8], 12)
    [5, 2, 5]
    """
    cdef Py_ssize_t i, n = len(demands)
    cdef Py_ssize_t* claims = <Py_ssize_t*>calloc(<size_t>n + 1, sizeof(Py_ssize_t))
    if claims == NULL:
        raise MemoryError("no memory for the claims")
    try:
        for i in range(n):
            claims[i] = demands[i]
        share_room(claims, n, max(room, <Py_ssize_t>0))
        return [claims[i] for i in range(n)]
    finally:
        free(claims)


@cython.final
cdef class Plan:
    """Plan(slots, capacity, outputs=0, shorten=None): choose what a decode holds. The first part of a step.

    Args:
        slots: All slots of the engine.
        capacity: Most tokens in one decode, at least one per slot.
        outputs: Most rows of logits in one decode, at least one per slot; 0 = one for each token.
        shorten: Called with a slot and how many tokens of its draft stay, before others are dropped; must not raise.

    Raises:
        InputError: capacity or outputs is too small.
        MemoryError: No room.
    """

    def __cinit__(self, slots, Py_ssize_t capacity, Py_ssize_t outputs=0, shorten=None):
        self.slots = tuple(slots)
        self.capacity = capacity
        self.outputs = min(outputs, capacity) if outputs else capacity
        self.work = []
        self.clock, self.shorten = time.perf_counter, shorten
        if capacity < max(len(self.slots), 1):
            raise InputError(f"capacity must be at least one token per slot, {len(self.slots)}, got {capacity}")
        if self.outputs < max(len(self.slots), 1):
            raise InputError(f"outputs must be 0 or at least one row per slot, {len(self.slots)}, got {outputs}")
        self.claims = <Py_ssize_t*>calloc(<size_t>len(self.slots) + 1, sizeof(Py_ssize_t))
        if self.claims == NULL:
            raise MemoryError("no memory for the plan")

    def __dealloc__(self):
        free(self.claims)

    def __len__(self):
        return len(self.work)

    @property
    def members(self):
        """Return the slots in the decode, a new list: decoding ones first, then prompts by age."""
        return list(self.work)

    def needs_schedule(self, bint waiting):
        """Return whether a waiting request can have a slot, or a running one's deadline has passed."""
        cdef Slot slot
        cdef double now = 0.0
        for slot in self.slots:
            if waiting and slot.generation is None:
                return True
            if slot.deadline > 0.0 and slot.generation is not None:
                if now == 0.0:
                    now = self.clock()
                if now > slot.deadline:
                    return True
        return False

    def make(self):
        """Choose what each running slot decodes next, still without drafts; return the number of slots.

        Preempted slots are left out. Decoding slots come first; if their texts must be recomputed they share the capacity.
        Prompts get the rest in the order of their arrival. Drafts of the previous step are dropped.
        """
        cdef Slot slot
        cdef Py_ssize_t room = self.capacity, i
        cdef list prompts = []
        self.work.clear()
        for slot in self.slots:
            slot.forget_draft()
            slot.count = 0
            if slot.generation is None or slot.preempted:
                continue
            if slot.decoding:
                slot.count = slot.length - slot.num_past
                room -= slot.count
                self.work.append(slot)
            else:
                prompts.append(slot)
        if room < 0:  # texts that must be recomputed may be long
            for i, slot in enumerate(self.work):
                self.claims[i] = slot.count
            share_room(self.claims, len(self.work), self.capacity)
            for i, slot in enumerate(self.work):
                slot.count = self.claims[i]
            room = 0
        if len(prompts) > 1:
            prompts.sort(key=_age)
        for slot in prompts:
            slot.count = min(slot.length - slot.num_past, room)
            room -= slot.count
            if slot.count:
                self.work.append(slot)
        return len(self.work)

    def fill(self, Batch batch not None):
        """Shrink drafts and prompts to the capacity, then fill the batch.

        Slots come in the order of their ids: llama.cpp computes sequences that have a cache each in
        parallel only if their ids are consecutive.

        Raises:
            CapacityError: The batch is too small. It is empty then.
        """
        cdef Slot slot
        cdef Py_ssize_t i
        self.share_drafts()
        batch.clear()
        for slot in self.slots:
            if slot.count == 0:
                continue
            if batch.len + slot.count + slot.num_guessed > batch.capacity:
                batch.clear()
                raise CapacityError(f"a batch of {batch.capacity} tokens is too small")
            slot.first_row = batch.num_outputs if slot.count == slot.length - slot.num_past else -1
            for i in range(slot.count):
                batch.put(slot.data[slot.num_past + i], slot.num_past + i, <int>slot.id,
                          slot.num_past + i + 1 == slot.length, 1)
            slot.num_branches = slot.num_guessed > 0
            if slot.branched:
                slot.num_branches = tree_arrange(slot.guess, slot.parents, slot.num_guessed, slot.tree)
                if slot.num_branches < 0:
                    self.cut_draft(slot, 0)
                for i in range(slot.num_guessed):
                    slot.tree[slot.tree[i].index].added = i >= slot.num_own
            batch.put_draft(slot.guess, slot.num_guessed, slot.tree if slot.branched else NULL, slot.count,
                            slot.length, <int>slot.id)

    def advance(self, EngineStats stats not None, double seconds):
        """Note that the batch is in the target's cache, and count it.

        Args:
            stats: Counters.
            seconds: How long the decode took.

        Returns:
            int: Prompt tokens in the batch.
        """
        cdef Slot slot
        cdef Py_ssize_t prompts = 0, tokens = 0
        for slot in self.work:
            slot.num_before = slot.num_past
            slot.num_past += slot.count + slot.num_guessed
            tokens += slot.count + slot.num_guessed
            if not slot.decoding:
                prompts += slot.count
        self.tokens, self.seconds = tokens, seconds
        stats.add_decode(tokens, len(self.work), prompts, seconds)
        return prompts

    def forget_drafts(self):
        """Drop the drafts: the batch is decoded without them."""
        cdef Slot slot
        for slot in self.work:
            self.cut_draft(slot, 0)
            slot.forget_draft()

    @property
    def num_draft_tokens(self):
        """Return the total length of all drafts."""
        cdef Slot slot
        cdef Py_ssize_t total = 0
        for slot in self.work:
            total += slot.num_guessed
        return total

    cdef Py_ssize_t room_for_drafts(self):
        """Return how many draft tokens fit; prompts keep at most three quarters of the capacity."""
        cdef Slot slot
        cdef Py_ssize_t rows = 0, prompts = 0
        for slot in self.work:
            if slot.decoding:
                rows += slot.count
            else:
                prompts += slot.count
        rows = self.capacity - rows - min(prompts, self.capacity * 3 // 4)
        return max(<Py_ssize_t>0, min(rows, self.outputs - <Py_ssize_t>len(self.work)))

    cdef int cut_draft(self, Slot slot, Py_ssize_t length) except -1:
        """Drop all but the first tokens of a slot's draft."""
        if length < slot.num_guessed:
            if self.shorten is not None:
                self.shorten(slot, length)
            slot.num_guessed, slot.num_own = min(slot.num_guessed, length), min(slot.num_own, length)
        return 0

    cdef int share_drafts(self) except -1:
        """Shrink drafts fairly to the room there is."""
        cdef Slot slot
        cdef Py_ssize_t i = 0, total = 0
        for slot in self.work:
            self.claims[i] = slot.num_guessed
            total += slot.num_guessed
            i += 1
        if not total:
            return 0
        share_room(self.claims, i, self.room_for_drafts())
        i = 0
        for slot in self.work:
            self.cut_draft(slot, self.claims[i])
            i += 1
        self.shrink_prompts()
        return 0

    cdef void shrink_prompts(self):
        """Cut prompts, the latest first, so that they fit beside the drafts."""
        cdef Slot slot
        cdef Py_ssize_t excess = -self.capacity, cut, i
        for slot in self.work:
            excess += slot.count + slot.num_guessed
        for i in range(len(self.work) - 1, -1, -1):
            slot = self.work[i]
            if excess <= 0 or slot.decoding:
                break
            cut = min(excess, slot.count)
            slot.count -= cut
            excess -= cut
            if slot.count == 0:
                self.work.pop()


def _age(Slot slot not None):
    return slot.used
