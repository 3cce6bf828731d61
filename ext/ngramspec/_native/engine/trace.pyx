"""DecisionTrace: what sources offered, what was sent of it, and what came of it, pass by pass."""

cimport cython
from libc.string cimport memcpy

cdef enum:
    FIXED = 11             # words before the tokens
    MOST_WORDS = 1 << 19   # of decisions that wait, 2 MiB


@cython.final
cdef class DecisionTrace(Owner):
    """DecisionTrace(): decisions that wait to be written; those that find no room are dropped and counted.

    Attributes:
        num_dropped: Of decisions.

    Raises:
        MemoryError: No room.

    Cost: a copy of the drafts per decision, without Python objects. Memory: 2 MiB for those that wait, and 2 MiB for
    those that are drained. Threads: one may drain while another one adds.
    """

    def __cinit__(self):
        self.chains = []
        self.words = <int32_t*>self.take(MOST_WORDS, sizeof(int32_t))
        self.drained = <int32_t*>self.take(MOST_WORDS, sizeof(int32_t))

    cdef Py_ssize_t chain_of(self, tuple names) except -1:
        """Return the number of a list of drafters."""
        if names not in self.chains:
            self.chains.append(names)
        return self.chains.index(names)

    cdef void add(self, const DriverC* d, const SlotC* s, int64_t request, Py_ssize_t chain, bint shadow,
                  Py_ssize_t sent, Py_ssize_t accepted, const token_t* tokens, Py_ssize_t n) noexcept:
        """Add a decision before its tokens join the history, with the drafter's lock held.

        Args:
            d: The drafter.
            s: Its slot.
            request: Number of the request.
            chain: Of the drafter's names.
            shadow: Nothing was sent.
            sent, accepted: Tokens of the draft, and right ones.
            tokens: The n that the target emitted.
        """
        cdef Py_ssize_t i, row, length, total = FIXED + n
        cdef int32_t* words
        for i in range(d.num_sources):
            total += 1 + (3 if s.branched else 2) * (s.lengths[i] if s.asked else 0)
        with self._lock:
            words = self.words + self.num_words
            if self.num_words + total > MOST_WORDS:
                self.num_dropped += 1
                return
            self.num_words += total
            words[0], words[1], words[2] = <int32_t>total, <int32_t>(request >> 31), <int32_t>(request & 0x7FFFFFFF)
            words[3], words[4], words[5] = <int32_t>chain, shadow, s.asked and s.branched
            words[6] = <int32_t>(s.base + s.history.len)
            words[7] = <int32_t>s.owner if s.draft_len else -1
            words[8], words[9], words[10] = <int32_t>sent, <int32_t>accepted, <int32_t>n
            memcpy(words + FIXED, tokens, <size_t>n * sizeof(token_t))
            words += FIXED + n
            for i in range(d.num_sources):
                length, row = s.lengths[i] if s.asked else 0, i * d.max_draft
                words[0] = <int32_t>length
                memcpy(words + 1, s.rows + row, <size_t>length * sizeof(token_t))
                memcpy(words + 1 + length, s.claims + row, <size_t>length * sizeof(float))
                if s.branched and length:
                    memcpy(words + 1 + 2 * length, s.links + row, <size_t>length * sizeof(int32_t))
                words += 1 + (3 if s.branched else 2) * length

    def drain(self):
        """Yield the decisions that wait now, as plain data, the oldest first; those that come meanwhile wait.

        Cost: some microseconds for each. Threads: one at a time.
        """
        if self.place == self.num_drained:
            self.swap()
        while self.place < self.num_drained:
            decision = self.shown(self.drained + self.place)
            self.place += self.drained[self.place]
            yield decision

    cdef void swap(self) noexcept:
        """Take all that wait."""
        with self._lock:
            self.words, self.drained = self.drained, self.words
            self.num_drained, self.num_words, self.place = self.num_words, 0, 0

    cdef dict shown(self, const int32_t* words):
        """Return one decision."""
        cdef Py_ssize_t i, length, n = words[10]
        cdef bint branched = words[5]
        cdef const int32_t* row = words + FIXED + n
        cdef const float* claims
        cdef tuple names = self.chains[words[3]]
        cdef list offers = []
        for name in names:
            length = row[0]
            claims = <const float*>(row + 1 + length)
            if length:
                offer = {
                    "source": name,
                    "token_ids": [row[1 + i] for i in range(length)],
                    "claims": [round(claims[i], 4) for i in range(length)],
                }
                if branched:
                    offer["parents"] = [row[1 + 2 * length + i] for i in range(length)]
                offers.append(offer)
            row += 1 + (3 if branched else 2) * length
        return {
            "request": (<int64_t>words[1] << 31) + words[2],
            "drafters": ",".join(names),
            "shadow": bool(words[4]),
            "position": words[6],
            "offers": offers,
            "source": names[words[7]] if words[7] >= 0 else None,
            "sent": words[8],
            "accepted": words[9],
            "emitted_ids": [words[FIXED + i] for i in range(n)],
        }
