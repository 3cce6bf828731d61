"""Trees: drafts with several tokens for one place, for engines that verify them in one pass."""

from libc.string cimport memcpy

from ngramspec._driver cimport SlotC, driver_propose_tree
from ngramspec._types cimport int32_t, token_t

import numpy as np

from ngramspec.errors import InputError


cdef class Trees(Slots):
    """Trees(sources, slots, max_history, policy): slots that draft trees; base of Drafter."""

    def propose_tree(self, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t max_width=8):
        """Draft a tree of what may follow the slot's history.

        Replaces the pending draft of the slot. accept takes any path from the root up: a path's
        tokens, then the target's own. The source `suffix` has trees, the tokens of the largest expected
        number of accepted ones first; others draft a chain. An AutoPolicy does not cut trees: max_tokens
        is the caller's choice. ngramspec.tree has masks, positions and greedy verification.

        Args:
            slot: A slot with an active request.
            max_tokens: Most tokens wanted, >= 0.
            max_width: Most tokens at the same depth, >= 1; 1 gives what propose gives without a policy.

        Returns:
            (tokens, parents, confidence): int32, int32 and float32, each of shape (n,), n <= max_tokens;
            new arrays. parents[i] < i is the token that tokens[i] comes after, -1 = the last emitted one;
            siblings differ. confidence[i] is the probability that tokens[i] is right if its parent is.
            The first k tokens are the tree of max_tokens = k; shorten(slot, k) keeps them.

        Raises:
            InputError: slot is out of range, max_tokens < 0 or max_width < 1.
            StateError: No request is active on the slot.

        In stats(), n tokens count as drafted and the accepted path as accepted.

        Cost: O(n) judged places, a walk to the root for each; independent of the history.
        Threads: releases the GIL.

        Sources: SpecInfer (arXiv 2305.09781) for verifying trees, Sequoia (arXiv 2402.12374) for
        their best shape.
        """
        cdef SlotC* s = self._active(slot, "propose_tree")
        cdef Py_ssize_t n
        cdef token_t[::1] token_view
        cdef int32_t[::1] parent_view
        cdef float[::1] claim_view
        if max_tokens < 0:
            raise InputError(f"max_tokens must be >= 0, got {max_tokens}")
        if max_width < 1:
            raise InputError(f"max_width must be >= 1, got {max_width}")
        with self._lock:
            with nogil:
                n = driver_propose_tree(&self.d, slot, max_tokens, max_width)
            tokens, parents = np.empty(n, np.int32), np.empty(n, np.int32)
            confidence = np.empty(n, np.float32)
            if n:
                token_view, parent_view, claim_view = tokens, parents, confidence
                memcpy(&token_view[0], s.draft, <size_t>n * sizeof(token_t))
                memcpy(&parent_view[0], s.parents, <size_t>n * sizeof(int32_t))
                memcpy(&claim_view[0], s.confidence, <size_t>n * sizeof(float))
        return tokens, parents, confidence
