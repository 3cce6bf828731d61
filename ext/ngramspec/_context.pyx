"""Counts of one slot's history, learned a block at a time and taken back the newest first."""

from libc.string cimport memset

from ngramspec._counts cimport (
    NGRAM_MAX, TOGETHER, counts_add, counts_check, counts_fetch, counts_free, counts_init, counts_nbytes,
    counts_reserve_next, counts_reset, counts_undo, ngram_hash,
)
from ngramspec._history cimport grow
from ngramspec._memory cimport ngs_release
from ngramspec._types cimport STATUS_NO_MEMORY, STATUS_OK, Status, uint64_t

cdef void context_init(ContextC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max) noexcept nogil:
    memset(x, 0, sizeof(ContextC))
    counts_init(&x.counts, 0)
    x.ngram_min = ngram_min
    x.ngram_max = ngram_max


cdef Status _learn_block(ContextC* x, const token_t* tokens, Py_ssize_t end, Py_ssize_t last) noexcept nogil:
    """Count tokens[num_learned:end], at most TOGETHER, and log each change of a best follower; blocks up to `last` follow."""
    cdef uint32_t[TOGETHER * NGRAM_MAX] hashes
    cdef Py_ssize_t start = x.num_learned
    cdef Py_ssize_t i, size
    cdef token_t old_best
    cdef Py_ssize_t num_changes = x.num_changes + (end - start) * NGRAM_MAX
    if (grow(<void**>&x.changes, &x.changes_capacity, num_changes, sizeof(BestChangeC)) != STATUS_OK
            or counts_reserve_next(&x.counts, (end - start) * NGRAM_MAX, (last - start) * NGRAM_MAX) != STATUS_OK):
        return STATUS_NO_MEMORY
    counts_fetch(&x.counts, tokens, start, end, hashes)
    for i in range(start, end):
        for size in range(x.ngram_min, (x.ngram_max if x.ngram_max < i else i) + 1):
            old_best = counts_add(&x.counts, hashes[(i - start) * NGRAM_MAX + size - 1], &tokens[i - 1], size, tokens[i], 1)
            if old_best >= 0:
                x.changes[x.num_changes] = BestChangeC(<uint32_t>(i * 8 + size), old_best)
                x.num_changes += 1
    x.num_learned = end
    return STATUS_OK


cdef void context_learn(ContextC* x, const token_t* tokens, Py_ssize_t end) noexcept nogil:
    """Count all tokens up to `end`. Without memory the rest waits for the next call; drafting goes on."""
    while x.num_learned < end:
        if _learn_block(x, tokens, min(end, x.num_learned + TOGETHER), end) != STATUS_OK:
            return


cdef void _unlearn(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil:
    """Take tokens[length:num_learned] back, the newest first."""
    cdef Py_ssize_t i, size
    cdef token_t old_best
    cdef BestChangeC* change
    for i in range(x.num_learned - 1, (length if length > 1 else 1) - 1, -1):
        for size in range(x.ngram_max if x.ngram_max < i else i, x.ngram_min - 1, -1):
            old_best = -1
            change = &x.changes[x.num_changes - 1]
            if x.num_changes > 0 and change.place == <uint32_t>(i * 8 + size):
                old_best = change.old_best
                x.num_changes -= 1
            counts_undo(&x.counts, ngram_hash(&tokens[i - 1], size), &tokens[i - 1], size, tokens[i], old_best)
    x.num_learned = length


cdef void context_rewind(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil:
    """Forget the tokens from `length` on, one by one or by starting over, whichever is less."""
    if x.num_learned <= length:
        return
    if x.num_learned - length <= length:
        _unlearn(x, tokens, length)
    else:
        counts_reset(&x.counts)
        x.num_changes = x.num_learned = 0
        context_learn(x, tokens, length)


cdef const char* context_check(const ContextC* x, Py_ssize_t history_len) noexcept nogil:
    """The first broken invariant, NULL when all hold."""
    if x.num_learned > history_len:
        return "context: more tokens are counted than the history holds"
    if x.num_changes > 0 and x.changes[x.num_changes - 1].place >> 3 >= <uint64_t>history_len:
        return "context: a change is logged past the history"
    return counts_check(&x.counts)


cdef size_t context_nbytes(const ContextC* x) noexcept nogil:
    return sizeof(ContextC) + counts_nbytes(&x.counts) + <size_t>x.changes_capacity * sizeof(BestChangeC)


cdef void context_free(ContextC* x) noexcept nogil:
    counts_free(&x.counts)
    ngs_release(x.changes, <size_t>x.changes_capacity * sizeof(BestChangeC))
    x.changes = NULL
