# Matcher: where one text is in a grammar, and which tokens may come next.
from ngramspec._native.core.types cimport int32_t, int64_t, token_t, uint64_t
from ngramspec._native.grammar.rules cimport Rules, RulesC
from ngramspec._native.grammar.stacks cimport StacksC
from ngramspec._native.grammar.vocabulary cimport Tokens, TokensTreeC

cdef struct MatcherC:
    StacksC stacks          # empty while nobody asks: see REST_BYTES
    const RulesC* rules
    const TokensTreeC* tokens
    int32_t* path           # the set at each depth of the tree
    int32_t now             # the set that the text has come to
    size_t most_bytes       # above it, all other sets are forgotten

cdef bint matcher_allows(MatcherC* m, token_t token) noexcept nogil
cdef const uint64_t* matcher_mask(MatcherC* m) noexcept nogil
# set for each token of a draft, 1 or 0, whether it may come after its parent; NULL: after the one before it
cdef void matcher_fits(MatcherC* m, const token_t* draft, const int32_t* parents, Py_ssize_t n,
                       int32_t* fits) noexcept nogil
cdef bint matcher_accept(MatcherC* m, token_t token) noexcept nogil

cdef class Matcher:
    cdef MatcherC c
    cdef readonly Rules rules
    cdef readonly Tokens tokens
    cdef int _check(self, Py_ssize_t token) except -1
