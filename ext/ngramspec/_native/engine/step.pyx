"""A step of the engine, each part one call for all slots: Plan, Proposer, Verifier.

Plan: which tokens of which slots are in the next decode.
Proposer: drafts for the slots that generate; native drafters are asked without Python.
Verifier: chooses the tokens of all slots from a decode's rows and commits them. `verify` is the
lossless check of one draft: sample and match.
"""

import time

cimport cython
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.types cimport STATUS_OK, int32_t, int64_t, ngs_now_ns, token_t, uint8_t
from ngramspec._native.drafter.drafter cimport (
    AskC, Drafter, drafter_commit, drafter_judge, drafter_offer, drafter_top,
)
from ngramspec._native.drafter.driver cimport SlotC, draft_right, driver_keep, driver_observe, driver_shorten
from ngramspec._native.engine.decode cimport Batch, CandidateC, Rows, Sampler, SamplerC
from ngramspec._native.engine.figures cimport EngineStats, Timings
from ngramspec._native.engine.gate cimport policy_limit, policy_record
from ngramspec._native.engine.slot cimport ENDING_FULL, ENDING_IMPOSSIBLE, ENDING_NONE, Slot, Transcript
from ngramspec._native.engine.tree cimport MOST_BRANCHES, branch_of, tree_arrange
from ngramspec._native.policy.auto cimport AutoPolicy, OfferC

from ngramspec.errors import CapacityError, InputError


cdef extern from "ngs_top.h" nogil:
    enum:
        NGS_TOP_MOST
    int ngs_top(const float* row, Py_ssize_t n, int k, token_t* tokens, float* probabilities)

cdef enum:
    MOST_OBSERVED = 16  # rows of a slot that a drafter is shown: one takes ten times as long as finding its maximum


cdef Py_ssize_t next_row(const token_t* draft, const int32_t* parents, Py_ssize_t draft_len, Py_ssize_t row,
                         token_t token) noexcept nogil:
    """Return the row after a token that was chosen from `row`, -1 where the draft did not guess it.

    Row 0 follows the text, row i + 1 token i of the draft. parents: NULL = no tree.
    """
    cdef Py_ssize_t i
    if parents == NULL:
        return row + 1 if row < draft_len and draft[row] == token else -1
    for i in range(row, draft_len):  # children come after their parent
        if parents[i] == row - 1 and draft[i] == token:
            return i + 1
    return -1


cdef Py_ssize_t verify_rows(const float* logits, Py_ssize_t vocab_size, const token_t* draft, const int32_t* parents,
                            Py_ssize_t draft_len, SamplerC* sampler, token_t* out, int32_t* rows,
                            CandidateC* candidates, Py_ssize_t top) noexcept nogil:
    """Write the emitted tokens, return their number, or -1 minus it when no token was possible.

    parents: Of the draft where it is a tree; NULL = it has no branches.
    rows: Receives the row that each token was chosen from.
    candidates: Receives what they were chosen from, top + 1 places per token; not asked for where top is -1.
    """
    cdef Py_ssize_t count, row = 0, made = 0
    cdef token_t token
    while True:
        token = sampler.choose(sampler.state, logits + row * vocab_size, vocab_size)
        if token < 0:
            return -1 - made
        if top >= 0:
            count = sampler.candidates(sampler.state, token, candidates, top)
            if count <= top:
                candidates[count].token = -1
            candidates += top + 1
        sampler.accept(sampler.state, token)
        out[made] = token
        rows[made] = <int32_t>row
        made += 1
        row = next_row(draft, parents, draft_len, row, token)
        if row < 0:
            return made


