# distutils: language = c++
"""GuidanceTokens: a vocabulary as llguidance wants it. GuidanceMatcher: where one text is in a grammar of its Lark."""

cimport cython
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t, uint32_t, uint64_t, uint8_t
from ngramspec._native.grammar.constraint cimport Constraint
from ngramspec._native.grammar.matcher cimport Tokens

import numpy as np

from ngramspec.errors import BackendError, InputError

cdef enum:
    MOST_WRITTEN = 1 << 12  # bytes of forced text that are made tokens at once
    ERROR_BYTES = 256

NAMES = (
    "llg_new_tokenizer_v2", "llg_free_tokenizer", "llg_new_matcher", "llg_clone_matcher", "llg_free_matcher",
    "llg_matcher_get_error", "llg_matcher_is_accepting", "llg_matcher_compute_mask_into",
    "llg_matcher_get_mask_byte_size", "llg_matcher_consume_token", "llg_matcher_validate_tokens",
    "llg_matcher_compute_ff_tokens",
)


cdef void* _function(addresses, str name) except NULL:
    address = addresses.get(name)
    if not address:
        raise BackendError(f"llguidance has no function {name}")
    return <void*><uintptr_t>address


cdef size_t _write(const void* user, const uint8_t* text, size_t size, uint32_t* out, size_t room) noexcept nogil:
    """Write the tokens of a text; return how many there are, which may be more than there is room for."""
    cdef const SpellingC* w = <const SpellingC*>user
    cdef int32_t num_bytes = <int32_t>min(size, <size_t>MOST_WRITTEN)
    cdef int32_t limit = <int32_t>min(room, <size_t>MOST_WRITTEN)
    cdef int32_t count, i
    if w.closed:
        return 0
    # A mark is one token, but no text ends a generation.
    count = ngs_tokenize(w.tokenize, w.vocab, text, num_bytes, <int32_t*>out, limit, True)
    for i in range(count):
        if 0 <= <int32_t>out[i] < w.vocab_size and w.ends[out[i]]:
            count = ngs_tokenize(w.tokenize, w.vocab, text, num_bytes, <int32_t*>out, limit, False)
            break
    return <size_t>(count if count >= 0 else -count)


@cython.final
cdef class GuidanceTokens(Owner):
    """GuidanceTokens(tokens, library, addresses, tokenize=0, vocab=0): a vocabulary for grammars of llguidance.

    Args:
        tokens: The vocabulary. Special tokens count by their texts; those that end a generation have none.
        library: What keeps llguidance loaded.
        addresses: Addresses of its functions, by the names of NAMES.
        tokenize: Address of llama_tokenize where the vocabulary writes every text in the same tokens, wherever it
            stands; 0: forced text is not known as tokens.
        vocab: Address of its llama_vocab.

    Raises:
        BackendError: llguidance lacks a function, or does not take the vocabulary.

    Cost: some 100 ms for 150,000 tokens, without the GIL.
    Immutable but for close, so threads may share it.
    """

    def __cinit__(self, Tokens tokens not None, library, addresses, uintptr_t tokenize=0, uintptr_t vocab=0):
        cdef ngs_llg_tokenizer_init init
        cdef char error[ERROR_BYTES]
        cdef GuidanceC* c = &self.calls
        cdef Py_ssize_t size = tokens.c.vocab_size
        cdef uint32_t[::1] lens = np.diff(tokens.arrays[5]).astype(np.uint32)
        cdef const uint8_t[::1] texts = tokens.arrays[6]
        ends = np.flatnonzero(np.asarray(tokens.arrays[7])[:size]).astype(np.uint32)
        cdef const uint32_t[::1] others = np.append(ends[1:], np.uint32(0))
        self.tokens, self.library = tokens, library
        c.new_tokenizer = <void* (*)(const ngs_llg_tokenizer_init*, char*, size_t) noexcept nogil>_function(
            addresses, "llg_new_tokenizer_v2")
        c.free_tokenizer = <void (*)(void*) noexcept nogil>_function(addresses, "llg_free_tokenizer")
        c.new_matcher = <void* (*)(const ngs_llg_init*, const char*, const char*) noexcept nogil>_function(
            addresses, "llg_new_matcher")
        c.clone_matcher = <void* (*)(const void*) noexcept nogil>_function(addresses, "llg_clone_matcher")
        c.free_matcher = <void (*)(void*) noexcept nogil>_function(addresses, "llg_free_matcher")
        c.get_error = <const char* (*)(void*) noexcept nogil>_function(addresses, "llg_matcher_get_error")
        c.is_accepting = <cbool (*)(void*) noexcept nogil>_function(addresses, "llg_matcher_is_accepting")
        c.compute_mask = <int32_t (*)(void*, uint32_t*, size_t) noexcept nogil>_function(
            addresses, "llg_matcher_compute_mask_into")
        c.mask_bytes = <size_t (*)(const void*) noexcept nogil>_function(addresses, "llg_matcher_get_mask_byte_size")
        c.consume = <int32_t (*)(void*, uint32_t) noexcept nogil>_function(addresses, "llg_matcher_consume_token")
        c.validate = <int32_t (*)(void*, const uint32_t*, size_t) noexcept nogil>_function(
            addresses, "llg_matcher_validate_tokens")
        c.forced = <int32_t (*)(void*, uint32_t*, size_t) noexcept nogil>_function(
            addresses, "llg_matcher_compute_ff_tokens")
        self.writer = SpellingC(<ngs_tokenize_fn>tokenize, <const void*>vocab, tokens.c.ends, size, False)
        texts, lens = _without_ends(texts, lens, ends)
        memset(&init, 0, sizeof(init))
        init.struct_size = sizeof(init)
        init.vocab_size = <uint32_t>lens.shape[0]
        init.tok_eos = ends[0] if len(ends) else <uint32_t>size
        init.token_lens, init.token_bytes = &lens[0], &texts[0]
        init.tokenize_assumes_string = tokenize != 0
        if tokenize:
            init.tokenize_fn = _write
        init.use_approximate_greedy_tokenize_fn = tokenize == 0
        init.tokenize_user_data = &self.writer
        init.tok_eos_extra = &others[0]
        init.tok_eos_extra_count = <uint32_t>max(0, len(ends) - 1)
        with nogil:
            self.tokenizer = c.new_tokenizer(&init, error, ERROR_BYTES)
        if self.tokenizer == NULL:
            raise BackendError(f"llguidance does not take the vocabulary: {(<bytes>error).decode('utf-8', 'replace')}")

    def __dealloc__(self):
        if self.tokenizer != NULL:
            self.calls.free_tokenizer(self.tokenizer)

    def close(self):
        """Make no more tokens of texts, because the llama_vocab is about to be freed."""
        self.writer.closed = True


