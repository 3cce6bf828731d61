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
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.costs cimport CalibrationC, calibration_apply

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
            Py_ssize_t chosen, Py_ssize_t batch_tokens=1, Py_ssize_t sharing=1):
        """Return what to ask of a source for a slot in the next pass, an Asked.

        Args:
            slot: The slot.
            source: A source with a price.
            most: Most tokens that it drafts, 0..1024.
            room: Most tokens that the slot may draft.
            free: Name of the source of the best free draft.
            confidence: float32, shape (n,): what that claims of its tokens; empty = there is none.
            chosen: How many of them would be sent without this source, 0..n.
            batch_tokens: Tokens of the pass without drafts of this slot, >= 1.
            sharing: Slots that the source probably drafts for at once, >= 1.

        Raises:
            InputError: The source has no price, or an argument is out of its bounds.

        Cost: O(most + chosen), about a microsecond.
        """
        cdef Priced priced = self.source(source)
        cdef LaneC* lane = priced.of(slot)
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        cdef CalibrationC* calibration = NULL
        cdef double[NUM_DEPTHS] p
        cdef AskedC asked
        cdef double tokens = 1.0, reached = 1.0, took
        cdef double[2] worth
        cdef Py_ssize_t i
        if not (0 <= chosen <= claims.shape[0] and 0 <= most <= MOST_DRAFTED):
            raise InputError(f"chosen must be in 0..{claims.shape[0]} and most in 0..{MOST_DRAFTED}, got {chosen} "
                             f"and {most}")
        if batch_tokens < 1 or sharing < 1:
            raise InputError(f"batch_tokens and sharing must be >= 1, got {batch_tokens} and {sharing}")
        most = min(most, room)
        lane.stake = 0.0
        if most <= 0:
            return Asked(0, 0, False)
        if chosen:
            calibration = self.policy.calibrations.of(free)
        for i in range(chosen):
            reached *= calibration_apply(calibration, i, claims[i])
            tokens += reached
        worth[0], worth[1] = tokens, reached
        priced.expect(lane, p)
        asked = self.best(priced, p, worth, chosen, most, batch_tokens, sharing)
        if asked.tokens:
            return Asked(asked.after, asked.tokens, False)
        lane.credit = min(lane.credit + TRIALS * self.policy._costs.at(batch_tokens + chosen) / self.policy._costs.at(1),
                          MOST_CREDIT)
        for i in range(NUM_DEPTHS):
            p[i] = max(p[i], HOPED)
        if self.best(priced, p, worth, chosen, most, batch_tokens, sharing).tokens == 0:
            return Asked(0, 0, False)
        took = self.time_of(priced, 1, sharing)
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

    cdef AskedC best(self, Priced source, const double* expected, const double* worth, Py_ssize_t free,
                     Py_ssize_t most, Py_ssize_t base, Py_ssize_t sharing) noexcept nogil:
        """Return the request that gains most over sending `free` tokens of the free draft; tokens = 0: none gains.

        worth: tokens that these bring, and the probability that all of them are right.
        """
        cdef AskedC found = AskedC(0, 0, 0.0)
        cdef double rate = self.policy.speed(), bare, tokens, reached, net
        cdef Py_ssize_t after, k, which
        bare = worth[0] - rate * self.policy._costs.at(base + free)
        for which in range(2 if free else 1):
            after = free if which else 0
            tokens = worth[0] if which else 1.0
            reached = worth[1] if which else 1.0
            for k in range(1, most - after + 1):
                reached *= expected[depth_of(k - 1)]
                tokens += reached
                net = tokens - rate * (self.policy._costs.at(base + after + k) + self.time_of(source, k, sharing)) - bare
                if net > found.gain:
                    found = AskedC(after, k, net)
        return found
