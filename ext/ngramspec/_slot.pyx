"""Slot: a place of the engine that runs one request at a time and remembers the last one."""

cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ngramspec._arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._history cimport common_prefix
from ngramspec._sampler cimport Sampler
from ngramspec._slots cimport Slots

import numpy as np

from ngramspec.errors import InputError

cdef object _no_tokens = np.empty(0, np.int32)
_no_tokens.flags.writeable = False


@cython.final
cdef class Slot:
    """Slot(id, context_size, max_draft): one sequence of the target and the request that runs on it.

    Args:
        id: Its number, and the sequence's.
        context_size: Tokens that it may hold, >= 1.
        max_draft: Longest draft that it may get, >= 0.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room.

    Attributes:
        tokens: int32, shape (context_size,); the first `length` are prompt and emitted tokens.
        num_past: Of these the first so many are in the target's cache. While a request decodes this
            is all but the newest; less while a prompt is read or after a checkpoint was restored.
        count: Tokens after num_past that are in the step's decode.
        draft: The draft of this step, a new int32 array; set to change it.

    Used by one thread; others may read numbers.
    """

    def __cinit__(self, Py_ssize_t id, Py_ssize_t context_size, Py_ssize_t max_draft):
        cdef token_t[::1] view
        if context_size < 1 or max_draft < 0:
            raise InputError(f"context_size must be >= 1 and max_draft >= 0, got {context_size} and {max_draft}")
        self.id, self.size, self.max_draft = id, context_size, max_draft
        self.tokens = np.zeros(context_size, dtype=np.int32)
        view = self.tokens
        self.data = &view[0]
        self.guess = <token_t*>malloc(<size_t>(max_draft + 1) * sizeof(token_t))
        self.chosen = <token_t*>malloc(<size_t>(max_draft + 1) * sizeof(token_t))
        if not (self.guess and self.chosen):
            raise MemoryError(f"no memory for drafts of {max_draft} tokens")
        self.namespace, self.first_row = "", -1
        self.room, self._sources = max_draft, ()

    def __dealloc__(self):
        free(self.guess)
        free(self.chosen)

    def start(self, generation, Sampler sampler not None, sources=(), on_chunk=None, max_draft=None, double deadline=0.0):
        """Give the slot to a request.

        Args:
            generation: The request's; its transcript and timings are written.
            sampler: Its own.
            sources: Draft sources in order of priority.
            on_chunk: Called by the engine with what a step emitted, or None.
            max_draft: Longest draft that it wants, None = no bound of its own.
            deadline: When it is overdue, on the clock of time.perf_counter; 0 = never.

        Raises:
            TypeError: generation has no Transcript or Timings.
        """
        self.transcript, self.timings = generation.transcript, generation.timings
        if self.transcript is None or self.timings is None:
            raise TypeError("a generation needs a transcript and timings")
        self.generation, self.sampler, self.on_chunk = generation, sampler, on_chunk
        self.sources = sources
        self.max_draft = self.room if max_draft is None else max_draft
        self.with_logprobs = generation.request.logprobs is not None
        self.deadline, self.decoding = deadline, False
        self.forget_draft()

    def release(self):
        """Take the slot from its request; its tokens stay in the cache for the next one."""
        self.generation = self.on_chunk = None
        self.sources, self.decoding, self.deadline = (), False, 0.0

    @property
    def sources(self):
        """Return the draft sources of its request, in order of priority."""
        return self._sources

    @sources.setter
    def sources(self, sources):
        self._sources = tuple(sources)
        self.native = self.native_name = None
        if len(self._sources) == 1:
            drafter = getattr(self._sources[0], "native", None)
            if isinstance(drafter, Slots):
                self.native, self.native_name = drafter, self._sources[0].name

    @property
    def draft(self):
        """Return the draft that is to be verified in this step."""
        return np.array(<token_t[:self.num_guessed]>self.guess) if self.num_guessed else _no_tokens

    @draft.setter
    def draft(self, token_ids):
        cdef TokensC tokens
        tokens_view(token_ids, "draft", &tokens)
        try:
            if tokens.len > self.room:
                raise InputError(f"a draft may have {self.room} tokens, got {tokens.len}")
            if tokens.len:
                memcpy(self.guess, tokens.data, <size_t>tokens.len * sizeof(token_t))
            self.num_guessed = tokens.len
        finally:
            tokens_release(&tokens)

    @property
    def emitted(self):
        """Return the tokens that the last step chose here, a new int32 array."""
        return np.array(<token_t[:self.num_out]>self.chosen) if self.num_out else _no_tokens

    @property
    def num_pending(self):
        """Return how many tokens the target has not seen."""
        return self.length - self.num_past

    @property
    def output(self):
        """Tell whether a token is chosen after the step's decode."""
        return self.count > 0 and self.count == self.length - self.num_past

    def common_prefix(self, token_ids):
        """Return how many tokens in the cache begin like token_ids, int32 of shape (n,)."""
        cdef TokensC tokens
        cdef Py_ssize_t count
        tokens_view(token_ids, "token_ids", &tokens)
        count = common_prefix(self.data, tokens.data, min(self.num_past, tokens.len))
        tokens_release(&tokens)
        return count

    def clear_draft(self):
        """Forget the draft of the step."""
        self.forget_draft()

    cdef void forget_draft(self):
        self.num_guessed = 0
        self.first_row = -1
        self.draft_source = None
        self.saved = None

    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity):
        """Return the longest draft that the request, its text and a decode of `capacity` tokens have room for."""
        cdef Py_ssize_t longest = min(self.size - self.length - 1, capacity - (self.length - self.num_past))
        longest = min(longest, self.room, self.max_draft)
        if self.transcript is not None:
            longest = min(longest, self.transcript.c.max_tokens - self.transcript.c.len - 1)
        return max(<Py_ssize_t>0, longest)
