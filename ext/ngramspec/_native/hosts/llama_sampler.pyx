# distutils: language = c++
"""llama.cpp's samplers, on rows of logits: a chain, and a grammar beside it."""

cimport cython
from cpython.pystate cimport PyThreadState
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._native.hosts.llama cimport call_address

from ngramspec.errors import InputError

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)

cdef enum:
    MAX_KEEP = 128              # from 129 on, llama.cpp selects in another way
    MAX_GRAMMAR_NS = 20000000   # for one token; in an ambiguous grammar each takes 10 to 100 times longer than the last
    MAX_RESTRICT_NS = 250000000  # for the whole vocabulary; usual grammars take 1/10 of it
    SLICE = 2048                # tokens that a grammar is asked about at a time


@cython.final
cdef class Candidates:
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
        self.data = <ngs_candidate*>malloc(<size_t>vocab_size * sizeof(ngs_candidate))
        if self.data == NULL:
            raise MemoryError(f"no memory for {vocab_size} candidates")

    def __dealloc__(self):
        free(self.data)

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


cdef bint _allows(ChainC* c, token_t token) noexcept nogil:
    """Return whether the grammar allows a token next."""
    cdef ngs_candidate one
    cdef ngs_candidates candidates
    one.id = token
    one.logit = 1.0
    one.p = 0.0
    candidates.data = &one
    candidates.size = 1
    candidates.selected = -1
    candidates.sorted = False
    return ngs_apply(c.apply, c.grammar, &candidates) and one.logit > -INFINITY


cdef bint _ask_all(ChainC* c, ngs_candidates* all) noexcept nogil:
    """Rule out the candidates that the grammar forbids; False when it fails, or takes too long."""
    cdef ngs_candidates part
    cdef size_t done = 0
    cdef int64_t start = ngs_cpu_ns()
    part.selected = -1
    part.sorted = False
    while done < all.size:
        part.data = all.data + done
        part.size = min(<size_t>SLICE, all.size - done)
        if not ngs_apply(c.apply, c.grammar, &part):
            return False
        done += part.size
        if ngs_cpu_ns() - start > MAX_RESTRICT_NS:
            c.problem = PROBLEM_SLOW
            return False
    return True


cdef bint _restrict(ChainC* c, ngs_candidates* all) noexcept nogil:
    """Call _ask_all without the GIL, whether or not the caller holds it."""
    cdef PyThreadState* held = NULL
    cdef bint done
    if PyGILState_Check():
        held = PyEval_SaveThread()
    done = _ask_all(c, all)
    if held != NULL:
        PyEval_RestoreThread(held)
    return done


cdef token_t _choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    """Choose freely first; if the grammar forbids that token, choose among those it allows."""
    cdef ChainC* c = <ChainC*>state
    cdef ngs_candidates candidates
    cdef token_t token
    if vocab_size != c.vocab_size or c.closed[0] or c.problem:
        return -1
    candidates.data = c.data
    candidates.size = <size_t>vocab_size
    if c.keep:
        candidates.size = <size_t>ngs_prefilter(c.data, row, vocab_size, c.keep, c.heap, c.counted, c.marks)
    else:
        ngs_fill(c.data, row, vocab_size)
    token = _select(c, &candidates)
    if c.grammar == NULL:
        return token
    if token < 0 or not _allows(c, token):
        candidates.data = c.data
        candidates.size = <size_t>vocab_size
        ngs_fill(c.data, row, vocab_size)
        if not _restrict(c, &candidates) or not _possible(&candidates):
            return -1
        token = _select(c, &candidates)
    c.allowed = token
    return token


