"""Mixer: what is sent of a free draft and of another one that took time, when both are known.

The free draft may be a tree. The other one, a chain, begins as it does, or goes on where its likeliest path
ends. Tokens that both have are one token, and count as the free draft's. Where the two agree, a token is as
probable as the surer of them says. Where they part, at most one is right: from the two probabilities, taken
as independent, what is left are the ways in which just one or none is right.

Of the free draft its first tokens are kept, which save most (`policy.chooser`), and of the other one, too: all
such pairs are looked at.
"""

from typing import NamedTuple

cimport cython
from libc.stdlib cimport calloc, free as release

from ngramspec._native.core.arguments cimport TokensC, parents_view, probabilities_view, tokens_release, tokens_view
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.auto cimport AutoPolicy, check_batch
from ngramspec._native.policy.chooser cimport Chooser, PassC, TreeC, TreeValues
from ngramspec._native.policy.costs cimport calibration_apply

import numpy as np

from ngramspec.errors import InputError

cdef double SUREST = 0.999   # where drafts part, neither is surer
cdef enum:
    MOST_DRAFTED = 1024


class Mixed(NamedTuple):
    """A draft of two sources: tokens with their parents, those of the free draft first.

    kept: How many of them are the free draft's, its first ones. Children of the same token differ.
    """

    tokens: np.ndarray
    parents: np.ndarray
    kept: int


