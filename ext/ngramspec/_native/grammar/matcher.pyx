"""Tokens: the texts of a vocabulary as a tree. Matcher: where one text is in a grammar, and which tokens may come next."""

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._native.grammar.constraint cimport Constraint
from ngramspec._native.grammar.rules cimport (
    DEAD_SET, ELEMENT_TOKEN, NO_NODE, NO_SET, STACKS_NO_MEMORY, STACKS_SLOW, STACKS_WELL, ItemC, SetC, stacks_close,
    stacks_follow_token, stacks_goes_on, stacks_next, stacks_open, stacks_shrink, stacks_start,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    MAX_STEPS = 1 << 20     # for one token: some 50 ms; usual grammars make a few thousand
    KEPT_BYTES = 1 << 22    # sets are kept up to here
    REST_BYTES = 1 << 16    # a larger beginning is made when it is asked for: many texts may wait for their turn
    DRAFT_STEPS = 1 << 13   # for a draft: what is not found out by then may fit
    UNKNOWN_SET = -2        # after a token of a draft that may fit

cdef int64_t NOBODY = <int64_t>1 << 40      # beyond the ids that rules may name
cdef int64_t ALL_TOKENS = <int64_t>1 << 41


@cython.final
cdef class Tokens:
    """Tokens(texts, ends): the texts of a vocabulary, for grammars.

    Args:
        texts: bytes per token. Tokens with an empty text, or with a NUL in it, have none for grammars.
        ends: Per token, whether it ends a generation; its text does not count.

    Raises:
        InputError: There is no token, or `ends` has another length.

    Cost: sorts the texts; some 20 bytes per byte of them.
    Immutable, so threads may share it.
    """

    def __cinit__(self, texts, ends):
        cdef Py_ssize_t size = len(texts), total = sum(map(len, texts))
        cdef int32_t[::1] depths = np.empty(total + 1, np.int32), skips = np.empty(total + 1, np.int32)
        cdef int32_t[::1] firsts = np.empty(total + 1, np.int32), others = np.full(max(1, size), -1, np.int32)
        cdef int32_t[::1] offsets = np.zeros(size + 1, np.int32)
        cdef uint8_t[::1] letters = np.empty(total + 1, np.uint8)
        cdef const uint8_t[::1] joined = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
        cdef const uint8_t[::1] flags = np.frombuffer(bytes(map(bool, ends)) + b"\0", np.uint8)
        cdef int32_t[::1] path  # the node at each depth
        cdef Py_ssize_t n = 0, depth = 0, same, i, token
        cdef bytes text, before = b""
        if not size or flags.shape[0] != size + 1:
            raise InputError(f"ends must have one entry for each of at least one token, got {flags.shape[0] - 1} "
                             f"for {size}")
        np.cumsum(list(map(len, texts)), out=np.asarray(offsets)[1:])
        self.c.deepest = max(map(len, texts))
        path = np.empty(self.c.deepest + 1, np.int32)
        for token in sorted(range(size), key=texts.__getitem__):
            text = texts[token]
            if not text or flags[token] or 0 in text:
                continue
            same = 0
            while same < len(text) and same < len(before) and text[same] == before[same]:
                same += 1
            for i in range(same + 1, depth + 1):
                skips[path[i]] = <int32_t>n
            for depth in range(same + 1, len(text) + 1):
                letters[n], depths[n], firsts[n] = text[depth - 1], <int32_t>depth, -1
                path[depth] = <int32_t>n
                n += 1
            depth = len(text)
            others[token] = firsts[path[depth]]
            firsts[path[depth]] = <int32_t>token
            before = text
        for i in range(1, depth + 1):
            skips[path[i]] = <int32_t>n
        self.arrays = (letters, depths, skips, firsts, others, offsets, joined, flags)
        self.c.bytes, self.c.depths, self.c.skips, self.c.firsts = &letters[0], &depths[0], &skips[0], &firsts[0]
        self.c.others, self.c.offsets, self.c.texts, self.c.ends = &others[0], &offsets[0], &joined[0], &flags[0]
        self.c.num_nodes, self.c.vocab_size = n, size

    def __len__(self):
        return self.c.vocab_size


cdef int32_t _after(MatcherC* m, token_t token) noexcept nogil:
    """The set after a token's text, DEAD_SET if it does not fit or has no text, NO_SET on a problem."""
    cdef const TokensTreeC* t = m.tokens
    cdef int32_t number = m.now if t.offsets[token] < t.offsets[token + 1] else DEAD_SET
    cdef int32_t i
    for i in range(t.offsets[token], t.offsets[token + 1]):
        if number == NO_SET or t.texts[i] == 0:
            return NO_SET if number == NO_SET else DEAD_SET
        number = stacks_next(&m.stacks, number, t.texts[i])
    return number


cdef bint _is_asked_for(MatcherC* m, token_t token) noexcept nogil:
    """Whether a rule asks for this token by its id, or for any other than another one."""
    cdef Py_ssize_t first = m.stacks.sets[m.now].first
    cdef ItemC item
    cdef Py_ssize_t i
    for i in range(m.stacks.sets[m.now].count):
        item = m.stacks.items[m.stacks.members[first + i]]
        if item.node == NO_NODE and ((m.stacks.rules.kinds[item.place] == ELEMENT_TOKEN)
                                     == (m.stacks.rules.values[item.place] == token)):
            if stacks_goes_on(&m.stacks, item):
                return True
    return False


cdef bint _begun(MatcherC* m) noexcept nogil:
    """Be before the first character if that is not made yet; False on a problem."""
    if m.stacks.rules == NULL:
        m.stacks.steps = MAX_STEPS
        if stacks_open(&m.stacks, m.rules):
            m.now = stacks_start(&m.stacks)
    return m.stacks.problem == STACKS_WELL


cdef bint matcher_allows(MatcherC* m, token_t token) noexcept nogil:
    """Whether a token may come next; False also on a problem."""
    if not _begun(m):
        return False
    if m.tokens.ends[token]:
        return m.stacks.sets[m.now].ends
    m.stacks.steps = MAX_STEPS
    return _after(m, token) > DEAD_SET or (not m.stacks.problem and _is_asked_for(m, token))


cdef void _mark_texts(MatcherC* m, uint64_t* mask) noexcept nogil:
    """Mark the tokens whose text fits."""
    cdef const TokensTreeC* t = m.tokens
    cdef Py_ssize_t node = 0
    cdef int32_t number, token
    m.path[0] = m.now
    while node < t.num_nodes:
        number = stacks_next(&m.stacks, m.path[t.depths[node] - 1], t.bytes[node])
        if number == NO_SET:
            return
        if number == DEAD_SET:
            node = t.skips[node]
            continue
        m.path[t.depths[node]] = number
        token = t.firsts[node]
        while token >= 0:
            mask[token >> 6] |= <uint64_t>1 << (token & 63)
            token = t.others[token]
        node += 1


cdef void _mark_asked_for(MatcherC* m, uint64_t* mask) noexcept nogil:
    """Mark the tokens that rules ask for by their ids, and the end tokens. Cost: O(members + vocabulary)."""
    cdef SetC one = m.stacks.sets[m.now]
    cdef ItemC item
    cdef int64_t excepted = NOBODY   # the only token that is not asked for
    cdef Py_ssize_t i, token
    for i in range(one.count):
        item = m.stacks.items[m.stacks.members[one.first + i]]
        if item.node != NO_NODE or not stacks_goes_on(&m.stacks, item):
            continue
        token = m.stacks.rules.values[item.place]
        if m.stacks.rules.kinds[item.place] != ELEMENT_TOKEN:
            # Two rules for any token but another one together ask for all.
            excepted = token if excepted == NOBODY or excepted == token else ALL_TOKENS
        elif 0 <= token < m.tokens.vocab_size:
            mask[token >> 6] |= <uint64_t>1 << (token & 63)
    for token in range(m.tokens.vocab_size):
        if m.tokens.ends[token]:
            mask[token >> 6] &= ~(<uint64_t>1 << (token & 63))
        if one.ends if m.tokens.ends[token] else excepted != NOBODY and token != excepted:
            mask[token >> 6] |= <uint64_t>1 << (token & 63)


cdef const uint64_t* matcher_mask(MatcherC* m) noexcept nogil:
    """A bit per token that may come next, until the next call; NULL on a problem.

    Cost: one step per byte of the vocabulary's tree that fits; nothing where the text was in the same set before.
    """
    cdef size_t num_bytes = <size_t>num_words(m.tokens) * sizeof(uint64_t)
    cdef uint64_t* mask
    if not _begun(m):
        return NULL
    if m.stacks.sets[m.now].mask != NULL:
        return m.stacks.sets[m.now].mask
    if not _make_room(m):
        return NULL
    mask = <uint64_t*>calloc(1, num_bytes)
    if mask == NULL:
        m.stacks.problem = STACKS_NO_MEMORY
        return NULL
    m.stacks.steps = MAX_STEPS
    _mark_texts(m, mask)
    _mark_asked_for(m, mask)
    if m.stacks.problem:
        free(mask)
        return NULL
    m.stacks.num_bytes += num_bytes
    m.stacks.sets[m.now].mask = mask
    return mask


cdef bint _make_room(MatcherC* m) noexcept nogil:
    """Forget the sets that the text has passed if they take too much memory."""
    if m.stacks.num_bytes <= m.most_bytes:
        return True
    m.stacks.steps = MAX_STEPS
    m.now = stacks_shrink(&m.stacks, m.now)
    m.most_bytes = max(<size_t>KEPT_BYTES, 4 * m.stacks.num_bytes)
    return m.now != NO_SET


cdef bint matcher_accept(MatcherC* m, token_t token) noexcept nogil:
    """Go on by a token; False, and nothing changes, if it is not allowed or on a problem."""
    cdef int32_t number
    if not _begun(m) or not _make_room(m):
        return False
    if m.tokens.ends[token]:
        return m.stacks.sets[m.now].ends
    m.stacks.steps = MAX_STEPS
    number = _after(m, token)
    if number != NO_SET and _is_asked_for(m, token):
        number = stacks_follow_token(&m.stacks, m.now, token, number)
    if number <= DEAD_SET:
        return False
    m.now = number
    return True


cdef int32_t _after_drafted(MatcherC* m, token_t token) noexcept nogil:
    """The set after a drafted token, DEAD_SET if it does not fit, UNKNOWN_SET if that takes too long to find out."""
    cdef int32_t number
    if m.tokens.ends[token]:
        return UNKNOWN_SET if m.stacks.sets[m.now].ends else DEAD_SET
    number = _after(m, token)
    if number != NO_SET and _is_asked_for(m, token):
        number = stacks_follow_token(&m.stacks, m.now, token, number)
    return UNKNOWN_SET if number == NO_SET or m.stacks.problem else number


cdef void matcher_fits(MatcherC* m, const token_t* draft, const int32_t* parents, Py_ssize_t n,
                       int32_t* fits) noexcept nogil:
    """Cost: at most DRAFT_STEPS steps, whatever the grammar. What the text needs later may be remembered."""
    cdef int32_t now, parent
    cdef Py_ssize_t i
    if _begun(m):
        now = m.now
        m.stacks.steps = DRAFT_STEPS
        for i in range(n):
            parent = parents[i] if parents != NULL else <int32_t>(i - 1)
            m.now = fits[parent] if parent >= 0 else now
            if m.now <= DEAD_SET or m.stacks.problem or m.stacks.num_bytes > m.most_bytes:
                fits[i] = DEAD_SET if m.now == DEAD_SET else UNKNOWN_SET
            else:
                fits[i] = _after_drafted(m, draft[i])
        m.now = now
        m.stacks.problem = STACKS_WELL  # nothing was half made: a draft must not end a text
        for i in range(n):
            fits[i] = fits[i] != DEAD_SET
    else:
        for i in range(n):
            fits[i] = 1


cdef bint _allows(void* state, token_t token) noexcept nogil:
    return matcher_allows(<MatcherC*>state, token)


cdef const uint64_t* _mask(void* state) noexcept nogil:
    return matcher_mask(<MatcherC*>state)


cdef bint _accept(void* state, token_t token) noexcept nogil:
    return matcher_accept(<MatcherC*>state, token)


cdef void _fits(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil:
    matcher_fits(<MatcherC*>state, draft, parents, n, fits)


@cython.final
cdef class Matcher(Constraint):
    """Matcher(rules, tokens): follows a text in a grammar of GBNF, token by token.

    All ways to read the text are followed at once, and what follows is remembered, so neither
    ambiguity nor nesting makes a token's cost grow without bound.

    Args:
        rules: The grammar.
        tokens: The vocabulary.

    Raises:
        InputError: The grammar has too many ways to begin.
        MemoryError: No room.

    A draft is followed for 8192 steps at most. Memory: at most 64 KB until it is first asked, then up to
    4 MB in usual grammars, never above 64 MB.
    """

    def __cinit__(self, Rules rules not None, Tokens tokens not None):
        self.rules, self.tokens = rules, tokens
        self.m.tokens = &tokens.c
        self.m.rules = &rules.c
        self.m.most_bytes = KEPT_BYTES
        self.m.path = <int32_t*>self.take(tokens.c.deepest + 1, sizeof(int32_t))
        with nogil:
            _begun(&self.m)
        if self.m.stacks.problem == STACKS_SLOW:
            raise InputError("the grammar has too many ways to begin")
        if self.m.stacks.problem:
            raise MemoryError("no memory for a grammar")
        if self.m.stacks.num_bytes > REST_BYTES:
            stacks_close(&self.m.stacks)
        self.c.state = &self.m
        self.c.vocab_size = tokens.c.vocab_size
        self.c.allows, self.c.mask, self.c.accept, self.c.fits = _allows, _mask, _accept, _fits

    def __dealloc__(self):
        stacks_close(&self.m.stacks)

    @property
    def problem(self):
        """Return why it goes no further, "" without a problem."""
        if self.m.stacks.problem == STACKS_NO_MEMORY:
            return "no memory for the grammar"
        return "the grammar is too ambiguous: too many ways to go on" if self.m.stacks.problem else ""

    @property
    def may_end(self):
        """Return whether the grammar may end here."""
        return bool(_begun(&self.m) and self.m.stacks.sets[self.m.now].ends)

    @property
    def nbytes(self):
        """Return the bytes of what it remembers."""
        return self.m.stacks.num_bytes
