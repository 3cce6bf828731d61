"""Slots: the memory behind a Drafter, and what it tells about itself."""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ngramspec._auto cimport AutoPolicy
from ngramspec._branches cimport branches_check
from ngramspec._driver cimport SlotC, SourceCountsC
from ngramspec._history cimport history_free
from ngramspec._source cimport Source, SourceC
from ngramspec._types cimport int32_t, int64_t, token_t

import numpy as np

from ngramspec.errors import InputError, StateError
from ngramspec.stats import SourceStats

cdef object _empty = np.empty
cdef object _int32 = np.dtype(np.int32)


cdef class Slots:
    """Slots(sources, slots, max_history, policy): histories, sources and counters; base of Drafter."""

    def __cinit__(self, sources, Py_ssize_t slots=1, Py_ssize_t max_history=1 << 20, AutoPolicy policy=None):
        cdef Py_ssize_t i
        self._sources = tuple(sources)
        self._policy = policy
        _check_arguments(self._sources, slots, max_history)
        if policy is not None:  # has room for all sources now, so that learning of them cannot fail
            for source in self._sources:
                policy.calibrations.of((<Source>source).name)
        self.d.max_history = max_history
        self.d.num_sources = len(self._sources)
        self.d.sources = <SourceC*>calloc(<size_t>self.d.num_sources, sizeof(SourceC))
        self.d.counts = <SourceCountsC*>calloc(<size_t>self.d.num_sources, sizeof(SourceCountsC))
        self.d.slots = <SlotC*>calloc(<size_t>slots, sizeof(SlotC))
        if self.d.sources == NULL or self.d.counts == NULL or self.d.slots == NULL:
            raise MemoryError("drafter: no memory for the slots")
        self.d.num_slots = slots
        for i in range(self.d.num_sources):
            self.d.sources[i] = (<Source>self._sources[i]).c
            (<Source>self._sources[i])._taken = True
            self.d.max_draft = max(self.d.max_draft, self.d.sources[i].max_draft)
        for i in range(self.d.num_sources):
            self.d.counts[i].accepted_len = <int64_t*>calloc(<size_t>self.d.max_draft + 1, sizeof(int64_t))
            if self.d.counts[i].accepted_len == NULL:
                raise MemoryError("drafter: no memory for statistics")
        for i in range(slots):
            self._make_rows(&self.d.slots[i])

    cdef int _make_rows(self, SlotC* s) except -1:
        cdef size_t room = <size_t>(self.d.num_sources * self.d.max_draft)
        s.draft = s.rows = <token_t*>calloc(room, sizeof(token_t))
        s.confidence = s.claims = <float*>calloc(room, sizeof(float))
        s.made = <Py_ssize_t*>calloc(<size_t>self.d.num_sources, sizeof(Py_ssize_t))
        s.parents = <int32_t*>calloc(<size_t>self.d.max_draft, sizeof(int32_t))
        if s.rows == NULL or s.claims == NULL or s.made == NULL or s.parents == NULL:
            raise MemoryError("drafter: no memory for drafts")

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.d.num_slots):
            history_free(&self.d.slots[i].history)
            free(self.d.slots[i].rows)
            free(self.d.slots[i].claims)
            free(self.d.slots[i].made)
            free(self.d.slots[i].parents)
        if self.d.counts != NULL:
            for i in range(self.d.num_sources):
                free(self.d.counts[i].accepted_len)
        free(self.d.slots)
        free(self.d.counts)
        free(self.d.sources)

    @property
    def slots(self):
        """Return the number of slots."""
        return self.d.num_slots

    @property
    def sources(self):
        """Return the names of the sources in order of priority."""
        return tuple(source.name for source in self._sources)

    @property
    def policy(self):
        """Return the AutoPolicy that shortens drafts to what pays, None when they stay as they are."""
        return self._policy

    @property
    def max_draft(self):
        """Return the longest draft that any source can propose, in tokens."""
        return self.d.max_draft

    @property
    def nbytes(self):
        """Return the memory of histories and sources in bytes; shared pools and caches not counted."""
        cdef size_t total = 0
        cdef Py_ssize_t i
        with self._lock:
            for i in range(self.d.num_slots):
                total += sizeof(SlotC) + <size_t>(self.d.slots[i].history.capacity + self.d.max_draft) * sizeof(token_t)
                total += <size_t>self.d.num_sources * (2 * <size_t>self.d.max_draft * sizeof(token_t) + sizeof(Py_ssize_t))
            for i in range(self.d.num_sources):
                total += self.d.sources[i].nbytes(self.d.sources[i].state)
        return total

    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL:
        if slot < 0 or slot >= self.d.num_slots:
            raise InputError(f"slot must be in 0..{self.d.num_slots - 1}, got {slot}")
        return &self.d.slots[slot]

    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL:
        cdef SlotC* s = self._slot(slot)
        if not s.active:
            raise StateError(f"{call}: no request has begun on slot {slot}; call begin({slot}, prompt) first")
        return s

    def length(self, Py_ssize_t slot):
        """Return the number of tokens of the slot's request: prompt and committed output."""
        cdef SlotC* s = self._slot(slot)
        return s.base + s.history.len

    def history(self, Py_ssize_t slot):
        """Return the tokens kept of the slot's request: int32, shape (n,), n <= max_history. A copy."""
        cdef SlotC* s = self._slot(slot)
        cdef token_t[::1] view
        with self._lock:
            tokens = _empty(s.history.len, _int32)
            if s.history.len:
                view = tokens
                memcpy(&view[0], s.history.tokens, <size_t>s.history.len * sizeof(token_t))
        return tokens

    def check(self):
        """Return the first broken invariant, "" when all hold. O(history); for tests."""
        cdef const char* broken = NULL
        cdef Py_ssize_t i
        with self._lock:
            for i in range(self.d.num_slots):
                broken = self._broken(i)
                if broken != NULL:
                    break
        return f"slot {i}: {broken.decode()}" if broken != NULL else ""

    cdef const char* _broken(self, Py_ssize_t slot) noexcept:
        cdef SlotC* s = &self.d.slots[slot]
        cdef const char* broken = branches_check(s.draft, s.parents, s.draft_len) if s.branched else NULL
        cdef Py_ssize_t i
        for i in range(self.d.num_sources):
            if broken == NULL:
                broken = self.d.sources[i].check(self.d.sources[i].state, slot, &s.history)
        return broken

    def stats(self):
        """Return what each source did so far: dict name -> SourceStats.

        Cost: O(max_draft) per source. Threads: safe.
        """
        cdef Py_ssize_t i, lengths = self.d.max_draft + 1
        cdef size_t of_source = sizeof(SourceCountsC) + <size_t>lengths * sizeof(int64_t)
        cdef SourceCountsC* counts = <SourceCountsC*>malloc(<size_t>self.d.num_sources * of_source)
        cdef int64_t* accepted_len = <int64_t*>(counts + self.d.num_sources)
        if counts == NULL:
            raise MemoryError("no memory for statistics")
        try:
            # The lock is held for a copy only: beneath the objects made of it any code may run, that of a
            # signal's handler or a destructor, and call this drafter.
            with self._lock:
                memcpy(counts, self.d.counts, <size_t>self.d.num_sources * sizeof(SourceCountsC))
                for i in range(self.d.num_sources):
                    memcpy(accepted_len + i * lengths, counts[i].accepted_len, <size_t>lengths * sizeof(int64_t))
            for i in range(self.d.num_sources):
                counts[i].accepted_len = accepted_len + i * lengths
            return {source.name: _stats_of(source.name, &counts[i], self.d.max_draft)
                    for i, source in enumerate(self._sources)}
        finally:
            free(counts)

    def reset_stats(self):
        """Set all counters of all sources to 0."""
        cdef int64_t* accepted_len
        cdef Py_ssize_t i
        with self._lock:
            for i in range(self.d.num_sources):
                accepted_len = self.d.counts[i].accepted_len
                memset(accepted_len, 0, <size_t>(self.d.max_draft + 1) * sizeof(int64_t))
                memset(&self.d.counts[i], 0, sizeof(SourceCountsC))
                self.d.counts[i].accepted_len = accepted_len


