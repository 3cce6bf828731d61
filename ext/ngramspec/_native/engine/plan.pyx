"""Plan: which tokens of which slots are in the next decode, the first part of a step. Proposer: their drafts, the second.

Native drafters are asked without Python.
"""

import time

cimport cython
from libc.string cimport memcpy

from ngramspec._native.core.types cimport int32_t, int64_t, ngs_now_ns, token_t, uint8_t
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.drafter.driver cimport DriverC, SlotC, driver_shorten
from ngramspec._native.drafter.offer cimport AskC, offer_after, offer_draft
from ngramspec._native.engine.decode cimport MOST_BRANCHES, Batch, SamplerC, sampler_fit, tree_arrange
from ngramspec._native.engine.figures cimport EngineStats
from ngramspec._native.engine.shadow cimport ShadowRun
from ngramspec._native.engine.slot cimport Slot
from ngramspec._native.policy.arbiter cimport (
    MOST_DRAFTED, Arbiter, AskedC, ClaimsC, LaneC, Priced, TermsC,
)
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.chooser cimport OfferC, TreeC

from ngramspec._native.policy.arbiter import Asked, Terms
from ngramspec.errors import CapacityError, InputError


cpdef Py_ssize_t tokens_left(Py_ssize_t room, Py_ssize_t written, Py_ssize_t most, double usual):
    """Return how many tokens an answer is likely to get yet; one longer than usual goes on for as long as it went.

    Args:
        room: Tokens that its context has room for.
        written: Tokens that it has.
        most: Tokens that it may have.
        usual: Tokens that answers have.
    """
    return min(room, most - written, <Py_ssize_t>max(usual - <double>written, <double>written, 1.0))


cdef void share_room(Py_ssize_t* claims, Py_ssize_t n, Py_ssize_t room) noexcept nogil:
    """Cut claims to fit room: claims up to a common level are met, larger ones are cut to it."""
    cdef Py_ssize_t total = 0, left = n, i, part
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
            part = room // left
            room -= part
            left -= 1
            claims[i] = part


def share(demands, Py_ssize_t room):
    """Share room among claims: those up to a common level are met, larger ones are cut to it.

    Args:
        demands: Claims, each >= 0.
        room: What there is to share, >= 0.

    Returns:
        list: What each claim gets; the sum is min(sum(demands), room).

    Raises:
        MemoryError: No room for the work.

    >>> share([8, 2, 8], 12)
    [5, 2, 5]
    """
    cdef Py_ssize_t i, n = len(demands)
    cdef Owner memory = Owner()
    cdef Py_ssize_t* claims = <Py_ssize_t*>memory.take(n, sizeof(Py_ssize_t))
    for i in range(n):
        claims[i] = demands[i]
    share_room(claims, n, max(room, <Py_ssize_t>0))
    return [claims[i] for i in range(n)]


