"""Chooser: how many tokens of each candidate draft of a pass are sent, by what they are worth and what they cost."""

cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, qsort, realloc

from ngramspec._native.core.arguments cimport probabilities_view
from ngramspec._native.policy.costs cimport (
    MOST_TOKENS, Calibrations, PassCosts, calibration_apply, calibration_chain,
)
from ngramspec._native.policy.trees cimport TreeC, TreeValues

from ngramspec.errors import InputError

cdef extern from "ngs_worth.h" nogil:
    enum:
        NGS_WORTH_PAD
    void ngs_chain_worth(const double* p, Py_ssize_t n, const double* costs, double* worth, double* best)

cdef double TRUSTED = 6.0   # passes over one token that a draft may add where none was right just before
cdef enum:
    ROUNDS = 2              # how often each of several candidates chooses

# A candidate that has still to get its turn.
cdef struct TurnC:
    double first
    Py_ssize_t index


@cython.final
cdef class Chooser:
    """Chooser(max_draft, costs): chooses draft lengths.

    Sending k tokens of a chain from position i is worth the tokens that the pass emits, minus its time
    in tokens at the present rate, plus the worth of the rest of the chain if it is reached. Text after
    the chain is worth 0. See ngs_worth.h for the recursion.

    Args:
        max_draft: Longest chain considered, >= 0.
        costs: PassCosts.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t max_draft, PassCosts costs not None):
        self.max_draft = max(max_draft, <Py_ssize_t>0)
        self.costs = costs
        self.trees = TreeValues(self.width())
        self.memory = <double*>calloc(<size_t>(4 * self.width()), sizeof(double))
        if self.memory == NULL:
            raise MemoryError("no memory for the choice of draft lengths")
        self.p = self.memory
        self.worth = self.p + self.width()
        self.price = self.worth + self.width()
        self.best = self.price + self.width()

    def __dealloc__(self):
        free(self.memory)
        free(self.worths)

    cdef Py_ssize_t width(self) noexcept nogil:
        return self.max_draft + 1 + NGS_WORTH_PAD

    cdef int reserve(self, Py_ssize_t n) except -1:
        """Make room for `many` to choose for n candidates."""
        cdef double* memory
        if n > self.num_worths:
            memory = <double*>realloc(self.worths, <size_t>n * (<size_t>self.width() * sizeof(double) + sizeof(TurnC)))
            if memory == NULL:
                raise MemoryError("no memory for the choice of draft lengths")
            self.worths, self.num_worths = memory, n
        return 0

    cdef void one(self, OfferC* c, const PassC* step) noexcept nogil:
        """Choose for the only candidate of a pass; step.batch_tokens includes all other drafts."""
        cdef Py_ssize_t solved = self.solve(c, step, step.batch_tokens, c.room, self.worth)
        self.take_best(c, self.worth, solved, step, step.batch_tokens)

    cdef void many(self, OfferC* offers, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept nogil:
        """Choose in turn, given what the others chose: once from no drafts, once from whole ones; keep the better.

        Whole drafts are tried since costs can flatten: then long drafts of all slots can pay although
        none does alone. If neither beats sending no drafts, none are sent. Call `reserve` first.
        """
        cdef Py_ssize_t i, whole
        cdef double best = 0.0, value
        for i in range(n):
            offers[i].first = self.first_of(&offers[i])
            offers[i].best = 0
            offers[i].worth = self.worths + i * self.width()
            offers[i].solved = -1
        arrange(offers, <TurnC*>(self.worths + n * self.width()), n)
        for whole in range(2):
            value = self.take_turns(offers, n, step, capacity, whole)
            if value > best:
                best = value
                for i in range(n):
                    offers[i].best = offers[i].chosen
        for i in range(n):
            offers[i].chosen = offers[i].best

    cdef double take_turns(self, OfferC* offers, Py_ssize_t n, const PassC* step, Py_ssize_t capacity,
                           bint whole) noexcept nogil:
        """Set chosen for all; return what that gains over no drafts."""
        cdef Py_ssize_t i, _turn, total = 0, room = capacity - step.batch_tokens
        cdef double gain = 0.0
        cdef OfferC* c
        for i in range(n):
            c = &offers[offers[i].turn]
            c.gain = 0.0
            c.chosen = max(min(c.n, self.max_draft, c.room, room - total), <Py_ssize_t>0) if whole else 0
            total += c.chosen
        for _turn in range(ROUNDS):
            for i in range(n):
                c = &offers[offers[i].turn]
                total -= c.chosen
                self.in_turn(c, step, step.batch_tokens + total, room - total, room)
                total += c.chosen
        for i in range(n):
            gain += offers[i].gain
        return gain - step.rate * (self.costs.at(step.batch_tokens + total) - self.costs.at(step.batch_tokens))

    cdef void in_turn(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                      Py_ssize_t room) noexcept nogil:
        """Choose at most `most` tokens of a chain on top of a batch of `base`.

        A chain is solved once, for the batch where it first may pay: what is left of it after this pass
        will meet other batches anyway. `room` is the limit for all drafts of the pass together.
        """
        if c.solved < 0:
            c.solved = self.solve(c, step, base, min(c.room, room), c.worth)
        self.take_best(c, c.worth, min(c.solved, most), step, base)

    cdef Py_ssize_t solve(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                          double* worth) noexcept nogil:
        """Set what 0, 1, ... tokens of a chain are worth on top of a batch of `base`; return the largest number set.

        The chain ends after `most`: if there is little room now, there is rarely more in the next pass.
        -1: no draft can pay, and nothing was set.
        """
        cdef Py_ssize_t n = min(c.n, self.max_draft, most), length
        if n <= 0:
            return -1
        if c.tree.tokens != NULL:
            return self.solve_tree(c, step, base, most, worth)
        self.set_prices(step, base, n)
        self.p[0] = calibration_apply(c.calibration, 0, c.p[0])
        if not self.may_pay(self.p[0], n):
            return -1
        length = calibration_chain(c.calibration, c.p, n, self.p)
        self.value(length, worth)
        return length

    cdef void value(self, Py_ssize_t n, double* worth) noexcept nogil:
        """Set `worth` and `best` of a chain of n tokens with the probabilities p, after set_prices."""
        ngs_chain_worth(self.p, n, self.price, worth, self.best)

    cdef Py_ssize_t solve_tree(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                               double* worth) noexcept nogil:
        """The same for the first 0, 1, ... tokens of a tree, which is arranged for that.

        Its paths end after `most` tokens. All tokens on them are looked at, also where there are more than `most`.
        """
        cdef double first
        cdef Py_ssize_t size = min(c.n, self.max_draft)
        cdef Py_ssize_t n = self.trees.reach_to(&c.tree, c.calibration, size, most, &first)
        self.set_prices(step, base, n)
        if not self.may_pay(first, n):
            return -1
        self.trees.value(&c.tree, n, size, self.price, step.rate * self.costs.branch, worth)
        return min(n, most)

    cdef void take_best(self, OfferC* c, const double* worth, Py_ssize_t most, const PassC* step,
                        Py_ssize_t base) noexcept nogil:
        """Set chosen and gain: the length up to `most` whose worth most exceeds the cost of the pass."""
        cdef Py_ssize_t k
        cdef double net, cost, best = 0.0, bare, dearest
        c.chosen = 0
        c.gain = 0.0
        if most <= 0:
            return
        bare = worth[0] - step.rate * self.costs.at(base)
        dearest = self.dearest(c, base)
        for k in range(1, most + 1):
            cost = self.costs.now[base + k] if base + k <= MOST_TOKENS else self.costs.at(base + k)
            net = worth[k] - step.rate * cost - bare
            if net > best and cost <= dearest:
                best = net
                c.chosen = k
        c.gain = worth[c.chosen] - worth[0]

    cdef double dearest(self, const OfferC* c, Py_ssize_t base) noexcept nogil:
        """Return what a pass with a draft may cost: a draft that is wrong loses all that it adds.

        Claims are averages of many texts, and a text in which copies break off early soon loses more than drafts
        can gain. So what a draft may add grows with the tokens that drafts had right just before.
        """
        if c.streak < 0:
            return INFINITY
        return self.costs.at(base) + (TRUSTED + <double>c.streak) * self.costs.at(1)

    cdef void explore(self, OfferC* c, Py_ssize_t base, Py_ssize_t most, double stake) noexcept nogil:
        """Choose more of a chain if the cost of such a batch is unknown and little can be lost.

        Otherwise long drafts would never be tried where short ones do not pay. A batch rarely costs more
        than its tokens one by one, so it loses at most the wrong ones: at most `stake` are expected.
        A size that is tried is at most twice a known one.
        """
        cdef Py_ssize_t k, below = base
        cdef double reached = 1.0, wrong = 0.0, dearest = self.dearest(c, base)
        if c.tree.tokens != NULL:
            self.trees.reach(&c.tree, c.calibration, min(c.n, self.max_draft))
        for k in range(1, min(c.n, self.max_draft, most, MOST_TOKENS - base) + 1):
            if c.tree.tokens == NULL:
                reached *= calibration_apply(c.calibration, k - 1, c.p[k - 1])
            else:
                reached = self.trees.reached[k - 1]
            wrong += 1.0 - reached
            if wrong > stake:
                break
            if self.costs.weight[base + k] > 0.0:
                below = base + k
            if (c.chosen < k <= 2 * below - base and not self.costs.known(base + k)
                    and self.costs.at(base + k) <= dearest):
                c.chosen = k

    cdef void add_gains(self, OfferC* c, double* gains) noexcept nogil:
        """Add to gains[k] how probable it is that token k of what was chosen of a draft is emitted."""
        cdef Py_ssize_t k
        cdef double reached = 1.0
        if c.tree.tokens != NULL:
            self.trees.reach(&c.tree, c.calibration, c.chosen)
        for k in range(c.chosen):
            if c.tree.tokens == NULL:
                reached *= calibration_apply(c.calibration, k, c.p[k])
            else:
                reached = self.trees.reached[k]
            gains[k] += reached

    cdef const float* least_of(self, Py_ssize_t base, Py_ssize_t decoding, Py_ssize_t n) noexcept nogil:
        """Return by tokens of a tree, 0..n, below which probability no branch pays."""
        cdef PassC step
        cdef Py_ssize_t most = min(n, self.max_draft)
        step.batch_tokens, step.decoding, step.rate = base, decoding, 1.0
        self.set_prices(&step, base, most)
        return self.trees.least_of(self.price, most, n)

    cdef void set_prices(self, const PassC* step, Py_ssize_t base, Py_ssize_t n) noexcept nogil:
        """Set what a pass with 0..n drafted tokens costs this slot: its share plus all that its draft adds."""
        cdef Py_ssize_t k
        cdef double bare = self.costs.at(base)
        cdef double share = bare / <double>step.decoding - bare
        if base + n <= MOST_TOKENS:
            for k in range(n + 1):
                self.price[k] = step.rate * (self.costs.now[base + k] + share)
        else:
            for k in range(n + 1):
                self.price[k] = step.rate * (self.costs.at(base + k) + share)

    cdef bint may_pay(self, double first, Py_ssize_t n) noexcept nogil:
        """Whether any draft of n tokens can beat none, by the probability that its first one is right.

        k tokens gain first * (worth(1, k) - best(1)) for price[k] - price[0], and best(1) is at least
        worth(1, k) - price[k - 1]: nothing is gained where first * price[k - 1] is no more. After the
        only token of a chain nothing is left to choose: it gains at most `first` tokens.
        """
        cdef Py_ssize_t k
        cdef double least = 1.0 if n == 1 else 0.0
        for k in range(1, n + 1):
            if first * max(self.price[k - 1], least) > self.price[k] - self.price[0]:
                return True
        return False

    cdef double first_of(self, const OfferC* c) noexcept nogil:
        if c.n <= 0 or c.room <= 0:
            return -1.0
        return calibration_apply(c.calibration, 0, c.p[0])


cdef int surer(const void* a, const void* b) noexcept nogil:
    cdef const TurnC* one = <const TurnC*>a
    cdef const TurnC* other = <const TurnC*>b
    if one.first != other.first:
        return -1 if one.first > other.first else 1
    return -1 if one.index < other.index else 1


cdef void arrange(OfferC* offers, TurnC* turns, Py_ssize_t n) noexcept nogil:
    """Set turns: the surest first token first, ties in their order. `turns`: working memory."""
    cdef Py_ssize_t i
    for i in range(n):
        turns[i] = TurnC(offers[i].first, i)
    qsort(turns, <size_t>n, sizeof(TurnC), surer)
    for i in range(n):
        offers[i].turn = turns[i].index


cdef int describe(OfferC* c, Calibrations calibrations, str source, const float[::1] claims,
                  Py_ssize_t room, object streak) except -1:
    """Fill in a candidate; the claims are not copied."""
    c.streak = -1
    if streak is not None:
        if streak < 0:
            raise InputError(f"streak must be >= 0 or None, got {streak}")
        c.streak = streak
    c.chosen = -1
    c.n = claims.shape[0]
    c.p = &claims[0] if c.n else NULL
    c.tree = TreeC(NULL, NULL, NULL)
    c.room = room
    c.calibration = calibrations.of(source)
    return 0


@cython.final
cdef class OfferList:
    """OfferList(calibrations, chains, streaks): a list of (source, confidence, room) as native candidates.

    Raises:
        InputError: A confidence is not float32 of shape (n,) with values in 0..1, or a streak is < 0.
        MemoryError: No room.
    """

    def __cinit__(self, Calibrations calibrations not None, chains, streaks):
        cdef Py_ssize_t i = 0
        self.count = len(chains)
        self.views = [probabilities_view(confidence, "confidence") for _, confidence, _ in chains]
        self.items = <OfferC*>calloc(<size_t>self.count + 1, sizeof(OfferC))
        if self.items == NULL:
            raise MemoryError("no memory for the candidates")
        for source, _, room in chains:
            describe(&self.items[i], calibrations, source, self.views[i], room, streaks[i])
            i += 1

    def __dealloc__(self):
        free(self.items)