cdef object _stats_of(str name, const SourceCountsC* c, Py_ssize_t max_draft):
    cdef Py_ssize_t i
    cdef int64_t at_least = 0
    cdef int64_t num_accepted_tokens = 0
    cdef list per_position = []
    for i in range(max_draft, 0, -1):
        at_least += c.accepted_len[i]
        num_accepted_tokens += i * c.accepted_len[i]
        if at_least:
            per_position.append(at_least)
    return SourceStats(
        name=name,
        begin_calls=c.begin_calls,
        propose_calls=c.propose_calls,
        accept_calls=c.accept_calls,
        num_drafts=c.num_drafts,
        num_accepted_drafts=at_least,
        num_draft_tokens=c.num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        accepted_per_position=tuple(reversed(per_position)),
        begin_ns=c.begin_ns,
        propose_ns=_scaled(c.propose_ns, c.propose_calls, c.timed_proposes),
        accept_ns=_scaled(c.accept_ns, c.accept_calls, c.timed_accepts),
    )


cdef int64_t _scaled(int64_t ns, int64_t calls, int64_t timed):
    return <int64_t>(<double>ns * <double>calls / <double>timed) if timed else 0


cdef object _check_arguments(tuple sources, Py_ssize_t slots, Py_ssize_t max_history):
    if not sources:
        raise InputError("a drafter needs at least one source, got none")
    if slots < 1:
        raise InputError(f"slots must be >= 1, got {slots}")
    if not 1024 <= max_history <= 1 << 28:
        raise InputError(f"max_history must be in 1024..{1 << 28} tokens, got {max_history}")
    for source in sources:
        if not isinstance(source, Source):
            raise InputError(f"sources must be Source objects, got {type(source).__name__}")
        if (<Source>source).max_history < max_history:
            raise InputError(f"source {source.name} drafts from {source.max_history} tokens of history at most, "
                             f"got max_history={max_history}")
        if (<Source>source).slots != slots:
            raise InputError(f"source {source.name} was made for {source.slots} slots, the drafter has {slots}")
        if (<Source>source)._taken:
            raise InputError(f"source {source.name} already belongs to a drafter; make one per drafter")
    names = [source.name for source in sources]
    if len(set(names)) != len(names):
        raise InputError(f"each source may be used once, got {', '.join(names)}")
