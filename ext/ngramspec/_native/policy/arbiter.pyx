"""Arbiter: whether to ask a draft source that takes time, such as a draft model, and for how many tokens.

An n-gram draft is free: it is there when a pass is planned. A draft model's has to be paid for before
it is seen. So the arbiter expects of each such source what it did lately, by the depth in its drafts, and
asks it for the tokens whose expected worth exceeds the time of drafting and of the larger pass: after the
text, or after the free draft where that ends. A source that does not pay rests. Now and then it is
put on trial with one token, sent only where no free draft would be, for a small part of the time.
"""

cimport cython
from libc.math cimport fabs, isfinite
from libc.stdlib cimport free as release, realloc
from libc.string cimport memset

from ngramspec._native.core.arguments cimport probabilities_view
from ngramspec._native.policy.auto cimport AutoPolicy, Chooser, OfferC, PassC
from ngramspec._native.policy.trees cimport TreeC

from typing import NamedTuple

import numpy as np

from ngramspec.errors import InputError

cdef double FIRST = 0.7        # how often tokens are right that nothing is known about
cdef double PRIOR = 4.0        # observed tokens that the prior, the source's past or the depth before, counts as
cdef double REQUEST = 0.95     # weight of a request's earlier drafts, draft by draft
cdef double PAST = 0.99        # the same over all requests
cdef double QUICK = 0.4        # step of the mean over the last few drafts
cdef double CHANGED = 0.45     # when that is so far off, the request's earlier drafts are forgotten
cdef double HOPED = 0.9        # how often tokens must be right at least, for a trial to be of use
cdef double TRIALS = 0.008     # part of the time that trials may take
cdef double MOST_CREDIT = 2.0  # passes over one token that trials may take at once
cdef double FIRST_CREDIT = 0.5
cdef double DRAFTS = 32.0      # drafts that share the time for reading the text
cdef double SUCCESS = 2.0      # times what a trial took, given back where it was right against all expectation
cdef enum:
    MOST_SLOTS = 1 << 16
    MOST_DRAFTED = 1024


class Asked(NamedTuple):
    """What to ask of a source: `tokens` after the first `after` of the free draft; 0 = nothing.

    trial: To see whether it is right; the free draft is sent nevertheless, if there is one.
    """

    after: int
    tokens: int
    trial: bool


cdef Py_ssize_t depth_of(Py_ssize_t i) noexcept nogil:
    return i if i < 2 else 2 if i < 4 else 3 if i < 8 else 4


cdef void record_add(RecordC* r, double kept, Py_ssize_t right, Py_ssize_t known) noexcept nogil:
    """Learn from a draft of which `known` tokens were judged and the first `right` were right."""
    cdef Py_ssize_t i
    for i in range(NUM_DEPTHS):
        r.seen[i] *= kept
        r.right[i] *= kept
    for i in range(min(known, right + 1)):
        r.seen[depth_of(i)] += 1.0
        r.right[depth_of(i)] += i < right


@cython.final
cdef class Priced:
    """Priced(name): a source that takes time, and what it did."""

    def __cinit__(self, str name not None):
        self.name = name

    def __dealloc__(self):
        release(self.lanes)

    cdef LaneC* of(self, Py_ssize_t slot) except NULL:
        cdef void* grown
        if not 0 <= slot < MOST_SLOTS:
            raise InputError(f"slot must be in 0..{MOST_SLOTS - 1}, got {slot}")
        if slot >= self.num_lanes:
            grown = realloc(self.lanes, <size_t>(slot + 1) * sizeof(LaneC))
            if grown == NULL:
                raise MemoryError("no memory for the arbiter")
            self.lanes = <LaneC*>grown
            memset(self.lanes + self.num_lanes, 0, <size_t>(slot + 1 - self.num_lanes) * sizeof(LaneC))
            while self.num_lanes <= slot:
                self.lanes[self.num_lanes].credit = FIRST_CREDIT
                self.lanes[self.num_lanes].lately = FIRST
                self.num_lanes += 1
        return &self.lanes[slot]

    cdef void expect(self, const LaneC* lane, double* p) noexcept nogil:
        """Set by depth how probable a token is, if those before it are right.

        Deep tokens are seen rarely: until they were, they are expected to be like those before them in this
        request.
        """
        cdef Py_ssize_t i
        cdef double past = FIRST, prior
        for i in range(NUM_DEPTHS):
            past = (self.record.right[i] + PRIOR * past) / (self.record.seen[i] + PRIOR)
            prior = past if i == 0 or self.record.seen[i] > 3.0 else p[i - 1]
            p[i] = (lane.record.right[i] + PRIOR * prior) / (lane.record.seen[i] + PRIOR)


