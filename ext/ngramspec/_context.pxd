# ContextC: the counts of one slot's history; tokens can be taken back exactly.
from ngramspec._counts cimport CountsC
from ngramspec._types cimport token_t, uint32_t

# A follower that became the best one, so that taking its token back can restore the one before.
cdef struct BestChangeC:
    uint32_t place        # history position of the follower * 8 + n-gram size
    token_t old_best

cdef struct ContextC:
    CountsC counts
    Py_ssize_t ngram_min
    Py_ssize_t ngram_max
    Py_ssize_t num_learned  # tokens of the history that are counted; fewer than all only without memory
    BestChangeC* changes  # oldest first
    Py_ssize_t num_changes
    Py_ssize_t changes_capacity

cdef void context_init(ContextC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max) noexcept nogil
cdef void context_learn(ContextC* x, const token_t* tokens, Py_ssize_t end) noexcept nogil
cdef void context_rewind(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil
cdef const char* context_check(const ContextC* x, Py_ssize_t history_len) noexcept nogil
cdef size_t context_nbytes(const ContextC* x) noexcept nogil
cdef void context_free(ContextC* x) noexcept nogil
