"""suffix: follow the longest matches in the request's own text and in what other requests said.

Candidates vote for the next token, weighted by how reliable their like has been; the network and its
online correction say how likely the best few choices are (_confidence). The most likely one is
drafted and the candidates that agree go on. Everything that was considered is compared with what the
target then said, sent or not, so the probabilities follow the text at hand without exploring.
Per call O(new tokens + draft), whatever the context and the pool hold.
Related: SuffixDecoding (arXiv 2411.04975), SAM-Decoding (arXiv 2411.10666).
"""

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ngramspec._confidence cimport NGS_FEATURES, ModelC, model_start
from ngramspec._history cimport HistoryC
from ngramspec._lines cimport lines_free, lines_nbytes, lines_reserve, lines_rewind
from ngramspec._match cimport NUM_PLACES, CandidateC, match, match_static
from ngramspec._memory cimport ngs_release_rest
from ngramspec._source cimport JOINED_AGAIN, JOINED_OUTPUT, Joined, Source, SourceC, ignore_feedback
from ngramspec._suffix_draft cimport suffix_draft
from ngramspec._suffix_index cimport SuffixIndex
from ngramspec._suffix_learn cimport suffix_give, suffix_index, suffix_learn
from ngramspec._suffix_pool cimport SuffixPool, pool_close
from ngramspec._suffix_state cimport ALL, JUDGED, MAX_DRAFT, RecordC, SuffixC, SuffixSlotC, TreeC
from ngramspec._suffix_tree cimport suffix_tree
from ngramspec._types cimport Status, int32_t, token_t, uint32_t

import numpy as np

from ngramspec.errors import InputError

cdef extern from "ngs_suffix.h" nogil:
    int ngs_ones(uint32_t mask)

cdef enum:
    PENDING = 64          # generated tokens that go to the pool together
    LONGEST_HISTORY = (1 << 25) - 2  # so that positions, and those after the last token, fit a word of a line


cdef inline void _expect_nothing(SuffixSlotC* s) noexcept nogil:
    cdef int place
    for place in range(NUM_PLACES):
        s.text.expected[place] = -1


cdef Status _reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    return lines_reserve(&s.text.own, &s.next_own, h.tokens, h.len, extra)


