# distutils: language = c++
"""llama.cpp's samplers, on rows of logits, with a grammar beside them."""

cimport cython
from cpython.pystate cimport PyThreadState
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._native.core.types cimport uint64_t
from ngramspec._native.engine.decode cimport CandidateC, only_candidate
from ngramspec._native.grammar.constraint cimport Constraint
from ngramspec._native.hosts.llama cimport call_address

from ngramspec.errors import InputError

cdef extern from "Python.h" nogil:
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)

cdef extern from "ngs_lock.h" nogil:
    PyThreadState* ngs_attached()

cdef enum:
    MAX_KEEP = 128              # from 129 on, llama.cpp selects in another way


@cython.final
cdef class Candidates(Owner):
    """Candidates(vocab_size): the array that llama.cpp's samplers work in, shared by the samplers of one thread.

    Args:
        vocab_size: Tokens of the vocabulary, >= 1.

    Raises:
        InputError: vocab_size < 1.
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t vocab_size):
        if vocab_size < 1:
            raise InputError(f"vocab_size must be >= 1, got {vocab_size}")
        self.vocab_size = vocab_size
        self.data = <ngs_candidate*>self.take(vocab_size, sizeof(ngs_candidate))
        self.allowed = <float*>self.take(vocab_size, sizeof(float))

    def close(self):
        """Stop the samplers that use it, because llama.cpp's vocabulary is about to be freed."""
        self.closed = True


cdef bint _possible(const ngs_candidates* candidates) noexcept nogil:
    """Return whether a candidate is left."""
    cdef size_t i
    for i in range(candidates.size):
        if candidates.data[i].logit > -INFINITY:
            return True
    return False


cdef token_t _select(ChainC* c, ngs_candidates* candidates) noexcept nogil:
    """Return the token that the chain selects, -1 if there is none or it is ruled out."""
    cdef int64_t at
    candidates.selected = -1
    candidates.sorted = False
    if not ngs_apply(c.apply, c.chain, candidates):
        return -1
    at = candidates.selected
    if not 0 <= at < <int64_t>candidates.size or not candidates.data[at].logit > -INFINITY:
        return -1
    return candidates.data[at].id


cdef bint _allow(ChainC* c, const float* row) noexcept nogil:
    """Set `allowed` to the row without what the grammar forbids; False on a problem. Gives the GIL away if it is held."""
    cdef PyThreadState* held = NULL
    cdef const uint64_t* mask
    if ngs_attached() != NULL:
        held = PyEval_SaveThread()
    mask = c.grammar.mask(c.grammar.state)
    if mask != NULL:
        ngs_mask_row(c.allowed, row, mask, c.vocab_size)
    if held != NULL:
        PyEval_RestoreThread(held)
    return mask != NULL


cdef void _fill(ChainC* c, const float* row) noexcept nogil:
    """Begin with all candidates that the chain may select."""
    c.left.data = c.data
    c.left.size = <size_t>c.vocab_size
    if c.keep:
        c.left.size = <size_t>ngs_prefilter(c.data, row, c.vocab_size, c.keep, c.heap, c.counted, c.marks)
    else:
        ngs_fill(c.data, row, c.vocab_size)


cdef token_t _choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    """Choose freely first; if the grammar forbids that token, choose among those it allows."""
    cdef ChainC* c = <ChainC*>state
    cdef token_t token
    if vocab_size != c.vocab_size or c.closed[0] or c.forbidden:
        return -1
    _fill(c, row)
    token = _select(c, &c.left)
    if c.grammar == NULL or (token >= 0 and c.grammar.allows(c.grammar.state, token)):
        return token
    if not _allow(c, row):
        return -1
    _fill(c, c.allowed)
    return _select(c, &c.left) if _possible(&c.left) else -1


