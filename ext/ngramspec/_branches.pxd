# Branches: which token of a pending draft comes after which, where the draft is a tree.
from ngramspec._types cimport int32_t, token_t

# `parents` has one entry per token: an earlier one that it comes after, -1 = the tokens emitted so far.

# the parents of a draft without branches
cdef void branches_chain(int32_t* parents, Py_ssize_t n) noexcept nogil
# how many of the target's tokens a path from the root has right; `last`: its end, -1 = the root
cdef Py_ssize_t branches_right(const token_t* draft, const int32_t* parents, Py_ssize_t n, const token_t* tokens,
                               Py_ssize_t num_tokens, Py_ssize_t* last) noexcept nogil
# does a token come after this one?
cdef bint branches_go_on(const int32_t* parents, Py_ssize_t n, Py_ssize_t node) noexcept nogil
# leave only the first child of the root, its first child and so on; return their number
cdef Py_ssize_t branches_prune(token_t* draft, const int32_t* parents, float* confidence, Py_ssize_t n) noexcept nogil
# first broken invariant or NULL
cdef const char* branches_check(const token_t* draft, const int32_t* parents, Py_ssize_t n) noexcept nogil
