"""Arbiter: whether to ask a draft source that takes time, such as a draft model, and for how many tokens.

An n-gram draft is free: it is there when a pass is planned. A draft model's has to be paid for before
it is seen. So the arbiter expects of each such source what it did lately, by the depth in its drafts, and
asks it for the tokens whose expected worth exceeds the time of drafting and of the larger pass: in place of
the free draft, beside it as a branch, or after it where its likeliest path ends. A source that does not pay
rests. Now and then it is put on trial with one token, judged without being sent, for a small part of the
time. Its price fades while it is not asked, so that one that was slow once is asked again.

Mixer: what is sent of a free draft and of one that took time, when both are known. The free draft may be a tree. The
other one, a chain, begins as it does, or goes on where its likeliest path ends. Tokens that both have are one token, and
count as the free draft's. Where the two agree, a token is as probable as the surer of them says. Where they part, at most
one is right: from the two probabilities, taken as independent, what is left are the ways in which just one or none is
right. Of the free draft its first tokens are kept, which save most (`policy.chooser`), and of the other one, too: all
such pairs are looked at.
"""

from typing import NamedTuple

cimport cython
from libc.math cimport isfinite
from libc.string cimport memset

from ngramspec._native.core.arguments cimport TokensC, parents_view, probabilities_view, tokens_release, tokens_view
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.auto cimport AutoPolicy, check_batch
from ngramspec._native.policy.chooser cimport DOUBT, Chooser, OfferC, PassC, TreeC, TreeValues
from ngramspec._native.policy.costs cimport CalibrationC, calibration_apply

import numpy as np

from ngramspec.errors import InputError

cdef double FIRST = 0.7        # how often tokens are right that nothing is known about
cdef double PRIOR = 4.0        # observed tokens that the prior, the source's past or the depth before, counts as
cdef double REQUEST = 0.95     # weight of a request's earlier drafts, draft by draft
cdef double PAST = 0.99        # the same over all requests
cdef double RECENT = 10.0      # weight of a token after two drafts like the last two, beside one of this request
cdef double MOST_RECENT = 30.0  # such tokens that count, at most
cdef double HOPED = 0.9        # how often tokens may be right at best: what a trial could show, or the next token of a draft
cdef double TRIALS = 0.008     # part of the time that trials may take
cdef double MOST_CREDIT = 2.0  # passes over one token that trials may take at once
cdef double FIRST_CREDIT = 0.5
cdef double SUCCESS = 2.0      # times what a trial took, given back where it was right against all expectation
cdef double FADE = 0.998       # what a timed price is multiplied by in each step without a call
cdef double LEAST = 1e-9
cdef double SUREST = 0.999   # where drafts part, neither is surer
cdef enum:
    MOST_SLOTS = 1 << 16


class Mixed(NamedTuple):
    """A draft of two sources: tokens with their parents, those of the free draft first.

    num_free: How many of them are the free draft's, its first ones. Children of the same token differ.
    """

    tokens: np.ndarray
    parents: np.ndarray
    num_free: int