cdef Py_ssize_t _candidates(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    cdef ngs_candidate* data = c.left.data
    cdef Py_ssize_t i, count = min(top, <Py_ssize_t>c.left.size)
    if c.greedy:
        return only_candidate(NULL, chosen, out, top)
    out[0] = CandidateC(chosen, 0.0)
    for i in range(<Py_ssize_t>c.left.size):
        if data[i].id == chosen:
            out[0].probability = data[i].p
            break
    ngs_sort_likeliest(&c.left, <size_t>count)
    for i in range(count):
        if not data[i].p > 0:
            return 1 + i
        out[1 + i] = CandidateC(data[i].id, data[i].p)
    return 1 + count


cdef void _fits(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    c.grammar.fits(c.grammar.state, draft, parents, n, fits)


cdef Py_ssize_t _forced(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    return 0 if c.closed[0] or c.forbidden else c.grammar.forced(c.grammar.state, out, limit)


cdef void _count(ChainC* c, token_t token) noexcept nogil:
    """Accept a token in the chain, which may change that token's logit from now on."""
    ngs_accept(c.accept_call, c.chain, token)
    if c.counted != NULL:
        c.counted[token] = 1
        c.marks[token // NGS_LANES] = 1


cdef void _accept(void* state, token_t token) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    if not 0 <= token < c.vocab_size or c.closed[0]:
        return
    if c.grammar != NULL and not c.forbidden:
        c.forbidden = not c.grammar.accept(c.grammar.state, token)
    _count(c, token)


@cython.final
cdef class ChainSampler(Sampler):
    """ChainSampler(calls, chain_address, candidates, owner, grammar=None, keep=0, lookback=0, biased=None, greedy=False):
    a llama_sampler chain, with a grammar beside it as in llama.cpp's common/sampling.cpp.

    The chain's random numbers are drawn by choose, not by accept. NaN logits count as impossible.

    Args:
        calls: Addresses of llama.cpp's functions by name.
        chain_address: The chain; it selects a token.
        candidates: Shared with the other samplers of one thread.
        owner: Frees the chain when it is collected.
        grammar: At the beginning of its text, used by this sampler only; or None.
        keep: The chain only selects among this many of the largest logits after its penalties and
            biases: its first filter is top_k, or it is greedy, with 1. 1..128; 0 = it needs all. This
            saves time and does not change the choice, even among equal logits.
        lookback: How many of the latest accepted tokens may change logits in the chain; 0 = it has
            neither penalties nor DRY.
        biased: int32 token ids whose logits the chain changes, or None.
        greedy: The chain takes the likeliest token of those it leaves: no other one is possible.

    Raises:
        InputError: An argument is out of its bounds.
        BackendError: llama.cpp lacks a function.
        MemoryError: No room.
    """

    def __cinit__(self, calls, uintptr_t chain_address, Candidates candidates not None, owner,
                  Constraint grammar=None, Py_ssize_t keep=0, Py_ssize_t lookback=0, biased=None,
                  bint greedy=False):
        if not (chain_address and 0 <= keep <= MAX_KEEP and lookback >= 0):
            raise InputError(f"a chain must be given, keep must be in 0..{MAX_KEEP} and lookback >= 0, got "
                             f"{keep} and {lookback}")
        if grammar is not None and grammar.c.vocab_size != candidates.vocab_size:
            raise InputError(f"the grammar is for a vocabulary of {grammar.c.vocab_size} tokens, the candidates for "
                             f"{candidates.vocab_size}")
        self.candidates, self.grammar, self.owner = candidates, grammar, owner
        self.chain.apply = <ngs_apply_fn>call_address(calls, "llama_sampler_apply")
        self.chain.accept_call = <ngs_accept_fn>call_address(calls, "llama_sampler_accept")
        self.chain.chain = <void*>chain_address
        self.chain.grammar = &grammar.c if grammar is not None else NULL
        self.chain.data, self.chain.allowed = candidates.data, candidates.allowed
        self.chain.closed = &candidates.closed
        self.chain.vocab_size = candidates.vocab_size
        self.chain.keep = keep if keep < candidates.vocab_size else 0
        self.chain.lookback, self.chain.greedy = lookback, greedy
        if self.chain.keep:
            self.prepare(lookback > 0, biased)
        self.c.state = &self.chain
        self.c.choose = _choose
        self.c.candidates = _candidates
        self.c.accept = _accept
        if grammar is not None:
            self.c.fits, self.c.forced = _fits, _forced

    cdef int prepare(self, bint counts, biased) except -1:
        cdef Py_ssize_t blocks = self.chain.vocab_size // NGS_LANES + 1
        cdef TokensC tokens
        cdef Py_ssize_t i
        self.chain.heap = <float*>self.take(self.chain.keep, sizeof(float))
        if not counts and (biased is None or len(biased) == 0):
            return 0
        self.chain.counted = <uint8_t*>self.take(self.chain.vocab_size, 1)
        self.chain.marks = <uint8_t*>self.take(blocks, 1)
        if biased is None:
            return 0
        tokens_view(biased, "biased", &tokens)
        try:
            for i in range(tokens.len):
                if tokens.data[i] >= self.chain.vocab_size:
                    raise InputError(f"biased must hold token ids in 0..{self.chain.vocab_size - 1}")
                self.chain.counted[tokens.data[i]] = 1
                self.chain.marks[tokens.data[i] // NGS_LANES] = 1
        finally:
            tokens_release(&tokens)

    @property
    def problem(self):
        """Return why no more tokens are chosen, "" without a problem; only grammars cause one."""
        if self.grammar is not None and self.grammar.problem:
            return self.grammar.problem
        return "the grammar does not allow a token that was accepted" if self.chain.forbidden else ""

    @property
    def may_end(self):
        """Return whether the text is complete where no token is possible: the grammar may end there."""
        return self.grammar is not None and self.grammar.may_end

    def accept_prompt(self, token_ids):
        """Let penalties and DRY look back on the prompt; the grammar does not see it.

        Args:
            token_ids: int32, shape (n,). Ids beyond the vocabulary are skipped.

        Raises:
            InputError: token_ids is not as described.

        Cost: up to `lookback` of the latest tokens are read. Threads: releases the GIL.
        """
        cdef TokensC tokens
        cdef Py_ssize_t i
        if self.chain.lookback == 0 or self.candidates.closed:
            return
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            with nogil:
                for i in range(max(0, tokens.len - self.chain.lookback), tokens.len):
                    if tokens.data[i] < self.chain.vocab_size:
                        _count(&self.chain, tokens.data[i])
        finally:
            tokens_release(&tokens)
