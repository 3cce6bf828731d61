"""Shadow: drafts that are made and judged, and never sent: what would they have brought?

Token by token the target says what it would have said to a draft. A draft stays pending until a token comes that it does
not have, or that is one more than it has: the pass that would have checked it would have emitted just these tokens. Then
the drafter takes them all at once, as after such a pass, and is asked again. So it sees the same texts at the same
places as in a run with drafts, and drafts the same.
"""

from contextlib import suppress

cimport cython
from libc.string cimport memcpy

from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.types cimport STATUS_OK, Status, ngs_now_ns
from ngramspec._native.drafter.commit cimport commit_tokens
from ngramspec._native.drafter.driver cimport DriverC, SlotC, counts_make, draft_right, driver_begin, driver_shorten
from ngramspec._native.drafter.offer cimport offer_draft
from ngramspec._native.engine.decode cimport sampler_fit
from ngramspec._native.policy.chooser cimport OfferC, TreeC

from ngramspec.errors import StateError


@cython.final
cdef class Shadow:
    """Shadow(name, policy): what certain drafters would have brought, over all requests.

    Args:
        name: Of the drafters, with commas, and of the kind of requests.
        policy: The engine's. Drafts are chosen as it would choose them, at its costs; what is learnt here is kept apart.

    Attributes:
        num_passes: Passes that there would have been after each request's first token, one slot's each.
        num_drafts: Of these, those with a draft.
        num_draft_tokens, num_accepted_tokens: Tokens of the drafts, and those of them that were right.
        num_failures: Requests whose drafter failed.
        saved_seconds: What the drafts would have saved, less the time to make them; with minus if lost. An estimate by the
            policy's costs, 0.0 unless these are known in seconds.

    Thread-safety: the engine's thread writes; any may read.
    """

    def __init__(self, str name not None, AutoPolicy policy not None):
        self.name, self.policy = name, policy.beside()

    @property
    def mean_accepted_length(self):
        """Return the tokens per pass, the target's own included; 1.0 before the first."""
        return <double>self.num_emitted / <double>self.num_passes if self.num_passes else 1.0

    @property
    def speedup(self):
        """Return how many times as fast answers would have come as without drafts; 1.0 before the first."""
        return self.plain / self.drafted if self.drafted > 0.0 else 1.0

    cdef void add(self, Py_ssize_t draft_len, Py_ssize_t accepted, Py_ssize_t emitted, Py_ssize_t bare,
                  Py_ssize_t decoding, int64_t ns) noexcept nogil:
        """Count a pass, of which the request has a share like the other slots."""
        cdef double one = self.policy._costs.at(1), without = self.policy._costs.at(bare)
        cdef double each = without / <double>decoding
        cdef double plain = each * <double>emitted
        cdef double drafted = each + self.policy._costs.at(bare + draft_len) - without
        cdef double seconds = 1e-9 * <double>ns / self.policy._costs.pace
        if self.policy._costs.timed:
            drafted += seconds
            self.saved_seconds += self.policy._costs.pace * (plain - drafted)
        self.plain += plain / one
        self.drafted += drafted / one
        self.num_passes += 1
        self.num_drafts += draft_len > 0
        self.num_draft_tokens += draft_len
        self.num_accepted_tokens += accepted
        self.num_emitted += emitted
        if self.policy._weighs():  # the others are as fast
            self.policy.add_step((1 + accepted) * decoding, bare + draft_len * decoding, 0.0)