def verify(Rows rows not None, Py_ssize_t first_row, draft, Sampler sampler not None, token_t[::1] out not None,
           parents=None):
    """Choose tokens row by row while the draft is right.

    Row first_row follows the token before the draft, the next ones its tokens. Each token is
    chosen from its own row by the complete sampler and committed to it; the draft only decides
    which row comes next. So the text is the same whatever the draft was.

    Args:
        rows: Logits of the decode.
        first_row: Row of the token before the draft; rows up to first_row + len(draft) are read.
        draft: int32, shape (k,), k >= 0.
        sampler: Of the request; advanced by every returned token.
        out: int32, shape (>= k + 1,). Receives the tokens.
        parents: Where the draft is a tree: int32, shape (k,), the index of each token's parent, an earlier one, or
            -1. Of siblings that are the same token the first one counts.

    Returns:
        int: Number of tokens n. 1 <= n <= k + 1, and n - 1 of them are accepted draft tokens; or
        -1 - n when after n tokens no token was possible, such as at the end of a grammar.

    Raises:
        InputError: A row is missing, out is too short or parents is not as described. Nothing is changed then.
        MemoryError: No room. Nothing is changed then.

    Cost: n samplings. Threads: releases the GIL where there is much to read.
    Source: llama.cpp common/sampling.cpp, sample and accept in turn.
    """
    cdef TokensC guess
    cdef const float* logits = rows.row(first_row)
    cdef const int32_t[::1] above
    cdef const int32_t* links = NULL
    cdef int32_t* chosen = NULL
    cdef Py_ssize_t made = 0
    tokens_view(draft, "draft", &guess)
    try:
        if first_row + guess.len >= rows.c.num_rows or out.shape[0] < guess.len + 1:
            raise InputError(f"a draft of {guess.len} tokens reads rows {first_row}..{first_row + guess.len} of "
                             f"{rows.c.num_rows} and needs {guess.len + 1} places in out, which has {out.shape[0]}")
        if parents is not None:
            above = parents_view(parents, guess.len)
            links = &above[0] if guess.len else NULL
        chosen = <int32_t*>malloc(<size_t>(guess.len + 1) * sizeof(int32_t))
        if chosen == NULL:
            raise MemoryError(f"no memory to verify {guess.len} tokens")
        if (guess.len + 1) * rows.c.vocab_size < MUCH_TO_READ:
            made = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0], chosen,
                               NULL, -1)
        else:
            with nogil:
                made = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0],
                                   chosen, NULL, -1)
    finally:
        free(chosen)
        tokens_release(&guess)
    return made


cdef void share_room(Py_ssize_t* claims, Py_ssize_t n, Py_ssize_t room) noexcept nogil:
    """Cut claims to fit room: claims up to a common level are met, larger ones are cut to it."""
    cdef Py_ssize_t total = 0, left = n, i, given
    cdef Py_ssize_t low = -1, smallest  # claims up to `low` are settled
    for i in range(n):
        total += claims[i]
    if total <= room:
        return
    # The smallest claims are met for as long as each is no more than an equal share of what is left.
    while left:
        smallest = -1
        for i in range(n):
            if claims[i] > low and (smallest < 0 or claims[i] < smallest):
                smallest = claims[i]
        if smallest * left > room:
            break
        for i in range(n):
            if claims[i] == smallest:
                room -= smallest
                left -= 1
        low = smallest
    for i in range(n):
        if claims[i] > low:
            given = room // left
            room -= given
            left -= 1
            claims[i] = given


def share(wanted, Py_ssize_t room):
    """Share room among claims: those up to a common level are met, larger ones are cut to it.

    Args:
        wanted: Claims, each >= 0.
        room: What there is to share, >= 0.

    Returns:
        list: What each claim gets; the sum is min(sum(wanted), room).

    Raises:
        MemoryError: No room for the work.

    >>> share([8, 2, 8], 12)
    [5, 2, 5]
    """
    cdef Py_ssize_t i, n = len(wanted)
    cdef Py_ssize_t* claims = <Py_ssize_t*>calloc(<size_t>n + 1, sizeof(Py_ssize_t))
    if claims == NULL:
        raise MemoryError("no memory for the claims")
    try:
        for i in range(n):
            claims[i] = wanted[i]
        share_room(claims, n, max(room, <Py_ssize_t>0))
        return [claims[i] for i in range(n)]
    finally:
        free(claims)


