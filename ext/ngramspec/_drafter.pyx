"""Drafter: the public face of one source or a chain of them, for any number of slots."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy

from ngramspec._arguments cimport TokensC, bad_token, token_view, tokens_release, tokens_view
from ngramspec._batches cimport Batches
from ngramspec._candidate cimport CandidateC
from ngramspec._driver cimport (
    SlotC, draft_right, driver_accept, driver_begin, driver_end, driver_follow, driver_propose, driver_shorten,
    driver_truncate,
)
from ngramspec._offers cimport offers_ask, offers_best, offers_learn
from ngramspec._types cimport STATUS_BAD_TOKEN, STATUS_OK, Status, token_t

import numpy as np

from ngramspec.errors import InputError

cdef object _empty = np.empty
cdef object _int32 = np.dtype(np.int32)
cdef object _float32 = np.dtype(np.float32)


@cython.final
cdef class Drafter(Batches):
    """Drafter(sources, slots=1, max_history=1048576, policy=None): drafts for many slots; use create_drafter.

    One slot holds one running request: begin, then propose and accept in turn. All sources see
    every token; a draft comes from the first source that has one, with a policy from the one whose
    draft is worth most, and feedback goes back to it.

    Args:
        sources: Sources in order of priority, each made for `slots` slots and not used elsewhere.
        slots: Number of slots, >= 1.
        max_history: Tokens kept per slot, 1024..2**28 and what each source allows. Beyond it the older
            half is dropped; of a longer prompt the newest three quarters of max_history are kept.
        policy: AutoPolicy by which propose shortens drafts to the tokens that pay, and which accept
            teaches; None leaves that to the caller. One thread at a time then.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: The state cannot be allocated.

    Thread-safety: calls on one Drafter wait for one another; different Drafters run in parallel,
    also when they share a HashPool, a SuffixPool or an NgramCache.
    """

    def begin(self, Py_ssize_t slot, token_ids):
        """Start a request on a slot.

        What the prompt shares with the slot's history is kept and only compared, so the next turn
        of a conversation costs its new tokens. A request still active on the slot is replaced.

        Args:
            slot: 0 <= slot < slots.
            token_ids: The prompt, oldest first. int32, shape (n,), n >= 0. Copied.

        Raises:
            InputError: slot or token_ids are not as described. Nothing is changed then.
            MemoryError: No room. Nothing is changed.

        Cost: O(changed tokens), a comparison of the shared ones. Threads: releases the GIL.
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

        Replaces the pending draft of the slot; accept takes it up.

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
        cdef Py_ssize_t length
        cdef Py_buffer view
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        with self._lock:
            if self._policy is None:
                length = driver_propose(&self.d, slot, max_tokens)
            else:
                length = self.offer(slot, max_tokens)
            draft = _empty(length, _int32)
            if length:
                PyObject_GetBuffer(draft, &view, PyBUF_SIMPLE)
                memcpy(view.buf, s.draft, <size_t>length * sizeof(token_t))
                PyBuffer_Release(&view)
        return draft

    def confidence(self, Py_ssize_t slot):
        """Return how likely each token of the slot's pending draft is right, if those before it are.

        Args:
            slot: A slot with an active request.

        Returns:
            float32, shape (k,), 0..1, k the length of the pending draft. A copy. What each source
            claims; a length policy corrects it by what was accepted.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(k). Threads: keeps the GIL.
        """
        cdef SlotC* s = self._active(slot, "confidence")
        cdef float[::1] view
        with self._lock:
            claimed = _empty(s.draft_len, _float32)
            if s.draft_len:
                view = claimed
                memcpy(&view[0], s.confidence, <size_t>s.draft_len * sizeof(float))
        return claimed

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
        """Commit what the target emitted and tell the source of the pending draft.

        A draft that is longer than what the engine verified is not counted as rejected: only a
        token that differs from the draft at its position is.

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
        cdef bint valid, asked
        cdef Status status = STATUS_OK
        tokens_view(token_ids, "token_ids", &tokens)
        with self._lock:
            draft_len, asked = s.draft_len, s.asked
            valid = 0 <= num_accepted <= tokens.len and num_accepted <= draft_right(s, tokens.data, tokens.len)
            if valid:
                status = driver_accept(&self.d, slot, tokens.data, tokens.len, num_accepted)
                if asked and status == STATUS_OK:
                    self.teach(slot, tokens.data, tokens.len, draft_len)
        tokens_release(&tokens)
        if not valid:
            raise _bad_acceptance(num_accepted, tokens.len, draft_len)
        if status != STATUS_OK:
            raise MemoryError(f"accept: no memory for {tokens.len} more tokens")

    def follow(self, Py_ssize_t slot, token_ids, Py_ssize_t vocab_size=0):
        """Make the slot's history equal token_ids, whatever happened since the last call.

        For hosts that only show the whole text: a continuation of the history counts as accept,
        anything else as begin.

        Args:
            slot: 0 <= slot < slots.
            token_ids: Prompt and all tokens since, oldest first. int32, shape (n,), n >= 0. Copied.
            vocab_size: Ids must be below it, 0..2**31 - 1; 0 allows any.

        Returns:
            int: Accepted tokens of the pending draft, at most the new tokens but one; -1 when a
            new request began.

        Raises:
            InputError: slot or token_ids are not as described. Nothing is changed then.
            MemoryError: No room. Nothing is changed.

        Cost: O(new tokens) and a comparison of the others. Threads: releases the GIL.
        """
        cdef TokensC tokens
        cdef SlotC* s = self._slot(slot)
        cdef Py_ssize_t accepted = 0, known = 0, draft_len = 0
        cdef bint asked = False
        cdef Status status
        cdef token_t bad = 0
        if not 0 <= vocab_size <= 0x7FFFFFFF:
            raise InputError(f"vocab_size must be in 0..2147483647, got {vocab_size}")
        tokens_view(token_ids, "token_ids", &tokens, False)
        with nogil, self._lock:
            known, draft_len, asked = s.base + s.history.len, s.draft_len, s.asked
            accepted = driver_follow(&self.d, slot, tokens.data, tokens.len, vocab_size, &status)
            if status == STATUS_BAD_TOKEN:
                bad = tokens.data[accepted]
            elif asked and status == STATUS_OK and accepted >= 0 and tokens.len > known:
                with gil:
                    self.teach(slot, tokens.data + known, tokens.len - known, draft_len)
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

        Cost: O(removed tokens), or O(kept) where that is less; `suffix` gives its pool what it has not given yet.
        Threads: releases the GIL.
        """
        cdef SlotC* s = self._active(slot, "truncate")
        cdef Py_ssize_t known
        cdef bint valid
        with nogil, self._lock:
            known = s.base + s.history.len
            valid = 0 <= length <= known
            if valid:
                driver_truncate(&self.d, slot, length)
        if not valid:
            raise InputError(f"length must be in 0..{known}, got {length}")

    def end(self, Py_ssize_t slot):
        """End the slot's request. The history stays, so that a next prompt that shares it is cheap.

        Raises:
            InputError: slot is out of range.
            StateError: No request is active on the slot.

        Cost: O(1); of `suffix` with a pool, O(tokens that the pool was not given yet). Threads: releases the GIL.
        """
        self._active(slot, "end")
        with nogil, self._lock:
            driver_end(&self.d, slot)

    cdef Py_ssize_t offer(self, Py_ssize_t slot, Py_ssize_t room) except -1:
        """Make the best draft of all sources pending, as much of it as the policy finds worth its cost."""
        cdef CandidateC c
        if not offers_ask(self, slot, room):
            return 0
        offers_best(self, self._policy, slot, room, 1, 1, &c)
        self._policy.choose_one(&c, 1, 1)
        driver_shorten(&self.d, slot, c.chosen)
        return c.chosen

    cdef void teach(self, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t drafted) noexcept:
        """Tell the policy, if there is one, what came of all drafts and that a pass emitted so much."""
        if self._policy is not None:
            offers_learn(self, self._policy, slot, tokens, n)
            self._policy.add_step(n, 1 + drafted, 0.0)


cdef object _bad_acceptance(Py_ssize_t num_accepted, Py_ssize_t num_tokens, Py_ssize_t draft_len):
    if num_accepted < 0 or num_accepted > num_tokens:
        return InputError(f"num_accepted must be in 0..{num_tokens} (the number of token_ids), got {num_accepted}")
    if num_accepted > draft_len:
        return InputError(f"num_accepted must be at most {draft_len}, the length of the pending draft, got {num_accepted}")
    return InputError(f"the first {num_accepted} of token_ids must be the pending draft's, but they differ from it")