@cython.final
cdef class ShadowRun(Owner):
    """ShadowRun(shadow, origin): one request's drafts.

    Args:
        shadow: Counts them.
        origin: The NativeSource that makes them; no other request of the slot may use it meanwhile.

    Raises:
        MemoryError: No room.

    Cost: one draft, one commit and one look at the policy for each pass that there would have been; between them a
    comparison per token. Memory: max_draft tokens and counts. Threads: keeps the GIL; the engine's thread.
    """

    def __cinit__(self, Shadow shadow not None, origin):
        cdef Drafter drafter = origin.native
        self.shadow, self.origin, self.drafter, self.source = shadow, origin, drafter, origin.name
        self.tokens = <token_t*>self.take(drafter.d.max_draft + 1, sizeof(token_t))
        self.counts = counts_make(self, drafter.d.num_sources, drafter.d.max_draft)
        self.bare = self.decoding = 1

    def trace_to(self, DecisionTrace trace, int64_t request):
        """Trace decisions, if anybody wants to know them.

        Args:
            trace: Takes them, None = nobody wants to.
            request: The request's number.
        """
        self.trace, self.request = trace, request
        if trace is not None:
            self.chain = trace.chain_of(self.drafter.sources)

    cdef int begin(self, Py_ssize_t slot, prompt, const token_t* tokens, Py_ssize_t n) except -1:
        """Begin with a prompt that was read and the first tokens, for which nothing could draft."""
        cdef const token_t[::1] text = token_view(prompt, "prompt")
        cdef Drafter drafter = self.drafter
        cdef SourceCountsC* counts
        cdef Status status
        self.slot, self.active = slot, True
        self.shadow.policy.begin(slot)
        self.origin.make_room(slot, text.shape[0])
        with nogil, drafter._lock:
            counts, drafter.d.counts = drafter.d.counts, self.counts
            status = driver_begin(&drafter.d, slot, &text[0], text.shape[0])
            drafter.d.counts = counts
        if status != STATUS_OK:
            raise MemoryError(f"no memory for a prompt of {text.shape[0]} tokens")
        self.num_tokens = min(n, self.drafter.d.max_draft + 1)
        memcpy(self.tokens, tokens, <size_t>self.num_tokens * sizeof(token_t))
        return self.commit(0, False)

    cdef int ask(self, Py_ssize_t room, Py_ssize_t least, const AskC* place, Py_ssize_t capacity,
                 SamplerC* sampler) except -1:
        """Ask for a draft if none is pending.

        Args:
            room: Most tokens that could be sent for the slot.
            least: A shorter draft would not be sent.
            place: Of the draft, but for its room and limit.
            capacity: Tokens that a pass can hold.
            sampler: The request's.
        """
        cdef AutoPolicy policy = self.shadow.policy, judge = policy if policy._weighs() else None, before
        cdef DriverC* d = &self.drafter.d
        cdef SlotC* s = &d.slots[self.slot]
        cdef SourceCountsC* counts
        cdef AskC ask = place[0]
        cdef OfferC offer
        cdef Py_ssize_t length
        cdef int64_t started
        if not self.active or self.asked:
            return 0
        started = ngs_now_ns()
        offer.n = offer.chosen = 0
        self.asked, self.bare, self.decoding = True, ask.batch_tokens, ask.decoding
        ask.limit = min(policy.longest(self.slot, self.source), room)
        ask.room = room if judge is not None else ask.limit
        if ask.limit <= 0:
            return 0
        if judge is not None:
            judge.reserve(1)
        with self.drafter._lock:
            before = self.drafter._judge
            self.drafter.judge_by(judge)
            counts, d.counts = d.counts, self.counts
            if s.active and offer_draft(d, judge, self.slot, &ask, &offer):
                length = sampler_fit(sampler, d, self.slot)
                offer.n, offer.chosen = min(offer.n, length), min(offer.chosen, length)
                if judge is not None:
                    offer.tree = TreeC(s.draft, s.parents, s.confidence) if s.branched else TreeC(NULL, NULL, NULL)
                    judge.choose_all(&offer, 1, ask.batch_tokens, ask.decoding, capacity)
                driver_shorten(d, self.slot, offer.chosen if offer.chosen >= least else 0)
            d.counts = counts
            self.drafter.judge_by(before)
        self.ns = ngs_now_ns() - started
        return 0

    cdef int follow(self, const token_t* tokens, Py_ssize_t n) except -1:
        """Take tokens that the target emitted; end each pass that would have emitted them."""
        cdef const SlotC* s = &self.drafter.d.slots[self.slot]
        cdef Py_ssize_t i, right
        for i in range(n if self.active else 0):
            self.tokens[self.num_tokens] = tokens[i]
            self.num_tokens += 1
            right = draft_right(s, self.tokens, self.num_tokens)
            if right < self.num_tokens:
                self.commit(right, True)
        return 0

    cdef int end(self) except -1:
        """End the request: what came of the pending draft is known as far as the answer goes."""
        if self.active and self.num_tokens:
            self.commit(draft_right(&self.drafter.d.slots[self.slot], self.tokens, self.num_tokens), True)
        if self.active:
            self.active = False
            self.drafter.end(self.slot)
        return 0

    cdef int fail(self) except -1:
        """Stop judging the request, whose answer goes on, and free the drafter's slot."""
        self.shadow.num_failures += 1
        self.active = False
        with suppress(StateError):
            self.drafter.end(self.slot)
        return 0

    cdef int commit(self, Py_ssize_t right, bint counts) except -1:
        """Let the drafter take the tokens of a pass, of which its draft had `right`, and count it."""
        cdef AutoPolicy policy = self.shadow.policy, judge = policy if policy._weighs() else None, before
        cdef DriverC* d = &self.drafter.d
        cdef SourceCountsC* own
        cdef Status status
        cdef int64_t started = ngs_now_ns()
        cdef Py_ssize_t draft_len
        with self.drafter._lock:
            draft_len = d.slots[self.slot].draft_len
            before = self.drafter._judge
            self.drafter.judge_by(judge)
            if counts and self.trace is not None:
                self.trace.add(d, &d.slots[self.slot], self.request, self.chain, True, draft_len, right, self.tokens,
                               self.num_tokens)
            own, d.counts = d.counts, self.counts
            status = commit_tokens(d, judge, self.slot, self.tokens, self.num_tokens, right, NULL)
            d.counts = own
            self.drafter.judge_by(before)
        if status != STATUS_OK:
            raise MemoryError(f"no memory for {self.num_tokens} tokens")
        if counts:
            self.ns += ngs_now_ns() - started
            self.shadow.add(draft_len, right, self.num_tokens, self.bare, self.decoding, self.ns)
            if draft_len:
                policy.note_sent(self.slot, self.source, draft_len, right)
        self.num_tokens, self.ns, self.asked = 0, 0, False
        return 0


cdef int shadows_end(tuple runs) except -1:
    """End the runs of a request; one that fails does not keep the others from it."""
    cdef ShadowRun run
    for run in runs:
        try:
            run.end()
        except Exception:
            run.fail()
    return 0


cdef int shadows_take(tuple runs, Py_ssize_t slot, prompt, const token_t* tokens, Py_ssize_t n) except -1:
    """Let the runs of a request take tokens, with its prompt before the first ones; one that fails is over."""
    cdef ShadowRun run
    for run in runs:
        try:
            if prompt is None:
                run.follow(tokens, n)
            else:
                run.begin(slot, prompt, tokens, n)
        except Exception:
            run.fail()
    return 0