@cython.final
cdef class Mixer(Owner):
    """Mixer(policy): the work of Arbiter.mix, and memory for it.

    Raises:
        MemoryError: No room.
    """

    def __cinit__(self, AutoPolicy policy not None):
        cdef Py_ssize_t width = policy._chooser.width()
        self.policy = policy
        self.gains = <double*>self.take(MOST_DRAFTED, sizeof(double))
        self.at = <int32_t*>self.take(MOST_DRAFTED + 2 * width, sizeof(int32_t))
        self.links = self.at + MOST_DRAFTED
        self.eldest = self.links + width

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
                net = gain - (price[j + own] if j + own <= most else price[0] + (1.0 + DOUBT) * step.rate
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


class Asked(NamedTuple):
    """What to ask of a source: `tokens` after the first `after` of the free draft's likeliest path; 0 = nothing.

    trial: To see whether it is right, which takes no sending: what goes into the pass is not its affair.
    beside: For a branch beside the free draft.
    """

    after: int
    tokens: int
    trial: bool
    beside: bool = False


class FreeDraft(NamedTuple):
    """The best free draft of a slot; no tokens = none would be sent.

    source: Its name in the policy, "" = its claims are not corrected.
    confidence: float32, shape (n,): what it claims of its tokens, perhaps of more than would be sent.
    tokens: int32, shape (m,), m <= n: those that would be sent.
    parents: int32, shape (n,), as in AutoPolicy.choose_tree, of a tree whose first tokens are `tokens`; None = a chain.
    """

    source: str
    confidence: np.ndarray
    tokens: np.ndarray
    parents: object = None


class Terms(NamedTuple):
    """What may be asked of a source for a slot, and the pass that the draft goes into.

    room: Most tokens that the slot may draft.
    most: Most tokens that the source drafts, 0..1024.
    batch_tokens, decoding: As in AutoPolicy.choose; without drafts of the slot.
    branches: Most branches of a draft.
    shortest: Fewest tokens that are sent, those of the free draft included.
    left: Tokens that are likely to be emitted before the text ends, >= 1.
    sharing: Slots that the source probably drafts for at once, >= 1.
    extends: It can draft after the free draft, too.
    stops: It asks `pays` after each token: it may draft as long as that says so.
    backlog: What it takes the source to read what it has not read of the slot's text, >= 0, in the unit of the
        prices. That serves later drafts, too, so a part counts for this one, also on trial: `left` says how many
        there may be.
    """

    room: int
    most: int = MOST_DRAFTED
    batch_tokens: int = 1
    decoding: int = 1
    branches: int = 1
    shortest: int = 0
    left: int = 1
    sharing: int = 1
    extends: bool = True
    stops: bool = False
    backlog: float = 0.0


cdef Py_ssize_t depth_of(Py_ssize_t i) noexcept nogil:
    return i if i < 2 else 2 if i < 4 else 3 if i < 8 else 4


cdef double drafts_of(const double* expected, Py_ssize_t most, Py_ssize_t left) noexcept nogil:
    """Return how many passes with drafts of `most` such tokens make `left` tokens, at least one."""
    cdef double reached = 1.0, emitted = 1.0
    cdef Py_ssize_t i
    for i in range(most):
        reached *= expected[depth_of(i)]
        emitted += reached
    return max(<double>left / emitted, 1.0)


cdef void record_add(RecordC* r, double decay, Py_ssize_t right, Py_ssize_t judged) noexcept nogil:
    """Learn from a draft of which `judged` tokens were judged and the first `right` were right."""
    cdef Py_ssize_t i
    for i in range(NUM_DEPTHS):
        r.seen[i] *= decay
        r.right[i] *= decay
    for i in range(min(judged, right + 1)):
        r.seen[depth_of(i)] += 1.0
        r.right[depth_of(i)] += i < right


cdef int recent_of(int recent, int outcome) noexcept nogil:
    """Return LaneC.recent after another draft. The first one counts as two."""
    cdef int last = (recent - 1) % NUM_OUTCOMES if recent else outcome
    return 1 + NUM_OUTCOMES * last + outcome


@cython.final
cdef class Priced(Owner):
    """Priced(name): a source that takes time, and what it did."""

    def __cinit__(self, str name not None):
        self.name, self.sharing = name, 1
        self.seconds, self.faded = -1.0, 1.0

    cdef LaneC* of(self, Py_ssize_t slot) except NULL:
        if not 0 <= slot < MOST_SLOTS:
            raise InputError(f"slot must be in 0..{MOST_SLOTS - 1}, got {slot}")
        if slot >= self.num_lanes:
            self.lanes = <LaneC*>self.enlarge(self.lanes, slot + 1, sizeof(LaneC))
            while self.num_lanes <= slot:
                self.lanes[self.num_lanes].credit = FIRST_CREDIT
                self.num_lanes += 1
        return &self.lanes[slot]

    cdef void expect(self, const LaneC* lane, double* p) noexcept nogil:
        """Set by depth how probable a token is, if those before it are right.

        What came of the last two drafts says more than the many before them: sources are right in runs. Deep
        tokens are seen rarely: until they were, they are expected to be like those before them in this request.
        """
        cdef Py_ssize_t i
        cdef double past = FIRST, prior, weight
        cdef const RecordC* after = &self.after[lane.recent]
        for i in range(NUM_DEPTHS):
            past = (self.record.right[i] + PRIOR * past) / (self.record.seen[i] + PRIOR)
            prior = past if i == 0 or self.record.seen[i] > 3.0 else p[i - 1]
            prior = (after.right[i] + PRIOR * prior) / (after.seen[i] + PRIOR)
            weight = PRIOR + RECENT * min(after.seen[i], MOST_RECENT)
            p[i] = (lane.record.right[i] + weight * prior) / (lane.record.seen[i] + weight)

    cdef double apart(self) noexcept nogil:
        """Return how much less often its first token is right where a free draft is wrong: both find the same hard."""
        return (self.apart_right + PRIOR) / (self.apart_seen + PRIOR)


@cython.final
cdef class Arbiter(Owner):
    """Arbiter(policy): decides for each slot and pass what to ask of sources that take time.

    Args:
        policy: The AutoPolicy that knows what passes cost and what free drafts claim; kept.

    Threads: one at a time. Nothing here lasts: at most O(longest draft) per call.
    """

    def __cinit__(self, AutoPolicy policy not None):
        self.policy = policy
        self.mixer = Mixer(policy)
        self._sources = {}
        self.levels = <double*>self.take(policy._chooser.width(), sizeof(double))

    cdef Priced source(self, str name):
        priced = self._sources.get(name)
        if priced is None:
            raise InputError(f"{name!r} has no price yet")
        return priced

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

    def join(self, str source not None, double passes):
        """Name a source whose price is known in seconds only, once it is timed: as in an engine.

        Args:
            source: Its name.
            passes: Over one token that each of its tokens is taken to take before.
        """
        cdef Priced priced
        if source not in self._sources:
            self.price(source, 0.0, 0.0)
            priced = self.source(source)
            priced.guess = passes

    def time(self, str source not None, double start, double per_token):
        """State what the drafts of a source take in seconds; it counts once the policy's costs are in seconds.

        Args:
            source: It has joined.
            start, per_token: As in `price`.

        Raises:
            InputError: The source has not joined, or a price is negative or not finite.
        """
        cdef Priced priced = self.source(source)
        if not (isfinite(start) and isfinite(per_token) and start >= 0 and per_token >= 0):
            raise InputError(f"prices must be finite and >= 0, got {start} and {per_token}")
        priced.seconds, priced.seconds_per_token = start, per_token

    def note_call(self, str source not None, Py_ssize_t sharing):
        """Note that a source was asked for `sharing` slots: its price has not faded.

        Raises:
            InputError: The source has not joined, or sharing < 1.
        """
        cdef Priced priced = self.source(source)
        if sharing < 1:
            raise InputError(f"sharing must be >= 1, got {sharing}")
        priced.sharing, priced.faded = sharing, 1.0

    def owe(self, Py_ssize_t slot, str source not None, double seconds, Py_ssize_t tokens=0):
        """State how long it takes a source to read what it has not read of a slot's text.

        Args:
            slot: The slot.
            source: It has joined.
            seconds: >= 0.
            tokens: By which the text has grown since the last call. What they added tells what each later one adds.

        Raises:
            InputError: The source has not joined, or a number is out of its bounds.
        """
        cdef Priced priced = self.source(source)
        cdef LaneC* lane = priced.of(slot)
        if not (isfinite(seconds) and seconds >= 0.0 and tokens >= 0):
            raise InputError(f"seconds must be finite and >= 0, and tokens >= 0, got {seconds} and {tokens}")
        if tokens and seconds > lane.backlog:
            priced.reading = (seconds - lane.backlog) / <double>tokens
        lane.backlog = seconds

    def begin(self, Py_ssize_t slot):
        """Start a request: what drafts did for the last one counts as the source's past only.

        Raises:
            InputError: slot is out of 0..65535.
        """
        cdef Priced priced
        cdef LaneC* lane
        for priced in self._sources.values():
            lane = priced.of(slot)
            memset(&lane.record, 0, sizeof(RecordC))
            lane.recent = 0
            lane.stake = lane.backlog = 0.0

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
        probabilities = np.empty(tokens, np.float32)
        view = probabilities
        for i in range(tokens):
            view[i] = <float>p[depth_of(i)]
        return probabilities

    def ask(self, Py_ssize_t slot, str source not None, free, terms):
        """Return what to ask of a source for a slot in the next pass, an Asked.

        Args:
            slot: The slot.
            source: A source with a price.
            free: FreeDraft.
            terms: Terms.

        Raises:
            InputError: The source has no price, or an argument is out of its bounds.

        Cost: O(n^2 + most), a few microseconds for drafts of 64 tokens.
        """
        cdef Priced priced = self.source(source)
        cdef LaneC* lane = priced.of(slot)
        cdef const float[::1] claims = probabilities_view(free.confidence, "confidence")
        cdef const int32_t[::1] links = None if free.parents is None else parents_view(free.parents, claims.shape[0])
        cdef TermsC own = TermsC(
            room=terms.room, most=terms.most, batch_tokens=terms.batch_tokens, decoding=terms.decoding, branches=terms.branches,
            shortest=terms.shortest, left=terms.left, sharing=terms.sharing, extends=terms.extends, stops=terms.stops,
            backlog=terms.backlog,
        )
        cdef ClaimsC offered = ClaimsC(NULL, NULL, claims.shape[0], len(free.tokens), self.policy.calibrations.of(free.source))
        cdef AskedC asked
        if not (0 <= offered.chosen <= offered.n and 0 <= own.most <= MOST_DRAFTED):
            raise InputError(f"expected at most {offered.n} tokens, as are claimed, and most in "
                             f"0..{MOST_DRAFTED}, got {offered.chosen} and {own.most}")
        check_batch(own.batch_tokens, own.decoding)
        if own.sharing < 1 or own.left < 1 or not own.backlog >= 0.0:
            raise InputError(f"expected sharing >= 1, left >= 1 and backlog >= 0, got {own.sharing}, {own.left} and "
                             f"{own.backlog}")
        if offered.n:
            offered.p = &claims[0]
            offered.parents = &links[0] if links is not None else NULL
        asked = self.decide(priced, lane, &offered, &own)
        return Asked(asked.after, asked.tokens, bool(asked.trial), bool(asked.beside))

    cdef AskedC decide(self, Priced source, LaneC* lane, const ClaimsC* claims, const TermsC* terms) noexcept:
        """Do what `ask` does."""
        cdef double[NUM_DEPTHS] p
        cdef AskedC asked = AskedC(0, 0, False, 0.0, False)
        cdef FreeC free
        cdef double took, share, read = terms.backlog / self.policy._costs.pace
        cdef Py_ssize_t i, most = terms.most
        cdef bint valued = False
        lane.stake = lane.least = 0.0
        lane.shortest = 0
        if min(terms.most, terms.room) <= 0 or (self.policy._fixed >= 0 and claims.parents != NULL):
            return asked
        source.expect(lane, p)
        share = read / drafts_of(p, most, terms.left) if read > 0.0 else 0.0
        if self.may_gain(source, p, claims.chosen, terms, share):
            valued = True
            self.value(&free, claims, terms)
            asked = self.best(source, p, &free, most, terms.sharing, share)
        if asked.tokens:
            if terms.stops:
                most = max(min(most, terms.room - (free.sent if asked.after else 0)), asked.tokens)
                lane.least = self.least_of(source, &free, &asked, most, terms.sharing)
                lane.shortest = terms.shortest - (free.sent if asked.after or asked.beside else 0)
                asked.tokens = most
            return asked
        lane.credit = min(lane.credit + TRIALS * self.policy._costs.at(terms.batch_tokens + claims.chosen)
                          / self.policy._costs.at(1), MOST_CREDIT)
        for i in range(NUM_DEPTHS):
            p[i] = max(p[i], HOPED)
        share = read / drafts_of(p, most, terms.left) if read > 0.0 else 0.0
        took = (share + self.time_of(source, 1, terms.sharing)) / self.policy._costs.at(1)
        if lane.credit < took or not self.may_gain(source, p, claims.chosen, terms, share):
            return asked
        if not valued:
            self.value(&free, claims, terms)
        if self.best(source, p, &free, most, terms.sharing, share).tokens:
            lane.credit -= took
            lane.stake = took
            asked.tokens, asked.trial = 1, True
        return asked

    cdef bint may_gain(self, Priced source, const double* expected, Py_ssize_t chosen, const TermsC* terms,
                       double read) noexcept nogil:
        """Return whether `best` may find a draft that gains, however good it is for the free one; read: see there.

        A draft gains at most its right tokens, and the cost of the free draft's tokens that it replaces. Each further
        token brings less than the one before and takes as long, so the first one that loses is the last to look at.
        """
        cdef double rate = self.rate(terms), reached = 1.0
        cdef double each = rate * source.per_token / <double>terms.sharing / self.policy._costs.pace
        cdef double gain = LEAST - rate * (self.time_of(source, 0, terms.sharing) + read)
        cdef Py_ssize_t k
        gain += rate * (self.policy._costs.at(terms.batch_tokens + chosen) - self.policy._costs.at(terms.batch_tokens))
        for k in range(min(terms.most, terms.room)):
            reached *= expected[depth_of(k)]
            if reached <= each:
                break
            gain += reached - each
            if gain > 0.0:
                return True
        return False

    cdef void set_price(self, Priced source) noexcept nogil:
        """Set for a source that has joined what its drafts take now, in the unit of the policy's costs."""
        if self.policy._costs.timed and source.seconds >= 0.0:
            source.start, source.per_token = source.seconds * source.faded, source.seconds_per_token * source.faded
        else:
            source.start, source.per_token = 0.0, source.guess * self.policy._costs.pace * self.policy._costs.at(1)

    cdef void fade(self, Priced source) noexcept nogil:
        """Note a step without a call."""
        source.faded *= FADE

    def pays(self, Py_ssize_t slot, str source not None, list claims not None):
        """Return whether another token after these is worth its time, in the draft that was asked for last.

        It is while the draft is too short to be sent.

        Args:
            slot: The slot.
            source: A source with a price.
            claims: What it claims of each token that it has drafted, probabilities.

        Raises:
            InputError: The source has no price, or the slot is out of its bounds.

        Cost: O(tokens).
        """
        cdef Priced priced = self.source(source)
        cdef CalibrationC* calibration = self.policy.calibrations.of(source)
        cdef const LaneC* lane = priced.of(slot)
        cdef double right = 1.0
        cdef Py_ssize_t i, n = len(claims)
        for i in range(n):
            right *= calibration_apply(calibration, i, claims[i])
        return n < lane.shortest or right >= lane.least

    def mix(self, str source not None, confidence, draft, bint after, free, terms):
        """Return what to send of a free draft and of one that was asked for, a Mixed.

        Args:
            source: It has a price, and its draft is known now.
            confidence: float32, shape (k,): what it claims of its tokens.
            draft: int32, shape (k,), k >= 1.
            after: It goes on after the likeliest path of the free draft (`path`); else it begins as that does.
            free: FreeDraft of at least one token.
            terms: Terms; of these room, batch_tokens, decoding and branches count.

        Raises:
            InputError: The source has no price, or an argument is out of its bounds.

        Cost: O(m^2 + n * k), a few microseconds for 64 and 8 tokens.
        """
        cdef double apart = self.source(source).apart()
        return self.mixer.mix(source, confidence, draft, after, 1.0 if after else apart, free, terms)

    def path(self, free):
        """Return the likeliest path among the tokens of a free draft that is a tree: their indexes, a new int32 array.

        Args:
            free: FreeDraft with parents.

        Raises:
            InputError: It is not as described.

        Cost: O(n).
        """
        return self.mixer.path(free)

    def learn(self, Py_ssize_t slot, str source not None, Py_ssize_t num_right, Py_ssize_t num_known, bint apart=False):
        """Learn what came of a draft that was asked for, sent or not.

        Args:
            slot: The slot.
            source: A source with a price.
            num_right: How many of its tokens, from the first on, equal the emitted ones.
            num_known: For how many of its tokens the emitted one is known, at least num_right; 0 = nothing was
                learnt, so that what a trial may take is left.
            apart: The free draft beside it was wrong from the first token on.

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
            lane.credit = min(lane.credit + lane.stake, MOST_CREDIT)
            lane.stake = 0.0
            return
        priced.expect(lane, p)
        if apart:
            priced.apart_seen = PAST * priced.apart_seen + p[0]
            priced.apart_right = PAST * priced.apart_right + (1.0 if num_right else 0.0)
        record_add(&lane.record, REQUEST, num_right, num_known)
        record_add(&priced.record, PAST, num_right, num_known)
        record_add(&priced.after[lane.recent], PAST, num_right, num_known)
        lane.recent = recent_of(lane.recent, WRONG if num_right == 0 else PART if num_right < num_known else RIGHT)
        if lane.stake > 0.0 and num_right == num_known:
            lane.credit = min(lane.credit + SUCCESS * (1.0 - p[0]) * lane.stake, MOST_CREDIT)
        lane.stake = 0.0

    cdef double time_of(self, Priced source, Py_ssize_t tokens, Py_ssize_t sharing) noexcept nogil:
        """Return a slot's part of what a draft takes, in the unit of the costs at pace 1."""
        return (source.start + source.per_token * <double>tokens) / <double>sharing / self.policy._costs.pace

    cdef double rate(self, const TermsC* terms) noexcept nogil:
        """Return what time is worth in tokens: at least those that passes without drafts bring.

        Else drafting that made the text slow would make itself look cheap.
        """
        return max(self.policy.speed(), <double>terms.decoding / self.policy._costs.at(terms.batch_tokens))

    cdef void value(self, FreeC* free, const ClaimsC* claims, const TermsC* terms) noexcept:
        """Describe the free draft: what its tokens are worth, and what is left of it later."""
        cdef Chooser chooser = self.policy._chooser
        cdef PassC step
        cdef OfferC c
        cdef TreeC tree = TreeC(NULL, NULL, NULL)
        cdef Py_ssize_t i, base = terms.batch_tokens, n = min(claims.n, chooser.max_draft, terms.room)
        cdef double reached = 1.0
        step.batch_tokens, step.decoding, step.rate = base, terms.decoding, self.rate(terms)
        memset(free, 0, sizeof(FreeC))
        free.p, free.later, free.levels = chooser.p, chooser.best, self.levels
        free.reached = self.levels + 1
        free.base, free.rate, free.room, free.worth = base, step.rate, terms.room, 1.0
        free.share = self.policy._costs.at(base) / <double>terms.decoding - self.policy._costs.at(base)
        free.shortest = terms.shortest
        if n > 0 and claims.parents != NULL:
            tree.parents, tree.claims = <int32_t*>claims.parents, <float*>claims.p
            self.value_tree(free, &tree, n, min(claims.chosen, n), &step, claims.calibration)
        elif n > 0:
            c.streak, c.n, c.p, c.room, c.tree = -1, claims.n, claims.p, terms.room, tree
            c.calibration = claims.calibration
            free.n = max(chooser.solve(&c, &step, base, terms.room, chooser.worth), <Py_ssize_t>0)
            free.sent = free.path = free.deepest = min(claims.chosen, free.n)
            free.branches = free.sent > 0
            for i in range(free.sent):
                reached *= chooser.p[i]
                self.levels[i + 1] = reached
            if free.n:
                free.worth = chooser.worth[free.sent]
        free.extends = terms.extends and free.sent
        free.stands = free.sent and free.branches < terms.branches

    cdef void value_tree(self, FreeC* free, const TreeC* tree, Py_ssize_t n, Py_ssize_t chosen, const PassC* step,
                         const CalibrationC* calibration) noexcept:
        """The same for a tree: its likeliest path counts as the draft, branches for the tokens that they bring."""
        cdef Chooser chooser = self.policy._chooser
        cdef TreeValues trees = chooser.trees
        cdef Py_ssize_t i
        cdef int32_t at
        trees.reach(tree, calibration, n)
        memset(self.levels, 0, <size_t>(n + 1) * sizeof(double))
        for i in range(chosen):
            self.levels[trees.depth[i] + 1] += trees.reached[i]
            free.sides += trees.reached[i]
            free.deepest = max(free.deepest, <Py_ssize_t>trees.depth[i] + 1)
        free.reached = trees.reached
        free.sent, free.branches = chosen, trees.branches_of(tree, chosen)
        free.path = free.n = trees.find_path(tree, chosen)
        for i in range(free.path):
            free.sides -= trees.reached[trees.numbers[i]]
            chooser.p[i] = trees.p[trees.numbers[i]]
        at = trees.find_firsts(tree, n)
        at = trees.first[trees.numbers[free.path - 1]] if free.path else at
        while at >= 0:
            chooser.p[free.n] = trees.p[at]
            free.n += 1
            at = trees.first[at]
        chooser.set_prices(step, free.base, free.n)
        chooser.value(free.n, chooser.worth)
        free.worth = chooser.worth[free.path] + free.sides

    cdef AskedC best(self, Priced source, const double* expected, const FreeC* free, Py_ssize_t most,
                     Py_ssize_t sharing, double read) noexcept nogil:
        """Return the request that gains most over sending the free draft alone; tokens = 0: none gains.

        read: Time for reading text that counts for this draft.
        """
        cdef AskedC asked = AskedC(0, 0, False, 0.0, False)
        self.alone(&asked, source, expected, free, 0, most, sharing, read)
        if free.extends:
            self.alone(&asked, source, expected, free, free.path, most, sharing, read)
        if free.stands:
            self.beside(&asked, source, expected, free, most, sharing, read)
        return asked

    cdef void alone(self, AskedC* asked, Priced source, const double* expected, const FreeC* free, Py_ssize_t after,
                    Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil:
        """Look at drafts in place of the free one, or after the tokens of its likeliest path that are sent.

        A pass with k drafted tokens of the source emits the right ones before the first wrong one, and one more.
        As long as these are also what the free draft says, the rest of that stays of use.
        """
        cdef double first = 1.0, sure = 1.0  # tokens of the free draft that are emitted, and one more; all are right
        cdef double reached, chain, ended, net, bare
        cdef Py_ssize_t i, k, sent = free.sent if after else 0
        bare = free.worth - free.rate * (self.policy._costs.at(free.base + free.sent) + free.share)
        for i in range(after):
            sure *= free.p[i]
            first += sure
        reached = sure
        ended = first - sure * <double>(after + 1)  # what comes where the draft is wrong before this token
        if after:
            ended += free.sides
        chain = 1.0                          # the free draft is right from `after` on
        for k in range(1, min(most, free.room - sent) + 1):
            i = after + k - 1                # index of this token in the draft
            chain *= free.p[i] if i < free.n else 0.0
            ended += reached * (1.0 - expected[depth_of(k - 1)]) * (<double>(i + 1) + chain * later_of(free, i + 1))
            reached *= expected[depth_of(k - 1)]
            net = reached * (<double>(i + 2) + chain * more_of(free, i + 1)) + ended
            net -= free.rate * (self.policy._costs.at(free.base + sent + k) + free.share
                                + self.time_of(source, k, sharing) + read) + bare
            if net > asked.gain and sent + k >= free.shortest:
                asked[0] = AskedC(after, k, False, net, False)

    cdef void beside(self, AskedC* asked, Priced source, const double* expected, const FreeC* free,
                     Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil:
        """Look at drafts that are a branch beside what is sent of the free draft.

        Each token counts where it is right and the free draft has no right one there. Where both have, it is the
        same token, which is sent once. Where there is no room for all, the last ones of the free draft give way.
        """
        cdef double reached = source.apart(), chain = 1.0, level, missing, gain = 0.0, twice = 0.0, net
        cdef double bare = self.policy._costs.at(free.base + free.sent)
        cdef Py_ssize_t k
        for k in range(1, min(most, free.room) + 1):
            if free.sent + k > free.room:
                gain -= free.reached[free.room - k]
            reached *= expected[depth_of(k - 1)]
            chain *= free.p[k - 1] if k <= free.n else 0.0
            level = min(free.levels[k], 1.0) if k <= free.deepest else 0.0
            missing = 1.0 - level
            if k > free.path:  # the next pass may get it from the free draft
                missing += chain * (more_of(free, k) - later_of(free, k))
            gain += reached * missing
            twice += reached * level
            net = gain - free.rate * ((self.policy._costs.at(free.base + min(free.sent + k, free.room)) - bare)
                                      * (1.0 - twice / <double>k) + self.policy._costs.branch
                                      + self.time_of(source, k, sharing) + read)
            if net > asked.gain and min(free.sent + k, free.room) >= free.shortest:
                asked[0] = AskedC(0, k, True, net, False)

    cdef double least_of(self, Priced source, const FreeC* free, const AskedC* asked, Py_ssize_t most,
                         Py_ssize_t sharing) noexcept nogil:
        """Return how probable all tokens of a draft must be for another one to pay.

        That is worth a token where it and all before it are right, the free draft's included that come first, and
        where a free draft beside it has no right one there.
        """
        cdef double counts = 1.0, price
        cdef Py_ssize_t i, sent = free.sent if asked.after or asked.beside else 0
        for i in range(asked.after):
            counts *= free.p[i]
        i = asked.tokens + 1
        if asked.beside and i <= free.deepest:
            counts -= min(free.levels[i], 1.0)
        price = (self.policy._costs.at(free.base + sent + most) - self.policy._costs.at(free.base + sent)) / <double>most
        price += source.per_token / <double>sharing / self.policy._costs.pace
        return free.rate * price / max(HOPED * counts, LEAST)


cdef inline double later_of(const FreeC* free, Py_ssize_t i) noexcept nogil:
    """Return what the free draft's tokens from i on are worth to the next pass, if this one emits those before them."""
    return free.later[i] if i < free.n else 0.0


cdef inline double more_of(const FreeC* free, Py_ssize_t i) noexcept nogil:
    """Return what those after token i are worth to it, if this pass emits a right token i, too."""
    return free.p[i] * free.later[i + 1] if i + 1 < free.n else 0.0