@cython.final
cdef class Plan:
    """Plan(slots, capacity): choose what a decode holds. The first part of a step.

    Args:
        slots: All slots of the engine.
        capacity: Most tokens in one decode, at least one per slot.

    Raises:
        InputError: capacity is too small.
        MemoryError: No room.
    """

    def __cinit__(self, slots, Py_ssize_t capacity):
        self.slots = tuple(slots)
        self.capacity = capacity
        self.work = []
        self.clock = time.perf_counter
        if capacity < max(len(self.slots), 1):
            raise InputError(f"capacity must be at least one token per slot, {len(self.slots)}, got {capacity}")
        self.claims = <Py_ssize_t*>calloc(<size_t>len(self.slots) + 1, sizeof(Py_ssize_t))
        if self.claims == NULL:
            raise MemoryError("no memory for the plan")

    def __dealloc__(self):
        free(self.claims)

    def __len__(self):
        return len(self.work)

    @property
    def members(self):
        """Return the slots in the decode, a new list: decoding ones first, then prompts by age."""
        return list(self.work)

    def needs_schedule(self, bint waiting):
        """Return whether a waiting request can have a slot, or a running one's deadline has passed."""
        cdef Slot slot
        cdef double now = 0.0
        for slot in self.slots:
            if waiting and slot.generation is None:
                return True
            if slot.deadline > 0.0 and slot.generation is not None:
                if now == 0.0:
                    now = self.clock()
                if now > slot.deadline:
                    return True
        return False

    def make(self):
        """Choose what each running slot decodes next, still without drafts; return the number of slots.

        Decoding slots come first; if their texts must be recomputed they share the capacity.
        Prompts get the rest in the order of their arrival. Drafts of the previous step are dropped.
        """
        cdef Slot slot
        cdef Py_ssize_t room = self.capacity, i
        cdef list prompts = []
        self.work.clear()
        for slot in self.slots:
            slot.forget_draft()
            slot.count = 0
            if slot.generation is None:
                continue
            if slot.decoding:
                slot.count = slot.length - slot.num_past
                room -= slot.count
                self.work.append(slot)
            else:
                prompts.append(slot)
        if room < 0:  # texts that must be recomputed may be long
            for i, slot in enumerate(self.work):
                self.claims[i] = slot.count
            share_room(self.claims, len(self.work), self.capacity)
            for i, slot in enumerate(self.work):
                slot.count = self.claims[i]
            room = 0
        if len(prompts) > 1:
            prompts.sort(key=_age)
        for slot in prompts:
            slot.count = min(slot.length - slot.num_past, room)
            room -= slot.count
            if slot.count:
                self.work.append(slot)
        return len(self.work)

    def fill(self, Batch batch not None):
        """Shrink drafts and prompts to the capacity, then fill the batch.

        Slots come in the order of their ids: llama.cpp computes sequences that have a cache each in
        parallel only if their ids are consecutive.

        Raises:
            CapacityError: The batch is too small. It is empty then.
        """
        cdef Slot slot
        cdef Py_ssize_t i
        self.share_drafts()
        batch.clear()
        for slot in self.slots:
            if slot.count == 0:
                continue
            if batch.len + slot.count + slot.num_guessed > batch.capacity:
                batch.clear()
                raise CapacityError(f"a batch of {batch.capacity} tokens is too small")
            slot.first_row = batch.num_outputs if slot.count == slot.length - slot.num_past else -1
            for i in range(slot.count):
                batch.put(slot.data[slot.num_past + i], slot.num_past + i, <int>slot.id,
                          slot.num_past + i + 1 == slot.length, 1)
            slot.num_branches = slot.num_guessed > 0
            if slot.branched:
                slot.num_branches = tree_arrange(slot.guess, slot.parents, slot.num_guessed, slot.tree)
                if slot.num_branches < 0:
                    slot.num_guessed = 0
            batch.put_draft(slot.guess, slot.num_guessed, slot.tree if slot.branched else NULL, slot.count,
                            slot.length, <int>slot.id)

    def advance(self, EngineStats stats not None, double seconds):
        """Note that the batch is in the target's cache, and count it.

        Args:
            stats: Counters.
            seconds: How long the decode took.

        Returns:
            int: Prompt tokens in the batch.
        """
        cdef Slot slot
        cdef Py_ssize_t prompts = 0, tokens = 0
        for slot in self.work:
            slot.num_before = slot.num_past
            slot.num_past += slot.count + slot.num_guessed
            tokens += slot.count + slot.num_guessed
            if not slot.decoding:
                prompts += slot.count
        stats.add_decode(tokens, len(self.work), prompts, seconds)
        return prompts

    def forget_drafts(self):
        """Drop the drafts: the batch is decoded without them."""
        cdef Slot slot
        for slot in self.work:
            slot.forget_draft()

    @property
    def num_draft_tokens(self):
        """Return the total length of all drafts."""
        cdef Slot slot
        cdef Py_ssize_t total = 0
        for slot in self.work:
            total += slot.num_guessed
        return total

    cdef Py_ssize_t room_for_drafts(self):
        """Return how many draft tokens fit; prompts keep at most three quarters of the capacity."""
        cdef Slot slot
        cdef Py_ssize_t rows = 0, prompts = 0
        for slot in self.work:
            if slot.decoding:
                rows += slot.count
            else:
                prompts += slot.count
        return max(<Py_ssize_t>0, self.capacity - rows - min(prompts, self.capacity * 3 // 4))

    cdef void share_drafts(self):
        """Shrink drafts fairly to the room there is."""
        cdef Slot slot
        cdef Py_ssize_t i = 0, total = 0
        for slot in self.work:
            self.claims[i] = slot.num_guessed
            total += slot.num_guessed
            i += 1
        if not total:
            return
        share_room(self.claims, i, self.room_for_drafts())
        i = 0
        for slot in self.work:
            slot.num_guessed = self.claims[i]
            i += 1
        self.shrink_prompts()

    cdef void shrink_prompts(self):
        """Cut prompts, the latest first, so that they fit beside the drafts."""
        cdef Slot slot
        cdef Py_ssize_t excess = -self.capacity, cut, i
        for slot in self.work:
            excess += slot.count + slot.num_guessed
        for i in range(len(self.work) - 1, -1, -1):
            slot = self.work[i]
            if excess <= 0 or slot.decoding:
                break
            cut = min(excess, slot.count)
            slot.count -= cut
            excess -= cut
            if slot.count == 0:
                self.work.pop()


def _age(Slot slot not None):
    return slot.used


@cython.final
cdef class Proposer:
    """Proposer(plan, policy, valid, stats, most_behind=-1, max_branches=1): ask for drafts. The second part of a step.

    Args:
        plan: The step's plan.
        policy: A DraftPolicy.
        valid: uint8, one per token of the vocabulary: 1 where a draft may hold it. Drafts are cut
            before the first token that is not valid.
        stats: Counters.
        most_behind: A slot that has more pending tokens gets no draft, -1 = no limit.
        max_branches: Most branches of a draft, 1..31; 1 = drafts without branches. An AutoPolicy chooses which
            are sent; others get drafts without branches.

    Raises:
        InputError: max_branches is out of its bounds.
        MemoryError: No room.
    """

    cdef Plan plan
    cdef object policy
    cdef AutoPolicy auto          # the policy, if it is one
    cdef OfferC* offers   # one per slot, of an AutoPolicy
    cdef const uint8_t[::1] valid
    cdef Py_ssize_t most_behind
    cdef Py_ssize_t width                    # most branches of a tree, and most tokens at one depth; 0 = no trees
    cdef readonly Py_ssize_t bare, decoding  # tokens of the pass without drafts, and its decoding slots
    cdef EngineStats stats

    def __cinit__(self, Plan plan not None, policy, const uint8_t[::1] valid not None, EngineStats stats not None,
                  Py_ssize_t most_behind=-1, Py_ssize_t max_branches=1):
        if not 1 <= max_branches <= MOST_BRANCHES:
            raise InputError(f"max_branches must be in 1..{MOST_BRANCHES}, got {max_branches}")
        self.plan, self.policy, self.valid, self.stats = plan, policy, valid, stats
        self.most_behind = most_behind
        self.auto = policy if isinstance(policy, AutoPolicy) else None
        self.width = max_branches if max_branches > 1 and self.auto is not None else 0
        self.offers = <OfferC*>calloc(<size_t>len(plan.slots) + 1, sizeof(OfferC))
        if self.offers == NULL:
            raise MemoryError("no memory for drafts")

    def __dealloc__(self):
        free(self.offers)

    def propose(self):
        """Set the drafts of slots with one native source; return the others that have sources, a list.

        What a sampler is certain of goes as a draft, without asking a source.

        Cost: O(slots + drafted tokens). Threads: keeps the GIL.
        """
        cdef Slot slot
        cdef list others = []
        cdef list asked = []
        cdef int64_t started = 0
        if self.auto is not None:
            self.count_tokens()
        for slot in self.plan.work:
            if not (slot.decoding and slot.count == slot.length - slot.num_past):
                continue
            slot.num_guessed = slot.sampler.c.certain(slot.sampler.c.state, slot.guess,
                                                      slot.draft_room(self.plan.capacity))
            if slot.num_guessed or not slot._sources:
                continue
            if 0 <= self.most_behind < slot.count:
                continue
            if started == 0:
                started = ngs_now_ns()
            if slot.native is None:
                others.append(slot)
            elif self.offer(slot, &self.offers[len(asked)]):
                asked.append(slot)
        if asked:
            self.choose(asked)
        if started:
            self.stats.draft_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return others

    def limit(self, Slot slot not None, str source not None):
        """Return the longest draft that a slot may get from a source now."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity)
        return min(policy_limit(self.policy, slot.id, source), room)

    def batch_tokens(self):
        """Return how many tokens the pass holds now, drafts included."""
        cdef Py_ssize_t total = self.bare
        cdef Slot slot
        for slot in self.plan.work:
            total += slot.num_guessed
        return total

    cdef bint offer(self, Slot slot, OfferC* offer) except -1:
        """Let a slot's source draft; return whether there is a draft to choose from."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity)
        cdef Py_ssize_t limit = min(policy_limit(self.policy, slot.id, slot.native_name), room)
        cdef AskC ask = AskC(limit, room if self.auto is not None else limit, &self.valid[0], self.valid.shape[0],
                             self.bare, self.decoding, self.width, self.width)
        cdef SlotC* s
        if limit <= 0:
            return False
        with slot.native._lock:
            s = &slot.native.d.slots[slot.id]
            drafter_judge(slot.native, self.auto)
            if not s.active or not drafter_offer(slot.native, slot.id, &ask, offer):
                return False
            return self.fit(slot, s, offer)

    cdef bint fit(self, Slot slot, SlotC* s, OfferC* offer) noexcept nogil:
        """Drop drafted tokens that the sampler cannot choose; return whether any are left."""
        cdef SamplerC* sampler = &slot.sampler.c
        cdef int32_t* fits = slot.native.d.slots[slot.id].links + slot.native.d.num_sources * slot.native.d.max_draft
        cdef Py_ssize_t kept
        if sampler.fits == NULL:
            return True
        sampler.fits(sampler.state, s.draft, s.parents if s.branched else NULL, s.draft_len, fits)
        kept = driver_keep(&slot.native.d, slot.id, fits)
        offer.n, offer.chosen = min(offer.n, kept), min(offer.chosen, kept)
        return kept > 0

    cdef int choose(self, list asked) except -1:
        """Share the pass among the slots' offers, and cut their drafts to what each was given."""
        cdef Py_ssize_t i = 0
        cdef Slot slot
        if self.auto is not None:
            self.auto.reserve(len(asked))
            self.auto.choose_all(self.offers, len(asked), self.bare, self.decoding, self.plan.capacity)
        for slot in asked:
            if self.offers[i].chosen < slot.min_draft:
                self.offers[i].chosen = 0
            with slot.native._lock:
                driver_shorten(&slot.native.d, slot.id, self.offers[i].chosen)
                self.take(slot, &slot.native.d.slots[slot.id])
            slot.draft_source = slot._sources[0] if slot.num_guessed else None
            i += 1
        return 0

    cdef void take(self, Slot slot, const SlotC* s) noexcept nogil:
        """Copy the pending draft of a slot, which the policy may have put into another order.

        Another call may have replaced it while the lock was free, so nothing is taken for granted.
        """
        cdef Py_ssize_t i, n = min(s.draft_len, slot.room)
        slot.branched = False
        if s.branched:
            for i in range(n):
                if not -1 <= s.parents[i] < i:
                    n = i
                    break
                slot.parents[i] = s.parents[i]
                slot.branched = slot.branched or s.parents[i] != i - 1
        memcpy(slot.guess, s.draft, <size_t>n * sizeof(token_t))
        slot.num_guessed = n

    cdef int count_tokens(self) except -1:
        """Set what the pass holds without drafts."""
        cdef Slot slot
        self.bare = self.decoding = 0
        for slot in self.plan.work:
            self.bare += slot.count
            self.decoding += slot.decoding
        self.decoding = max(self.decoding, <Py_ssize_t>1)
        return 0


# One slot's rows.
cdef struct CheckC:
    const float* logits
    const token_t* draft
    const int32_t* parents  # NULL = no tree
    Py_ssize_t draft_len
    SamplerC* sampler
    token_t* chosen
    int32_t* rows
    CandidateC* candidates  # top + 1 places per token, NULL where top is -1
    Py_ssize_t top
    Py_ssize_t made         # as verify_rows returns it


@cython.final
cdef class Verifier:
    """Verifier(plan, rows, policy, stats): verify and accept. The last part of a step.

    Args:
        plan: The step's plan.
        rows: Where the target's logits are after the decode.
        policy: A DraftPolicy; learns what came of drafts.
        stats: Counters.

    Raises:
        MemoryError: No room.
    """

    cdef Plan plan
    cdef Rows rows
    cdef object policy
    cdef AutoPolicy auto  # the policy, if it is one
    cdef EngineStats stats
    cdef CheckC* checks
    cdef object clock

    def __cinit__(self, Plan plan not None, Rows rows not None, policy, EngineStats stats not None):
        self.plan, self.rows, self.policy, self.stats = plan, rows, policy, stats
        self.auto = policy if isinstance(policy, AutoPolicy) else None
        self.clock = time.perf_counter
        self.checks = <CheckC*>calloc(<size_t>len(plan.slots) + 1, sizeof(CheckC))
        if self.checks == NULL:
            raise MemoryError("no memory for verification")

    def __dealloc__(self):
        free(self.checks)

    def verify(self):
        """Choose and commit tokens for every slot of the plan whose last pending token was decoded.

        Each token is chosen from its own row by the request's sampler, for as long as the draft
        guessed the token before. Texts, transcripts, native drafters, policy and counters are updated
        here.

        Returns:
            list: Slots that need more work: their answer ends, is streamed or wants log-probabilities, their
            context is full, a rejected draft must be rolled back, or their sources are not native. `emitted`, `num_drafted`,
            `num_accepted`, `num_added`, `ending`, `begun` and `taught` hold the results; the caller
            clears their drafts.

        Raises:
            InputError: A row is missing. Nothing is changed then.
            MemoryError: No room.

        Cost: O(slots) and one sampling per emitted token. Threads: releases the GIL where there is much to read.
        """
        cdef Slot slot
        cdef Py_ssize_t i = 0, n
        cdef int64_t started = ngs_now_ns()
        cdef double now
        cdef list left = []
        n = self.choose()
        if n:
            now = self.clock()
            if self.auto is not None:
                self.note_step(n)
            for slot in self.plan.work:
                if slot.first_row >= 0:
                    self.commit(slot, self.checks[i].made)
                    i += 1
                    if self.emit(slot, now):
                        left.append(slot)
                    else:
                        slot.forget_draft()
        self.stats.verify_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return left

    cdef Py_ssize_t choose(self) except -1:
        """Fill the checks and choose tokens; return the number of checks."""
        cdef Slot slot
        cdef CheckC* check
        cdef Py_ssize_t n = 0, read = 0, vocab_size = self.rows.c.vocab_size
        for slot in self.plan.work:
            if slot.first_row < 0:
                continue
            if slot.first_row + slot.num_guessed >= self.rows.c.num_rows:
                raise InputError(f"a draft of {slot.num_guessed} tokens reads rows {slot.first_row}.."
                                 f"{slot.first_row + slot.num_guessed}, but there are {self.rows.c.num_rows}")
            check = &self.checks[n]
            check.logits = self.rows.c.data + slot.first_row * vocab_size
            check.draft, check.draft_len = slot.guess, slot.num_guessed
            check.parents = slot.parents if slot.branched else NULL
            check.sampler = &slot.sampler.c
            check.chosen, check.rows = slot.chosen, slot.rows
            slot.reserve_candidates()
            check.candidates, check.top = slot.candidates, slot.num_candidates
            read += (slot.num_guessed + 1) * vocab_size
            n += 1
        if read < MUCH_TO_READ:
            check_all(self.checks, n, vocab_size)
        else:
            with nogil:
                check_all(self.checks, n, vocab_size)
        return n

    cdef int commit(self, Slot slot, Py_ssize_t made) except -1:
        """Add the tokens to the slot's text; update the native drafter and the policy."""
        cdef Py_ssize_t drafted = slot.num_guessed
        cdef Py_ssize_t count = made if made >= 0 else -1 - made
        cdef Py_ssize_t accepted = count - 1 if made >= 0 else min(count, drafted)
        cdef Py_ssize_t last  # row after the accepted tokens
        slot.ending = ENDING_NONE if made >= 0 else ENDING_IMPOSSIBLE
        slot.num_out, slot.num_drafted, slot.num_accepted = count, drafted, accepted
        slot.num_credited = accepted if slot.draft_source is not None else 0
        slot.begun = count > 0 and not slot.decoding
        if slot.learner is not None:
            self.observe(slot, count)
        slot.branch = 0
        if slot.branched and accepted:
            last = next_row(slot.guess, slot.parents, drafted, slot.rows[accepted - 1], slot.chosen[accepted - 1])
            slot.branch = branch_of(slot.tree[last - 1].branches)
        memcpy(slot.data + slot.length, slot.chosen, <size_t>count * sizeof(token_t))
        slot.length += count
        slot.decoding = slot.decoding or count > 0
        slot.taught = not slot._sources or not slot.decoding
        if slot.native is not None and slot.decoding and not slot.begun:
            slot.taught = teach(slot)
        if drafted and slot.draft_source is not None:
            policy_record(self.policy, slot.id, slot.draft_source.name, drafted, accepted)
            self.count_draft(slot)
        return 0

    cdef int observe(self, Slot slot, Py_ssize_t count) except -1:
        """Show a drafter that learns from logits the slot's rows: those that tokens were chosen from, then others."""
        cdef const float* logits = self.rows.c.data + slot.first_row * self.rows.c.vocab_size
        if min(slot.num_guessed + 1, <Py_ssize_t>MOST_OBSERVED) * self.rows.c.vocab_size < MUCH_TO_READ:
            observe_rows(slot, slot.learner, logits, self.rows.c.vocab_size, count)
        else:
            with nogil:
                observe_rows(slot, slot.learner, logits, self.rows.c.vocab_size, count)
        return 0

    cdef int note_step(self, Py_ssize_t n) except -1:
        """Report to an AutoPolicy how many tokens the pass emitted, unless it read prompts too."""
        cdef Py_ssize_t emitted = 0, tokens = 0, i
        cdef Slot slot
        for slot in self.plan.work:
            if not slot.decoding or slot.first_row < 0 or slot.count != 1:
                return 0
            tokens += 1 + slot.num_guessed
        for i in range(n):
            emitted += self.checks[i].made if self.checks[i].made >= 0 else -1 - self.checks[i].made
        self.auto.add_step(emitted, tokens, 0.0)
        return 0

    cdef int count_draft(self, Slot slot) except -1:
        cdef Timings timings = slot.timings
        self.stats.add_draft(slot.num_drafted, slot.num_accepted)
        timings.num_drafts += 1
        timings.num_draft_tokens += slot.num_drafted
        timings.num_accepted_tokens += slot.num_accepted
        if slot.native is None and slot.draft_source.name == "prediction":
            timings.num_prediction_accepted += slot.num_accepted
            timings.num_prediction_rejected += slot.num_drafted - slot.num_accepted
        return 0

    cdef bint emit(self, Slot slot, double now) except -1:
        """Add the tokens to the answer; return whether the slot needs more work."""
        cdef Transcript transcript = slot.transcript
        cdef Py_ssize_t before = transcript.c.len
        cdef int reason = transcript.add_tokens(slot.chosen, slot.num_out, slot.num_credited)
        slot.num_added = transcript.c.len - before
        if reason != ENDING_NONE:
            slot.ending = reason
        elif slot.ending == ENDING_NONE and slot.length >= slot.size and not slot.shifts:
            slot.ending = ENDING_FULL
        self.note_time(slot, now)
        return (slot.ending != ENDING_NONE or slot.on_chunk is not None or slot.with_logprobs or not slot.taught
                or slot.num_accepted < slot.num_drafted or slot.saved is not None or slot.length >= slot.size)

    cdef void note_time(self, Slot slot, double now):
        cdef Timings timings = slot.timings
        cdef EngineStats stats = self.stats
        stats.num_emitted_tokens += slot.num_added
        stats.num_slot_steps += 1
        timings.num_steps += 1
        if timings.first_token == 0.0:
            timings.first_token = now
            stats.time_to_first_token.add(now - timings.submitted, 1)
        elif slot.num_added:
            stats.inter_token_latency.add((now - timings.last_token) / <double>slot.num_added, slot.num_added)
        timings.last_token = now


cdef void observe_rows(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size,
                       Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, row, right = 0, left = MOST_OBSERVED
    for i in range(min(count, left)):
        observe_row(slot, drafter, logits, vocab_size, slot.rows[i])
        left -= 1
    for row in range(slot.num_guessed + 1):
        if left == 0:
            break
        if right < count and slot.rows[right] == row:
            right += 1
            continue
        observe_row(slot, drafter, logits, vocab_size, row)
        left -= 1


cdef void observe_row(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size, Py_ssize_t row) noexcept nogil:
    """Tell what the target would have said after the text, or after a token of the draft."""
    cdef token_t[NGS_TOP_MOST] tokens
    cdef float[NGS_TOP_MOST] p
    cdef token_t before, last = slot.data[slot.length - 1]
    cdef Py_ssize_t parent
    cdef int n = ngs_top(logits + row * vocab_size, vocab_size, <int>drafter_top(drafter), tokens, p)
    if row == 0:
        before = slot.data[slot.length - 2] if slot.length > 1 else -1
    else:
        parent = slot.parents[row - 1] if slot.branched else row - 2
        before = slot.guess[parent] if parent >= 0 else last
        last = slot.guess[row - 1]
    with drafter._lock:
        driver_observe(&drafter.d, before, last, tokens, p, n)


cdef void check_all(CheckC* checks, Py_ssize_t n, Py_ssize_t vocab_size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        checks[i].made = verify_rows(checks[i].logits, vocab_size, checks[i].draft, checks[i].parents,
                                     checks[i].draft_len, checks[i].sampler, checks[i].chosen, checks[i].rows,
                                     checks[i].candidates, checks[i].top)


cdef bint teach(Slot slot):
    """Commit the emitted tokens to the slot's native drafter; False if Python must do it, to raise its error."""
    cdef SlotC* s = &slot.native.d.slots[slot.id]
    with slot.native._lock:
        if not s.active or slot.num_credited > draft_right(s, slot.chosen, slot.num_out):
            return False
        return drafter_commit(slot.native, slot.id, slot.chosen, slot.num_out, slot.num_credited, NULL) == STATUS_OK
