"""TreeValues: what the tokens of a tree save, so that AutoPolicy sends those that pay.

A token that is emitted saves the pass that would have emitted it alone. Without it, the next pass begins
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
from libc.stdlib cimport calloc, free

from ngramspec._native.policy.costs cimport LEAST_P, MOST_TOKENS, calibration_apply

cdef extern from "ngs_worth.h" nogil:
    void ngs_chain_worth(const double* p, Py_ssize_t n, const double* costs, double* worth, double* best)

cdef double SLACK = 0.6  # claims may be too low: branches grow down to this part of the probability that pays


@cython.final
cdef class TreeValues:
    """TreeValues(width): room for trees of less than `width` tokens.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t width):
        self.width = width
        self.memory = <double*>calloc(<size_t>(7 * width), sizeof(double))
        self.memory32 = <int32_t*>calloc(<size_t>(4 * width), sizeof(int32_t))
        self.least = <float*>calloc(MOST_TOKENS + 2, sizeof(float))
        if self.memory == NULL or self.memory32 == NULL or self.least == NULL:
            raise MemoryError("no memory for the choice of drafts")
        self.reached = self.memory
        self.p = self.reached + width
        self.rest = self.p + width
        self.gain = self.rest + width
        self.path = self.gain + width
        self.worth = self.path + width
        self.best = self.worth + width
        self.first = self.memory32
        self.depth = self.first + width
        self.numbers = self.depth + width
        self.more = self.numbers + width

    def __dealloc__(self):
        free(self.memory)
        free(self.memory32)
        free(self.least)

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
