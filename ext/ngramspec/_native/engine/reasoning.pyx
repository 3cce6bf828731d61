"""ReasoningSampler: ends a request's reasoning after a number of tokens, beside its own sampler.

The marks are looked for in the text, so it does not matter how the model splits them into tokens.
"""

cimport cython
from libc.string cimport memcpy

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t, uint8_t
from ngramspec._native.engine.decode cimport CandidateC, Sampler, only_candidate
from ngramspec._native.engine.transcript cimport Pieces

from ngramspec.errors import InputError

cdef enum:
    PATIENCE = 4  # tokens that may complete a character; more are no character


cdef bint mark_feed(MarkC* mark, char byte) noexcept nogil:
    """Take a byte; return whether it completes the mark, which is then looked for anew."""
    while mark.at and mark.text[mark.at] != byte:
        mark.at = mark.back[mark.at]
    if mark.text[mark.at] == byte:
        mark.at += 1
    if mark.at == mark.size:
        mark.at = 0
        return True
    return False


cdef void enter(BudgetC* b, int stage) noexcept nogil:
    cdef Py_ssize_t i
    b.stage = stage
    b.left = b.budget
    b.forced = 0
    for i in range(b.num_marks):
        b.marks[i].at = 0


cdef bint feed(BudgetC* b, char byte) noexcept nogil:
    """Take a byte of text; return whether it begins or ends reasoning."""
    cdef Py_ssize_t i
    cdef uint8_t lead = <uint8_t>byte
    if lead < 0x80:
        b.missing = 0
    elif lead >= 0xC0:
        b.missing = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
    elif b.missing:
        b.missing -= 1
    if b.stage == OUTSIDE:
        if mark_feed(&b.marks[0], byte):
            enter(b, INSIDE)
            return True
        return False
    for i in range(1, b.num_marks):
        if mark_feed(&b.marks[i], byte):
            enter(b, OUTSIDE)
            return True
    return False


cdef bint may_force(BudgetC* b) noexcept nogil:
    """Return whether the end may come next, where the request has a grammar."""
    if b.inner.fits == NULL:
        return True
    b.inner.fits(b.inner.state, b.end, NULL, b.end_len, b.fits)
    return b.fits[b.end_len - 1]


cdef void count(BudgetC* b, token_t token) noexcept nogil:
    """Follow an emitted token."""
    cdef int64_t i
    cdef bint turned = False
    if b.stage == ENDING:
        b.forced += 1
        if b.forced >= b.end_len:
            enter(b, OUTSIDE)
        return
    for i in range(b.starts[token], b.starts[token + 1]):
        turned |= feed(b, b.pieces[i])
    if b.stage == OUTSIDE:
        return
    if not turned:
        b.left -= 1
    if b.left <= 0 and (b.missing == 0 or b.left <= -PATIENCE) and may_force(b):
        enter(b, ENDING)
    elif b.left <= 0:
        b.stage = UNFINISHED


cdef token_t _choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    if b.unasked:
        b.unasked = False
        if not may_force(b):  # the grammar knows no reasoning
            enter(b, OUTSIDE)
    if b.stage == ENDING:
        return b.end[b.forced]
    return b.inner.choose(b.inner.state, row, vocab_size)


cdef void _accept(void* state, token_t token) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    b.inner.accept(b.inner.state, token)
    if 0 <= token < b.num_tokens:
        count(b, token)