cdef void _finish(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    suffix_give(c, &c.slots[slot], h, True)
    if c.pool != NULL:
        pool_close(c.pool, &c.slots[slot].writer)


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    """What was said stays in the pool; entries of the index beyond the history are passed over."""
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    _finish(state, slot, h)
    if s.num_indexed:
        lines_rewind(&s.text.own, &s.next_own, length)
    s.num_indexed = min(s.num_indexed, length)
    s.text.prompt_len = min(s.text.prompt_len, length)
    s.prompt_from = s.output_from = length
    _expect_nothing(s)
    s.lately.run = s.lately.history = 0
    s.num_records = 0
    s.num_candidates = 0


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    if how == JOINED_OUTPUT and s.base == start and s.num_candidates + s.num_records > 0:
        suffix_learn(c, s, h, start)
    else:
        _expect_nothing(s)
    s.num_records = 0
    s.num_candidates = 0
    suffix_index(s, h)
    if how != JOINED_OUTPUT:
        s.text.prompt_len = s.output_from = h.len
        if how == JOINED_AGAIN:
            s.prompt_from = h.len
    elif h.len - s.output_from >= PENDING:
        suffix_give(c, s, h, False)


cdef void _find(SuffixC* c, SuffixSlotC* s, const HistoryC* h) noexcept nogil:
    """Find what a proposal goes by."""
    s.base = h.len
    s.num_records = 0
    s.num_candidates = match(&s.text, h, c.pool, &s.writer, s.candidates)
    if c.index != NULL:
        s.num_candidates += match_static(&s.text, h, c.index, s.candidates + s.num_candidates)


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    cdef CandidateC[ALL] candidates
    _find(c, s, h)
    memcpy(candidates, s.candidates, <size_t>s.num_candidates * sizeof(CandidateC))
    return suffix_draft(c, s, h, candidates, out, confidence, limit)


cdef Py_ssize_t _propose_tree(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, int32_t* parents,
                              float* confidence, Py_ssize_t limit, Py_ssize_t width) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    _find(c, s, h)
    return suffix_tree(c, s, h, out, parents, confidence, limit, width)


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    cdef Py_ssize_t i, k
    for i in range(s.num_records):
        for k in range(s.records[i].num):
            if s.records[i].next[k] >= 0 and not i < s.records[i].next[k] < s.num_records:
                return "suffix: what was considered after a choice lies elsewhere"
    if s.num_indexed != h.len:
        return "suffix: tokens of the history were not indexed"
    if s.text.prompt_len > h.len or s.prompt_from > h.len or s.output_from > h.len:
        return "suffix: the history is shorter than what was noted of it"
    if s.text.expected[0] >= h.len:
        return "suffix: the text is expected to go on beyond its end"
    return NULL


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef size_t total = sizeof(ModelC) + sizeof(TreeC)
    cdef Py_ssize_t i
    for i in range(c.num_slots):
        total += sizeof(SuffixSlotC) + lines_nbytes(&c.slots[i].text.own)
        total += lines_nbytes(&c.slots[i].next_own.lines) + c.slots[i].next_own.rest.bytes
        total += <size_t>c.max_draft * (sizeof(RecordC) + JUDGED * NGS_FEATURES * sizeof(float))
    return total


@cython.final
@cython.no_gc_clear  # __dealloc__ must still see the pool, to close the blocks that slots write to
cdef class SuffixSource(Source):
    """SuffixSource(slots, pool, max_draft, floor, prompts, weights, index=None, room=4096): the source behind "suffix".

    Args:
        slots: Number of slots, >= 1.
        pool: The SuffixPool to read and write, kept alive, or None: every request for itself.
        max_draft: Longest draft in tokens, 1..64.
        floor: Drafts end where the probability that all of it is right falls below, 0..1.
        prompts: The pool is given prompts too, not only what was generated.
        weights: The network's, float32, shape (1089,): inputs by feature, biases, outputs, bias.
        index: The SuffixIndex to read, kept alive, or None: no texts but those of requests.
        room: Tokens that the index of a slot has room for at first, >= 1; it grows by halves.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: The state cannot be allocated.
    """

    cdef SuffixC _state
    cdef readonly SuffixPool pool
    cdef readonly SuffixIndex index

    def __cinit__(self, Py_ssize_t slots, SuffixPool pool, Py_ssize_t max_draft, double floor, bint prompts, weights,
                  SuffixIndex index=None, Py_ssize_t room=4096):
        cdef Py_ssize_t i
        if slots < 1:
            raise InputError(f"slots must be >= 1, got {slots}")
        if not (1 <= max_draft <= MAX_DRAFT and 0 <= floor <= 1):
            raise InputError(f"max_draft must be in 1..{MAX_DRAFT} and floor in 0..1, got {max_draft} and {floor}")
        if room < 1:
            raise InputError(f"room must be >= 1, got {room}")
        self.name = "suffix"
        self.slots = slots
        self.max_history = LONGEST_HISTORY
        self.pool = pool
        self.index = index
        self._state.pool = &pool.c if pool is not None else NULL
        self._state.index = &index.c if index is not None else NULL
        self._state.prompts = prompts
        self._state.floor = floor
        self._state.max_draft = max_draft
        self._state.num_slots = slots
        self._state.slots = <SuffixSlotC*>calloc(<size_t>slots, sizeof(SuffixSlotC))
        self._state.model = <ModelC*>calloc(1, sizeof(ModelC))
        self._state.tree = <TreeC*>calloc(1, sizeof(TreeC))
        if self._state.slots == NULL or self._state.model == NULL or self._state.tree == NULL:
            raise MemoryError("suffix: no memory for the slots")
        for i in range(slots):
            self._state.slots[i].next_own.first_room = room
            self.make_slot(&self._state.slots[i])
        self.take_weights(weights)
        model_start(self._state.model)
        self.c = SourceC(&self._state, max_draft, _reserve, _rewind, _extend, _propose, _propose_tree,
                         ignore_feedback, _finish, _check, _nbytes)

    cdef int make_slot(self, SuffixSlotC* s) except -1:
        s.records = <RecordC*>calloc(<size_t>self._state.max_draft, sizeof(RecordC))
        s.features = <float*>calloc(<size_t>(self._state.max_draft * JUDGED * NGS_FEATURES), sizeof(float))
        if s.records == NULL or s.features == NULL:
            raise MemoryError("suffix: no memory for the slots")
        s.writer.block = -1
        s.base = -1
        s.lately.hits = 0.5
        _expect_nothing(s)

    cdef int take_weights(self, weights) except -1:
        cdef ModelC* m = self._state.model
        cdef Py_ssize_t num = sizeof(m.net) // sizeof(float)
        cdef const float[::1] view
        given = np.asarray(weights)
        if given.shape != (num,) or given.dtype != np.float32:
            raise InputError(f"weights must be float32 of shape ({num},), got {given.dtype} of {given.shape}")
        view = np.ascontiguousarray(given)
        memcpy(&m.net, &view[0], sizeof(m.net))

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self._state.slots != NULL:
            for i in range(self._state.num_slots):
                if self.pool is not None and self._state.slots[i].features != NULL:
                    pool_close(&self.pool.c, &self._state.slots[i].writer)
                lines_free(&self._state.slots[i].text.own)
                lines_free(&self._state.slots[i].next_own.lines)
                ngs_release_rest(&self._state.slots[i].next_own.rest)
                free(self._state.slots[i].records)
                free(self._state.slots[i].features)
        free(self._state.slots)
        free(self._state.model)
        free(self._state.tree)

    @property
    def floor(self):
        """Return the probability that all of a draft is right below which it ends; may be set, 0..1.

        Used by one thread at a time, and not beside the drafter's calls.
        """
        return self._state.floor

    @floor.setter
    def floor(self, double floor):
        if not 0 <= floor <= 1:
            raise InputError(f"floor must be in 0..1, got {floor}")
        self._state.floor = <float>floor

    def match_length(self, Py_ssize_t slot, token_t token):
        """Return how much of the text agrees with where the slot's last proposal found `token`.

        Args:
            slot: 0 <= slot < slots.
            token: The first token of a draft.

        Returns:
            int: Of the newest 32 tokens, those that also stand before `token`, at the place that agrees
            most; mismatches between them do not end the count. 0 when no place has the token.

        Raises:
            InputError: slot is out of range.

        Cost: O(1). Used by one thread at a time, and not beside the drafter's calls.
        """
        cdef SuffixSlotC* s
        cdef int most = 0
        cdef int i
        if not 0 <= slot < self.slots:
            raise InputError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        s = &self._state.slots[slot]
        for i in range(s.num_candidates):
            if s.candidates[i].token == token:
                most = max(most, ngs_ones(s.candidates[i].mask))
        return most

    def considered(self, Py_ssize_t slot):
        """Return what the slot's last proposal weighed, to learn from or to look at.

        Args:
            slot: 0 <= slot < slots.

        Returns:
            (positions, tokens, chosen, probabilities, features): int32 (n,), int32 (n,), bool (n,),
            float32 (n,) and float32 (n, 32), one row per judged choice; copies.

        Raises:
            InputError: slot is out of range.

        Used by one thread at a time, and not beside the drafter's calls.
        """
        cdef SuffixSlotC* s
        cdef float[:, ::1] rows
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t i, k
        if not 0 <= slot < self.slots:
            raise InputError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        s = &self._state.slots[slot]
        for i in range(s.num_records):
            n += s.records[i].num if s.records[i].sure < 0 else 0
        positions, tokens = np.empty(n, np.int32), np.empty(n, np.int32)
        chosen, probabilities = np.empty(n, np.bool_), np.empty(n, np.float32)
        features = np.empty((n, <Py_ssize_t>NGS_FEATURES), np.float32)
        if n:
            rows = features
            n = 0
            for i in range(s.num_records):
                if s.records[i].sure >= 0:
                    continue
                memcpy(&rows[n, 0], s.features + i * JUDGED * NGS_FEATURES,
                       <size_t>(s.records[i].num * NGS_FEATURES) * sizeof(float))
                for k in range(s.records[i].num):
                    positions[n] = s.records[i].position
                    tokens[n] = s.records[i].choices[k].token
                    chosen[n] = k == s.records[i].chosen
                    probabilities[n] = s.records[i].choices[k].p
                    n += 1
        return positions, tokens, chosen, probabilities, features