def _without_ends(texts, lens, ends):
    """Return the texts and their lengths, with names in place of those of end tokens, which no text must match.

    llguidance needs an end token: where there is none, one more is added, which the mask does not show.
    """
    texts, lens = np.asarray(texts), np.array(lens)
    starts = [0, *np.cumsum(lens).tolist()]
    parts, at = [], 0
    for end in ends.tolist():
        name = b"\xff<[end-%d]>" % end
        parts += [texts[at:starts[end]], np.frombuffer(name, np.uint8)]
        at, lens[end] = starts[end + 1], len(name)
    parts.append(texts[at:starts[len(lens)]])
    if not len(ends):
        name = b"\xff<[end]>"
        parts.append(np.frombuffer(name, np.uint8))
        lens = np.append(lens, np.uint32(len(name)))
    return np.concatenate(parts), lens


cdef bint _may_end(GuidanceMatcherC* m) noexcept nogil:
    return m.calls.is_accepting(m.matcher)


cdef bint _allows(void* state, token_t token) noexcept nogil:
    cdef GuidanceMatcherC* m = <GuidanceMatcherC*>state
    cdef uint32_t one = <uint32_t>token
    if m.tokens.ends[token]:
        return _may_end(m)
    if m.calls.validate(m.matcher, &one, 1) != 1:
        return False
    m.allowed = token
    return True


cdef const uint64_t* _mask(void* state) noexcept nogil:
    cdef GuidanceMatcherC* m = <GuidanceMatcherC*>state
    return m.mask if m.calls.compute_mask(m.matcher, <uint32_t*>m.mask, m.mask_bytes) == 0 else NULL


cdef bint _accept(void* state, token_t token) noexcept nogil:
    cdef GuidanceMatcherC* m = <GuidanceMatcherC*>state
    if m.tokens.ends[token]:
        return _may_end(m)
    if m.allowed != token and not _allows(state, token):  # llguidance would go no further
        return False
    m.allowed = -1
    return m.calls.consume(m.matcher, <uint32_t>token) == 0


cdef bint _room(GuidanceMatcherC* m, Py_ssize_t n) noexcept nogil:
    cdef void* memory
    if n <= m.room:
        return True
    memory = realloc(m.path, <size_t>n * (sizeof(uint32_t) + sizeof(int32_t)))
    if memory == NULL:
        return False
    m.path, m.room = <uint32_t*>memory, n
    m.places = <int32_t*>(m.path + n)
    return True


