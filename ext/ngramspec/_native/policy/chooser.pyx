"""Chooser: how many tokens of each candidate draft of a pass are sent, by what they are worth and what they cost.

In a tree, a token that is emitted saves the pass that would have emitted it alone. Without it, the next pass begins
with the text that ends there, and may go on as the tree does; with it, the next pass begins one token
later. So a token saves, where it and all before it are right,
    1 + sum over its children of p * rest(child) - rest(token),
and rest is what the known rest of a text is worth: best(i) of ngs_worth.h along the likeliest children.
For a tree without branches that is the rule for chains.

Tokens are taken in the order of what they save. Each comes after its parent; one that saves little comes
early if what follows it saves much.

Published relatives: Sequoia (arXiv 2402.12374) and OPT-Tree (arXiv 2406.17276) choose trees of a given size
by the probability of their tokens alone.
"""

cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport qsort

from ngramspec._native.core.arguments cimport probabilities_view
from ngramspec._native.policy.costs cimport (
    LEAST_P, MOST_TOKENS, Calibrations, PassCosts, calibration_apply, calibration_chain,
)

from ngramspec.errors import InputError

cdef extern from "ngs_worth.h" nogil:
    enum:
        NGS_WORTH_PAD
    void ngs_chain_worth(const double* p, Py_ssize_t n, const double* costs, double* worth, double* best)

cdef enum:
    ROUNDS = 2              # how often each of several candidates chooses

cdef double SLACK = 0.6  # claims may be too low: branches grow down to this part of the probability that pays
cdef double DOUBT = 0.07   # part of what a draft adds to a pass that it must gain besides: claims and costs may be off
cdef double TRUSTED = 6.0   # passes over one token that a draft may add where none was right just before

# A candidate that has still to get its turn.
cdef struct TurnC:
    double first
    Py_ssize_t index


