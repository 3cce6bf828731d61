# Tokens: the texts of a vocabulary as a tree, so that tokens that begin alike are looked at once.
from ngramspec._native.core.types cimport int32_t, int64_t, token_t, uint64_t, uint8_t
from ngramspec._native.grammar.constraint cimport Constraint
from ngramspec._native.grammar.rules cimport Rules, RulesC, StacksC

# In the order of a walk that visits a node before what follows it.
cdef struct TokensTreeC:
    const uint8_t* bytes        # per node: its byte
    const int32_t* depths       # per node: bytes up to here, >= 1
    const int32_t* skips        # per node: the next one that does not begin with it
    const int32_t* firsts       # per node: a token whose text ends here, -1 = none
    const int32_t* others       # per token: another one with the same text, -1 = none
    const int32_t* offsets      # per token and one more: its text in `texts`
    const uint8_t* texts
    const uint8_t* ends         # per token: it ends a generation
    Py_ssize_t num_nodes
    Py_ssize_t deepest          # bytes of the longest token
    Py_ssize_t vocab_size

cdef class Tokens:
    cdef TokensTreeC c
    cdef tuple arrays           # keeps them alive


cdef inline Py_ssize_t num_words(const TokensTreeC* t) noexcept nogil:
    """Words of 64 bits in a mask."""
    return (t.vocab_size + 63) // 64

# Matcher: where one text is in a grammar, and which tokens may come next.

cdef struct MatcherC:
    StacksC stacks          # empty while nobody asks: see REST_BYTES
    const RulesC* rules
    const TokensTreeC* tokens
    int32_t* path           # the set at each depth of the tree
    int32_t now             # the set that the text has come to
    size_t most_bytes       # above it, all other sets are forgotten

cdef class Matcher(Constraint):
    cdef MatcherC m
    cdef readonly Rules rules
    cdef readonly Tokens tokens