@cython.final
cdef class Arbiter:
    """Arbiter(policy): decides for each slot and pass what to ask of sources that take time.

    Args:
        policy: The AutoPolicy that knows what passes cost and what free drafts claim; kept.

    Threads: one at a time. Nothing here lasts: at most O(longest draft) per call.
    """

    def __cinit__(self, AutoPolicy policy not None):
        self.policy = policy
        self._sources = {}

    cdef Priced source(self, str name):
        found = self._sources.get(name)
        if found is None:
            raise InputError(f"{name!r} has no price yet")
        return found

    def price(self, str source not None, double start, double per_token):
        """State what the drafts of a source take, in the unit of the policy's costs.

        Args:
            source: Its name.
            start: What a draft takes, whatever its length, >= 0; shared by the slots it drafts for at once.
            per_token: What each token takes beside that, >= 0; shared, too.

        Raises:
            InputError: A price is negative or not finite.
        """
        cdef Priced priced
        if not (isfinite(start) and isfinite(per_token) and start >= 0 and per_token >= 0):
            raise InputError(f"prices must be finite and >= 0, got {start} and {per_token}")
        priced = self._sources.get(source)
        if priced is None:
            priced = self._sources[source] = Priced(source)
        priced.start, priced.per_token = start, per_token

    def begin(self, Py_ssize_t slot):
        """Start a request: what drafts did for the last one counts as the source's past only.

        Raises:
            InputError: slot is out of 0..65535.
        """
        cdef Priced priced
        cdef LaneC* lane
        cdef double[NUM_DEPTHS] p
        for priced in self._sources.values():
            lane = priced.of(slot)
            memset(&lane.record, 0, sizeof(RecordC))
            priced.expect(lane, p)
            lane.lately = p[0]
            lane.stake = 0.0

    def expected(self, Py_ssize_t slot, str source not None, Py_ssize_t tokens):
        """Return how probable each token of a source's draft is, if those before it are right.

        Args:
            slot: The slot.
            source: A source with a price.
            tokens: Of the draft, 0..1024.

        Returns:
            float32, shape (tokens,), a new array.

        Raises:
            InputError: The source has no price, or a number is out of its bounds.
        """
        cdef Priced priced = self.source(source)
        cdef double[NUM_DEPTHS] p
        cdef float[::1] view
        cdef Py_ssize_t i
        if not 0 <= tokens <= MOST_DRAFTED:
            raise InputError(f"tokens must be in 0..{MOST_DRAFTED}, got {tokens}")
        priced.expect(priced.of(slot), p)
        made = np.empty(tokens, np.float32)
        view = made
        for i in range(tokens):
            view[i] = <float>p[depth_of(i)]
        return made

    def ask(self, Py_ssize_t slot, str source not None, Py_ssize_t most, Py_ssize_t room, str free not None, confidence,
            Py_ssize_t chosen, Py_ssize_t batch_tokens=1, Py_ssize_t decoding=1, Py_ssize_t sharing=1, bint extends=True,
            double backlog=0.0):
        """Return what to ask of a source for a slot in the next pass, an Asked.

        Args:
            slot: The slot.
            source: A source with a price.
            most: Most tokens that it drafts, 0..1024.
            room: Most tokens that the slot may draft.
            free: Name of the source of the best free draft.
            confidence: float32, shape (n,): what that claims of its tokens; empty = there is none.
            chosen: How many of them would be sent without this source, 0..n.
            batch_tokens, decoding: As in AutoPolicy.choose.
            sharing: Slots that the source probably drafts for at once, >= 1.
            extends: Whether it can draft after the free draft, too.
            backlog: What it takes the source to read what it has not read of the slot's text, >= 0, in the unit
                of the prices. That serves later drafts, too, so a part counts for this one; for a trial all counts.

        Raises:
            InputError: The source has no price, or an argument is out of its bounds.

        Cost: O(n^2 + most), a few microseconds for drafts of 64 tokens.
        """
        cdef Priced priced = self.source(source)
        cdef LaneC* lane = priced.of(slot)
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        cdef double[NUM_DEPTHS] p
        cdef AskedC asked
        cdef FreeC given
        cdef double took, read = backlog / self.policy._costs.pace
        cdef Py_ssize_t i
        if not (0 <= chosen <= claims.shape[0] and 0 <= most <= MOST_DRAFTED):
            raise InputError(f"chosen must be in 0..{claims.shape[0]} and most in 0..{MOST_DRAFTED}, got {chosen} "
                             f"and {most}")
        if not 1 <= decoding <= batch_tokens or sharing < 1 or not backlog >= 0.0:
            raise InputError(f"expected 1 <= decoding <= batch_tokens, sharing >= 1 and backlog >= 0, got {decoding}, "
                             f"{batch_tokens}, {sharing} and {backlog}")
        lane.stake = 0.0
        if min(most, room) <= 0:
            return Asked(0, 0, False)
        self.value(&given, free, claims, chosen, room, batch_tokens, decoding)
        given.ways = 2 if extends and given.chosen else 1
        given.room = room
        priced.expect(lane, p)
        asked = self.best(priced, p, &given, most, sharing, read / DRAFTS)
        if asked.tokens:
            return Asked(asked.after, asked.tokens, False)
        lane.credit = min(lane.credit + TRIALS * self.policy._costs.at(batch_tokens + chosen) / self.policy._costs.at(1),
                          MOST_CREDIT)
        for i in range(NUM_DEPTHS):
            p[i] = max(p[i], HOPED)
        if self.best(priced, p, &given, most, sharing, read / DRAFTS).tokens == 0:
            return Asked(0, 0, False)
        took = read + self.time_of(priced, 1, sharing)
        if chosen == 0:
            took += self.policy._costs.at(batch_tokens + 1) - self.policy._costs.at(batch_tokens)
        took /= self.policy._costs.at(1)
        if lane.credit < took:
            return Asked(0, 0, False)
        lane.credit -= took
        lane.stake = took
        return Asked(0, 1, True)

    def learn(self, Py_ssize_t slot, str source not None, Py_ssize_t num_right, Py_ssize_t num_known):
        """Learn what came of a draft that was asked for, sent or not.

        Args:
            slot: The slot.
            source: A source with a price.
            num_right: How many of its tokens, from the first on, equal the emitted ones.
            num_known: For how many of its tokens the emitted one is known, at least num_right.

        Raises:
            InputError: The source has no price, or a number is out of its bounds.
        """
        cdef Priced priced = self.source(source)
        cdef LaneC* lane = priced.of(slot)
        cdef double[NUM_DEPTHS] p
        if not 0 <= num_right <= num_known <= MOST_DRAFTED:
            raise InputError(f"expected 0 <= num_right <= num_known <= {MOST_DRAFTED} tokens, got {num_right} and "
                             f"{num_known}")
        if num_known == 0:
            return
        priced.expect(lane, p)
        lane.lately += QUICK * ((1.0 if num_right else 0.0) - lane.lately)
        record_add(&lane.record, REQUEST if fabs(lane.lately - p[0]) <= CHANGED else 0.0, num_right, num_known)
        record_add(&priced.record, PAST, num_right, num_known)
        if lane.stake > 0.0 and num_right == num_known:
            lane.credit = min(lane.credit + SUCCESS * (1.0 - p[0]) * lane.stake, MOST_CREDIT)
        lane.stake = 0.0

    cdef double time_of(self, Priced source, Py_ssize_t tokens, Py_ssize_t sharing) noexcept nogil:
        """Return a slot's part of what a draft takes, in the unit of the costs at pace 1."""
        return (source.start + source.per_token * <double>tokens) / <double>sharing / self.policy._costs.pace

    cdef int value(self, FreeC* given, str free, const float[::1] claims, Py_ssize_t chosen, Py_ssize_t room,
                   Py_ssize_t base, Py_ssize_t decoding) except -1:
        """Describe the free draft: what its tokens are worth, and what is left of it later.

        Time is worth at least the tokens that passes without drafts bring: else drafting that made the text slow
        would make itself look cheap.
        """
        cdef Chooser chooser = self.policy._chooser
        cdef PassC step
        cdef OfferC c
        cdef Py_ssize_t solved = -1
        step.batch_tokens, step.decoding = base, decoding
        step.rate = max(self.policy.speed(), <double>decoding / self.policy._costs.at(base))
        if claims.shape[0]:
            c.streak, c.n, c.p, c.room = -1, claims.shape[0], &claims[0], room
            c.tree = TreeC(NULL, NULL, NULL)
            c.calibration = self.policy.calibrations.of(free)
            solved = chooser.solve(&c, &step, base, room, chooser.worth)
        given.n = max(solved, <Py_ssize_t>0)
        given.chosen = min(chosen, given.n)
        given.p, given.later = chooser.p, chooser.best
        given.base = base
        given.rate = step.rate
        given.share = self.policy._costs.at(base) / <double>decoding - self.policy._costs.at(base)
        given.worth = chooser.worth[given.chosen] if given.n else 1.0
        return 0

    cdef AskedC best(self, Priced source, const double* expected, const FreeC* given, Py_ssize_t most,
                     Py_ssize_t sharing, double read) noexcept nogil:
        """Return the request that gains most over sending the free draft alone; tokens = 0: none gains.

        A pass with k drafted tokens of the source emits the right ones before the first wrong one, and one more.
        As long as these are also what the free draft says, the rest of that stays of use.

        read: Time for reading text that counts for this draft.
        """
        cdef AskedC found = AskedC(0, 0, 0.0)
        cdef double first, sure, reached, chain, ended, net, bare
        cdef Py_ssize_t after, i, k, which
        bare = given.worth - given.rate * (self.policy._costs.at(given.base + given.chosen) + given.share)
        for which in range(given.ways):
            after = given.chosen if which else 0
            first, sure = 1.0, 1.0  # tokens of the free draft that are emitted, and one more; all of them are right
            for i in range(after):
                sure *= given.p[i]
                first += sure
            reached = sure
            ended = first - sure * <double>(after + 1)  # what comes where the draft is wrong before this token
            chain = 1.0                          # the free draft is right from `after` on
            for k in range(1, min(most, given.room - after) + 1):
                i = after + k - 1                # index of this token in the draft
                chain *= given.p[i] if i < given.n else 0.0
                ended += reached * (1.0 - expected[depth_of(k - 1)]) * (<double>(i + 1) + chain * later_of(given, i + 1))
                reached *= expected[depth_of(k - 1)]
                net = reached * (<double>(i + 2) + chain * more_of(given, i + 1)) + ended
                net -= given.rate * (self.policy._costs.at(given.base + after + k) + given.share
                                     + self.time_of(source, k, sharing) + read) + bare
                if net > found.gain:
                    found = AskedC(after, k, net)
        return found


cdef inline double later_of(const FreeC* given, Py_ssize_t i) noexcept nogil:
    """Return what is left of the free draft is worth where the text ends before its token i."""
    return given.later[i] if i < given.n else 0.0


cdef inline double more_of(const FreeC* given, Py_ssize_t i) noexcept nogil:
    """Return the same where token i is emitted, too, if it is the free draft's."""
    return given.p[i] * given.later[i + 1] if i + 1 < given.n else 0.0
