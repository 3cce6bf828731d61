"""Slot: a place of the engine that runs one request at a time and remembers the last one."""

cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.history cimport common_prefix
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.engine.decode cimport CandidateC, Sampler, logprobs_of
from ngramspec._native.engine.shadow cimport shadows_end

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    FIRST_UNTOLD = 32  # tokens after which sources that take time are told of them though nobody asks; then twice as many

cdef object _no_tokens = np.empty(0, np.int32)
_no_tokens.flags.writeable = False


@cython.final
cdef class Slot(Owner):
    """Slot(id, context_size, max_draft, shifts=False): one sequence of the target and the request that runs on it.

    Args:
        id: Its number, and the sequence's.
        context_size: Most tokens it holds, >= 1.
        max_draft: Longest draft it gets, >= 0.
        shifts: A full context does not end the answer: the engine discards a part of it.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room.

    Attributes:
        tokens: int32, shape (context_size,); the first `length` are prompt and emitted tokens.
        num_own: How many of the first tokens of this step's draft are the pending draft of the native drafter, or of
            another free source; a source that takes time may have drafted the rest. Or these are that source's, and the
            native drafter has drafted what comes behind them.
        num_own_right: How many of these were right in the last step.
        num_past: How many of these, from the first on, are in the target's cache. While a request decodes
            all but the newest; fewer while a prompt is read or after a checkpoint was restored.
        num_reusable: How many of the cached ones another prompt may reuse: what follows was computed after
            tokens that a shift has discarded.
        count: How many tokens after num_past are in the step's decode.
        draft: The draft of this step, a new int32 array; set to change it, to one without branches.
        branch: Of the last step's draft, the one that was right; 0 unless it was a tree.
        num_told: How many of the first tokens the sources that take time know. They are told of what was emitted when that
            matters: before they are asked, of what came of their drafts, and now and then, ever more rarely.

    Thread-safety: one thread; others may read the numbers.
    """

    def __cinit__(self, Py_ssize_t id, Py_ssize_t context_size, Py_ssize_t max_draft, bint shifts=False):
        cdef token_t[::1] view
        if context_size < 1 or max_draft < 0:
            raise InputError(f"context_size must be >= 1 and max_draft >= 0, got {context_size} and {max_draft}")
        self.id, self.size, self.max_draft = id, context_size, max_draft
        self.num_reusable, self.shifts = context_size, shifts
        self.tokens = np.zeros(context_size, dtype=np.int32)
        view = self.tokens
        self.data = &view[0]
        self.guess = <token_t*>self.take(max_draft + 1, sizeof(token_t))
        self.chosen = <token_t*>self.take(max_draft + 1, sizeof(token_t))
        self.rows = <int32_t*>self.take(max_draft + 1, sizeof(int32_t))
        self.parents = <int32_t*>self.take(max_draft + 1, sizeof(int32_t))
        self.tree = <TreePlaceC*>self.take(max_draft + 1, sizeof(TreePlaceC))
        self.namespace, self.adapters, self.first_row = "", (), -1
        self.room, self._sources, self.paid, self.num_candidates = max_draft, (), (), -1
        self.shadows = self.learners = ()

    def __dealloc__(self):
        free(self.candidates)

    def start(self, generation, Sampler sampler not None, sources=(), on_chunk=None, max_draft=None, double deadline=0.0,
              Py_ssize_t min_draft=0, shadows=()):
        """Give the slot to a request.

        Args:
            generation: The request's; steps write to its transcript and timings.
            sampler: The request's own.
            sources: Draft sources in order of priority.
            on_chunk: Called by the engine with what a step emitted, or None.
            max_draft: Longest draft the request wants, None = no limit of its own.
            deadline: When the request times out, on the clock of time.perf_counter; 0 = never.
            min_draft: Shortest draft the request wants; shorter ones are not sent.
            shadows: ShadowRuns for drafts that are only judged; with any, there are no sources.

        Raises:
            TypeError: generation has no Transcript or Timings.
        """
        self.transcript, self.timings = generation.transcript, generation.timings
        if self.transcript is None or self.timings is None:
            raise TypeError("a generation needs a transcript and timings")
        self.generation, self.sampler, self.on_chunk = generation, sampler, on_chunk
        self.prompt_logprobs = generation.prompt_likelihoods
        self.sources, self.shadows = sources, tuple(shadows)
        self.number = generation.number
        for run in self.shadows:
            run.trace_to(self.trace, self.number)
            if run.drafter.top:
                self.learners += (run.drafter,)
        self.chain = NOT_TRACED
        if self.trace is not None and self.native is not None:
            self.chain = self.trace.chain_of(self.native.sources)
        self.max_draft = self.room if max_draft is None else max_draft
        self.min_draft = min_draft
        self.with_logprobs = generation.request.logprobs is not None
        self.num_candidates = -1
        if self.with_logprobs and generation.request.post_sampling_probs:
            self.num_candidates = generation.request.logprobs
        self.deadline, self.decoding, self.asked, self.most_untold = deadline, False, False, FIRST_UNTOLD
        self.forget_draft()

    def release(self):
        """Free the slot; its tokens stay in the cache for the next request."""
        self.generation = self.on_chunk = None
        self.sampler, self.transcript, self.timings, self.prompt_logprobs = None, None, None, None
        shadows_end(self.shadows)
        self.shadows = ()
        self.sources, self.decoding, self.preempted, self.deadline = (), False, False, 0.0
        free(self.candidates)
        self.candidates, self.candidates_room = NULL, 0

    @property
    def sources(self):
        """Return the draft sources of its request, in order of priority."""
        return self._sources

    @sources.setter
    def sources(self, sources):
        cdef Drafter drafter
        self._sources = tuple(sources)
        self.chain = NOT_TRACED  # until a request begins: another drafter may be the only one from now on
        self.native = self.native_name = self.native_source = None
        self.learners = ()
        unpaid = [source for source in self._sources if not source.own_passes]
        self.paid = tuple([source for source in self._sources if source.own_passes])
        self.num_free = len(unpaid)
        for source in self._sources:
            drafter = source.native
            if drafter is None:
                continue
            if len(unpaid) == 1 and unpaid[0] is source:
                self.native, self.native_name, self.native_source = drafter, source.name, source
            if not self.learners and drafter.top:
                self.learners = (drafter,)

    @property
    def draft(self):
        """Return the draft to verify in this step."""
        return np.array(<token_t[:self.num_guessed]>self.guess) if self.num_guessed else _no_tokens

    @draft.setter
    def draft(self, token_ids):
        cdef TokensC tokens
        tokens_view(token_ids, "draft", &tokens)
        try:
            if tokens.len > self.room:
                raise InputError(f"a draft may have at most {self.room} tokens, got {tokens.len}")
            if tokens.len:
                memcpy(self.guess, tokens.data, <size_t>tokens.len * sizeof(token_t))
            self.num_guessed, self.num_own, self.branched = tokens.len, 0, False
            self.added_source = None
        finally:
            tokens_release(&tokens)

    def send(self, token_ids, parents, Py_ssize_t num_own):
        """Set the draft of this step to a tree of two sources.

        Args:
            token_ids: int32, shape (n,).
            parents: int32, shape (n,): the index of each token's parent, an earlier one, or -1 = the text.
            num_own: How many of them, from the first on, are the free source's, 0..n.

        Raises:
            InputError: An argument is not as described, or there are more tokens than fit. Nothing is changed then.
        """
        cdef TokensC tokens
        cdef Py_ssize_t i
        cdef const int32_t[::1] links
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            links = parents_view(parents, tokens.len)
            if tokens.len > self.room or not 0 <= num_own <= tokens.len:
                raise InputError(f"a draft may have at most {self.room} tokens, {tokens.len} of them its source's, got "
                                 f"{tokens.len} and {num_own}")
            self.branched = False
            for i in range(tokens.len):
                self.guess[i], self.parents[i] = tokens.data[i], links[i]
                self.branched = self.branched or links[i] != i - 1
            self.num_guessed, self.num_own = tokens.len, num_own
        finally:
            tokens_release(&tokens)

    @property
    def emitted(self):
        """Return the tokens that the last step chose here, a new int32 array."""
        return np.array(<token_t[:self.num_out]>self.chosen) if self.num_out else _no_tokens

    def tell(self):
        """Return the tokens that the sources that take time have not been told of, a new int32 array; now they have."""
        cdef Py_ssize_t first = self.num_told
        self.most_untold = FIRST_UNTOLD if self.asked else 2 * self.most_untold
        self.num_told, self.asked = self.length, False
        return np.array(<token_t[:self.length - first]>(self.data + first)) if self.length > first else _no_tokens

    def row(self, Py_ssize_t index):
        """Return the row of the last decode's logits that an emitted token was chosen from.

        Args:
            index: Of `emitted`.

        Raises:
            InputError: There is no such token.
        """
        if not 0 <= index < self.num_out:
            raise InputError(f"index must be in 0..{self.num_out - 1}, got {index}")
        return self.first_row + self.rows[index]

    def logprobs(self, Py_ssize_t index):
        """Return how probable an emitted token was to the sampler, and the likeliest that it chose from.

        For a request with post_sampling_probs, before the slot is released.

        Args:
            index: Of `emitted`.

        Returns:
            tuple: float, then a list of (token, log-probability), likeliest first.

        Raises:
            InputError: There is no such token, or its candidates were not asked for.
        """
        cdef Py_ssize_t count = 1
        cdef CandidateC* first
        if not 0 <= index < self.num_out or self.num_candidates < 0 or (
                self.candidates_room < (index + 1) * self.places()):
            raise InputError(f"no candidates were kept of token {index}: a slot keeps those of the last step's "
                             f"{self.num_out} tokens if the request has post_sampling_probs")
        first = self.candidates + index * self.places()
        while count < self.places() and first[count].token >= 0:
            count += 1
        return logprobs_of(first, count)

    def common_prefix(self, token_ids):
        """Return how many reusable cached tokens match the start of token_ids, int32 of shape (n,)."""
        cdef TokensC tokens
        cdef Py_ssize_t count
        tokens_view(token_ids, "token_ids", &tokens)
        count = common_prefix(self.data, tokens.data, min(self.num_past, self.num_reusable, tokens.len))
        tokens_release(&tokens)
        return count

    def discard(self, Py_ssize_t first, Py_ssize_t count):
        """Drop `count` tokens from index `first` on; those after them close the gap, as in the cache.

        Raises:
            InputError: The cache does not hold these tokens and one more.
        """
        if not (first >= 0 and count >= 1 and first < self.num_past - count):
            raise InputError(f"cannot discard {count} tokens from {first} on of {self.num_past}")
        memmove(self.data + first, self.data + first + count,
                <size_t>(self.length - first - count) * sizeof(token_t))
        self.length -= count
        self.num_past -= count
        self.num_reusable = min(self.num_reusable, first)

    cpdef void forget_draft(self):
        """Forget the draft of the step."""
        self.num_guessed = self.num_own = 0
        self.branched = False
        self.first_row = -1
        self.draft_source = self.added_source = None
        self.saved = None

    cdef Py_ssize_t prompt_rows(self, Py_ssize_t count):
        """Return how many of the next `count` tokens need logits for the log-probability of the prompt token after them.

        It is those whose next one is not known yet, so tokens that are read again need none.
        """
        cdef PromptLogprobs likelihoods = self.prompt_logprobs
        if likelihoods is None or self.num_past > likelihoods.len:
            return 0
        return max(<Py_ssize_t>0, min(self.num_past + count, likelihoods.size) - likelihoods.len)

    cdef Py_ssize_t places(self) noexcept nogil:
        """Return how many places of `candidates` a chosen token has; unused ones hold token -1."""
        return self.num_candidates + 1

    cdef int reserve_candidates(self) except -1:
        """Make room for what the step's tokens are chosen from, if the request asks for it."""
        cdef Py_ssize_t needed = self.places() * (self.num_guessed + 1)
        cdef CandidateC* grown
        if needed <= self.candidates_room:
            return 0
        grown = <CandidateC*>realloc(self.candidates, <size_t>needed * sizeof(CandidateC))
        if grown == NULL:
            raise MemoryError(f"no memory for the candidates of {self.num_guessed + 1} tokens")
        self.candidates, self.candidates_room = grown, needed
        return 0

    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity, Py_ssize_t outputs):
        """Return the longest draft for the request, its context, and a decode of `capacity` tokens and `outputs` rows."""
        cdef Py_ssize_t longest = min(self.size - self.length - 1, capacity - (self.length - self.num_past), outputs - 1)
        longest = min(longest, self.room, self.max_draft)
        if self.transcript is not None:
            longest = min(longest, self.transcript.c.max_tokens - self.transcript.c.len - 1)
        return max(<Py_ssize_t>0, longest)