cdef Py_ssize_t _certain(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    cdef Py_ssize_t n
    if b.stage != ENDING:
        return 0
    n = min(b.end_len - b.forced, limit)
    if n > 0:
        memcpy(out, b.end + b.forced, <size_t>n * sizeof(token_t))
    return max(n, <Py_ssize_t>0)


cdef Py_ssize_t _forced(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    return 0 if b.stage == ENDING else b.inner.forced(b.inner.state, out, limit)


cdef Py_ssize_t _candidates(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    if b.stage == ENDING:
        return only_candidate(NULL, chosen, out, top)
    return b.inner.candidates(b.inner.state, chosen, out, top)


cdef void _fits(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil:
    cdef BudgetC* b = <BudgetC*>state
    b.inner.fits(b.inner.state, draft, parents, n, fits)


cdef int make_mark(MarkC* mark, Owner memory, bytes text) except -1:
    cdef Py_ssize_t i, at = 0, size = len(text)
    if not size:
        raise InputError("a mark of reasoning must not be empty")
    mark.text = <char*>memory.take(size, 1)
    mark.back = <Py_ssize_t*>memory.take(size + 1, sizeof(Py_ssize_t))
    memcpy(mark.text, <const char*>text, <size_t>size)
    mark.size = size
    for i in range(1, size):
        while at and mark.text[at] != mark.text[i]:
            at = mark.back[at]
        if mark.text[at] == mark.text[i]:
            at += 1
        mark.back[i + 1] = at


@cython.final
cdef class ReasoningSampler(Sampler):
    """ReasoningSampler(inner, pieces, open, closes, budget, end_ids, begun=False): end reasoning in time.

    Text from the open mark to a close mark is reasoning. When one has `budget` tokens, and no unfinished
    character, the tokens end_ids are emitted next, whatever the logits: certain, so they may be drafted.
    Another open mark begins another reasoning with the same budget. With a grammar they come as soon as it
    allows them; one that does not where a text begins within reasoning leaves no room for it, so that text does not.

    Args:
        inner: The request's sampler; chooses everything else, and follows all tokens.
        pieces: Text of the vocabulary's tokens, control tokens included.
        open: UTF-8, not empty.
        closes: UTF-8 texts, each of which ends the reasoning; at least one, none empty.
        budget: Tokens of a reasoning, >= 0; those of the open mark do not count.
        end_ids: int32, shape (n,), n >= 1: what is forced.
        begun: The prompt ends within reasoning.

    Raises:
        InputError: An argument is not as described.
        MemoryError: No room.

    Source: llama.cpp common/reasoning-budget, which looks for tokens instead of texts.
    """

    def __cinit__(self, Sampler inner not None, Pieces pieces not None, bytes open not None, closes, Py_ssize_t budget,
                  end_ids, bint begun=False):
        cdef TokensC tokens
        cdef Py_ssize_t i
        texts = [open, *closes]
        if budget < 0 or len(texts) < 2:
            raise InputError(f"a budget must be >= 0 and have a close mark, got {budget} and {len(texts) - 1} marks")
        self._inner, self._pieces = inner, pieces
        self.b.inner = &inner.c
        self.b.pieces, self.b.starts, self.b.num_tokens = pieces.text, pieces.starts, pieces.num_tokens
        self.b.budget = budget
        self.b.num_marks = len(texts)
        self.b.marks = <MarkC*>self.take(self.b.num_marks, sizeof(MarkC))
        for i in range(self.b.num_marks):
            make_mark(&self.b.marks[i], self, texts[i])
        tokens_view(end_ids, "end_ids", &tokens)
        try:
            if tokens.len < 1:
                raise InputError("end_ids must hold at least one token")
            for i in range(tokens.len):
                if not 0 <= tokens.data[i] < pieces.num_tokens:
                    raise InputError(f"end_ids must hold ids in 0..{pieces.num_tokens - 1}, got {tokens.data[i]}")
            self.b.end = <token_t*>self.take(tokens.len, sizeof(token_t))
            memcpy(self.b.end, tokens.data, <size_t>tokens.len * sizeof(token_t))
            self.b.fits = <int32_t*>self.take(tokens.len, sizeof(int32_t))
            self.b.end_len = tokens.len
        finally:
            tokens_release(&tokens)
        self.b.unasked = begun
        enter(&self.b, OUTSIDE if not begun else INSIDE if budget else ENDING)
        self.c.state = &self.b
        self.c.choose = _choose
        self.c.accept = _accept
        self.c.certain = _certain
        self.c.candidates = _candidates
        if inner.c.fits != NULL:
            self.c.fits = _fits
        if inner.c.forced != NULL:
            self.c.forced = _forced

    @property
    def problem(self):
        """Return why it finds no token possible, "" without a problem of its own: the inner sampler's."""
        return self._inner.problem

    @property
    def may_end(self):
        """Return whether the text is complete where no token is possible: the inner sampler's."""
        return self._inner.may_end

    def accept_prompt(self, token_ids):
        """Let the inner sampler look back on the prompt."""
        self._inner.accept_prompt(token_ids)

    def for_drafts(self, Py_ssize_t vocab_size):
        """Return what chooses drafts as the inner sampler would."""
        return self._inner.for_drafts(vocab_size)
