# Rules: a grammar as flat arrays, as the stack sets follow it.
from ngramspec._native.core.hash cimport TableC
from ngramspec._native.core.types cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t

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

# StacksC: the sets of stacks that a grammar can be in, made as they are met.
#
# A stack says what is still to come: the place where to go on, then the place where its rule was used, and so on.
# Stacks share what lies below, equal ones exist once, and so do equal sets of them. What follows a set on a byte is
# worked out once. So the work for a text does not grow with the number of ways to read it, as it would if every way
# were followed by itself.

cdef enum:
    NO_SET = -1             # could not be made: see StacksC.problem
    DEAD_SET = 0            # no stack: nothing may follow
    NO_NODE = -1            # of an item: its place is a token

cdef enum StacksProblem:
    STACKS_WELL = 0
    STACKS_NO_MEMORY = 1
    STACKS_SLOW = 2         # too many steps, or too much to remember

# A stack: go on at `place`, then with the stack `below`. Number 0 is the empty one.
cdef struct StackC:
    int32_t place
    int32_t below
    uint32_t seen           # the last closure that passed here

# A stack whose next element is read: a node within a character, and where to go on after it.
cdef struct ItemC:
    int32_t node
    int32_t place
    int32_t below
    uint32_t seen

cdef struct SetC:
    Py_ssize_t first        # of its members
    Py_ssize_t count
    uint32_t hash
    bint ends               # the text may end here
    uint64_t* mask          # tokens that may follow, owned; NULL = not asked

cdef struct StacksC:
    const RulesC* rules
    StackC* stacks
    Py_ssize_t num_stacks
    Py_ssize_t room_stacks
    TableC stack_table
    ItemC* items
    Py_ssize_t num_items
    Py_ssize_t room_items
    TableC item_table
    SetC* sets
    Py_ssize_t num_sets
    Py_ssize_t room_sets
    TableC set_table
    int32_t* members        # item numbers of all sets, each set's in order
    Py_ssize_t num_members
    Py_ssize_t room_members
    int32_t* follows        # per set and class of bytes: the set that follows, NO_SET = not known
    Py_ssize_t room_follows
    int32_t* todo           # stacks whose closure is not made yet
    Py_ssize_t num_todo
    Py_ssize_t room_todo
    int32_t* set_items      # items of the set in the making
    Py_ssize_t num_set_items
    Py_ssize_t room_set_items
    bint set_ends           # the empty stack belongs to it
    uint32_t closure        # its number
    int64_t steps           # that may still be made
    size_t num_bytes        # of memory
    int problem             # of StacksProblem

cdef bint stacks_open(StacksC* s, const RulesC* rules) noexcept nogil
cdef int32_t stacks_start(StacksC* s) noexcept nogil
cdef int32_t stacks_follow(StacksC* s, int32_t number, uint8_t byte) noexcept nogil
cdef bint stacks_goes_on(StacksC* s, ItemC item) noexcept nogil
cdef int32_t stacks_follow_token(StacksC* s, int32_t number, int32_t token, int32_t beside) noexcept nogil
cdef int32_t stacks_shrink(StacksC* s, int32_t number) noexcept nogil
cdef void stacks_close(StacksC* s) noexcept nogil


cdef inline int32_t stacks_next(StacksC* s, int32_t number, uint8_t byte) noexcept nogil:
    """The set after a byte, DEAD_SET if there is none, NO_SET on a problem."""
    cdef int32_t follower = s.follows[number * s.rules.num_classes + s.rules.classes[byte]]
    return follower if follower != NO_SET else stacks_follow(s, number, byte)
