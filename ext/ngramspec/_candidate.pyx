"""Chooser: how many tokens of candidate drafts are worth sending in a pass."""

cimport cython
from libc.stdlib cimport calloc, free, realloc

from ngramspec._arguments cimport probabilities_view
from ngramspec._calibration cimport Calibrations, calibration_apply, calibration_chain
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
        self.max_draft = max(max_draft, <Py_ssize_t>0)
        self.costs = costs
        self.memory = <double*>calloc(<size_t>(3 * self.width()), sizeof(double))
        if self.memory == NULL:
            raise MemoryError("no memory for the choice of draft lengths")
        self.p = self.memory
        self.worth = self.p + self.width()
        self.price = self.worth + self.width()

    def __dealloc__(self):
        free(self.memory)
        free(self.worths)

    cdef Py_ssize_t width(self) noexcept:
        return self.max_draft + 1 + NGS_WORTH_PAD

    cdef int reserve(self, Py_ssize_t n) except -1:
        """Make room for `many` to choose for n candidates."""
        cdef double* memory
        if n > self.num_worths:
            memory = <double*>realloc(self.worths, <size_t>(n * self.width()) * sizeof(double))
            if memory == NULL:
                raise MemoryError("no memory for the choice of draft lengths")
            self.worths, self.num_worths = memory, n
        return 0

    cdef void one(self, CandidateC* c, const PassC* step) noexcept:
        """Choose for the only candidate of a pass; batch_tokens holds all other drafts."""
        cdef Py_ssize_t solved = self.solve(c, step, step.batch_tokens, c.room, self.worth)
        self.take_best(c, self.worth, solved, step, step.batch_tokens)

    cdef void many(self, CandidateC* candidates, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept:
        """Choose in turn, given what the others chose, from no drafts and from whole ones; keep the better.

        From whole drafts on since costs may rise less and less: then long drafts of all slots can pay
        where none does alone. No drafts at all is kept where neither beats it. `reserve` comes first.
        """
        cdef Py_ssize_t i, whole
        cdef double best = 0.0, value
        for i in range(n):
            candidates[i].first = self.first_of(&candidates[i])
            candidates[i].kept = 0
            candidates[i].worth = self.worths + i * self.width()
            candidates[i].solved = -1
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
        cdef Py_ssize_t i, _turn, total = 0, room = capacity - step.batch_tokens
        cdef double gain = 0.0
        cdef CandidateC* c
        for i in range(n):
            c = &candidates[candidates[i].turn]
            c.gain = 0.0
            c.chosen = max(min(c.n, self.max_draft, c.room, room - total), <Py_ssize_t>0) if whole else 0
            total += c.chosen
        for _turn in range(ROUNDS):
            for i in range(n):
                c = &candidates[candidates[i].turn]
                total -= c.chosen
                self.in_turn(c, step, step.batch_tokens + total, room - total, room)
                total += c.chosen
        for i in range(n):
            gain += candidates[i].gain
        return gain - step.rate * (self.costs.at(step.batch_tokens + total) - self.costs.at(step.batch_tokens))

    cdef void in_turn(self, CandidateC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most, Py_ssize_t room) noexcept:
        """Choose at most `most` tokens of a chain beside a batch of `base`.

        A chain is worked through once, beside the batch where it first may pay: what is left of it after
        this pass will meet others anyway. `room` is what all drafts of the pass may have together.
        """
        if c.solved < 0:
            c.solved = self.solve(c, step, base, min(c.room, room), c.worth)
        self.take_best(c, c.worth, min(c.solved, most), step, base)

    cdef Py_ssize_t solve(self, const CandidateC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                          double* worth) noexcept:
        """Set what 0.. tokens of a chain are worth beside a batch of `base`; return how many were looked at.

        The chain ends after `most`: with room for few tokens now there is hardly ever more in the next
        pass. -1: nothing of it can pay, nothing was set.
        """
        cdef Py_ssize_t n = min(c.n, self.max_draft, most), kept
        if n <= 0:
            return -1
        self.set_prices(step, base, n)
        self.p[0] = calibration_apply(c.calibration, 0, c.p[0])
        if not self.may_pay(n):
            return -1
        kept = calibration_chain(c.calibration, c.p, n, self.p)
        ngs_chain_worth(self.p, kept, self.price, worth)
        return kept

    cdef void take_best(self, CandidateC* c, const double* worth, Py_ssize_t most, const PassC* step,
                        Py_ssize_t base) noexcept:
        """Set chosen and gain: the most worth beyond what the pass costs, of at most `most` tokens."""
        cdef Py_ssize_t k
        cdef double net, best = 0.0, bare
        c.chosen = 0
        c.gain = 0.0
        if most <= 0:
            return
        bare = worth[0] - step.rate * self.costs.at(base)
        for k in range(1, most + 1):
            net = worth[k] - step.rate * self.costs.at(base + k) - bare
            if net > best:
                best = net
                c.chosen = k
        c.gain = worth[c.chosen] - worth[0]

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


cdef int describe(CandidateC* c, Calibrations calibrations, str source, const float[::1] claims,
                  Py_ssize_t room) except -1:
    """Set what a draft is; the claims are not copied."""
    c.n = claims.shape[0]
    c.p = &claims[0] if c.n else NULL
    c.room = room
    c.calibration = calibrations.of(source)
    return 0


@cython.final
cdef class Candidates:
    """Candidates(calibrations, chains): the (source, confidence, room) of a list, described.

    Raises:
        InputError: A confidence is no float32 of shape (n,), or not within 0..1.
        MemoryError: No room.
    """

    def __cinit__(self, Calibrations calibrations not None, chains):
        cdef Py_ssize_t i = 0
        self.count = len(chains)
        self.views = [probabilities_view(confidence, "confidence") for _, confidence, _ in chains]
        self.items = <CandidateC*>calloc(<size_t>self.count + 1, sizeof(CandidateC))
        if self.items == NULL:
            raise MemoryError("no memory for the candidates")
        for source, _, room in chains:
            describe(&self.items[i], calibrations, source, self.views[i], room)
            i += 1

    def __dealloc__(self):
        free(self.items)
