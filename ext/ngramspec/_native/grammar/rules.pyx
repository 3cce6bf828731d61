"""Rules: a grammar as flat arrays. StacksC: the sets of stacks that it can be in, made as they are met."""

cimport cython
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memset

from ngramspec._native.core.hash cimport CellsC, TableC, table_free, table_nbytes, table_put, table_reserve, table_side
from ngramspec._native.core.types cimport STATUS_OK, int32_t, uint32_t, uint64_t, uint8_t

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    EMPTY_STACK = 0
    MAX_BYTES = 1 << 26       # of one request's stacks; the usual grammar needs a few 100 KB


def _checked(object array, str name, Py_ssize_t least):
    """Return an array as int32 in one piece."""
    flat = np.ascontiguousarray(array, dtype=np.int32)
    if flat.ndim != 1 or flat.size < least:
        raise InputError(f"{name} must have one dimension and at least {least} entries")
    return flat


def _check_offsets(object offsets, str name, Py_ssize_t end):
    """Check that offsets rise from 0 to `end`."""
    if offsets[0] != 0 or offsets[offsets.size - 1] != end or np.any(np.diff(offsets) < 0):
        raise InputError(f"{name} must rise from 0 to {end}")


@cython.final
cdef class Rules:
    """Rules(kinds, values, rule_starts, starts, node_edges, edges): a grammar, rule 0 is its root.

    Args:
        kinds: int32, shape (n,): 0 the end of an alternative, 1 a rule, 2 a character, 3 a token,
            4 any other token.
        values: int32, shape (n,): the rule, the node, or the token id.
        rule_starts: int32, shape (rules + 1,): where the entries of each rule begin in starts.
        starts: int32, shape (s,): the element with which each alternative begins.
        node_edges: int32, shape (nodes + 1,): where the entries of each node begin in edges.
        edges: int32, shape (e, 3): lowest and highest byte, and the next node; -1 = the character is
            complete.

    Raises:
        InputError: The arrays do not fit together.

    Immutable, so threads may share it.
    """

    def __cinit__(self, kinds, values, rule_starts, starts, node_edges, edges):
        cdef const int32_t[::1] view
        arrays = [_checked(array, name, least) for array, name, least in (
            (kinds, "kinds", 1), (values, "values", 1), (rule_starts, "rule_starts", 2), (starts, "starts", 1),
            (node_edges, "node_edges", 1), (np.ravel(edges), "edges", 0))]
        kinds, values, rule_starts, starts, node_edges, edges = arrays
        if kinds.size != values.size or kinds[kinds.size - 1] != ELEMENT_END or edges.size % 3:
            raise InputError("kinds and values must be of one length, and end with the end of an alternative")
        self.num_elements = kinds.size
        _check_offsets(rule_starts, "rule_starts", starts.size)
        _check_offsets(node_edges, "node_edges", edges.size // 3)
        table = edges.reshape(-1, 3)
        limits = ((starts, kinds.size), (values[kinds == ELEMENT_RULE], rule_starts.size - 1),
                  (values[kinds == ELEMENT_CHAR], node_edges.size - 1), (table[:, :2].ravel(), 256),
                  (table[table[:, 2] >= 0, 2], node_edges.size - 1), (kinds, ELEMENT_NOT_TOKEN + 1))
        if any(np.any((array < 0) | (array >= limit)) for array, limit in limits):
            raise InputError("an entry refers to something that is not there")
        marks = np.zeros(257, dtype=np.int64)
        marks[table[:, 0]] = 1
        marks[table[:, 1] + 1] = 1
        marks[0] = 0
        classes = np.cumsum(marks[:256])
        self.c.num_classes = classes[255] + 1
        for byte in range(256):
            self.c.classes[byte] = classes[byte]
        if edges.size == 0:
            arrays[5] = np.zeros(3, dtype=np.int32)
        self.arrays = tuple(arrays)
        view = arrays[0]
        self.c.kinds = &view[0]
        view = arrays[1]
        self.c.values = &view[0]
        view = arrays[2]
        self.c.rule_starts = &view[0]
        view = arrays[3]
        self.c.starts = &view[0]
        view = arrays[4]
        self.c.node_edges = &view[0]
        view = arrays[5]
        self.c.edges = &view[0]


cdef bint _room(StacksC* s, void** memory, Py_ssize_t* room, Py_ssize_t needed, size_t size) noexcept nogil:
    """Make room for `wanted` entries."""
    cdef Py_ssize_t most = max(<Py_ssize_t>64, room[0])
    cdef void* moved
    if needed <= room[0]:
        return True
    while most < needed:
        most *= 2
    if s.num_bytes + <size_t>(most - room[0]) * size > MAX_BYTES:
        s.problem = STACKS_SLOW
        return False
    moved = realloc(memory[0], <size_t>most * size)
    if moved == NULL:
        s.problem = STACKS_NO_MEMORY
        return False
    s.num_bytes += <size_t>(most - room[0]) * size
    memory[0] = moved
    room[0] = most
    return True


cdef bint _room_in(StacksC* s, TableC* table, Py_ssize_t num_items) noexcept nogil:
    """Make room for one more item in a table."""
    cdef size_t before = table_nbytes(table)
    if table_reserve(table, num_items + 1, 1) != STATUS_OK:
        s.problem = STACKS_NO_MEMORY
        return False
    s.num_bytes += table_nbytes(table) - before
    return True


cdef inline uint32_t _mixed(uint64_t a, uint64_t b) noexcept nogil:
    cdef uint64_t h = (a * <uint64_t>0x9E3779B97F4A7C15u) ^ (b + <uint64_t>0x7F4A7C15u)
    h ^= h >> 29
    h *= <uint64_t>0xBF58476D1CE4E5B9u
    return <uint32_t>(h >> 32)


cdef int32_t _stack(StacksC* s, int32_t place, int32_t below) noexcept nogil:
    """The number of a stack; -1 on a problem."""
    cdef uint32_t hash = _mixed(<uint64_t>place, <uint64_t>below)
    cdef const CellsC* side
    cdef Py_ssize_t i
    cdef StackC* stack
    if not _room_in(s, &s.stack_table, s.num_stacks):
        return -1
    side = table_side(&s.stack_table, hash)
    i = hash >> side.shift
    while side.cells[i].item:
        stack = &s.stacks[side.cells[i].item - 1]
        if side.cells[i].hash == hash and stack.place == place and stack.below == below:
            return <int32_t>(side.cells[i].item - 1)
        i = (i + 1) & (side.capacity - 1)
    if not _room(s, <void**>&s.stacks, &s.room_stacks, s.num_stacks + 1, sizeof(StackC)):
        return -1
    stack = &s.stacks[s.num_stacks]
    stack.place, stack.below, stack.seen = place, below, 0
    table_put(&s.stack_table, hash, <uint32_t>s.num_stacks)
    s.num_stacks += 1
    return <int32_t>(s.num_stacks - 1)


cdef int32_t _item(StacksC* s, int32_t node, int32_t place, int32_t below) noexcept nogil:
    """The number of an item; -1 on a problem."""
    cdef uint32_t hash = _mixed((<uint64_t>(node + 1) << 32) + <uint64_t>place, <uint64_t>below)
    cdef const CellsC* side
    cdef Py_ssize_t i
    cdef ItemC* item
    if not _room_in(s, &s.item_table, s.num_items):
        return -1
    side = table_side(&s.item_table, hash)
    i = hash >> side.shift
    while side.cells[i].item:
        item = &s.items[side.cells[i].item - 1]
        if side.cells[i].hash == hash and item.node == node and item.place == place and item.below == below:
            return <int32_t>(side.cells[i].item - 1)
        i = (i + 1) & (side.capacity - 1)
    if not _room(s, <void**>&s.items, &s.room_items, s.num_items + 1, sizeof(ItemC)):
        return -1
    item = &s.items[s.num_items]
    item.node, item.place, item.below, item.seen = node, place, below, 0
    table_put(&s.item_table, hash, <uint32_t>s.num_items)
    s.num_items += 1
    return <int32_t>(s.num_items - 1)


cdef void _leave_ends(StacksC* s, int32_t* place, int32_t* below) noexcept nogil:
    """Go up from the ends of alternatives, so that what is still to come is written in one way only."""
    while s.rules.kinds[place[0]] == ELEMENT_END and below[0] != EMPTY_STACK:
        place[0] = s.stacks[below[0]].place
        below[0] = s.stacks[below[0]].below


cdef void _add(StacksC* s, int32_t node, int32_t place, int32_t below) noexcept nogil:
    """Add an item to the set in the making."""
    cdef int32_t number
    _leave_ends(s, &place, &below)
    number = _item(s, node, place, below)
    if number < 0 or s.items[number].seen == s.closure:
        return
    if _room(s, <void**>&s.set_items, &s.room_set_items, s.num_set_items + 1, sizeof(int32_t)):
        s.items[number].seen = s.closure
        s.set_items[s.num_set_items] = number
        s.num_set_items += 1


cdef void _reach(StacksC* s, int32_t place, int32_t below) noexcept nogil:
    """Note that a stack belongs to the closure."""
    cdef int32_t number
    _leave_ends(s, &place, &below)
    if s.rules.kinds[place] == ELEMENT_END:
        s.set_ends = True
        return
    number = _stack(s, place, below)
    if number < 0 or s.stacks[number].seen == s.closure:
        return
    if _room(s, <void**>&s.todo, &s.room_todo, s.num_todo + 1, sizeof(int32_t)):
        s.stacks[number].seen = s.closure
        s.todo[s.num_todo] = number
        s.num_todo += 1


cdef void _close(StacksC* s) noexcept nogil:
    """Replace rules by their alternatives until every stack begins with a character or a token."""
    cdef const RulesC* r = s.rules
    cdef int32_t place, below, i
    while s.num_todo and not s.problem:
        if not _step(s):
            return
        s.num_todo -= 1
        place = s.stacks[s.todo[s.num_todo]].place
        below = s.stacks[s.todo[s.num_todo]].below
        if r.kinds[place] == ELEMENT_CHAR:
            _add(s, r.values[place], place + 1, below)
        elif r.kinds[place] == ELEMENT_RULE:
            # What ends with a rule needs no stack of its own: a text may go on for ever that way.
            if r.kinds[place + 1] != ELEMENT_END:
                below = _stack(s, place + 1, below)
            for i in range(r.rule_starts[r.values[place]], r.rule_starts[r.values[place] + 1]):
                if not _step(s):
                    return
                _reach(s, r.starts[i], below)
        else:
            _add(s, NO_NODE, place, below)


cdef bint _step(StacksC* s) noexcept nogil:
    """Count a step; False when there were too many."""
    s.steps -= 1
    if s.steps < 0:
        s.problem = STACKS_SLOW
    return s.problem == STACKS_WELL


cdef void _begin(StacksC* s) noexcept nogil:
    """Begin a set."""
    s.num_set_items = 0
    s.num_todo = 0
    s.set_ends = False
    s.closure += 1


cdef int _order(const void* a, const void* b) noexcept nogil:
    cdef int32_t x = (<const int32_t*>a)[0]
    cdef int32_t y = (<const int32_t*>b)[0]
    return (x > y) - (x < y)


cdef int32_t _end(StacksC* s) noexcept nogil:
    """The number of the set that was made; NO_SET on a problem."""
    cdef uint32_t hash = 1 if s.set_ends else 2
    cdef const CellsC* side
    cdef Py_ssize_t i
    cdef SetC* one
    if s.problem:
        return NO_SET
    if s.num_set_items == 0 and not s.set_ends:
        return DEAD_SET
    if s.num_set_items:
        qsort(s.set_items, <size_t>s.num_set_items, sizeof(int32_t), _order)
    for i in range(s.num_set_items):
        hash = _mixed(hash, <uint64_t>s.set_items[i])
    if not _room_in(s, &s.set_table, s.num_sets):
        return NO_SET
    side = table_side(&s.set_table, hash)
    i = hash >> side.shift
    while side.cells[i].item:
        one = &s.sets[side.cells[i].item - 1]
        if (side.cells[i].hash == hash and one.count == s.num_set_items and one.ends == s.set_ends and
                (one.count == 0 or
                 memcmp(s.members + one.first, s.set_items, <size_t>one.count * sizeof(int32_t)) == 0)):
            return <int32_t>(side.cells[i].item - 1)
        i = (i + 1) & (side.capacity - 1)
    if not _new_set(s):
        return NO_SET
    s.sets[s.num_sets - 1].hash = hash
    table_put(&s.set_table, hash, <uint32_t>(s.num_sets - 1))
    return <int32_t>(s.num_sets - 1)


cdef bint _new_set(StacksC* s) noexcept nogil:
    """Keep what was found as a new set."""
    cdef Py_ssize_t i, row = s.num_sets * s.rules.num_classes
    cdef SetC* one
    if not (_room(s, <void**>&s.sets, &s.room_sets, s.num_sets + 1, sizeof(SetC))
            and _room(s, <void**>&s.members, &s.room_members, s.num_members + s.num_set_items, sizeof(int32_t))
            and _room(s, <void**>&s.follows, &s.room_follows, row + s.rules.num_classes, sizeof(int32_t))):
        return False
    one = &s.sets[s.num_sets]
    one.first, one.count, one.ends, one.mask = s.num_members, s.num_set_items, s.set_ends, NULL
    for i in range(s.num_set_items):
        s.members[s.num_members + i] = s.set_items[i]
    for i in range(s.rules.num_classes):
        s.follows[row + i] = NO_SET
    s.num_members += s.num_set_items
    s.num_sets += 1
    return True


cdef bint stacks_open(StacksC* s, const RulesC* rules) noexcept nogil:
    """Make room for a grammar's sets; its memory must be zero before. False on a problem."""
    cdef Py_ssize_t i
    s.rules = rules
    if not _room(s, <void**>&s.stacks, &s.room_stacks, 1, sizeof(StackC)):
        return False
    s.stacks[0].place = s.stacks[0].below = -1
    s.stacks[0].seen = 0
    s.num_stacks = 1
    if not _new_set(s):
        return False
    for i in range(rules.num_classes):
        s.follows[i] = DEAD_SET
    return True


cdef int32_t stacks_start(StacksC* s) noexcept nogil:
    """The set before the first character; NO_SET on a problem."""
    cdef int32_t i
    _begin(s)
    for i in range(s.rules.rule_starts[0], s.rules.rule_starts[1]):
        if _step(s):
            _reach(s, s.rules.starts[i], EMPTY_STACK)
    _close(s)
    return _end(s)


cdef int32_t stacks_follow(StacksC* s, int32_t number, uint8_t byte) noexcept nogil:
    """Make the set after a byte and remember it; NO_SET on a problem."""
    cdef const int32_t* edge
    cdef Py_ssize_t i, e
    cdef ItemC item
    cdef int32_t follower
    if s.problem:
        return NO_SET
    _begin(s)
    for i in range(s.sets[number].count):
        item = s.items[s.members[s.sets[number].first + i]]
        if not _step(s):
            return NO_SET
        if item.node == NO_NODE:
            continue
        for e in range(s.rules.node_edges[item.node], s.rules.node_edges[item.node + 1]):
            edge = s.rules.edges + 3 * e
            s.steps -= 1
            if not edge[0] <= byte <= edge[1]:
                continue
            if edge[2] >= 0:
                _add(s, edge[2], item.place, item.below)
            else:
                _reach(s, item.place, item.below)
    _close(s)
    follower = _end(s)
    if follower != NO_SET:
        s.follows[number * s.rules.num_classes + s.rules.classes[byte]] = follower
    return follower


cdef bint stacks_goes_on(StacksC* s, ItemC item) noexcept nogil:
    """Whether anything may follow the token that an item asks for: not if a rule after it never begins."""
    _begin(s)
    _reach(s, item.place + 1, item.below)
    _close(s)
    return not s.problem and (s.num_set_items > 0 or s.set_ends)


cdef int32_t stacks_follow_token(StacksC* s, int32_t number, int32_t token, int32_t beside) noexcept nogil:
    """The set after a token that a rule asks for by its id, joined with the set `beside`; NO_SET on a problem."""
    cdef Py_ssize_t i
    cdef ItemC item
    _begin(s)
    for i in range(s.sets[number].count):
        item = s.items[s.members[s.sets[number].first + i]]
        if not _step(s):
            return NO_SET
        if item.node == NO_NODE and (s.rules.kinds[item.place] == ELEMENT_TOKEN) == (s.rules.values[item.place] == token):
            _reach(s, item.place + 1, item.below)
    _close(s)
    for i in range(s.sets[beside].count):
        item = s.items[s.members[s.sets[beside].first + i]]
        _add(s, item.node, item.place, item.below)
    s.set_ends |= s.sets[beside].ends
    return _end(s)


cdef int32_t _copied(StacksC* to, StacksC* s, int32_t stack) noexcept nogil:
    """The number of one of another's stacks; -1 on a problem."""
    cdef Py_ssize_t depth = 0
    cdef int32_t copy = EMPTY_STACK
    while stack != EMPTY_STACK:
        if not _room(to, <void**>&to.todo, &to.room_todo, depth + 1, sizeof(int32_t)):
            return -1
        to.todo[depth] = s.stacks[stack].place
        stack = s.stacks[stack].below
        depth += 1
    to.steps -= depth
    if to.steps < 0:
        to.problem = STACKS_SLOW
        return -1
    while depth and copy >= 0:
        depth -= 1
        copy = _stack(to, to.todo[depth], copy)
    return copy


cdef int32_t stacks_shrink(StacksC* s, int32_t number) noexcept nogil:
    """Forget all but one set; return its new number, NO_SET on a problem. Cost: its stacks times their depth."""
    cdef StacksC fresh
    cdef Py_ssize_t i
    cdef ItemC item
    cdef int32_t below, fresh_number = NO_SET
    memset(&fresh, 0, sizeof(StacksC))
    fresh.steps = s.steps
    if stacks_open(&fresh, s.rules):
        _begin(&fresh)
        for i in range(s.sets[number].count):
            item = s.items[s.members[s.sets[number].first + i]]
            below = _copied(&fresh, s, item.below)
            if below < 0:
                break
            _add(&fresh, item.node, item.place, below)
        fresh.set_ends = s.sets[number].ends
        fresh_number = _end(&fresh)
    stacks_close(s)
    s[0] = fresh
    return fresh_number


cdef void stacks_close(StacksC* s) noexcept nogil:
    """Free everything."""
    cdef Py_ssize_t i
    for i in range(s.num_sets):
        free(s.sets[i].mask)
    table_free(&s.stack_table)
    table_free(&s.item_table)
    table_free(&s.set_table)
    free(s.stacks)
    free(s.items)
    free(s.sets)
    free(s.members)
    free(s.follows)
    free(s.todo)
    free(s.set_items)
    memset(s, 0, sizeof(StacksC))
