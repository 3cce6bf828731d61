"""Chooser: how many tokens of candidate drafts are worth sending in a pass."""

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._calibration cimport calibration_apply, calibration_chain
from ngramspec._pass_costs cimport MOST_TOKENS, PassCosts

cdef extern from "ngs_worth.h" nogil:
    enum:
        NGS_WORTH_PAD
    double ngs_chain_worth(const double* p, Py_ssize_t n, const double* costs, double* worth)

cdef enum:
    ROUNDS = 2              # how often each of several candidates chooses


@cython.final
cdef class Chooser:
    """Chooser(max_draft, costs): chooses lengths of drafts.

    Sending k tokens of a chain at its position i is worth the tokens that come of it, less the time of
    the pass at the rate of tokens per time, plus what the rest of the chain is worth when it is
    reached. Fresh text is worth 0. See ngs_worth.h for the recursion.

    Args:
        max_draft: Longest chain that is looked at, >= 0.
        costs: PassCosts.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t max_draft, PassCosts costs not None):
        cdef Py_ssize_t each = max(max_draft, <Py_ssize_t>0) + 1 + NGS_WORTH_PAD
        self.max_draft = max_draft
        self.costs = costs
        self.memory = <double*>calloc(<size_t>(3 * each), sizeof(double))
        if self.memory == NULL:
            raise MemoryError("no memory for the choice of draft lengths")
        self.p = self.memory
        self.worth = self.p + each
        self.price = self.worth + each

    def __dealloc__(self):
        free(self.memory)

    cdef void one(self, CandidateC* c, const PassC* step) noexcept:
        """Choose for the only candidate of a pass; batch_tokens holds all other drafts."""
        self.solve(c, step, step.batch_tokens, c.room)

    cdef void many(self, CandidateC* candidates, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept:
        """Choose in turn, given what the others chose, from no drafts and from whole ones; keep the better.

        From whole drafts on since costs may rise less and less: then long drafts of all slots can pay
        where none does alone. No drafts at all is kept where neither beats it.
        """
        cdef Py_ssize_t i, whole
        cdef double best = 0.0, value
        for i in range(n):
            candidates[i].first = self.first_of(&candidates[i])
            candidates[i].kept = 0
        arrange(candidates, n)
        for whole in range(2):
            value = self.take_turns(candidates, n, step, capacity, whole)
            if value > best:
                best = value
                for i in range(n):
                    candidates[i].kept = candidates[i].chosen
        for i in range(n):
            candidates[i].chosen = candidates[i].kept

    cdef double take_turns(self, CandidateC* candidates, Py_ssize_t n, const PassC* step, Py_ssize_t capacity,
                           bint whole) noexcept:
        """Set chosen for all; return what that is worth beyond no drafts."""
        cdef Py_ssize_t i, _turn, most, total = 0, room = capacity - step.batch_tokens
        cdef double gain = 0.0
        cdef CandidateC* c
        for i in range(n):
            c = &candidates[candidates[i].turn]
            c.base = -1
            c.gain = 0.0
            c.chosen = max(min(c.n, self.max_draft, c.room, room - total), <Py_ssize_t>0) if whole else 0
            total += c.chosen
        for _turn in range(ROUNDS):
            for i in range(n):
                c = &candidates[candidates[i].turn]
                total -= c.chosen
                most = min(c.room, room - total)
                if c.base != step.batch_tokens + total or c.most != most:
                    c.base, c.most = step.batch_tokens + total, most
                    self.solve(c, step, c.base, most)
                total += c.chosen
        for i in range(n):
            gain += candidates[i].gain
        return gain - step.rate * (self.costs.at(step.batch_tokens + total) - self.costs.at(step.batch_tokens))

    cdef void solve(self, CandidateC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most) noexcept:
        """Choose at most `most` tokens beside a batch of `base`; set chosen and gain.

        The chain ends there: with room for few tokens now there is hardly ever more in the next pass.
        """
        cdef Py_ssize_t n = min(c.n, self.max_draft, most), k, kept
        cdef double net
        c.chosen = 0
        c.gain = 0.0
        if n <= 0:
            return
        self.set_prices(step, base, n)
        self.p[0] = calibration_apply(c.calibration, 0, c.p[0])
        if not self.may_pay(n):
            return
        kept = calibration_chain(c.calibration, c.p, n, self.p)
        ngs_chain_worth(self.p, kept, self.price, self.worth)
        net = self.worth[0] - self.price[0]
        for k in range(1, kept + 1):
            if self.worth[k] - self.price[k] > net:
                net = self.worth[k] - self.price[k]
                c.chosen = k
        c.gain = self.worth[c.chosen] - self.worth[0]

    cdef void explore(self, CandidateC* c, Py_ssize_t base, Py_ssize_t most, double stake) noexcept:
        """Choose more of a chain, where nobody knows what such a batch costs and little can be lost.

        Else a long draft is never tried where short ones do not pay. A batch hardly ever costs more than
        its tokens one by one: it loses at most those that are wrong, probably no more than `stake`.
        Sizes are tried that at most double a known one.
        """
        cdef Py_ssize_t k, below = base
        cdef double reached = 1.0, wrong = 0.0
        for k in range(1, min(c.n, self.max_draft, most, MOST_TOKENS - base) + 1):
            reached *= calibration_apply(c.calibration, k - 1, c.p[k - 1])
            wrong += 1.0 - reached
            if wrong > stake:
                break
            if self.costs.weight[base + k] > 0.0:
                below = base + k
            if c.chosen < k <= 2 * below - base and not self.costs.known(base + k):
                c.chosen = k

    cdef void set_prices(self, const PassC* step, Py_ssize_t base, Py_ssize_t n) noexcept:
        """Set what a pass with 0..n drafted tokens costs this slot: its share, and all that its draft adds."""
        cdef Py_ssize_t k
        cdef double bare = self.costs.at(base)
        cdef double share = bare / <double>step.decoding - bare
        if base + n <= MOST_TOKENS:
            for k in range(n + 1):
                self.price[k] = step.rate * (self.costs.now[base + k] + share)
        else:
            for k in range(n + 1):
                self.price[k] = step.rate * (self.costs.at(base + k) + share)

    cdef bint may_pay(self, Py_ssize_t n) noexcept:
        """Whether any draft from a chain of n can beat none, by the first token's probability.

        k tokens gain p[0] * (worth(1, k) - best(1)) for price[k] - price[0], and best(1) is at least
        worth(1, k) - price[k - 1]: nothing is gained where p[0] * price[k - 1] is no more. Behind the
        only token of a chain there is no such choice; one token is what it gains.
        """
        cdef Py_ssize_t k
        cdef double least = 1.0 if n == 1 else 0.0
        for k in range(1, n + 1):
            if self.p[0] * max(self.price[k - 1], least) > self.price[k] - self.price[0]:
                return True
        return False

    cdef double first_of(self, const CandidateC* c) noexcept:
        if c.n <= 0 or c.room <= 0:
            return -1.0
        return calibration_apply(c.calibration, 0, c.p[0])


cdef void arrange(CandidateC* candidates, Py_ssize_t n) noexcept:
    """Set turns: the surest first token first, equals in their order."""
    cdef Py_ssize_t i, j
    for i in range(n):
        j = i
        while j > 0 and candidates[candidates[j - 1].turn].first < candidates[i].first:
            candidates[j].turn = candidates[j - 1].turn
            j -= 1
        candidates[j].turn = i