@cython.final
cdef class Plan(Owner):
    """Plan(slots, capacity, outputs=0, shorten=None, prompt_rows=1): choose what a decode holds. The first part of a step.

    Args:
        slots: All slots of the engine.
        capacity: Most tokens in one decode, at least one per slot.
        outputs: Most rows of logits in one decode, at least one per slot; 0 = one for each token.
        shorten: Called with a slot and how many tokens of its draft stay, before others are dropped; must not raise.
        prompt_rows: Most rows of logits in one decode that tell how likely prompts are, for each slot that does not
            decode, >= 1: the memory for logits never shrinks.

    Raises:
        InputError: capacity, outputs or prompt_rows is too small.
        MemoryError: No room.
    """

    def __cinit__(self, slots, Py_ssize_t capacity, Py_ssize_t outputs=0, shorten=None, Py_ssize_t prompt_rows=1):
        self.slots = tuple(slots)
        self.capacity = capacity
        self.outputs = min(outputs, capacity) if outputs else capacity
        self.work = []
        self.clock, self.shorten = time.perf_counter, shorten
        if capacity < max(len(self.slots), 1):
            raise InputError(f"capacity must be at least one token per slot, {len(self.slots)}, got {capacity}")
        if self.outputs < max(len(self.slots), 1):
            raise InputError(f"outputs must be 0 or at least one row per slot, {len(self.slots)}, got {outputs}")
        if prompt_rows < 1:
            raise InputError(f"prompt_rows must be >= 1, got {prompt_rows}")
        self.prompt_rows = prompt_rows
        self.claims = <Py_ssize_t*>self.take(len(self.slots) + 1, sizeof(Py_ssize_t))

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

        Preempted slots are left out. Decoding slots come first; if their texts must be recomputed they share the capacity.
        Prompts get the rest in the order of their arrival; of one whose log-probabilities are wanted, no more than the
        rows of logits allow. Drafts of the previous step are dropped.
        """
        cdef Slot slot
        cdef Py_ssize_t room = self.capacity, i, rows
        cdef list prompts = []
        self.work.clear()
        for slot in self.slots:
            slot.forget_draft()
            slot.count = 0
            if slot.generation is None or slot.preempted:
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
        rows = self.prompt_rows * (<Py_ssize_t>len(self.slots) - <Py_ssize_t>len(self.work))
        rows = min(rows, self.outputs - <Py_ssize_t>len(self.work) - <Py_ssize_t>len(prompts))
        for slot in prompts:
            slot.count = min(slot.length - slot.num_past, room)
            rows -= self.fit_rows(slot, rows)
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
        cdef Py_ssize_t i, first
        self.share_drafts()
        batch.clear()
        for slot in self.slots:
            if slot.count == 0:
                continue
            if batch.len + slot.count + slot.num_guessed > batch.capacity:
                batch.clear()
                raise CapacityError(f"a batch of {batch.capacity} tokens is too small")
            slot.prompt_row, slot.num_prompt_rows = batch.num_outputs, slot.prompt_rows(slot.count)
            first = slot.prompt_logprobs.len - slot.num_past if slot.num_prompt_rows else 0
            for i in range(slot.count):
                batch.put(slot.data[slot.num_past + i], slot.num_past + i, <int>slot.id,
                          first <= i < first + slot.num_prompt_rows or slot.num_past + i + 1 == slot.length, 1)
            slot.first_row = batch.num_outputs - 1 if slot.count == slot.length - slot.num_past else -1
            slot.num_branches = slot.num_guessed > 0
            if slot.branched:
                slot.num_branches = tree_arrange(slot.guess, slot.parents, slot.num_guessed, slot.tree)
                if slot.num_branches < 0:
                    self.cut_draft(slot, 0)
                for i in range(slot.num_guessed):
                    slot.tree[slot.tree[i].index].added = i >= slot.num_own
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
        self.tokens, self.seconds = tokens, seconds
        stats.add_decode(tokens, len(self.work), prompts, seconds)
        return prompts

    def forget_drafts(self):
        """Drop the drafts: the batch is decoded without them."""
        cdef Slot slot
        for slot in self.work:
            self.cut_draft(slot, 0)
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
        cdef Py_ssize_t rows = 0, prompts = 0, prompt_rows = 0
        for slot in self.work:
            if slot.decoding:
                rows += slot.count
            else:
                prompts += slot.count
                prompt_rows += slot.prompt_rows(slot.count)
        rows = self.capacity - rows - min(prompts, self.capacity * 3 // 4)
        return max(<Py_ssize_t>0, min(rows, self.outputs - <Py_ssize_t>len(self.work) - prompt_rows))

    cdef int fit_rows(self, Slot slot, Py_ssize_t rows) except -1:
        """Cut a prompt to the rows that are left; return how many it takes of them.

        Each slot has a row besides, for the token that it chooses: if it chooses none yet, for its prompt.
        """
        cdef Py_ssize_t needed = slot.prompt_rows(slot.count)
        if needed > rows:
            slot.count = slot.prompt_logprobs.len - slot.num_past + rows + 1
            return rows
        return needed

    cdef int cut_draft(self, Slot slot, Py_ssize_t length) except -1:
        """Drop all but the first tokens of a slot's draft."""
        if length < slot.num_guessed:
            if self.shorten is not None:
                self.shorten(slot, length)
            slot.num_guessed, slot.num_own = min(slot.num_guessed, length), min(slot.num_own, length)
        return 0

    cdef int share_drafts(self) except -1:
        """Shrink drafts fairly to the room there is."""
        cdef Slot slot
        cdef Py_ssize_t i = 0, total = 0
        for slot in self.work:
            self.claims[i] = slot.num_guessed
            total += slot.num_guessed
            i += 1
        if not total:
            return 0
        share_room(self.claims, i, self.room_for_drafts())
        i = 0
        for slot in self.work:
            self.cut_draft(slot, self.claims[i])
            i += 1
        self.shrink_prompts()
        return 0

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