@cython.final
cdef class TreeValues(Owner):
    """TreeValues(width): room for trees of less than `width` tokens.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t width):
        self.width = width
        self.least = <float*>self.take(MOST_TOKENS + 2, sizeof(float))
        self.reached = <double*>self.take(7 * width, sizeof(double))
        self.p = self.reached + width
        self.rest = self.p + width
        self.gain = self.rest + width
        self.path = self.gain + width
        self.worth = self.path + width
        self.best = self.worth + width
        self.first = <int32_t*>self.take(4 * width, sizeof(int32_t))
        self.depth = self.first + width
        self.numbers = self.depth + width
        self.more = self.numbers + width

    cdef double reach(self, const TreeC* t, const CalibrationC* c, Py_ssize_t n) noexcept nogil:
        """Set p and reached of n tokens; return the probability that any first one is right."""
        cdef double first = 0.0
        cdef Py_ssize_t i
        cdef int32_t parent
        for i in range(n):
            parent = t.parents[i]
            self.depth[i] = self.depth[parent] + 1 if parent >= 0 else 0
            self.p[i] = self.reached[i] = max(calibration_apply(c, self.depth[i], t.claims[i]), LEAST_P)
            if parent >= 0:
                self.reached[i] *= self.reached[parent]
            else:
                first += self.p[i]
        return min(first, 1.0)

    cdef Py_ssize_t reach_to(self, TreeC* t, const CalibrationC* c, Py_ssize_t n, Py_ssize_t most,
                             double* first) noexcept nogil:
        """Do what `reach` does for the tokens whose paths have at most `most` tokens; return how many they are.

        The other ones are put last. first: Set to what `reach` returns.
        """
        cdef int32_t* order = self.numbers
        cdef int32_t* place = self.more
        cdef Py_ssize_t i, near = 0, num_near
        first[0] = self.reach(t, c, n)
        for i in range(n):
            near += self.depth[i] < most
        if near == n:
            return n
        num_near, near = near, 0
        for i in range(n):
            if self.depth[i] < most:
                place[i] = <int32_t>near
                near += 1
            else:
                place[i] = <int32_t>(num_near + i - near)
            order[place[i]] = <int32_t>i
        self.reorder(t, order, place, n)
        first[0] = self.reach(t, c, num_near)
        return num_near

    cdef void value(self, TreeC* t, Py_ssize_t n, Py_ssize_t num, const double* price, double branch,
                    double* worth) noexcept nogil:
        """Arrange the first n of a tree's `num` tokens after `reach`, and set what 0..n of them are worth.

        price: What a pass with 0..n drafted tokens costs the slot, in tokens. Before these costs, as in Chooser.
        branch: What each branch beside the likeliest one costs, in tokens. That is taken off.
        """
        cdef Py_ssize_t i
        worth[0] = self.save(t, n, price, branch)
        self.arrange(t, n, num)
        for i in range(n):
            worth[i + 1] = worth[i] + self.gain[i]

    cdef double save(self, const TreeC* t, Py_ssize_t n, const double* price, double branch) noexcept nogil:
        """Set after `reach` what each token saves; return what a pass without them is worth, as in `value`."""
        cdef Py_ssize_t i
        cdef int32_t parent, likeliest = self.value_rests(t, n, price)
        cdef double none = 1.0
        for i in range(n):
            self.gain[i] = 1.0 - self.rest[i]
            parent = t.parents[i]
            if parent >= 0:
                self.gain[parent] += self.p[i] * self.rest[i]
            else:
                none += self.p[i] * self.rest[i]
        for i in range(n):
            self.gain[i] *= self.reached[i]
            parent = t.parents[i]
            if i != (self.first[parent] if parent >= 0 else likeliest):
                self.gain[i] -= branch
        return none

    cdef int32_t value_rests(self, const TreeC* t, Py_ssize_t n, const double* price) noexcept nogil:
        """Set rest, and what find_firsts does. A tree falls apart into chains of likeliest children."""
        cdef Py_ssize_t i, k, length
        cdef int32_t at, likeliest = self.find_firsts(t, n)
        for i in range(n):
            if t.parents[i] >= 0 and self.first[t.parents[i]] == i:
                continue
            length = 0
            at = <int32_t>i
            while at >= 0:
                self.numbers[length], self.path[length] = at, self.p[at]
                length += 1
                at = self.first[at]
            ngs_chain_worth(self.path, length, price, self.worth, self.best)
            for k in range(length):
                self.rest[self.numbers[k]] = self.best[k + 1]
        return likeliest

    cdef int32_t find_firsts(self, const TreeC* t, Py_ssize_t n) noexcept nogil:
        """Set `first` after `reach`; return the likeliest token after the text, -1 = there is none."""
        cdef Py_ssize_t i
        cdef int32_t at, likeliest = -1
        for i in range(n):
            self.first[i] = -1
            at = t.parents[i]
            if at < 0:
                if likeliest < 0 or self.p[i] > self.p[likeliest]:
                    likeliest = <int32_t>i
            elif self.first[at] < 0 or self.p[i] > self.p[self.first[at]]:
                self.first[at] = <int32_t>i
        return likeliest

    cdef Py_ssize_t find_path(self, const TreeC* t, Py_ssize_t n) noexcept nogil:
        """Set `numbers` after `reach` to the path of likeliest children among n tokens; return its length."""
        cdef Py_ssize_t length = 0
        cdef int32_t at = self.find_firsts(t, n)
        while at >= 0:
            self.numbers[length] = at
            length += 1
            at = self.first[at]
        return length

    cdef Py_ssize_t branches_of(self, const TreeC* t, Py_ssize_t n) noexcept nogil:
        """Return how many branches n tokens make: each token that does not go on from the one before begins one."""
        cdef Py_ssize_t i, branches = 0
        for i in range(n):
            self.more[i] = 0  # 1 = it has a child
            if t.parents[i] >= 0 and not self.more[t.parents[i]]:
                self.more[t.parents[i]] = 1
            else:
                branches += 1
        return branches

    cdef void arrange(self, TreeC* t, Py_ssize_t n, Py_ssize_t num) noexcept nogil:
        """Put those of the first n tokens that save most first; the others of `num` stay after them.

        A token counts as what it and the likeliest children after it save on average, as many of them as
        make that the most; but no more than its parent.
        """
        # Scratch: what the names on the right hold is not needed any more. `size` has been read when `order` is written.
        cdef double* total = self.path
        cdef double* key = self.rest
        cdef int32_t* size = self.numbers
        cdef int32_t* order = self.numbers
        cdef int32_t* place = self.more
        cdef int32_t at
        cdef Py_ssize_t _step, i, k
        cdef bint moved = False
        for i in range(n - 1, -1, -1):
            total[i], size[i] = self.gain[i], 1
            at = self.first[i]
            while at >= 0 and total[at] * size[i] > total[i] * size[at]:
                total[i] += total[at]
                k = size[at]
                size[i] += size[at]
                for _step in range(k):
                    at = self.first[at]
            key[i] = total[i] / size[i]
        for i in range(n):
            if t.parents[i] >= 0:
                key[i] = min(key[i], key[t.parents[i]])
        for i in range(n):
            k = i
            while k > 0 and key[order[k - 1]] < key[i]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = <int32_t>i
            moved = moved or k < i
        if not moved:
            return
        for i in range(n):
            place[order[i]] = <int32_t>i
        self.reorder(t, order, place, n)
        for i in range(n, num):
            if 0 <= t.parents[i] < n:
                t.parents[i] = place[t.parents[i]]

    cdef void reorder(self, TreeC* t, const int32_t* order, const int32_t* place, Py_ssize_t n) noexcept nogil:
        """Move token order[i] to i, with its gain and probability; place is the inverse of order."""
        # Scratch, as in `arrange`.
        cdef int32_t* tokens = self.first
        cdef int32_t* parents = self.depth
        cdef double* claims = self.path
        cdef double* gains = self.worth
        cdef double* all_right = self.best
        cdef Py_ssize_t i
        cdef int32_t at
        for i in range(n):
            at = order[i]
            tokens[i], claims[i], gains[i], all_right[i] = t.tokens[at], t.claims[at], self.gain[at], self.reached[at]
            parents[i] = place[t.parents[at]] if t.parents[at] >= 0 else -1
        for i in range(n):
            t.tokens[i], t.parents[i], t.claims[i] = tokens[i], parents[i], <float>claims[i]
            self.gain[i], self.reached[i] = gains[i], all_right[i]

    cdef const float* least_of(self, const double* price, Py_ssize_t most, Py_ssize_t n) noexcept nogil:
        """Return for trees of 0..n tokens below which probability of being emitted no further one pays.

        A token saves at most the pass without drafts, price[0]. It pays if it and those after it, none of
        them likelier, save more than they add: the number of them that adds least is looked for, which is
        where the lower convex hull of the prices goes on to. None pays after `most` tokens.
        """
        cdef int32_t* hull = self.numbers  # numbers of tokens, the next one last
        cdef Py_ssize_t k, a, b, held = 0
        for k in range(most, min(n, <Py_ssize_t>MOST_TOKENS) + 1):
            self.least[k] = 2.0
        for k in range(most, -1, -1):
            while held >= 2:
                a, b = hull[held - 1], hull[held - 2]
                if (price[a] - price[k]) * <double>(b - a) < (price[b] - price[a]) * <double>(a - k):
                    break
                held -= 1
            if held:
                a = hull[held - 1]
                self.least[k] = <float>(SLACK * (price[a] - price[k]) / <double>(a - k) / price[0])
            hull[held] = <int32_t>k
            held += 1
        return self.least


@cython.final
cdef class Chooser(Owner):
    """Chooser(max_draft, costs): chooses draft lengths.

    Sending k tokens of a chain from position i is worth the tokens that the pass emits, minus its time
    in tokens at the present rate, plus the worth of the rest of the chain if it is reached. Text after
    the chain is worth 0. Where the drafts cannot bring the present rate, it is the highest that they can.
    See ngs_worth.h for the recursion.

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
        self.p = <double*>self.take(4 * self.width(), sizeof(double))
        self.worth = self.p + self.width()
        self.price = self.worth + self.width()
        self.best = self.price + self.width()

    cdef Py_ssize_t width(self) noexcept nogil:
        return self.max_draft + 1 + NGS_WORTH_PAD

    cdef int reserve(self, Py_ssize_t n) except -1:
        """Make room for `many` to choose for n candidates."""
        if n > self.num_worths:
            self.worths = <double*>self.enlarge(self.worths, n, <size_t>self.width() * sizeof(double) + sizeof(TurnC))
            self.num_worths = n
        return 0

    cdef void one(self, OfferC* c, const PassC* step) noexcept nogil:
        """Choose for the only candidate of a pass; step.batch_tokens includes all other drafts."""
        cdef PassC now = self.at_most_attainable(c, 1, step, c.room)
        cdef Py_ssize_t solved = self.solve(c, &now, now.batch_tokens, c.room, self.worth)
        self.take_best(c, self.worth, solved, &now, now.batch_tokens)

    cdef void many(self, OfferC* offers, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept nogil:
        """Choose in turn, given what the others chose: once from no drafts, once from whole ones; keep the better.

        Whole drafts are tried since costs can flatten: then long drafts of all slots can pay although
        none does alone. If neither beats sending no drafts, none are sent. Call `reserve` first.
        """
        cdef Py_ssize_t i, whole
        cdef double best = 0.0, value
        cdef PassC now = self.at_most_attainable(offers, n, step, capacity - step.batch_tokens)
        for i in range(n):
            offers[i].first = self.first_of(&offers[i])
            offers[i].best = 0
            offers[i].worth = self.worths + i * self.width()
            offers[i].solved = -1
        arrange(offers, <TurnC*>(self.worths + n * self.width()), n)
        for whole in range(2):
            value = self.take_turns(offers, n, &now, capacity, whole)
            if value > best:
                best = value
                for i in range(n):
                    offers[i].best = offers[i].chosen
        for i in range(n):
            offers[i].chosen = offers[i].best

    cdef PassC at_most_attainable(self, const OfferC* offers, Py_ssize_t n, const PassC* step,
                                  Py_ssize_t room) noexcept nogil:
        """Return the pass at no higher rate than these drafts can bring by themselves, cut to the length that brings most.

        Tokens that came faster before, with longer drafts, do not come back sooner if these are not sent.
        """
        # Scratch, as nothing is solved yet: per place how many tokens are expected to be emitted, and how many drafted.
        cdef double* right = self.worth
        cdef double* rows = self.best
        cdef PassC now = step[0]
        cdef double emitted = <double>step.decoding, tokens = emitted, most = emitted + <double>room
        cdef double bare = self.costs.at(step.decoding)
        cdef double best = emitted / bare if n else step.rate
        cdef Py_ssize_t i, k, length, longest = 0
        self.rate = step.rate
        if best >= step.rate:
            return now
        for i in range(n):
            length = max(min(offers[i].n, offers[i].room, self.max_draft), <Py_ssize_t>0)
            for k in range(longest, length):
                right[k] = rows[k] = 0.0
            longest = max(longest, length)
            for k in range(self.add_gains(&offers[i], length, right)):
                rows[k] += 1.0
        for k in range(longest):
            emitted += right[k]
            tokens += rows[k]
            if best >= step.rate or tokens > most:
                break
            best = max(best, emitted / ((1.0 + DOUBT) * self.costs.at(<Py_ssize_t>tokens) - DOUBT * bare))
        self.rate = now.rate = min(step.rate, best)
        return now

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
        cdef double net, cost, best = 0.0, bare, dearest, base_cost
        c.chosen = 0
        c.gain = 0.0
        if most <= 0:
            return
        base_cost = self.costs.at(base)
        bare = worth[0] - step.rate * base_cost
        dearest = self.dearest(c, base)
        for k in range(1, most + 1):
            cost = self.costs.now[base + k] if base + k <= MOST_TOKENS else self.costs.at(base + k)
            net = worth[k] - step.rate * (cost + DOUBT * (cost - base_cost)) - bare
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
        A size that is tried is at most twice a known one, and more than the given costs list.
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
            if self.costs.weight[base + k] > 0.0 or base + k <= self.costs.listed:
                below = base + k
            if (c.chosen < k <= 2 * below - base and not self.costs.seen_often(base + k) and base + k > self.costs.listed
                    and self.costs.at(base + k) <= dearest):
                c.chosen = k

    cdef Py_ssize_t add_gains(self, const OfferC* c, Py_ssize_t n, double* gains) noexcept nogil:
        """Add to gains[k] how probable it is that token k of the first n of a draft is emitted.

        Return how many tokens count: those of a chain end where almost nothing can be expected of the rest.
        """
        cdef Py_ssize_t k
        cdef double reached = 1.0
        if c.tree.tokens != NULL:
            self.trees.reach(&c.tree, c.calibration, n)
            for k in range(n):
                gains[k] += self.trees.reached[k]
            return n
        n = calibration_chain(c.calibration, c.p, n, self.p)
        for k in range(n):
            reached *= self.p[k]
            gains[k] += reached
        return n

    cdef const float* least_of(self, Py_ssize_t base, Py_ssize_t decoding, Py_ssize_t n) noexcept nogil:
        """Return by tokens of a tree, 0..n, below which probability no branch pays."""
        cdef PassC step
        cdef Py_ssize_t most = min(n, self.max_draft)
        step.batch_tokens, step.decoding, step.rate = base, decoding, 1.0
        self.set_prices(&step, base, most)
        return self.trees.least_of(self.price, most, n)

    cdef void set_prices(self, const PassC* step, Py_ssize_t base, Py_ssize_t n) noexcept nogil:
        """Set what a pass with 0..n drafted tokens costs this slot: its share plus all that its draft adds, and DOUBT."""
        cdef Py_ssize_t k
        cdef double bare = self.costs.at(base)
        cdef double share = bare / <double>step.decoding - bare * (1.0 + DOUBT)
        if base + n <= MOST_TOKENS:
            for k in range(n + 1):
                self.price[k] = step.rate * ((1.0 + DOUBT) * self.costs.now[base + k] + share)
        else:
            for k in range(n + 1):
                self.price[k] = step.rate * ((1.0 + DOUBT) * self.costs.at(base + k) + share)

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
cdef class OfferList(Owner):
    """OfferList(calibrations, chains, streaks): a list of (source, confidence, room) as native candidates.

    Raises:
        InputError: A confidence is not float32 of shape (n,) with values in 0..1, or a streak is < 0.
        MemoryError: No room.
    """

    def __cinit__(self, Calibrations calibrations not None, chains, streaks):
        cdef Py_ssize_t i = 0
        self.count = len(chains)
        self.views = [probabilities_view(confidence, "confidence") for _, confidence, _ in chains]
        self.items = <OfferC*>self.take(self.count + 1, sizeof(OfferC))
        for source, _, room in chains:
            describe(&self.items[i], calibrations, source, self.views[i], room, streaks[i])
            i += 1