cdef Py_ssize_t _follow(GuidanceMatcherC* m, const token_t* draft, const int32_t* parents, Py_ssize_t leaf) noexcept nogil:
    """Set the tokens from the text to a leaf; return their number, up to the first that ends a generation."""
    cdef Py_ssize_t n = 0, at = leaf, i
    while at >= 0:
        m.places[n] = <int32_t>at
        n += 1
        at = parents[at] if parents != NULL else at - 1
    for i in range(n // 2):
        m.places[i], m.places[n - 1 - i] = m.places[n - 1 - i], m.places[i]
    for i in range(n):
        if m.tokens.ends[draft[m.places[i]]]:
            return i
        m.path[i] = <uint32_t>draft[m.places[i]]
    return n


cdef void _fits(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil:
    """An end token counts as one that may come: whether the text may end there is found out when it is chosen."""
    cdef GuidanceMatcherC* m = <GuidanceMatcherC*>state
    cdef Py_ssize_t leaf, i, length
    cdef int32_t count
    cdef bint have_room = _room(m, n)
    for i in range(n):
        fits[i] = not have_room
    if not have_room:
        return
    for leaf in range(n):
        fits[leaf] = 2      # a leaf until another token comes after it
        if (parents[leaf] if parents != NULL else leaf - 1) >= 0:
            fits[parents[leaf] if parents != NULL else leaf - 1] = 0
    for leaf in range(n):
        if fits[leaf] != 2:
            continue
        fits[leaf] = 0
        length = _follow(m, draft, parents, leaf)
        count = m.calls.validate(m.matcher, m.path, <size_t>length) if length else 0
        for i in range(count):
            fits[m.places[i]] = 1
        if count == length and length < n and (length == 0 or m.places[length - 1] != leaf):
            fits[m.places[length]] = 1 if length or _may_end(m) else 0


cdef Py_ssize_t _forced(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    cdef GuidanceMatcherC* m = <GuidanceMatcherC*>state
    cdef int32_t count = m.calls.forced(m.matcher, <uint32_t*>out, <size_t>limit)
    if count > 0:
        count = m.calls.validate(m.matcher, <const uint32_t*>out, <size_t>min(<Py_ssize_t>count, limit))
    return max(<Py_ssize_t>count, <Py_ssize_t>0)


@cython.final
cdef class GuidanceMatcher(Constraint):
    """GuidanceMatcher(tokens, lark, limits): follows a text in a grammar of llguidance's Lark, token by token.

    Args:
        tokens: The vocabulary.
        lark: The grammar, within the bounds that llguidance needs: ngramspec.text.grammar checks them.
        limits: What following it may take, by the names of llguidance's LLParserLimits.

    Raises:
        InputError: llguidance does not take the grammar; says why in its words.
        MemoryError: No room.

    Releases the GIL while the grammar is read. A text that takes more than its limits ends with a problem.
    """

    def __cinit__(self, GuidanceTokens tokens not None, str lark, limits, GuidanceMatcher of=None):
        cdef ngs_llg_init init
        cdef bytes text
        cdef const char* chars
        self.tokens = tokens
        self.m.calls, self.m.tokens, self.m.allowed = &tokens.calls, &tokens.tokens.c, -1
        if of is not None:
            self.m.matcher = tokens.calls.clone_matcher(of.m.matcher)
        else:
            text = lark.encode()
            if b"\0" in text:
                raise InputError("a grammar must not hold a NUL character")
            chars = text
            memset(&init, 0, sizeof(init))
            init.tokenizer = tokens.tokenizer
            init.limits = ngs_llg_limits(
                limits["max_items_in_row"], limits["initial_lexer_fuel"], limits["step_lexer_fuel"],
                limits["step_max_items"], limits["max_lexer_states"], limits["max_grammar_size"], True, False)
            with nogil:
                self.m.matcher = tokens.calls.new_matcher(&init, "lark", chars)
            if problem := self.problem:
                raise InputError(problem)
        self.m.mask_bytes = tokens.calls.mask_bytes(self.m.matcher)
        self.m.mask = <uint64_t*>self.take(<Py_ssize_t>(self.m.mask_bytes // sizeof(uint64_t)) + 1, sizeof(uint64_t))
        self.c.state = &self.m
        self.c.vocab_size = tokens.tokens.c.vocab_size
        self.c.allows, self.c.mask, self.c.accept = _allows, _mask, _accept
        self.c.fits = _fits
        if tokens.writer.tokenize != NULL:
            self.c.forced = _forced

    def __dealloc__(self):
        free(self.m.path)
        if self.m.matcher != NULL:
            self.m.calls.free_matcher(self.m.matcher)

    def copy(self):
        """Return a matcher that is where this one is. Cost: some us. Threads: others may copy it, none may use it."""
        return GuidanceMatcher(self.tokens, "", {}, self)

    @property
    def problem(self):
        """Return why it goes no further, in llguidance's words, "" without a problem."""
        cdef const char* error = self.m.calls.get_error(self.m.matcher)
        return "" if error == NULL else (<bytes>error).decode("utf-8", "replace")

    @property
    def may_end(self):
        """Return whether the grammar may end here."""
        return bool(_may_end(&self.m))