cdef void slot_claims(const DriverC* d, const SlotC* s, ClaimsC* claims) noexcept nogil:
    """Set what the source of a slot's draft claims of all that it drafted, as Drafter.offered says."""
    cdef const int32_t* links
    cdef Py_ssize_t i
    if not s.active or not s.asked or s.owner < 0 or s.ahead:  # behind another draft nothing of it can be sent alone
        return
    claims.n = max(s.lengths[s.owner], s.draft_len)
    claims.p = s.claims + s.owner * d.max_draft
    claims.calibration = d.calibrations[s.owner]
    if s.branched:
        links = s.links + s.owner * d.max_draft
        for i in range(claims.n):
            if links[i] != i - 1:
                claims.parents = links


@cython.final
cdef class Proposer(Owner):
    """Proposer(plan, policy, valid, stats, arbiter, free_of, most_behind=-1, max_branches=1): ask for drafts.

    The second part of a step. Native drafters are asked here, others by the caller. Of each source that takes time it is
    decided here for which slots it is asked: most steps ask none, and nobody in Python hears of them.

    Args:
        plan: The step's plan.
        policy: How long drafts may be.
        valid: uint8, one per token of the vocabulary: 1 where a draft may hold it. Drafts are cut
            before the first token that is not valid.
        stats: Counters.
        arbiter: Decides what sources that take time are asked for.
        free_of: Returns the FreeDraft of a slot whose draft is not its native drafter's.
        most_behind: A slot that has more pending tokens gets no draft, -1 = no limit.
        max_branches: Most branches of a draft, 1..31; 1 = drafts without branches. A policy that weighs chooses
            which are sent; others get drafts without branches.

    Raises:
        InputError: max_branches is out of its bounds.
        MemoryError: No room.

    Attributes:
        usual: Tokens that answers have.
        asking: A source that takes time and what it is asked for: (slot, Asked) pairs, or an error where its price is
            none. None = no further source is to be asked in this step.
    """

    cdef Plan plan
    cdef AutoPolicy policy
    cdef AutoPolicy judge         # the policy, if it weighs drafts
    cdef OfferC* offers   # one per slot, for the judge
    cdef const uint8_t[::1] valid
    cdef Py_ssize_t most_behind
    cdef readonly Py_ssize_t width           # most branches of a tree, and most tokens at one depth; 0 = no trees
    cdef readonly Py_ssize_t bare, decoding  # tokens of the pass without drafts, and its decoding slots
    cdef readonly list priced                # slots that may get a draft of sources that take time
    cdef list paid                           # these sources ...
    cdef Py_ssize_t turn                     # ... and which of them is next
    cdef readonly tuple asking
    cdef Arbiter arbiter
    cdef object free_of
    cdef public double usual
    cdef EngineStats stats

    def __cinit__(self, Plan plan not None, AutoPolicy policy not None, const uint8_t[::1] valid not None,
                  EngineStats stats not None, Arbiter arbiter not None, free_of, Py_ssize_t most_behind=-1,
                  Py_ssize_t max_branches=1):
        if not 1 <= max_branches <= MOST_BRANCHES:
            raise InputError(f"max_branches must be in 1..{MOST_BRANCHES}, got {max_branches}")
        self.plan, self.policy, self.valid, self.stats = plan, policy, valid, stats
        self.arbiter, self.free_of, self.most_behind = arbiter, free_of, most_behind
        self.judge = policy if policy._weighs() else None
        self.width = max_branches if max_branches > 1 and self.judge is not None else 0
        self.offers = <OfferC*>self.take(len(plan.slots) + 1, sizeof(OfferC))

    def propose(self):
        """Set the drafts of slots whose only free source is native; return those with other free sources, a list.

        If there are none of these, `asking` is set, as by `ask_next`; else the caller calls that once they have their drafts.
        What a sampler is certain of goes as a draft, without asking a source. So does text that a grammar
        forces, unless the draft of a native source is longer.

        Cost: O(slots + drafted tokens). Threads: keeps the GIL.
        """
        cdef Slot slot
        cdef list others = []
        cdef list asked = []
        cdef int64_t started = 0
        cdef bint offered, is_other
        self.priced, self.paid, self.turn, self.asking = [], [], 0, None
        self.count_tokens()
        for slot in self.plan.work:
            if not (slot.decoding and slot.count == slot.length - slot.num_past):
                continue
            if slot.shadows and not 0 <= self.most_behind < slot.count:
                if started == 0:
                    started = ngs_now_ns()
                self.ask_shadows(slot)
            if slot.shadows:
                continue
            slot.num_guessed = slot.sampler.c.certain(slot.sampler.c.state, slot.guess,
                                                      slot.draft_room(self.plan.capacity, self.plan.outputs))
            if slot.num_guessed or not slot._sources:
                continue
            if 0 <= self.most_behind < slot.count:
                continue
            if started == 0:
                started = ngs_now_ns()
            is_other = slot.num_free and slot.native is None or (len(slot.paid) > 0 and self.judge is None)
            offered = not is_other and slot.native is not None and self.offer(slot, &self.offers[len(asked)])
            if self.force(slot, self.offers[len(asked)].n if offered else 0):
                continue
            if slot.paid and self.judge is not None:
                self.priced.append(slot)
                for source in slot.paid:
                    if source not in self.paid:
                        self.paid.append(source)
            if is_other:
                others.append(slot)
            elif offered:
                asked.append(slot)
        if asked:
            self.choose(asked)
        if self.paid and not others:
            self.ask_next()
        if started:
            self.stats.draft_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return others

    def ask_next(self):
        """Set `asking` to the next source that takes time and is asked for something; return it."""
        cdef Slot slot
        cdef Priced priced
        cdef list wishes
        self.asking = None
        while self.turn < len(self.paid) and self.asking is None:
            source, wishes = self.paid[self.turn], []
            self.turn += 1
            priced = self.arbiter.source(source.name)
            self.arbiter.set_price(priced)
            for slot in self.priced:
                if slot.added_source is not None or source not in slot.paid:
                    continue
                try:
                    wish = self.wish(slot, source, priced)
                except Exception as error:
                    wish = error
                if wish is not None:
                    wishes.append((slot, wish))
            if wishes:
                self.asking = source, wishes
            else:
                self.arbiter.fade(priced)
        return self.asking

    cdef object wish(self, Slot slot, source, Priced priced):
        """Return what to ask of a source for a slot, None = nothing."""
        cdef LaneC* lane = priced.of(slot.id)
        cdef TermsC terms
        cdef AskedC asked
        cdef double unread = lane.backlog + <double>(slot.length - slot.num_told) * priced.reading
        cdef Py_ssize_t most = min(source.max_draft, MOST_DRAFTED)
        if most <= 0:
            return None
        terms = TermsC(
            room=self.limit(slot, source.name), most=most, batch_tokens=self.batch_tokens() - slot.num_guessed,
            decoding=self.decoding, branches=self.width or 1, shortest=slot.min_draft, left=1, sharing=priced.sharing,
            extends=source.extends, stops=source.stops, backlog=0.0,
        )
        if self.policy._costs.timed and unread > 0.0:
            terms.backlog = priced.faded * unread
            terms.left = max(tokens_left(slot.size - slot.length, slot.transcript.c.len, slot.transcript.c.max_tokens,
                                         self.usual), <Py_ssize_t>1)
        if slot.draft_source is not None and slot.draft_source is not slot.native_source:
            wish = self.arbiter.ask(slot.id, priced.name, self.free_of(slot), Terms(**terms))
            return wish if wish.tokens else None
        asked = self.decide(slot, priced, lane, &terms)
        return Asked(asked.after, asked.tokens, bool(asked.trial), bool(asked.beside)) if asked.tokens else None

    cdef AskedC decide(self, Slot slot, Priced priced, LaneC* lane, const TermsC* terms) noexcept:
        """Decide beside the draft of the slot's native drafter, which may be none."""
        cdef ClaimsC claims = ClaimsC(NULL, NULL, 0, 0, NULL)
        cdef SlotC* s
        cdef AskedC asked
        if slot.native is None:
            return self.arbiter.decide(priced, lane, &claims, terms)
        with slot.native._lock:
            s = &slot.native.d.slots[slot.id]
            slot_claims(&slot.native.d, s, &claims)
            claims.chosen = min(slot.num_guessed, claims.n)
            asked = self.arbiter.decide(priced, lane, &claims, terms)
        return asked

    cpdef Py_ssize_t limit(self, Slot slot, str source) except -1:
        """Return the longest draft that a slot may get from a source now."""
        return self.longest(slot, source, slot.draft_room(self.plan.capacity, self.plan.outputs))

    cdef Py_ssize_t longest(self, Slot slot, str source, Py_ssize_t room) except -1:
        """The policy's limit; as it learns from what is sent, not too short for the request to have it sent."""
        cdef Py_ssize_t limit = self.policy.longest(slot.id, source)
        if 0 < limit < slot.min_draft and self.policy._gate is not None:
            limit = slot.min_draft
        return min(limit, room)

    @property
    def capacity(self):
        """Return the most tokens that the pass can hold, where prompts make room for drafts."""
        return self.bare + self.plan.room_for_drafts()

    cpdef Py_ssize_t batch_tokens(self):
        """Return how many tokens the pass holds now, drafts included."""
        cdef Py_ssize_t total = self.bare
        cdef Slot slot
        for slot in self.plan.work:
            total += slot.num_guessed
        return total

    cdef AskC ask_for(self, Py_ssize_t limit, Py_ssize_t room, Py_ssize_t batch_tokens, Py_ssize_t width) noexcept:
        return AskC(limit=limit, room=room, valid=&self.valid[0], num_valid=self.valid.shape[0], batch_tokens=batch_tokens,
                    decoding=self.decoding, width=width, branches=width)

    cdef bint offer(self, Slot slot, OfferC* offer) except -1:
        """Let a slot's source draft; return whether there is a draft to choose from."""
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity, self.plan.outputs)
        cdef Py_ssize_t limit = self.longest(slot, slot.native_name, room)
        cdef AskC ask = self.ask_for(limit, room if self.judge is not None else limit, self.bare, self.width)
        cdef SlotC* s
        if limit <= 0:
            return False
        with slot.native._lock:
            s = &slot.native.d.slots[slot.id]
            slot.native.judge_by(self.judge)
            if not s.active or not offer_draft(&slot.native.d, self.judge, slot.id, &ask, offer):
                return False
            return self.fit(slot, s, offer)

    cdef int ask_shadows(self, Slot slot) except -1:
        """Let drafters draft that are only judged."""
        cdef ShadowRun run
        cdef Py_ssize_t room = slot.draft_room(self.plan.capacity, self.plan.outputs)
        cdef AskC place = self.ask_for(0, 0, self.bare, self.width)
        for run in slot.shadows:
            try:
                run.ask(room, slot.min_draft, &place, self.bare + self.plan.room_for_drafts(), &slot.sampler.c)
            except Exception:
                run.fail()
        return 0

    def add_tail(self, Slot slot not None, const float[::1] likely not None):
        """Let the slot's native drafter go on behind a draft of another source, all of which is sent, where that pays.

        Args:
            slot: Its draft is that source's alone, without branches.
            likely: float32, how probable each of its tokens is if those before it are right.
        """
        cdef Py_ssize_t n = slot.num_guessed, room = slot.draft_room(self.plan.capacity, self.plan.outputs) - n
        cdef Py_ssize_t limit = min(self.longest(slot, slot.native_name, room + n) - n, room)
        cdef AskC ask = self.ask_for(limit, limit, self.batch_tokens() - n, 0)
        cdef SlotC* s
        if limit <= 0 or n != likely.shape[0]:
            return
        with slot.native._lock:
            s = &slot.native.d.slots[slot.id]
            slot.native.make_tails()
            slot.native.judge_by(self.judge)
            if not s.active or not offer_after(&slot.native.d, self.judge, slot.id, &ask, slot.guess, &likely[0], n):
                return
            memcpy(slot.guess + n, s.draft, <size_t>s.draft_len * sizeof(token_t))
            slot.num_guessed, slot.num_own = n + s.draft_len, n
        slot.added_source = slot.native_source

    cdef bint force(self, Slot slot, Py_ssize_t least) except -1:
        """Draft the text that the sampler says must come next; return whether that is more than `least` tokens."""
        cdef SamplerC* sampler = &slot.sampler.c
        cdef Py_ssize_t room, n
        if sampler.forced == NULL:
            return False
        room = slot.draft_room(self.plan.capacity, self.plan.outputs)
        n = sampler.forced(sampler.state, slot.guess, room) if room > least else 0
        if n <= least:
            return False
        if least:  # of the native drafter's, nothing is sent
            with slot.native._lock:
                driver_shorten(&slot.native.d, slot.id, 0)
        slot.num_guessed, slot.branched = n, False
        return True

    cdef bint fit(self, Slot slot, SlotC* s, OfferC* offer) noexcept nogil:
        """Drop drafted tokens that the sampler cannot choose; return whether any are left."""
        cdef Py_ssize_t length = sampler_fit(&slot.sampler.c, &slot.native.d, slot.id)
        offer.n, offer.chosen = min(offer.n, length), min(offer.chosen, length)
        return length > 0

    cdef int choose(self, list asked) except -1:
        """Share the pass among the slots' offers, and cut their drafts to what each was given."""
        cdef list drafters = sorted({(<Slot>slot).native for slot in asked}, key=id)  # the same order in all engines
        cdef Py_ssize_t i = 0, capacity = self.capacity
        cdef Drafter drafter
        cdef Slot slot
        if self.judge is not None:
            self.judge.reserve(len(asked))
        for drafter in drafters:
            drafter._lock.acquire()
        if self.judge is not None:
            for slot in asked:
                self.describe(slot, &self.offers[i])
                i += 1
            self.judge.choose_all(self.offers, i, self.bare, self.decoding, capacity)
        i = 0
        for slot in asked:
            driver_shorten(&slot.native.d, slot.id, self.offers[i].chosen if self.offers[i].chosen >= slot.min_draft else 0)
            self.take_draft(slot)
            i += 1
        for drafter in drafters:
            drafter._lock.release()
        for slot in asked:
            slot.draft_source = slot.native_source if slot.num_guessed else None
        return 0

    cdef void describe(self, Slot slot, OfferC* offer) noexcept nogil:
        """Offer the draft that is pending now: another call may have replaced it while the lock was free."""
        cdef const SlotC* s = &slot.native.d.slots[slot.id]
        offer.n, offer.p, offer.streak = s.draft_len, s.confidence, s.streak
        offer.calibration = slot.native.d.calibrations[s.owner]
        offer.tree = TreeC(s.draft, s.parents, s.confidence) if s.branched else TreeC(NULL, NULL, NULL)

    cdef void take_draft(self, Slot slot) noexcept nogil:
        """Copy the pending draft of a slot, which the policy may have put into another order.

        Another call may have replaced it while the lock was free, so nothing is taken for granted.
        """
        cdef const SlotC* s = &slot.native.d.slots[slot.id]
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
        slot.num_guessed = slot.num_own = n

    cdef int count_tokens(self) except -1:
        """Set what the pass holds without drafts, and tell the policy whether it will learn from the pass.

        It will not if a slot reads its prompt, or its text again.
        """
        cdef Slot slot
        self.bare = self.decoding = 0
        for slot in self.plan.work:
            self.bare += slot.count
            self.decoding += slot.decoding
        self.decoding = max(self.decoding, <Py_ssize_t>1)
        if self.judge is not None:
            self.judge.teaches = self.bare == self.decoding
        return 0
