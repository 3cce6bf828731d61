"""AutoPolicy: draft tokens as long as they are worth more than they add to the cost of the pass.

Gate: a draft length that grows while drafts are right, and rests where they are not.
"""

cimport cython
from libc.math cimport isfinite
from libc.string cimport memset

from ngramspec._native.core.arguments cimport parents_view, probabilities_view
from ngramspec._native.core.types cimport int32_t
from ngramspec._native.policy.chooser cimport Chooser, OfferC, OfferList, PassC, TreeC, describe
from ngramspec._native.policy.costs cimport (
    MOST_TOKENS, CalibrationC, Calibrations, PassCosts, calibration_apply, calibration_learn,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    _FIRST_PAUSE = 4  # steps without drafts after the acceptance fell too low
    _MAX_PAUSE = 128
    _PROBE = 3        # tokens of the draft that ends a rest
    _START = 8        # tokens of a request's first draft, unless the source was mostly right recently
    _MAX_SLOTS = 1 << 16
    MOST_ROWS = 1 << 30          # and tokens of a pass
    MOST_FIXED = 65535           # longest draft of any drafter
    PROBE_EVERY = 8              # one step in PROBE_EVERY has no drafts while the cost of such a pass is unknown

cdef double ENOUGH = 0.6        # share of accepted tokens below which drafts are not worth their cost
cdef double SURE = 0.8          # share from which on a source counts as mostly right
cdef double SLOT_DECAY = 0.7    # weight of earlier drafts in a slot's running share
cdef double SOURCE_DECAY = 0.95  # the same in the share over all slots
cdef double LATELY = 0.95        # weight of earlier steps, step by step, in the rate of the text said now
cdef double USUAL = 0.9995       # the same in the rate of all text that comes
cdef double MOST_OFF = 4.0       # a step's time is clamped to within this factor of the expected one
cdef double PROBES = 6.0         # passes without a draft after which their cost counts as known
cdef double MORE_PROBES = 24.0   # the same while drafts bring at most SMALL_GAIN
cdef double SMALL_GAIN = 1.5     # times the tokens of a pass without drafts
cdef double STAKE = 2.0          # passes that trying unknown sizes may lose
cdef double PAID_BACK = 0.005    # part of a lost pass that is forgiven per pass

FIRST_PAUSE, MAX_PAUSE, PROBE, START = _FIRST_PAUSE, _MAX_PAUSE, _PROBE, _START


@cython.final
cdef class _Lanes(Owner):
    """_Lanes(): what one source did for every slot."""

    def __cinit__(self):
        self.share = 1.0

    cdef GateLaneC* of(self, Py_ssize_t slot) except NULL:
        if not 0 <= slot < _MAX_SLOTS:
            raise InputError(f"slot must be in 0..{_MAX_SLOTS - 1}, got {slot}")
        if slot >= self.count:
            self.lanes = <GateLaneC*>self.enlarge(self.lanes, slot + 1, sizeof(GateLaneC))
            self.count = slot + 1
        return &self.lanes[slot]


@cython.final
cdef class Gate:
    """Gate(max_draft): grow drafts while they are right, shrink them when not, rest when they fail.

    After a right draft the limit doubles, after a wrong one it falls to slightly more than what was
    right. When the running share of accepted tokens falls below ENOUGH the source rests for some
    steps on that slot; rests double as long as the probes after them fail, so on text that never
    repeats about one step in MAX_PAUSE has a short draft. A new request starts from how the
    source did recently on all slots: at max_draft if it was mostly right, short otherwise.

    Args:
        max_draft: Longest draft in tokens.
    """

    def __cinit__(self, Py_ssize_t max_draft):
        self._max_draft, self._sources = max_draft, {}

    cdef int begin(self, Py_ssize_t slot) except -1:
        """Forget what was learnt about the slot."""
        for lanes in self._sources.values():
            (<_Lanes>lanes).of(slot).begun = False
        return 0

    cdef _Lanes lanes_of(self, str source):
        lanes = self._sources.get(source)
        if lanes is None:
            lanes = self._sources[source] = _Lanes()
        return lanes

    cdef Py_ssize_t ask(self, Py_ssize_t slot, str source) except -1:
        """Return the longest draft to ask for now, 0 while the source rests."""
        cdef _Lanes lanes = self.lanes_of(source)
        cdef GateLaneC* lane = lanes.of(slot)
        if not lane.begun:
            lane.begun = True
            lane.rest = 0
            lane.rate = max(lanes.share, ENOUGH)
            lane.limit = self._max_draft if lanes.share >= SURE else min(<Py_ssize_t>_START, self._max_draft)
            lane.pause = _FIRST_PAUSE
            if lanes.share < ENOUGH / 2:
                lane.limit = min(<Py_ssize_t>_PROBE, self._max_draft)
                lane.pause = _FIRST_PAUSE * 4
        if lane.rest:
            lane.rest -= 1
            return 0
        return lane.limit

    cdef int learn(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1:
        """Learn from a verified draft."""
        cdef _Lanes lanes = self.lanes_of(source)
        cdef GateLaneC* lane = lanes.of(slot)
        cdef double share
        if not lane.begun or drafted <= 0:
            return 0
        share = <double>accepted / <double>drafted
        lane.rate = SLOT_DECAY * lane.rate + (1 - SLOT_DECAY) * share
        lanes.share = SOURCE_DECAY * lanes.share + (1 - SOURCE_DECAY) * share
        if accepted == drafted:
            lane.limit = min(self._max_draft, max(lane.limit, drafted) * 2)
            lane.rate = max(lane.rate, ENOUGH)
            lane.pause = _FIRST_PAUSE
            return 0
        lane.limit = min(self._max_draft, max(<Py_ssize_t>_PROBE, accepted + accepted // 2 + 1))
        if lane.rate < ENOUGH:
            lane.rest = lane.pause
            lane.pause = min(<Py_ssize_t>_MAX_PAUSE, lane.pause * 2)
            lane.limit = min(<Py_ssize_t>_PROBE, self._max_draft)
            lane.rate = ENOUGH  # the probe decides
        return 0


@cython.final
cdef class AutoPolicy:
    """AutoPolicy(max_draft=64, costs=None, fixed=None, gate=False, shadow=False): chooses the draft length that saves most time.

    The cost of a pass depends on its batch size. A drafted token that is right saves the time it
    would take to emit it without a draft. Both are learnt: costs of batch sizes from observed times, the
    rate of emitted tokens from the steps, and for each source how often its claims came true. A token
    that the next pass would get as cheaply is worth less than an average one, so a chain is valued from
    its end: what is left of it after a pass has a value of its own.

    A step: `limit`, candidate drafts with a probability per token, `choose` for one slot or
    `choose_many` for all, the decode, `observe`, `learn` for each candidate, `step`.
    Threads: calls keep the GIL; one thread at a time.

    Args:
        max_draft: Longest draft in tokens, 0..1024, or 0..65535 where drafts are not weighed; 0 = none.
        costs: CostTable to begin with, in any unit; None = each further token costs a tenth of a pass.
        fixed: Always draft this number of tokens, if there are enough; None = choose.
        gate: Weigh no costs: ask for more while drafts are right, for none for a while where they are not. For
            engines, which call `limit` and `record`.
        shadow: For engines: drafts are made and judged, and none is sent.

    Attributes:
        weighs: Whether it weighs what tokens cost and save: neither fixed nor gate. In an engine one that does not
            sends what the first source with a draft has, and asks no other.

    Raises:
        InputError: An argument is out of its bounds.
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t max_draft=64, costs=None, fixed=None, bint gate=False,
                  bint shadow=False):
        cdef Py_ssize_t most = MOST_FIXED if gate or fixed is not None else MOST_TOKENS
        if not 0 <= max_draft <= most:
            raise InputError(f"max_draft must be in 0..{most}, got {max_draft}")
        if fixed is not None and not 0 <= fixed <= max_draft:
            raise InputError(f"fixed must be in 0..{max_draft} (max_draft), got {fixed}")
        if fixed is not None and gate:
            raise InputError("a policy cannot have both fixed and gate: its drafts would be of two lengths")
        self._max_draft = max_draft
        self._fixed = max_draft if gate else -1 if fixed is None else fixed
        self._gate = Gate(max_draft) if gate else None
        self.teaches, self.shadow = True, shadow
        self._costs = PassCosts(costs)
        self._lately = self._usual = RateC(1.0, 1.0)
        self.calibrations = Calibrations()
        self._chooser = Chooser(min(max_draft, <Py_ssize_t>MOST_TOKENS), self._costs)

    @property
    def name(self):
        """Return what options call it: "auto", "gate", "fixed" or "shadow"."""
        return "shadow" if self.shadow else "gate" if self._gate is not None else "auto" if self._weighs() else "fixed"

    @property
    def max_draft(self):
        """Return the longest draft, in tokens."""
        return self._max_draft if self._weighs() else self._fixed

    @property
    def weighs(self):
        """Return whether it weighs what tokens cost and save; else it takes the first draft there is."""
        return self._weighs()

    @property
    def rate(self):
        """Return the rate of emitted tokens per unit of time, all slots together: lately or usually, the lower one."""
        return self.speed() / self._costs.pace

    def begin(self, Py_ssize_t slot):
        """Forget what a gate learnt about the slot; all else belongs to the sources and stays valid."""
        check_slot(slot)
        if self._gate is not None:
            self._gate.begin(slot)

    def limit(self, Py_ssize_t slot, str source not None):
        """Return the longest draft to ask for: max_draft, `fixed`, or what a gate lets through; once per step."""
        check_slot(slot)
        return self.longest(slot, source)

    def choose(self, Py_ssize_t slot, str source not None, confidence, Py_ssize_t room, Py_ssize_t batch_tokens=1,
               Py_ssize_t decoding=1, streak=None):
        """Return how many tokens of a candidate draft to send, 0..min(room, its length).

        Args:
            slot: The slot.
            source: Name of the source that made it.
            confidence: float32, shape (n,): each token's probability if all tokens before it are right.
            room: Most tokens that may be sent.
            batch_tokens: Tokens of the pass without this draft, the slot's own and all others, at most 2**30.
            decoding: Slots that share the pass.
            streak: How many of the slot's newest tokens drafts had right without a break, sent or not: a draft
                adds at most 6 passes over one token to the pass, and one more for each of them. None = any number.

        Raises:
            InputError: An argument is out of its bounds, or not such an array.

        Cost: O(tokens^2), about a microsecond for 64.
        """
        cdef OfferC c
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        check_slot(slot)
        check_batch(batch_tokens, decoding)
        describe(&c, self.calibrations, source, claims, room, streak)
        self.choose_one(&c, batch_tokens, decoding)
        return c.chosen

    def choose_tree(self, Py_ssize_t slot, str source not None, confidence, parents, Py_ssize_t room,
                    Py_ssize_t batch_tokens=1, Py_ssize_t decoding=1, streak=None):
        """Return which tokens of a candidate tree to send, those that save most first.

        Args:
            slot, source, room, batch_tokens, decoding, streak: As in `choose`.
            confidence: float32, shape (n,): each token's probability if its parent is right. Only the first
                max_draft tokens are considered.
            parents: int32, shape (n,): the index of each token's parent, an earlier one, or -1 = the text.

        Returns:
            int32, shape (k,), k <= min(room, n): indexes of tokens, each after its parent; a new array.

        Raises:
            InputError: An argument is out of its bounds, or not such an array.

        Cost: O(tokens^2) of the longest chain of likeliest children, a few microseconds for 64.
        """
        cdef OfferC c
        cdef Py_ssize_t n
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        cdef const int32_t[::1] parent_view = parents_view(parents, claims.shape[0])
        cdef int32_t[::1] order, links
        cdef float[::1] values
        check_slot(slot)
        check_batch(batch_tokens, decoding)
        n = claims.shape[0]
        indexes = np.arange(n, dtype=np.int32)
        if n == 0:
            return indexes
        order, links, values = indexes, np.array(parent_view), np.array(claims)
        describe(&c, self.calibrations, source, values, room, streak)
        c.tree = TreeC(&order[0], &links[0], &values[0])
        self.choose_one(&c, batch_tokens, decoding)
        return indexes[:c.chosen].copy()

    def choose_many(self, chains, Py_ssize_t capacity, Py_ssize_t batch_tokens=0, Py_ssize_t decoding=0, streaks=None,
                    Py_ssize_t padded_rows=0):
        """Return how many tokens of each slot's candidate draft to send, a list.

        Slots choose in turn, given what the others chose, those with the surest first token first; the
        result is used if it is worth more than sending no drafts.

        Args:
            chains: One (source, confidence, room) per slot with a candidate, as in `choose`.
            capacity: Most tokens of the pass, drafts included.
            batch_tokens: Tokens of the pass without drafts, raised to `decoding` if smaller.
            decoding: Slots that share the pass, raised to the number of chains if smaller.
            streaks: One per chain, as in `choose`; None = drafts of all may add anything.
            padded_rows: Rows of a pass that pads all drafts to the longest one: each of its places is a token of
                every row, and batch_tokens is raised to these. 0 = only drafted tokens are computed.

        Raises:
            InputError: An argument is out of its bounds, or not such an array.
            MemoryError: No room.
        """
        cdef Py_ssize_t i, n = len(chains)
        cdef OfferList described
        if streaks is None:
            streaks = [None] * n
        elif len(streaks) != n:
            raise InputError(f"streaks must have one entry per chain, {n}, got {len(streaks)}")
        check_padded(padded_rows, n)
        decoding = max(decoding, n) if decoding >= 0 else decoding
        batch_tokens = max(batch_tokens, decoding, padded_rows) if batch_tokens >= 0 else batch_tokens
        if n == 0:
            return []
        check_batch(batch_tokens, decoding)
        described = OfferList(self.calibrations, chains, streaks)
        self.reserve(n)
        self.choose_all(described.items, n, batch_tokens, decoding, max(capacity, batch_tokens))
        self.even(described.items, n, batch_tokens, padded_rows)
        return [described.items[i].chosen for i in range(n)]

    def best(self, chains, Py_ssize_t batch_tokens=1, Py_ssize_t decoding=1, streak=None):
        """Return the index of the candidate of one slot that is worth most, the first one on ties.

        Args:
            chains: One (source, confidence, room) per candidate, as in `choose`; at least one.
            batch_tokens, decoding, streak: As in `choose`.

        Raises:
            InputError: An argument is out of its bounds, or not such an array.
            MemoryError: No room.
        """
        cdef OfferList described
        cdef Py_ssize_t i, best = 0
        cdef double net, top = 0.0
        check_batch(batch_tokens, decoding)
        if len(chains) == 0:
            raise InputError("chains must hold at least one candidate, got none")
        described = OfferList(self.calibrations, chains, [streak] * len(chains))
        for i in range(described.count if described.count > 1 else 0):
            net = self.net_of(&described.items[i], batch_tokens, decoding)
            if net > top:
                best, top = i, net
        return best

    def learn(self, Py_ssize_t slot, str source not None, confidence, Py_ssize_t num_right, Py_ssize_t num_known):
        """Learn what came of a candidate draft, sent or not.

        Args:
            slot: The slot.
            source: Name of the source that made it.
            confidence: As in `choose`.
            num_right: How many of its tokens, from the first on, equal the emitted ones.
            num_known: For how many of its tokens the emitted one is known, at least num_right. Tokens
                after the first wrong one teach nothing.

        Raises:
            InputError: An argument is out of its bounds, or not such an array.
        """
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        check_slot(slot)
        if not 0 <= num_right <= num_known <= claims.shape[0]:
            raise InputError(f"expected 0 <= num_right <= num_known <= {claims.shape[0]} tokens, got {num_right} and "
                             f"{num_known}")
        if num_known:
            calibration_learn(self.calibrations.of(source), &claims[0], num_known, num_right)

    def calibrated(self, str source not None, confidence):
        """Return a source's confidences corrected by what was learnt, a new float64 array."""
        cdef const float[::1] claims = probabilities_view(confidence, "confidence")
        cdef Py_ssize_t i
        cdef CalibrationC* c = self.calibrations.of(source)
        return np.array([calibration_apply(c, i, claims[i]) for i in range(claims.shape[0])], dtype=np.float64)

    def observe(self, Py_ssize_t num_tokens, double seconds):
        """Learn what a pass took; times that are not > 0 and passes over more than 1024 tokens are ignored."""
        self._costs.add(num_tokens, seconds)

    def observe_branches(self, Py_ssize_t num_branches, double seconds):
        """Learn what branches of a tree cost beside the pass.

        Args:
            num_branches: Of one slot's tree; 1 or fewer teach nothing.
            seconds: What it took to take back all but the right one; times that are not > 0 are ignored, and so
                are all before the first `observe`.
        """
        self._costs.add_branches(num_branches, seconds)

    def step(self, Py_ssize_t emitted, Py_ssize_t batch_tokens, double seconds=0.0):
        """Learn from one pass how fast tokens come; leave out prompt tokens where possible.

        Args:
            emitted: Tokens that all slots emitted; 0 teaches nothing.
            batch_tokens: Tokens of the pass.
            seconds: What it took; 0.0 = the cost that is expected of such a pass.

        Raises:
            InputError: emitted < 0 or batch_tokens < 1.
        """
        if emitted < 0 or batch_tokens < 1:
            raise InputError(f"emitted must be >= 0 and batch_tokens >= 1, got {emitted} and {batch_tokens}")
        self.add_step(emitted, batch_tokens, seconds)

    def note(self, Py_ssize_t emitted, Py_ssize_t batch_tokens):
        """Count slots without a drafter for the pass that ends with the next draft of a drafter with this policy.

        What such drafters accept is counted without this. Of an engine that calls `step`, nothing is.

        Args:
            emitted: Tokens that these slots emitted, >= 0.
            batch_tokens: Tokens that they had in the pass, >= 0.

        Raises:
            InputError: An argument is out of its bounds.
        """
        if emitted < 0 or batch_tokens < 0:
            raise InputError(f"emitted and batch_tokens must be >= 0, got {emitted} and {batch_tokens}")
        self.emitted.tokens += emitted
        self.emitted.batch_tokens += batch_tokens

    def spend(self, double seconds):
        """Learn that drafting took time beside the passes: tokens came more slowly than these alone say.

        Args:
            seconds: In the unit of the costs; what is above four passes over one token is a stall and not counted.

        Raises:
            InputError: seconds is negative or not finite.
        """
        if not (isfinite(seconds) and seconds >= 0.0):
            raise InputError(f"seconds must be finite and >= 0, got {seconds}")
        seconds = min(seconds / (self._costs.pace * self._costs.at(1)), MOST_OFF)
        self._lately.passes += seconds
        self._usual.passes += seconds

    def record(self, Py_ssize_t slot, str source not None, Py_ssize_t drafted, Py_ssize_t accepted):
        """Learn how many tokens of a draft that was sent were right, for a gate; else `learn` covers it."""
        check_slot(slot)
        self.note_sent(slot, source, drafted, accepted)

    @property
    def timed(self):
        """Whether a time was observed; costs are then in seconds."""
        return self._costs.timed

    def cost(self, Py_ssize_t tokens):
        """Return what a pass over this number of tokens costs, in the unit of `costs`; O(1).

        Raises:
            InputError: tokens < 1.
        """
        return self._costs.cost(tokens)

    def costs(self):
        """Return the costs as known now, a CostTable; in seconds once a time was observed."""
        return self._costs.table()

    cdef AutoPolicy beside(self):
        """Return a policy that chooses alike at the same costs, of which it learns nothing, and has learnt nothing yet."""
        cdef AutoPolicy policy = AutoPolicy(self._max_draft, None, None if self._fixed < 0 or self._gate is not None
                                            else self._fixed, self._gate is not None)
        policy._costs = policy._chooser.costs = self._costs
        policy.teaches = False  # it tries nothing out: nobody would see what that costs
        return policy

    cdef bint _weighs(self) noexcept nogil:
        return self._fixed < 0

    cdef Py_ssize_t longest(self, Py_ssize_t slot, str source) except -1:
        """Return what `limit` does; the slot is known to be one."""
        if self._gate is not None:
            return self._gate.ask(slot, source)
        return self._max_draft if self._weighs() else self._fixed

    cdef int note_sent(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1:
        """Do what `record` does; the slot is known to be one."""
        return 0 if self._gate is None else self._gate.learn(slot, source, drafted, accepted)

    cdef const float* least_of(self, Py_ssize_t batch_tokens, Py_ssize_t decoding, Py_ssize_t n) noexcept nogil:
        """Return for growing trees what Chooser.least_of does; NULL: they are not cut."""
        return NULL if self._fixed >= 0 else self._chooser.least_of(batch_tokens, decoding, n)

    cdef double speed(self) noexcept nogil:
        """Return the tokens that come per unit of time, which is what the time of a draft is worth.

        Text that comes slower than usual pays for longer drafts. Where it comes faster, as in a copy, the
        usual rate stays: the slow text between such parts comes back sooner than the average of now says.
        """
        return min(self._lately.emitted / self._lately.passes,
                   self._usual.emitted / self._usual.passes) / self._costs.at(1)

    cdef void choose_one(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil:
        if c.chosen < 0:  # else it was compared with other sources' drafts
            self.solve(c, batch_tokens, decoding)
        if self.explores():
            self.explore(c, batch_tokens, c.room)

    cdef void solve(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil:
        """Choose for the only candidate of a pass, without exploring."""
        cdef PassC step
        c.chosen = 0
        c.gain = 0.0
        if self._fixed >= 0:
            c.chosen = max(min(self._fixed, c.n, c.room), <Py_ssize_t>0)
        elif not self.probes(batch_tokens, decoding):
            step.batch_tokens, step.decoding, step.rate = batch_tokens, decoding, self.speed()
            self._chooser.one(c, &step)

    cdef double net_of(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil:
        """Choose for a candidate, and return what that gains over no draft, in tokens, if no other slot drafts."""
        cdef double bare = self._costs.at(batch_tokens)
        self.solve(c, batch_tokens, decoding)
        return c.gain - self._chooser.rate * (self._costs.at(batch_tokens + c.chosen) - bare)

    cdef int reserve(self, Py_ssize_t n) except -1:
        """Make room for choose_all to choose for n candidates."""
        return self._chooser.reserve(n)

    cdef void choose_all(self, OfferC* offers, Py_ssize_t n, Py_ssize_t batch_tokens, Py_ssize_t decoding,
                         Py_ssize_t capacity) noexcept nogil:
        """Set `chosen` of all candidates of a pass. Call `reserve` first."""
        cdef PassC step
        cdef OfferC* c
        cdef Py_ssize_t i, left = capacity - batch_tokens
        if self._fixed >= 0:
            for i in range(n):
                offers[i].chosen = max(min(self._fixed, offers[i].n, offers[i].room, left), <Py_ssize_t>0)
                left -= offers[i].chosen
            return
        step.batch_tokens, step.decoding, step.rate = batch_tokens, decoding, self.speed()
        if self.probes(batch_tokens, decoding):
            for i in range(n):
                offers[i].chosen = 0
            return
        self._chooser.many(offers, n, &step, capacity)
        if self.explores():
            for i in range(n):
                left -= offers[i].chosen
            c = &offers[offers[0].turn]  # the surest
            self.explore(c, capacity - left - c.chosen, min(c.room, left + c.chosen))

    cdef void even(self, OfferC* offers, Py_ssize_t n, Py_ssize_t batch_tokens, Py_ssize_t rows) noexcept nogil:
        """Cut drafts to one length after choose_all, where a pass pads all of them to the longest one.

        A place costs a token of every one of `rows`, so the tokens that all drafts have there must pay for it
        together. `batch_tokens` as for choose_all; rows of 0: nothing is padded.
        """
        cdef double* gains = self._chooser.worth  # memory that is free once all have chosen
        cdef double rate = self._chooser.rate, bare = self._costs.at(batch_tokens), total = 0.0, best = 0.0, net
        cdef Py_ssize_t i, k, longest = 0, length = 0
        if rows <= 1 or self._fixed >= 0:
            return
        for i in range(n):
            longest = max(longest, offers[i].chosen)
        for k in range(longest):
            gains[k] = 0.0
        for i in range(n):
            self._chooser.add_gains(&offers[i], offers[i].chosen, gains)
        for k in range(1, longest + 1):
            total += gains[k - 1]
            net = total - rate * (self._costs.at(batch_tokens + rows * k) - bare)
            if net > best:
                best, length = net, k
        for i in range(n):
            offers[i].chosen = min(offers[i].chosen, length)
        if length < longest:
            self._exploring = False

    cdef bint explores(self) noexcept nogil:
        """Whether this pass may be of a size that was never tried."""
        if not self.teaches:
            return False
        self._exploring = False
        return (self._fixed < 0 and self._costs.timed and self._lost < STAKE
                and self._steps % PROBE_EVERY == PROBE_EVERY // 2)

    cdef void explore(self, OfferC* c, Py_ssize_t base, Py_ssize_t most) noexcept nogil:
        """Choose a size that was never tried, if there is one that probably costs little."""
        cdef Py_ssize_t chosen = c.chosen
        self._chooser.explore(c, base, most, STAKE - self._lost)
        self._exploring = c.chosen > chosen

    cdef bint probes(self, Py_ssize_t bare, Py_ssize_t decoding) noexcept nogil:
        """Whether this pass has no drafts, to learn what that costs: otherwise it might never be tried.

        Where drafts bring little, that cost must be known better.
        """
        cdef double weight
        if not self.teaches or bare > MOST_TOKENS or not self._costs.timed or self._steps % PROBE_EVERY != PROBE_EVERY - 1:
            return False
        weight = self._costs.weight[bare]
        return weight < PROBES or (
            weight < MORE_PROBES and self.speed() * self._costs.at(bare) < SMALL_GAIN * <double>decoding)

    cdef void end_pass(self) noexcept nogil:
        """Learn what the pass emitted that `emitted` counts; the next one begins. Without any, the pass has not been yet.

        Only now it is known how long the drafts were that were sent, and so how much padding there was.
        """
        cdef Py_ssize_t padding = self.emitted.padded * (1 + self.emitted.longest) - self.emitted.own
        if self.emitted.batch_tokens == 0:
            return
        self.add_step(self.emitted.tokens, self.emitted.batch_tokens + max(padding, <Py_ssize_t>0), 0.0)
        memset(&self.emitted, 0, sizeof(EmittedC))

    cdef void add_step(self, Py_ssize_t emitted, Py_ssize_t batch_tokens, double seconds) noexcept nogil:
        cdef double expected = self._costs.at(batch_tokens)
        if emitted <= 0:
            return
        if not (self._costs.timed and seconds > 0.0 and isfinite(seconds)):
            seconds = expected
        else:
            seconds /= self._costs.pace
        seconds = min(max(seconds, expected / MOST_OFF), expected * MOST_OFF)
        rate_add(&self._lately, LATELY, <double>emitted, seconds / self._costs.at(1))
        rate_add(&self._usual, USUAL, <double>emitted, seconds / self._costs.at(1))
        self._steps += 1
        if self._exploring:
            self._lost += seconds / self._costs.at(1) - <double>emitted
            self._exploring = False
        self._lost = max(self._lost - PAID_BACK, 0.0)


cdef void rate_add(RateC* rate, double decay, double emitted, double passes) noexcept nogil:
    rate.emitted = decay * rate.emitted + emitted
    rate.passes = decay * rate.passes + passes


cdef int check_slot(Py_ssize_t slot) except -1:
    if slot < 0:
        raise InputError(f"slot must be >= 0, got {slot}")
    return 0


cdef int check_batch(Py_ssize_t batch_tokens, Py_ssize_t decoding) except -1:
    if not 1 <= decoding <= batch_tokens <= MOST_ROWS:
        raise InputError(f"expected 1 <= decoding <= batch_tokens <= {MOST_ROWS}, got {decoding} and {batch_tokens}")
    return 0


cdef int check_padded(Py_ssize_t padded_rows, Py_ssize_t drafting) except -1:
    if padded_rows and not drafting <= padded_rows <= MOST_ROWS:
        raise InputError(f"padded_rows must be 0 or in {drafting}..{MOST_ROWS}, at least the rows that draft, got {padded_rows}")
    return 0
