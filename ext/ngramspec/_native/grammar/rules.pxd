# Rules: a grammar as flat arrays, as the stack sets follow it.
from ngramspec._native.core.types cimport int32_t, uint8_t

# What an element of a rule is; its value is given in brackets. ngramspec/text/grammar/gbnf.py writes them.
cdef enum ElementKind:
    ELEMENT_END = 0         # of an alternative
    ELEMENT_RULE = 1        # any alternative of a rule (its number)
    ELEMENT_CHAR = 2        # one character of a class (the node where its bytes begin)
    ELEMENT_TOKEN = 3       # one token (its id)
    ELEMENT_NOT_TOKEN = 4   # any other token (the id)

# What is allowed to be read only. A place is the number of an element.
cdef struct RulesC:
    const int32_t* kinds        # per element
    const int32_t* values       # per element
    const int32_t* rule_starts  # per rule and one more: its first entry in `starts`
    const int32_t* starts       # the place where each alternative begins
    const int32_t* node_edges   # per node and one more: its first edge
    const int32_t* edges        # per edge: lowest byte, highest byte, next node or -1 where the character is complete
    uint8_t classes[256]        # per byte: bytes of one class are alike in all edges
    Py_ssize_t num_classes      # 1..256

cdef class Rules:
    cdef RulesC c
    cdef tuple arrays           # keeps them alive
    cdef readonly Py_ssize_t num_elements
