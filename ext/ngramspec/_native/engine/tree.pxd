# TreePlaceC: where a token of a tree stands.
from ngramspec._native.core.types cimport int32_t, token_t, uint32_t

cdef enum:
    MOST_BRANCHES = 31

cdef struct TreePlaceC:
    int32_t depth          # 0 = directly after the text
    uint32_t branches      # a bit per branch that the token belongs to
    int32_t own            # the branch that began with it or that it goes on with
    int32_t index          # tree_arrange: where it goes
    int32_t parent         # the same of the token that comes here
    token_t token
    bint added             # a source that takes time has drafted it, beside or after a free draft

# set the places of n tokens; return how many branches there are, -1 where they are more than MOST_BRANCHES
cdef Py_ssize_t tree_places(const int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil
# put each branch's own tokens together, those of branch 0 first; then set the places
cdef Py_ssize_t tree_arrange(token_t* tokens, int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil
# the first of a token's branches
cdef int branch_of(uint32_t branches) noexcept nogil