@cython.final
cdef class Mixer:
    """Mixer(policy): the work of Arbiter.mix, and memory for it.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, AutoPolicy policy not None):
        cdef Py_ssize_t width = policy._chooser.width()
        self.policy = policy
        self.gains = <double*>calloc(MOST_DRAFTED, sizeof(double))
        self.at = <int32_t*>calloc(<size_t>(MOST_DRAFTED + 2 * width), sizeof(int32_t))
        if self.gains == NULL or self.at == NULL:
            raise MemoryError("no memory for drafts of two sources")
        self.links = self.at + MOST_DRAFTED
        self.eldest = self.links + width

    def __dealloc__(self):
        release(self.gains)
        release(self.at)

    def path(self, free):
        """Return the likeliest path; see Arbiter.path."""
        cdef TreeValues trees = self.policy._chooser.trees
        cdef const float[::1] claims = probabilities_view(free.confidence, "confidence")
        cdef const int32_t[::1] links = parents_view(free.parents, claims.shape[0])
        cdef Py_ssize_t i, length, chosen = len(free.tokens)
        cdef int32_t[::1] view
        cdef TreeC tree
        if not 0 <= chosen <= min(claims.shape[0], self.policy._chooser.max_draft):
            raise InputError(f"a free draft must have at most {min(claims.shape[0], self.policy._chooser.max_draft)} tokens, "
                             f"got {chosen}")
        if chosen == 0:
            return np.empty(0, np.int32)
        tree = TreeC(NULL, <int32_t*>&links[0], <float*>&claims[0])
        trees.reach(&tree, self.policy.calibrations.of(free.source), chosen)
        length = trees.find_path(&tree, chosen)
        path = np.empty(length, np.int32)
        view = path
        for i in range(length):
            view[i] = trees.numbers[i]
        return path

    def mix(self, str source not None, confidence, draft, bint after, double apart, free, terms):
        """Return what to send; see Arbiter.mix."""
        cdef Chooser chooser = self.policy._chooser
        cdef const float[::1] claims = probabilities_view(free.confidence, "confidence")
        cdef const float[::1] likely = probabilities_view(confidence, "confidence")
        cdef const int32_t[::1] links = None if free.parents is None else parents_view(free.parents, claims.shape[0])
        cdef Py_ssize_t batch_tokens = terms.batch_tokens, decoding = terms.decoding
        cdef Py_ssize_t room = terms.room, branches = terms.branches
        cdef Py_ssize_t i, own, m = min(claims.shape[0], chooser.max_draft)
        cdef TokensC free_tokens, other
        cdef token_t[::1] sent_view
        cdef int32_t[::1] above_view
        cdef PassC step
        cdef TreeC tree
        cdef OtherC paid
        cdef MixC best
        check_batch(batch_tokens, decoding)
        tokens_view(free.tokens, "tokens", &free_tokens)
        try:
            tokens_view(draft, "draft", &other)
            try:
                if not (1 <= free_tokens.len <= m and 1 <= other.len == likely.shape[0] <= MOST_DRAFTED):
                    raise InputError(f"expected 1..{m} tokens of a free draft and as many of another one, at most "
                                     f"{MOST_DRAFTED}, as it claims, got {free_tokens.len}, {other.len} and "
                                     f"{likely.shape[0]}")
                tree = TreeC(<token_t*>free_tokens.data, self.links, <float*>&claims[0])
                if links is not None:
                    tree.parents = <int32_t*>&links[0]
                else:
                    for i in range(m):
                        self.links[i] = <int32_t>(i - 1)
                step = PassC(batch_tokens, decoding, max(self.policy.speed(),
                                                         <double>decoding / self.policy._costs.at(batch_tokens)))
                chooser.trees.reach(&tree, self.policy.calibrations.of(free.source), m)
                paid = OtherC(other.data, &likely[0], self.policy.calibrations.of(source), self.gains, self.at,
                              other.len, -1)
                if after:
                    i = chooser.trees.find_path(&tree, free_tokens.len)
                    paid.start = chooser.trees.numbers[i - 1]
                self.join(&paid, &tree, free_tokens.len, m, apart)
                chooser.set_prices(&step, batch_tokens, min(m + other.len, chooser.max_draft))
                chooser.trees.save(&tree, m, chooser.price, step.rate * self.policy._costs.branch)
                best = self.choose(&paid, &tree, free_tokens.len, room, branches, &step)
                own = 0
                for i in range(best.end):
                    own += paid.at[i] >= best.num_free
                sent = np.empty(best.num_free + own, np.int32)
                above = np.empty(best.num_free + own, np.int32)
                sent_view, above_view = sent, above
                for i in range(best.num_free):
                    sent_view[i], above_view[i] = free_tokens.data[i], tree.parents[i]
                for i in range(own):
                    sent_view[best.num_free + i] = other.data[best.end - own + i]
                    above_view[best.num_free + i] = (<int32_t>(best.num_free + i - 1) if i
                                                     else self.end_of(&paid, best.num_free))
                return Mixed(sent, above, best.num_free)
            finally:
                tokens_release(&other)
        finally:
            tokens_release(&free_tokens)

    cdef void join(self, OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t m, double apart) noexcept:
        """Find the tokens that both have, and correct what is probable after `reach` of m tokens; set `eldest`."""
        cdef TreeValues trees = self.policy._chooser.trees
        cdef Py_ssize_t i, k, common = 0
        cdef int32_t at = other.start, child
        cdef double mass, ours, theirs, left, reached
        for i in range(n + 1):
            self.eldest[i] = <int32_t>n
        for i in range(n - 1, -1, -1):
            self.eldest[tree.parents[i] + 1] = <int32_t>i
        while common < other.n:
            child, mass = <int32_t>n, 0.0
            for i in range(self.eldest[at + 1], n):
                if tree.parents[i] == at:
                    mass += trees.p[i]
                    if tree.tokens[i] == other.tokens[common]:
                        child = <int32_t>i
            theirs = calibration_apply(other.calibration, common, other.claims[common])
            if child == n:
                break
            other.at[common] = child
            ours = trees.p[child]
            left = 1.0
            if theirs > ours:  # what it is surer of, the others lose
                left = (1.0 - theirs) / (1.0 - ours)
                trees.p[child] = theirs
            for i in range(self.eldest[at + 1], n):
                if tree.parents[i] == at and i != child:
                    trees.p[i] *= left
            at = child
            common += 1
        if common < other.n:
            ours, theirs = min(mass, SUREST), min(theirs * (apart if common == 0 else 1.0), SUREST)
            for i in range(self.eldest[at + 1], n):
                if tree.parents[i] == at:
                    trees.p[i] *= (1.0 - theirs) / (1.0 - ours * theirs)
            theirs *= (1.0 - ours) / (1.0 - ours * theirs)
        for i in range(m):
            trees.reached[i] = trees.p[i]
            if tree.parents[i] >= 0:
                trees.reached[i] *= trees.reached[tree.parents[i]]
        reached = trees.reached[at] if at >= 0 else 1.0
        for k in range(common, other.n):
            if k > common:
                theirs = calibration_apply(other.calibration, k, other.claims[k])
            reached *= theirs
            other.at[k], other.gain[k] = <int32_t>n, reached

    cdef MixC choose(self, const OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t room, Py_ssize_t branches,
                     const PassC* step) noexcept:
        """Return the best pair. All of the free draft alone is taken if none with the other is better."""
        cdef Chooser chooser = self.policy._chooser
        cdef TreeValues trees = chooser.trees
        cdef const double* price = chooser.price
        cdef Py_ssize_t most = chooser.max_draft
        cdef double free_gain = 0.0, gain, net, best, branch = step.rate * self.policy._costs.branch
        cdef MixC pair = MixC(n, 0)
        cdef Py_ssize_t j, k, own, ways
        cdef int32_t end
        cdef bint more
        for j in range(n):
            free_gain += trees.gain[j]
        best = free_gain - price[n]
        ways = trees.branches_of(tree, n)
        for j in range(n, -1, -1):
            if j < n:
                free_gain -= trees.gain[j]
                end = tree.parents[j]
                ways -= end < 0 or self.eldest[end + 1] < j
            if other.start >= j:
                break
            own, gain = 0, free_gain
            end = self.end_of(other, j)
            more = end < 0 or self.eldest[end + 1] < j   # a token of the other draft begins a branch
            if ways + more > branches:
                continue
            if j and more:
                gain -= branch
            for k in range(other.n):
                if other.at[k] < j:
                    continue
                if j + own >= room:
                    break
                own += 1
                gain += trees.gain[other.at[k]] if other.at[k] < n else other.gain[k]
                net = gain - (price[j + own] if j + own <= most else price[0] + step.rate
                              * (chooser.costs.at(step.batch_tokens + j + own) - chooser.costs.at(step.batch_tokens)))
                if net > best:
                    best, pair = net, MixC(j, k + 1)
        return pair

    cdef int32_t end_of(self, const OtherC* other, Py_ssize_t num_free) noexcept nogil:
        """Return after which of the kept tokens the first one stands that only the other draft has."""
        cdef Py_ssize_t k = 0
        while k < other.n and other.at[k] < num_free:
            k += 1
        return other.at[k - 1] if k else other.start