cdef void _count(ChainC* c, token_t token) noexcept nogil:
    """Accept a token in the chain, which may change that token's logit from now on."""
    ngs_accept(c.accept_call, c.chain, token)
    if c.counted != NULL:
        c.counted[token] = 1
        c.marks[token // NGS_LANES] = 1


cdef void _advance(ChainC* c, token_t token) noexcept nogil:
    """Accept a token in the grammar if allowed: any other would make llama.cpp end the process."""
    cdef int64_t start = ngs_cpu_ns()
    if token != c.allowed and not _allows(c, token) or not ngs_accept(c.accept_call, c.grammar, token):
        c.problem = PROBLEM_FORBIDDEN
    elif ngs_cpu_ns() - start > MAX_GRAMMAR_NS:
        c.problem = PROBLEM_SLOW
    c.allowed = -1


cdef void _accept(void* state, token_t token) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    if not 0 <= token < c.vocab_size or c.closed[0]:
        return
    if c.grammar != NULL and not c.problem:
        _advance(c, token)
    _count(c, token)


@cython.final
cdef class ChainSampler(Sampler):
    """ChainSampler(calls, chain_address, grammar_address, candidates, owner, keep=0, lookback=0, biased=None):
    a llama_sampler chain, with a grammar beside it as in llama.cpp's common/sampling.cpp.

    The chain's random numbers are drawn by choose, not by accept. NaN logits count as impossible.

    Args:
        calls: Addresses of llama.cpp's functions by name.
        chain_address: The chain; it selects a token.
        grammar_address: A grammar sampler that is not in the chain, or 0.
        candidates: Shared with the other samplers of one thread.
        owner: Frees chain and grammar when it is collected.
        keep: The chain only selects among this many of the largest logits after its penalties and
            biases: its first filter is top_k, or it is greedy, with 1. 1..128; 0 = it needs all. This
            saves time and does not change the choice, even among equal logits.
        lookback: How many of the latest accepted tokens may change logits in the chain; 0 = it has
            neither penalties nor DRY.
        biased: int32 token ids whose logits the chain changes, or None.

    Raises:
        InputError: An argument is out of its bounds.
        BackendError: llama.cpp lacks a function.
        MemoryError: No room.
    """

    def __cinit__(self, calls, uintptr_t chain_address, uintptr_t grammar_address, Candidates candidates not None,
                  owner, Py_ssize_t keep=0, Py_ssize_t lookback=0, biased=None):
        if not (chain_address and 0 <= keep <= MAX_KEEP and lookback >= 0):
            raise InputError(f"a chain must be given, keep must be in 0..{MAX_KEEP} and lookback >= 0, got "
                             f"{keep} and {lookback}")
        self.candidates = candidates
        self.owner = owner
        self.chain.apply = <ngs_apply_fn>call_address(calls, "llama_sampler_apply")
        self.chain.accept_call = <ngs_accept_fn>call_address(calls, "llama_sampler_accept")
        self.chain.chain = <void*>chain_address
        self.chain.grammar = <void*>grammar_address
        self.chain.data = candidates.data
        self.chain.closed = &candidates.closed
        self.chain.vocab_size = candidates.vocab_size
        self.chain.keep = keep if keep < candidates.vocab_size else 0
        self.chain.lookback = lookback
        self.chain.allowed = -1
        if self.chain.keep:
            self.prepare(lookback > 0, biased)
        self.c.state = &self.chain
        self.c.choose = _choose
        self.c.accept = _accept

    cdef int prepare(self, bint counts, biased) except -1:
        cdef Py_ssize_t blocks = self.chain.vocab_size // NGS_LANES + 1
        cdef TokensC tokens
        cdef Py_ssize_t i
        self.chain.heap = <float*>malloc(<size_t>self.chain.keep * sizeof(float))
        if self.chain.heap == NULL:
            raise MemoryError("no memory for a sampler")
        if not counts and (biased is None or len(biased) == 0):
            return 0
        self.chain.counted = <uint8_t*>calloc(<size_t>self.chain.vocab_size, 1)
        self.chain.marks = <uint8_t*>calloc(<size_t>blocks, 1)
        if self.chain.counted == NULL or self.chain.marks == NULL:
            raise MemoryError("no memory for a sampler")
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

    def __dealloc__(self):
        free(self.chain.heap)
        free(self.chain.counted)
        free(self.chain.marks)

    @property
    def problem(self):
        """Return why no more tokens are chosen, "" without a problem; only grammars cause one."""
        return ("", "the grammar does not allow a token that was accepted",
                "the grammar is ambiguous: following it takes too long")[self.chain.problem]

    def accept_prompt(self, token_ids):
        """Let penalties and DRY look back on the prompt; the grammar does not see it.

        Args:
            token_ids: int32, shape (n,). Ids beyond the vocabulary are skipped.

        Raises:
            InputError: token_ids is not as described.

        Cost: up to `lookback` of the latest tokens are read.
        """
        cdef TokensC tokens
        cdef Py_ssize_t i
        if self.chain.lookback == 0 or self.candidates.closed:
            return
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            for i in range(max(0, tokens.len - self.chain.lookback), tokens.len):
                if tokens.data[i] < self.chain.vocab_size:
                    _count(&self.chain, tokens.data[i])
        finally:
            tokens_release(&tokens)
