"""Drafter: the public face of one source or a chain of them, for any number of slots.

It checks arguments, holds the lock and hands out arrays; what happens to drafts and tokens is done by the
modules beside it, which know nothing of it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.string cimport memcpy

from ngramspec._native.core.arguments cimport (
    TokensC, bad_token, logits_view, overlap, probabilities_view, token_rows_view, token_view, tokens_release, tokens_view,
)
from ngramspec._native.core.history cimport history_free
from ngramspec._native.core.threads cimport usable_cores
from ngramspec._native.core.types cimport STATUS_BAD_TOKEN, STATUS_OK, Status, int32_t, int64_t, token_t
from ngramspec._native.drafter.commit cimport (
    FollowedC, commit_counts, commit_tokens, follow_find, follow_rows, follow_text, observation_most,
    observation_show_logits, observation_show_top,
)
from ngramspec._native.drafter.driver cimport (
    MOST_AHEAD, MOST_LANES, ReplayC, SlotC, SourceCountsC, branches_check, counts_clear, counts_copy, counts_make, counts_stats,
    draft_right, driver_begin, driver_end, driver_forget, driver_replay, driver_shorten, driver_truncate,
    lanes_make,
)
from ngramspec._native.drafter.offer cimport (
    AskC, ProposalsC, ask_alone, offer_after, offer_draft, proposals_choose, proposals_draft, proposals_prepare,
)
from ngramspec._native.drafter.source cimport Source, SourceC
from ngramspec._native.policy.auto cimport AutoPolicy, check_padded
from ngramspec._native.policy.chooser cimport OfferC
from ngramspec._native.policy.costs cimport CalibrationC

import numpy as np

from ngramspec.errors import InputError, StateError
from ngramspec.stats import Replay

cdef enum:
    MOST_BESIDE = 1 << 30  # slots and tokens of a pass that are not the drafter's

cdef object _empty = np.empty
cdef object _int32 = np.dtype(np.int32)
cdef object _float32 = np.dtype(np.float32)


cdef object _check_arguments(tuple sources, Py_ssize_t slots, Py_ssize_t max_history):
    if not sources:
        raise InputError("a drafter needs at least one source, got none")
    if slots < 1:
        raise InputError(f"slots must be >= 1, got {slots}")
    if not 1024 <= max_history <= 1 << 28:
        raise InputError(f"max_history must be in 1024..{1 << 28} tokens, got {max_history}")
    for source in sources:
        if not isinstance(source, Source):
            raise InputError(f"sources must be Source objects, got {type(source).__name__}")
        if (<Source>source).max_history < max_history:
            raise InputError(f"source {source.name} drafts from {source.max_history} tokens of history at most, "
                             f"got max_history={max_history}")
        if (<Source>source).slots != slots:
            raise InputError(f"source {source.name} was made for {source.slots} slots, the drafter has {slots}")
        if (<Source>source)._taken:
            raise InputError(f"source {source.name} already belongs to a drafter; make one per drafter")
    names = [source.name for source in sources]
    if len(set(names)) != len(names):
        raise InputError(f"each source can only be used once, got {', '.join(names)}")


cdef int _check_row(Drafter drafter, Py_ssize_t slot, Py_ssize_t length, Py_ssize_t width) except -1:
    if slot < -1:
        raise InputError(f"slots must be -1 or a slot number, got {slot}")
    if slot >= 0:
        drafter._slot(slot)
    if not 0 <= length <= width:
        raise InputError(f"lengths must be in 0..{width} (the width of token_ids), got {length}")
    if width == 0:
        raise InputError("token_ids must have a width of at least 1")
    return 0


cdef bint _drafts_overlap(const int32_t* slots, const int32_t* limits, const int32_t* drafts, const int32_t* parents,
                          const int32_t* lens, Py_ssize_t num, Py_ssize_t width) noexcept nogil:
    """Whether what a batch writes has memory in common with what it reads later, such as the number of a slot.

    A limit is read before its length is written.
    """
    cdef Py_ssize_t room = num * width
    cdef Py_ssize_t links = room if parents != NULL else 0
    return (overlap(lens, num, slots, num) or (lens != limits and overlap(lens, num, limits, num))
            or overlap(drafts, room, slots, num) or overlap(drafts, room, limits, num)
            or overlap(drafts, room, lens, num) or overlap(parents, links, slots, num)
            or overlap(parents, links, limits, num) or overlap(parents, links, lens, num)
            or overlap(parents, links, drafts, room))


cdef bint _result_overlaps(const int32_t* result, Py_ssize_t num, const int32_t* slots, Py_ssize_t num_slots,
                           const int32_t* lengths, Py_ssize_t num_lengths, const token_t[:, ::1] table) noexcept:
    """Whether what is written about a token table has memory in common with it, the slots or the lengths."""
    cdef Py_ssize_t room = table.shape[0] * table.shape[1]
    return (overlap(result, num, slots, num_slots) or overlap(result, num, lengths, num_lengths)
            or (room > 0 and overlap(result, num, &table[0, 0], room)))


cdef int _checked_threads(threads) except -1:
    if threads is None:
        return usable_cores()
    if type(threads) is not int or not 1 <= threads <= MOST_LANES:
        raise InputError(f"threads must be in 1..{MOST_LANES} or None, got {threads!r}")
    return threads


cdef object _bad_rows(str result, error):
    return InputError(f"token_ids must be int32 of shape (r, w), {result} writable int32 and the others int32, "
                      f"all C-contiguous: {error}")


cdef object _copied(const void* data, Py_ssize_t n, object dtype):
    """A new array of n items of 4 bytes.

    Makes nothing that the collector tracks, so it may be called under the lock: before Python 3.12 a collection
    can begin wherever an object is made, and a destructor that calls the drafter would wait for ever.
    """
    cdef Py_buffer view
    array = _empty(n, dtype)
    if n:
        PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        memcpy(view.buf, data, 4 * <size_t>n)
        PyBuffer_Release(&view)
    return array


cdef object _bad_observation(str name, Py_ssize_t num_rows, Py_ssize_t most, first):
    if most < 0:
        return InputError(f"first must be a position of the request, got {first}")
    if first is not None:
        return InputError(f"{name} must have at most {most} rows, as the request has {first + most} tokens, got {num_rows}")
    return InputError(f"{name} must have at most {most} rows, one after the slot's newest token and one for each token "
                      f"of the pending draft, got {num_rows}")


cdef object _bad_acceptance(Py_ssize_t num_accepted, Py_ssize_t num_tokens, Py_ssize_t draft_len):
    if num_accepted < 0 or num_accepted > num_tokens:
        return InputError(f"num_accepted must be in 0..{num_tokens} (the number of token_ids), got {num_accepted}")
    if num_accepted > draft_len:
        return InputError(f"num_accepted must be at most {draft_len}, the length of the pending draft, got {num_accepted}")
    return InputError(f"the first {num_accepted} of token_ids must be tokens of the pending draft, but they differ")


@cython.final
cdef class Drafter(Owner):
    """Drafter(sources, slots=1, max_history=1048576, policy=None): drafts for many slots; made by create_drafter.

    A slot holds one running request: begin, then propose and accept in turn. All sources see every
    token. A draft comes from the first source that has one, or, with a policy, from the source whose
    draft is worth most; that source gets the feedback.

    Args:
        sources: Sources in order of priority, each made for `slots` slots and not used elsewhere.
        slots: Number of slots, >= 1.
        max_history: Most tokens kept per slot, 1024..2**28 and at most what each source allows. Beyond it
            the older half is dropped; of a longer prompt the newest three quarters of max_history are kept.
        policy: AutoPolicy that shortens drafts to the tokens that pay and learns from accept; None
            leaves that to the caller. With a policy, call from one thread at a time; what is accepted
            between two drafts counts as one pass over all slots. Drafters may share one: then it is what all of
            them accept between two drafts of any.
        threads: Most threads that propose_batch and follow_batch use, the caller's among them, 1..64: one for each
            16 rows. None = the cores that this process may use, at most 8. The process has one set of them, which
            one call has at a time; another works alone meanwhile. Results do not depend on them.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: The state cannot be allocated.

    Thread-safety: calls on one Drafter wait for one another; different Drafters run in parallel,
    even when they share a HashPool, a SuffixPool or an NgramCache. The child of a fork must make its own:
    a call that another thread had begun never ends there.
    """

    def __cinit__(self, sources, Py_ssize_t slots=1, Py_ssize_t max_history=1 << 20, AutoPolicy policy=None, threads=None):
        cdef Py_ssize_t i
        if policy is not None and (policy._gate is not None or policy.shadow):
            raise InputError(f"a policy with {'shadow' if policy.shadow else 'gate'} is for engines, which tell it what was "
                             "sent: pass another to a drafter")
        self._sources = tuple(sources)
        self._policy = policy
        _check_arguments(self._sources, slots, max_history)
        self._threads = _checked_threads(threads)
        self.d.max_history = max_history
        self.d.num_sources = len(self._sources)
        self.d.sources = <SourceC*>self.take(self.d.num_sources, sizeof(SourceC))
        self.d.slots = <SlotC*>self.take(slots, sizeof(SlotC))
        self.d.calibrations = <CalibrationC**>self.take(self.d.num_sources, sizeof(CalibrationC*))
        self.d.num_slots = slots
        for i in range(self.d.num_sources):
            self.d.sources[i] = (<Source>self._sources[i]).c
            self.d.max_draft = max(self.d.max_draft, self.d.sources[i].max_draft)
            self.d.top = max(self.d.top, self.d.sources[i].top)
        self.d.counts = counts_make(self, self.d.num_sources, self.d.max_draft)
        for i in range(slots):
            self._make_rows(&self.d.slots[i], 0)
        lanes_make(&self._lanes, self, &self.d, self._threads)
        for i in range(self.d.num_sources):
            (<Source>self._sources[i]).make_lanes(self._lanes.num)
        self.judge_by(policy)
        for i in range(self.d.num_sources):
            (<Source>self._sources[i])._taken = True

    cdef int judge_by(self, AutoPolicy policy) except -1:
        """Set the policy that values the next drafts and learns from their outcome; None = no policy.

        What was accepted since the last drafts was one pass: the policy so far learns of it.
        """
        if self._judge is not None:
            self._judge.end_pass()
        if self._judge is policy:
            return 0
        if policy is not None:
            self._calibrate(policy)
        self._judge = policy
        return 0

    cdef int _calibrate(self, AutoPolicy policy) except -1:
        """Set the calibrations of a policy; after other sources' drafts claims are right more or less often."""
        cdef Py_ssize_t i
        for i in range(self.d.num_sources):
            name = (<Source>self._sources[i]).name
            self.d.calibrations[i] = NULL if self.d.sources[i].calibrated else policy.calibrations.of(name)
            if self.d.tails != NULL:
                self.d.tails.calibrations[i] = policy.calibrations.of(f"{name}, tail")
        return 0

    cdef int make_tails(self) except -1:
        """Make room for drafts after other sources' drafts, unless there is."""
        cdef Py_ssize_t one = self.d.max_draft, i
        if self.d.tails != NULL:
            return 0
        self._tails = self.d
        self._tails.slots = <SlotC*>self.take(self.d.num_slots, sizeof(SlotC))
        self._tails.calibrations = <CalibrationC**>self.take(self.d.num_sources, sizeof(CalibrationC*))
        for i in range(self.d.num_slots):
            self._make_rows(&self._tails.slots[i], one + MOST_AHEAD)
            self.d.slots[i].before = <token_t*>self.take(MOST_AHEAD, sizeof(token_t))
        self.d.tails = &self._tails
        if self._judge is not None:
            self._calibrate(self._judge)
        return 0

    cdef int _make_rows(self, SlotC* s, Py_ssize_t more) except -1:
        """Make room for a slot's drafts, and for `more` claims."""
        cdef Py_ssize_t one = self.d.max_draft, room = self.d.num_sources * one
        s.draft = s.rows = <token_t*>self.take(room + one, sizeof(token_t))
        s.confidence = s.claims = <float*>self.take(room + more, sizeof(float))
        s.lengths = <Py_ssize_t*>self.take(self.d.num_sources, sizeof(Py_ssize_t))
        s.parents = s.links = <int32_t*>self.take(room + 2 * one, sizeof(int32_t))
        return 0

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.d.num_slots):
            history_free(&self.d.slots[i].history)

    @property
    def slots(self):
        """Return the number of slots."""
        return self.d.num_slots

    @property
    def sources(self):
        """Return the names of the sources in order of priority."""
        return tuple(source.name for source in self._sources)

    @property
    def policy(self):
        """Return the AutoPolicy that shortens drafts to what pays; None when they are not shortened."""
        return self._policy

    @property
    def threads(self):
        """Return the most threads that propose_batch and follow_batch use."""
        return self._threads

    @property
    def max_draft(self):
        """Return the longest draft that any source can propose, in tokens."""
        return self.d.max_draft

    @property
    def top(self):
        """Return how many of the target's likeliest tokens a source wants to know, 0 = its logits are of no use."""
        return self.d.top

    @property
    def nbytes(self):
        """Return the memory of histories and sources in bytes, without shared pools and caches."""
        cdef size_t total = 0
        cdef Py_ssize_t i
        with self._lock:
            for i in range(self.d.num_slots):
                total += sizeof(SlotC) + <size_t>(self.d.slots[i].history.capacity + 3 * self.d.max_draft) * sizeof(token_t)
                total += <size_t>self.d.num_sources * (3 * <size_t>self.d.max_draft * sizeof(token_t) + sizeof(Py_ssize_t))
            if self.d.tails != NULL:
                total += <size_t>self.d.num_slots * (
                    sizeof(SlotC) + (4 * <size_t>self.d.max_draft + 2 * MOST_AHEAD) * sizeof(token_t)
                    + <size_t>self.d.num_sources * (3 * <size_t>self.d.max_draft * sizeof(token_t) + sizeof(Py_ssize_t)))
            for i in range(self.d.num_sources):
                total += self.d.sources[i].nbytes(self.d.sources[i].state)
        return total

    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL:
        if slot < 0 or slot >= self.d.num_slots:
            raise InputError(f"slot must be in 0..{self.d.num_slots - 1}, got {slot}")
        return &self.d.slots[slot]

    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL:
        cdef SlotC* s = self._slot(slot)
        if not s.active:
            raise StateError(f"{call}: no request has begun on slot {slot}; call begin({slot}, prompt) first")
        return s

    def length(self, Py_ssize_t slot):
        """Return the number of tokens of the slot's request: prompt and committed output."""
        cdef SlotC* s = self._slot(slot)
        return s.base + s.history.len

    def history(self, Py_ssize_t slot):
        """Return the tokens kept of the slot's request: int32, shape (n,), n <= max_history. A copy."""
        cdef SlotC* s = self._slot(slot)
        with self._lock:
            return _copied(s.history.tokens, s.history.len, _int32)

    def check(self):
        """Return the first broken invariant, "" when all hold. O(history); for tests."""
        cdef const char* broken = NULL
        cdef Py_ssize_t i
        with self._lock:
            for i in range(self.d.num_slots):
                broken = self._broken(i)
                if broken != NULL:
                    break
        return f"slot {i}: {broken.decode()}" if broken != NULL else ""

    cdef const char* _broken(self, Py_ssize_t slot) noexcept:
        cdef SlotC* s = &self.d.slots[slot]
        cdef const char* broken = NULL
        cdef Py_ssize_t i
        if s.branched and not s.ahead:
            broken = branches_check(s.draft, s.parents, s.draft_len)
        for i in range(self.d.num_sources):
            if broken == NULL:
                broken = self.d.sources[i].check(self.d.sources[i].state, slot, &s.history)
        return broken

    def stats(self):
        """Return what each source did so far: dict name -> SourceStats.

        Of a draft that one source grew from another's, each counts its own tokens.

        Cost: O(max_draft) per source. Threads: safe.
        """
        cdef Py_ssize_t i
        cdef Owner memory = Owner()
        cdef SourceCountsC* counts = counts_make(memory, self.d.num_sources, self.d.max_draft)
        # The lock is held for a copy only: making objects can run any code, such as a signal handler
        # or a destructor, which may call this drafter.
        with self._lock:
            counts_copy(counts, self.d.counts, self.d.num_sources, self.d.max_draft)
        return {source.name: counts_stats(&counts[i], source.name, self.d.max_draft)
                for i, source in enumerate(self._sources)}

    def reset_stats(self):
        """Set all counters of all sources to 0.

        Cost: O(max_draft) per source. Threads: safe.
        """
        with self._lock:
            counts_clear(self.d.counts, self.d.num_sources, self.d.max_draft)

    def begin(self, Py_ssize_t slot, token_ids):
        """Start a request on a slot.

        The prefix that the prompt shares with the slot's history is kept and only compared, so the next
        turn of a conversation costs only its new tokens. A request still active on the slot is replaced.

        Args:
            slot: 0 <= slot < slots.
            token_ids: The prompt, oldest first. int32, shape (n,), n >= 0. Copied.

        Raises:
            InputError: slot or token_ids are not as described. Nothing is changed then.
            MemoryError: No room. Nothing is changed.

        Cost: O(changed tokens), plus a comparison of the shared ones. Where most of a text is new, suffix and
        ngram-cache also clear memory of the size that the slot's longest text had, unless `forget` has freed it.
        Threads: releases the GIL.
        """
        cdef const token_t[::1] tokens = token_view(token_ids, "token_ids")
        cdef const token_t* data = &tokens[0] if tokens.shape[0] else NULL
        cdef Status status
        self._slot(slot)
        with nogil, self._lock:
            status = driver_begin(&self.d, slot, data, tokens.shape[0])
        if status != STATUS_OK:
            raise MemoryError(f"begin: no memory for a prompt of {tokens.shape[0]} tokens")

    def propose(self, Py_ssize_t slot, Py_ssize_t max_tokens):
        """Draft what may follow the slot's history.

        Replaces the slot's pending draft, which the next accept refers to.

        Args:
            slot: A slot with an active request.
            max_tokens: Longest draft wanted, in tokens, >= 0.

        Returns:
            int32, shape (k,), 0 <= k <= max_tokens. A new array, empty when no source has a draft.

        Raises:
            InputError: slot is out of range or max_tokens < 0.
            StateError: No request is active on the slot.

        Cost: O(k), independent of the history. Threads: keeps the GIL.
        """
        cdef SlotC* s = self._active(slot, "propose")
        cdef AskC ask = ask_alone(max_tokens, 0)
        cdef OfferC c
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        with self._lock:
            self.judge_by(self._policy)
            if offer_draft(&self.d, self._judge, slot, &ask, &c) and self._policy is not None:
                self._policy.choose_one(&c, 1, 1)
            driver_shorten(&self.d, slot, c.chosen)
            return _copied(s.draft, c.chosen, _int32)

    def propose_after(self, Py_ssize_t slot, draft, Py_ssize_t max_tokens, confidence=None):
        """Draft what may follow the slot's history and a draft that is not this drafter's, such as a model's.

        Replaces the slot's pending draft. It is to be sent behind all of the other one; `accept` then counts only its own
        tokens as accepted. Sources are not told whether the other draft was right.

        Args:
            slot: A slot with an active request.
            draft: The other draft. int32, shape (n,), 0 <= n <= 64.
            max_tokens: Longest draft wanted behind it, in tokens, >= 0.
            confidence: With a policy: how probable each token of `draft` is if those before it are right, float32,
                shape (n,); None = all are certain. What is returned is as much as pays.

        Returns:
            int32, shape (k,), 0 <= k <= max_tokens. A new array, empty when no source goes on from there.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            StateError: No request is active on the slot.
            MemoryError: No room, at the first call; nothing is changed.

        Cost: O(n + k), independent of the history. Threads: keeps the GIL.

        Sources: n-grams behind MTP drafts in Mesh-LLM and SGLang.
        """
        cdef SlotC* s = self._active(slot, "propose_after")
        cdef AskC ask = ask_alone(max_tokens, 0)
        cdef TokensC tokens
        cdef const float[::1] likely
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        tokens_view(draft, "draft", &tokens)
        try:
            likely = probabilities_view(np.ones(tokens.len, np.float32) if confidence is None else confidence, "confidence")
            if not (tokens.len == likely.shape[0] and tokens.len <= MOST_AHEAD):
                raise InputError(f"expected a draft of 0..{<int>MOST_AHEAD} tokens and as many probabilities, got "
                                 f"{tokens.len} and {likely.shape[0]}")
            if not tokens.len:
                return self.propose(slot, max_tokens)
            with self._lock:
                self.make_tails()
                self.judge_by(self._policy)
                offer_after(&self.d, self._judge, slot, &ask, tokens.data, &likely[0], tokens.len)
                return _copied(s.draft, s.draft_len, _int32)
        finally:
            tokens_release(&tokens)

    def confidence(self, Py_ssize_t slot):
        """Return the probability of each token of the slot's pending draft, if those before it are right.

        Args:
            slot: A slot with an active request.

        Returns:
            float32, shape (k,), 0..1, k the length of the pending draft. A copy. These
            are the source's own claims; an AutoPolicy corrects them by what was accepted.
            Behind another draft, the first one includes how probable all of that is.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(k). Threads: keeps the GIL.
        """
        cdef SlotC* s = self._active(slot, "confidence")
        with self._lock:
            return _copied(s.confidence, s.draft_len, _float32)

    def offered(self, Py_ssize_t slot):
        """Return the claims of all that the source of the slot's last draft drafted, also of what was cut off.

        Args:
            slot: A slot with an active request.

        Returns:
            float32, shape (n,), 0..1, like `confidence`, which has the first of them. A copy; empty before the
            first `propose` after `accept`.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(n). Threads: keeps the GIL.
        """
        cdef const SlotC* s = self._active(slot, "offered")
        cdef Py_ssize_t n
        with self._lock:
            n = s.draft_len
            if s.ahead:
                s = &self._tails.slots[slot]
            n = max(s.lengths[s.owner], n) if s.asked and s.owner >= 0 else 0
            return _copied(s.claims + s.owner * self.d.max_draft if n else NULL, n, _float32)

    def offered_by(self, Py_ssize_t slot):
        """Return the name under which a policy corrects what `offered` returns, "" where that is correct as it is.

        Args:
            slot: A slot with an active request.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.
        """
        cdef SlotC* s = self._active(slot, "offered_by")
        with self._lock:
            if not s.asked or s.owner < 0 or (self.d.sources[s.owner].calibrated and not s.ahead):
                return ""
            name, behind = (<Source>self._sources[s.owner]).name, s.ahead > 0
        return f"{name}, tail" if behind else name

    def offered_parents(self, Py_ssize_t slot):
        """Return which of the tokens that `offered` is about comes after which, where they are a tree.

        Args:
            slot: A slot with an active request.

        Returns:
            int32, shape (n,), as in `propose_tree`, a copy; None where they are a chain.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(n). Threads: keeps the GIL.
        """
        cdef SlotC* s = self._active(slot, "offered_parents")
        cdef const int32_t* links
        cdef Py_ssize_t i, n
        cdef bint chain = True
        with self._lock:
            n = max(s.lengths[s.owner], s.draft_len) if s.asked and s.branched and not s.ahead and s.owner >= 0 else 0
            links = s.links + s.owner * self.d.max_draft if n else NULL
            for i in range(n):
                chain = chain and links[i] == i - 1
            return None if chain else _copied(links, n, _int32)

    def shorten(self, Py_ssize_t slot, Py_ssize_t length):
        """Cut the slot's pending draft to its first `length` tokens, those that will be verified.

        Args:
            slot: A slot with an active request.
            length: 0 <= length <= the length of the pending draft.

        Raises:
            InputError: slot or length are out of bounds. Nothing is changed then.
            StateError: No request is active on the slot.
        """
        cdef SlotC* s = self._active(slot, "shorten")
        cdef Py_ssize_t longest
        with self._lock:
            longest = s.draft_len
            if 0 <= length <= longest:
                driver_shorten(&self.d, slot, length)
        if not 0 <= length <= longest:
            raise InputError(f"length must be in 0..{longest}, got {length}")

    def accept(self, Py_ssize_t slot, token_ids, Py_ssize_t num_accepted):
        """Commit what the target emitted and give feedback to the source of the pending draft.

        A draft longer than what the engine verified does not count as rejected: only a token that
        differs from the draft at its position does.

        Args:
            slot: A slot with an active request.
            token_ids: The accepted draft tokens (of a tree, a path from its root), then the target's
                own. int32, shape (n,) or a list.
            num_accepted: How many of them are accepted draft tokens, 0 <= num_accepted <= n.

        Raises:
            InputError: An argument is not as described, or the first num_accepted tokens are not
                the pending draft's. Nothing is changed then.
            StateError: No request is active on the slot.
            MemoryError: No room. Nothing is changed.

        Cost: O(n) amortised. Threads: keeps the GIL.
        """
        cdef TokensC tokens
        cdef SlotC* s = self._active(slot, "accept")
        cdef Py_ssize_t draft_len
        cdef bint valid
        cdef Status status = STATUS_OK
        tokens_view(token_ids, "token_ids", &tokens)
        with self._lock:
            draft_len = s.draft_len
            valid = 0 <= num_accepted <= tokens.len and num_accepted <= draft_right(s, tokens.data, tokens.len)
            if valid:
                status = commit_tokens(&self.d, self._judge, slot, tokens.data, tokens.len, num_accepted,
                                       commit_counts(self._judge))
        tokens_release(&tokens)
        if not valid:
            raise _bad_acceptance(num_accepted, tokens.len, draft_len)
        if status != STATUS_OK:
            raise MemoryError(f"accept: no memory for {tokens.len} more tokens")

    def observe_logits(self, Py_ssize_t slot, logits, first=None):
        """Show the logits of the pass that verified the slot's pending draft; call it before accept.

        For sources that learn from them (recycle). Rows of drafted tokens that were wrong are worth as much as
        others: they tell what the target would have said there.

        Args:
            slot: A slot with an active request and at least one token.
            logits: float32, shape (n, vocab_size), C-contiguous, 0 <= n <= tokens of the pending draft + 1. Row 0
                follows the slot's newest token, row i + 1 the draft's token i (of a tree: parents as
                propose_tree gave them). Not copied, not kept.
            first: None; or row i follows the token at position first + i of the request instead, such as where an
                engine has the logits of a prompt. 0 <= first <= length(slot) - n. Tokens that the slot no longer
                holds are passed over.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            StateError: No request is active on the slot.

        Cost: O(n * vocab_size), about 45 us for a row of 150,000; nothing if no source learns from logits.
        Threads: releases the GIL.
        """
        cdef const float[:, ::1] rows = logits_view(logits)
        cdef SlotC* s = self._active(slot, "observe_logits")
        cdef Py_ssize_t position = -1 if first is None else first
        cdef Py_ssize_t most = 0
        cdef bint placed = first is not None
        with nogil, self._lock:
            most = observation_most(s, placed, position)
            if 0 < rows.shape[0] <= most and rows.shape[1]:
                observation_show_logits(&self.d, slot, position, &rows[0, 0], rows.shape[0], rows.shape[1])
        if rows.shape[0] > most:
            raise _bad_observation("logits", rows.shape[0], most, first)

    def observe_top(self, Py_ssize_t slot, token_ids, logprobs, first=None):
        """Show the likeliest tokens only, where a device has reduced the logits; otherwise as observe_logits.

        Args:
            slot: A slot with an active request and at least one token.
            token_ids: int32, shape (n, k), C-contiguous: of each row the k likeliest tokens, likeliest first; with
                torch, `torch.topk(torch.log_softmax(logits, -1), k)` makes both. The first `top` of a row are
                looked at, and must differ.
            logprobs: float32, shape (n, k), C-contiguous: their log-probabilities, none larger than the one before.
            first: As in observe_logits.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            StateError: No request is active on the slot.

        Cost: O(n * k). Threads: keeps the GIL.
        """
        cdef const token_t[:, ::1] tokens = token_rows_view(token_ids, "token_ids")
        cdef const float[:, ::1] logs = logits_view(logprobs, "logprobs")
        cdef SlotC* s = self._active(slot, "observe_top")
        cdef Py_ssize_t position = -1 if first is None else first
        cdef Py_ssize_t most, i, j, k
        if tokens.shape[0] != logs.shape[0] or tokens.shape[1] != logs.shape[1]:
            raise InputError(f"token_ids and logprobs must have the same shape, got ({tokens.shape[0]}, "
                             f"{tokens.shape[1]}) and ({logs.shape[0]}, {logs.shape[1]})")
        for i in range(logs.shape[0]):
            for j in range(logs.shape[1]):
                if not logs[i, j] <= (logs[i, j - 1] if j else <float>1e-3):
                    raise InputError(f"logprobs must be at most 0 and fall along each row, got {logs[i, j]} at "
                                     f"({i}, {j})")
            for j in range(min(tokens.shape[1], self.d.top)):
                for k in range(j):
                    if tokens[i, k] == tokens[i, j]:
                        raise InputError(f"token_ids must differ within a row, got {tokens[i, j]} at ({i}, {k}) and "
                                         f"({i}, {j})")
        with self._lock:
            most = observation_most(s, first is not None, position)
            if 0 < tokens.shape[0] <= most and tokens.shape[1]:
                observation_show_top(&self.d, slot, position, &tokens[0, 0], &logs[0, 0], tokens.shape[0],
                                     tokens.shape[1])
        if tokens.shape[0] > most:
            raise _bad_observation("token_ids", tokens.shape[0], most, first)

    def follow(self, Py_ssize_t slot, token_ids, Py_ssize_t vocab_size=0):
        """Make the slot's history equal to token_ids, whatever happened since the last call.

        For hosts that only pass whole texts: a continuation of the history counts as accept,
        anything else as begin.

        Args:
            slot: 0 <= slot < slots.
            token_ids: Prompt and all tokens since, oldest first. int32, shape (n,), n >= 0. Copied.
            vocab_size: Ids must be below it, 0..2**31 - 1; 0 allows any.

        Returns:
            int: Accepted tokens of the pending draft, at most the number of new tokens - 1; -1 when a
            new request began.

        Raises:
            InputError: slot or token_ids are not as described. Nothing is changed then.
            MemoryError: No room. Nothing is changed.

        Cost: O(new tokens), plus a comparison of the others. Threads: releases the GIL, except with a policy.
        """
        cdef TokensC tokens
        cdef Py_ssize_t accepted = 0
        cdef Status status
        cdef token_t bad = 0
        self._slot(slot)
        if not 0 <= vocab_size <= 0x7FFFFFFF:
            raise InputError(f"vocab_size must be in 0..2147483647, got {vocab_size}")
        tokens_view(token_ids, "token_ids", &tokens, False)
        if self._policy is None:
            with nogil, self._lock:
                accepted = follow_text(&self.d, self._judge, slot, tokens.data, tokens.len, vocab_size, &status)
        else:
            with self._lock:
                accepted = follow_text(&self.d, self._judge, slot, tokens.data, tokens.len, vocab_size, &status)
        if status == STATUS_BAD_TOKEN:
            bad = tokens.data[accepted]
        tokens_release(&tokens)
        if status == STATUS_BAD_TOKEN:
            raise bad_token("token_ids", bad, accepted, vocab_size)
        if status != STATUS_OK:
            raise MemoryError(f"follow: no memory for a text of {tokens.len} tokens")
        return accepted

    def truncate(self, Py_ssize_t slot, Py_ssize_t length):
        """Cut the slot's history to its first `length` tokens; the pending draft is dropped.

        Args:
            slot: A slot with an active request.
            length: Tokens to keep, 0 <= length <= length(slot).

        Raises:
            InputError: slot or length are out of bounds. Nothing is changed then.
            StateError: No request is active on the slot.

        Cost: O(removed tokens), or O(kept) where that is less; `suffix` first adds to its pool what is not in it yet.
        Threads: releases the GIL.
        """
        cdef SlotC* s = self._active(slot, "truncate")
        cdef Py_ssize_t total
        cdef bint valid
        with nogil, self._lock:
            total = s.base + s.history.len
            valid = 0 <= length <= total
            if valid:
                driver_truncate(&self.d, slot, length)
        if not valid:
            raise InputError(f"length must be in 0..{total}, got {length}")

    def end(self, Py_ssize_t slot):
        """End the slot's request; its history stays, so that a later prompt that shares it is cheap.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(1); for `suffix` with a pool, O(tokens not yet in the pool). Threads: releases the GIL.
        """
        self._active(slot, "end")
        with nogil, self._lock:
            driver_end(&self.d, slot)

    def forget(self, Py_ssize_t slot):
        """Drop the history of a slot whose request has ended, and free the memory that grew with its texts.

        Until then a slot keeps the memory of its longest text. What a pool or cache has learnt stays.

        Raises:
            InputError: slot is out of range.
            StateError: A request is active on the slot. Nothing is changed then.

        Cost: O(memory), some 15 us per 64 KiB. Threads: releases the GIL.
        """
        cdef SlotC* s = self._slot(slot)
        cdef bint active
        with nogil, self._lock:
            active = s.active
            if not active:
                driver_forget(&self.d, slot)
        if active:
            raise StateError(f"forget: a request is active on slot {slot}; call end({slot}) first")

    def propose_tree(self, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t max_width=8, max_branches=None):
        """Draft a tree of what may follow the slot's history.

        Replaces the pending draft of the slot. accept takes any path from the root: its
        tokens, then the target's own. The sources `suffix` and `recycle` draft trees, the tokens
        likeliest to be emitted first; others draft a chain. With a policy, the tree is what pays of at most
        max_tokens, in the order of what the tokens save; as in propose, the policy learns from accept.
        ngramspec.verify.tree has masks, positions and greedy verification.

        Args:
            slot: A slot with an active request.
            max_tokens: Most tokens wanted, >= 0.
            max_width: Most tokens at the same depth, >= 1; 1 gives what propose gives without a policy.
            max_branches: Most branches, which are paths from the text to a token that none comes after, >= 1;
                None = any number.

        Returns:
            (tokens, parents, confidence): int32, int32 and float32, each of shape (n,), n <= max_tokens;
            new arrays. parents[i] < i is the index of the parent of tokens[i], -1 = the last emitted token;
            siblings differ. confidence[i] is the probability that tokens[i] is right if its parent is.
            The first k tokens are a tree too, without a policy that of max_tokens = k; shorten(slot, k) keeps them.

        Raises:
            InputError: slot is out of range, max_tokens < 0, max_width < 1 or max_branches < 1.
            StateError: No request is active on the slot.

        In stats(), n tokens count as drafted and the accepted path as accepted.

        Cost: O(n) positions to judge, each with a walk to the root; independent of the history.
        Threads: releases the GIL, except with a policy.

        Sources: SpecInfer (arXiv 2305.09781) for verifying trees, Sequoia (arXiv 2402.12374) for
        their best shape.
        """
        cdef SlotC* s = self._active(slot, "propose_tree")
        cdef AskC ask = ask_alone(max_tokens, max_width)
        cdef OfferC c
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        if max_width < 1:
            raise InputError(f"max_width must be >= 1, got {max_width}")
        if max_branches is not None:
            ask.branches = max_branches
            if ask.branches < 1:
                raise InputError(f"max_branches must be >= 1, got {max_branches}")
        with self._lock:
            self.judge_by(self._policy)
            if self._policy is None:
                with nogil:
                    offer_draft(&self.d, self._judge, slot, &ask, &c)
            elif offer_draft(&self.d, self._judge, slot, &ask, &c):
                self._policy.choose_one(&c, 1, 1)
            driver_shorten(&self.d, slot, c.chosen)
            tokens = _copied(s.draft, s.draft_len, _int32)
            parents = _copied(s.parents, s.draft_len, _int32)
            confidence = _copied(s.confidence, s.draft_len, _float32)
        return tokens, parents, confidence

    def propose_batch(self, slots, max_tokens, out, out_lens, parents=None, Py_ssize_t max_width=8,
                      Py_ssize_t others=0, Py_ssize_t other_tokens=0, Py_ssize_t padded_rows=0):
        """Draft for many slots in one call; with a policy, it divides one pass among them.

        Drafts are those of propose, or with `parents` those of propose_tree.

        Args:
            slots: int32, shape (b,). Each must have an active request.
            max_tokens: Longest draft wanted, >= 0. int32, shape (b,), one per slot, or one int for all.
            out: int32, shape (b, w), C-contiguous, writable. Row i receives the draft of slots[i];
                drafts are cut to w tokens; the rest of the row is left as it was.
            out_lens: int32, shape (b,), writable. Receives the draft lengths.
            parents: None = chains; or int32 like `out`. Row i receives the parents of its tokens. No array that
                is written shares memory with another one, except that out_lens may be max_tokens.
            max_width: Most tokens of a tree at the same depth, >= 1.
            others: Decoding slots that share the pass and are not among these, 0..2**30, such as those of another
                drafter with the same policy. Without a policy, this and what follows change nothing.
            other_tokens: Their tokens in the pass, drafts that they have already included, others..2**30.
            padded_rows: Rows of a pass that pads all drafts to the longest one, b..2**30: each place of it is a token
                of every row, and drafts are cut to one length that pays for that. 0 = only drafted tokens are computed.

        Raises:
            InputError: An array is not as described, a slot is out of range, max_width < 1 or a number of rows or
                tokens out of its bounds. Nothing is changed.
            StateError: A slot has no active request. Nothing is changed.

        Cost: O(b + drafted tokens). Threads: releases the GIL, except with a policy.
        """
        cdef const int32_t[::1] slot_view = token_view(slots, "slots")
        if isinstance(max_tokens, int):
            max_tokens = [max_tokens] * slot_view.shape[0]
        cdef const int32_t[::1] limits = token_view(max_tokens, "max_tokens")
        cdef int32_t[:, ::1] rows, links
        cdef int32_t[::1] lens
        cdef int32_t* above = NULL
        cdef int32_t* drafts
        cdef Py_ssize_t width = 0
        cdef ProposalsC p
        cdef Owner memory
        cdef Py_ssize_t i
        try:
            rows = out
            lens = out_lens
        except (ValueError, TypeError, BufferError) as error:
            raise InputError(f"out must be writable int32 of shape (b, w) and out_lens of shape (b,): {error}") from None
        if not slot_view.shape[0] == limits.shape[0] == rows.shape[0] == lens.shape[0]:
            raise InputError(f"slots, max_tokens, out and out_lens must have equal lengths, got {slot_view.shape[0]}, "
                             f"{limits.shape[0]}, {rows.shape[0]} and {lens.shape[0]}")
        if parents is not None:
            try:
                links = parents
            except (ValueError, TypeError, BufferError) as error:
                raise InputError(f"parents must be writable int32 of shape (b, w), like out: {error}") from None
            if links.shape[0] != rows.shape[0] or links.shape[1] != rows.shape[1] or max_width < 1:
                raise InputError(f"expected parents of shape ({rows.shape[0]}, {rows.shape[1]}), like out, and max_width "
                                 f">= 1, got ({links.shape[0]}, {links.shape[1]}) and {max_width}")
            width = max_width
            above = &links[0, 0] if links.shape[0] and links.shape[1] else NULL
        if not 0 <= others <= other_tokens <= MOST_BESIDE:
            raise InputError(f"expected 0 <= others <= other_tokens <= {MOST_BESIDE}, got {others} and {other_tokens}")
        check_padded(padded_rows, slot_view.shape[0])
        for i in range(slot_view.shape[0]):
            self._active(slot_view[i], "propose_batch")
        if not slot_view.shape[0]:
            return
        drafts = &rows[0, 0] if rows.shape[1] else NULL
        if _drafts_overlap(&slot_view[0], &limits[0], drafts, above, &lens[0], slot_view.shape[0], rows.shape[1]):
            raise InputError("out, out_lens and parents must share no memory with one another or with slots and "
                             "max_tokens, except that out_lens may be max_tokens")
        self._drafted += 1
        p.lanes, p.batch = &self._lanes, self._drafted
        p.slots, p.limits, p.num = &slot_view[0], &limits[0], slot_view.shape[0]
        p.rows, p.width = drafts, rows.shape[1]
        p.parents, p.lens = above, &lens[0]
        p.padded, p.alone = padded_rows, other_tokens == others
        p.ask = ask_alone(0, width)
        p.ask.batch_tokens, p.ask.decoding = max(p.num, padded_rows) + other_tokens, p.num + others
        p.judged, p.most, p.least, p.offers = self._policy is not None, NULL, NULL, NULL
        if self._policy is None:
            with self._lock:  # once: a draft made by another call in between could be longer than a row
                self.judge_by(None)
                with nogil:
                    proposals_draft(&p)
            return
        memory = Owner()
        with self._lock:
            self.judge_by(self._policy)
            proposals_prepare(&p, memory, self._policy)
            with nogil:
                proposals_draft(&p)
            proposals_choose(&p, self._policy)

    def follow_batch(self, slots, token_ids, lengths, accepted):
        """Commit the tokens that rows of an engine's token table have beyond their slots' histories.

        For engines that pass whole texts without naming the request. A row continues its slot if it
        holds the newest tokens of the slot's history at their positions, and a few older ones, others
        on each call; the tokens after them are committed. Other rows are left to the caller.

        Args:
            slots: int32, shape (b,), the slot of each row, -1 for none; each slot once at most.
            token_ids: int32, shape (r, w), C-contiguous, r >= b. Not kept; read only at a few places.
            lengths: int32, shape (b,), tokens in each row, 0..w.
            accepted: int32, shape (b,), writable. Receives how many tokens of the pending draft were
                right, at most the number of new tokens - 1; -1 where the row does not continue the
                slot, or a new id is negative: then the slot is unchanged. Shares no memory with the others.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            MemoryError: No room for some rows. Others were committed where `accepted` is not -1.

        Cost: O(b + new tokens), independent of the histories. Threads: releases the GIL, except with a policy.
        """
        cdef const int32_t[::1] slot_view, length_view
        cdef const token_t[:, ::1] rows
        cdef int32_t[::1] done
        cdef FollowedC f
        cdef SlotC* s
        cdef Py_ssize_t i, num, full
        try:
            slot_view, rows, length_view, done = slots, token_ids, lengths, accepted
        except (ValueError, TypeError, BufferError) as error:
            raise _bad_rows("accepted", error) from None
        if not slot_view.shape[0] == length_view.shape[0] == done.shape[0] <= rows.shape[0]:
            raise InputError(f"slots, lengths and accepted must have the same length, at most that of token_ids, got "
                             f"{slot_view.shape[0]}, {length_view.shape[0]}, {done.shape[0]} and {rows.shape[0]}")
        num = slot_view.shape[0]
        if num and _result_overlaps(&done[0], num, &slot_view[0], num, &length_view[0], num, rows):
            raise InputError("accepted must share no memory with slots, token_ids or lengths")
        self._followed += 1
        for i in range(slot_view.shape[0]):
            _check_row(self, slot_view[i], length_view[i], rows.shape[1])
            if slot_view[i] >= 0:
                s = &self.d.slots[slot_view[i]]
                if s.followed == self._followed:
                    raise InputError(f"slots must name each slot once at most, got {slot_view[i]} twice")
                s.followed = self._followed
        for i in range(slot_view.shape[0]):
            done[i] = -1
        if not slot_view.shape[0]:
            return
        f.lanes, f.slots, f.lengths = &self._lanes, &slot_view[0], &length_view[0]
        f.rows, f.width, f.num = &rows[0, 0], rows.shape[1], slot_view.shape[0]
        f.accepted = &done[0]
        with self._lock:
            if self._policy is None:
                with nogil:
                    full = follow_rows(&f, self._judge)
            else:
                full = follow_rows(&f, self._judge)
        if full >= 0:
            raise MemoryError(f"follow_batch: no memory for the tokens of row {full}")

    def find_slots(self, slots, token_ids, lengths, rows, matches):
        """Find, for rows of an engine's token table, the slot whose history a row begins with.

        For rows that moved, came back or continue an earlier text. Histories are compared at their
        newest tokens and at some positions spread over the others.

        Args:
            slots: int32, shape (s,), the slots to choose from, active or not.
            token_ids: int32, shape (r, w), C-contiguous. Not kept.
            lengths: int32, shape (l,), tokens in each row, 0..w.
            rows: int32, shape (m,), the rows to find slots for, below r and l.
            matches: int32, shape (m,), writable. Receives the slot with the longest such history, the
                first of them in `slots`, each slot at most once; -1 for none. Empty histories are not found.
                Shares no memory with the others.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.

        Cost: O(m * s), independent of the histories. Threads: releases the GIL.
        """
        cdef const int32_t[::1] slot_view, length_view, row_view
        cdef const token_t[:, ::1] table
        cdef int32_t[::1] out
        cdef const int32_t* choices
        cdef Py_ssize_t i
        try:
            slot_view, table, length_view, row_view, out = slots, token_ids, lengths, rows, matches
        except (ValueError, TypeError, BufferError) as error:
            raise _bad_rows("matches", error) from None
        if out.shape[0] != row_view.shape[0]:
            raise InputError(f"rows and matches must have the same length, got {row_view.shape[0]} and {out.shape[0]}")
        for i in range(row_view.shape[0]):
            if not 0 <= row_view[i] < min(table.shape[0], length_view.shape[0]):
                raise InputError(f"rows must be in 0..{min(table.shape[0], length_view.shape[0]) - 1}, got {row_view[i]}")
            _check_row(self, -1, length_view[row_view[i]], table.shape[1])
        for i in range(slot_view.shape[0]):
            self._slot(slot_view[i])
        if not row_view.shape[0]:
            return
        choices = &slot_view[0] if slot_view.shape[0] else NULL
        # A row needs a length, so there is one.
        if overlap(&out[0], out.shape[0], &row_view[0], row_view.shape[0]) or _result_overlaps(
                &out[0], out.shape[0], choices, slot_view.shape[0], &length_view[0], length_view.shape[0], table):
            raise InputError("matches must share no memory with slots, token_ids, lengths or rows")
        with nogil, self._lock:
            for i in range(row_view.shape[0]):
                out[i] = follow_find(&self.d, choices, slot_view.shape[0], &table[row_view[i], 0],
                                     length_view[row_view[i]], &out[0], i)

    def replay(self, prompt, output, Py_ssize_t max_tokens=0, Py_ssize_t slot=0):
        """Run a recorded request as if the target had chosen its output, and count the steps.

        Begins on the slot, then drafts and accepts the longest right prefix of each draft plus one
        token until the output is used up. The slot is left active with the whole text.

        Args:
            prompt: int32, shape (n,).
            output: int32, shape (m,). The first token counts as sampled before the first draft.
            max_tokens: Longest draft per step; 0 = only the rest of the output limits it.
            slot: 0 <= slot < slots.

        Returns:
            Replay: steps, drafts, drafted and accepted tokens, draft lengths and times.

        Raises:
            InputError: An argument is not as described. Nothing is changed then.
            MemoryError: No room; the slot holds the part replayed so far.

        Cost: O(changed prompt tokens + m). Threads: releases the GIL.
        """
        cdef const token_t[::1] prompt_view = token_view(prompt, "prompt")
        cdef const token_t[::1] output_view = token_view(output, "output")
        cdef const token_t* before = &prompt_view[0] if prompt_view.shape[0] else NULL
        cdef const token_t* after = &output_view[0] if output_view.shape[0] else NULL
        cdef int64_t[::1] lengths
        cdef ReplayC r
        cdef Status status
        self._slot(slot)
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        draft_lengths = np.zeros(self.d.max_draft + 1, dtype=np.int64)
        lengths = draft_lengths
        with nogil, self._lock:
            status = driver_replay(&self.d, slot, before, prompt_view.shape[0], after, output_view.shape[0],
                                   max_tokens, &r, &lengths[0])
        if status != STATUS_OK:
            raise MemoryError("replay: no memory for the recorded request")
        return Replay(r.tokens, r.steps, r.drafts, r.drafted, r.accepted, draft_lengths, r.begin_ns, r.step_ns)
