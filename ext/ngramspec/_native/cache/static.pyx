"""StaticCache: statistics of a corpus, read where they lie, such as in a mapped file.

A lookup reads two neighbouring words of the index and about three records. It stays within the
sections whatever they hold: a damaged file can miss or misjudge an n-gram, nothing else.
"""

cimport cython
from libc.string cimport memset

from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.packing cimport STORED_TOKEN_MAX, key_mask, key_of
from ngramspec._native.core.types cimport COUNT_MAX, NGRAM_MAX, ngs_prefetch

from ngramspec.errors import InputError

cdef enum:
    FEW = 8               # records that a scan searches faster than halving


cdef inline int _compare(const uint32_t* r, KeyC key, Py_ssize_t size) noexcept nogil:
    cdef uint64_t a = record_a(r) & key_mask(size)
    if a != key.a:
        return 1 if a > key.a else -1
    if size < 4 or r[2] == key.oldest:
        return 0
    return 1 if r[2] > key.oldest else -1


cdef const uint32_t* _find_record(const SectionsC* s, KeyC key, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t words = record_words(size)
    cdef uint64_t bucket = key.a >> s.index_shift if s.index_shift < 64 else 0
    cdef Py_ssize_t low = s.index[bucket]
    cdef Py_ssize_t high = s.index[bucket + 1]
    cdef Py_ssize_t middle
    cdef int order
    if high > s.num_ngrams:
        high = s.num_ngrams
    while high - low > FEW:
        middle = (low + high) >> 1
        if _compare(s.records + middle * words, key, size) > 0:
            high = middle
        else:
            low = middle
    while low < high:
        order = _compare(s.records + low * words, key, size)
        if order >= 0:
            return s.records + low * words if order == 0 else NULL
        low += 1
    return NULL


cdef void static_prefetch(const StaticC* c, const token_t* newest, Py_ssize_t size) noexcept nogil:
    """Fetch the part of the index where static_find begins."""
    cdef const SectionsC* s = &c.sizes[size]
    if s.num_ngrams > 0 and s.index_shift < 64:
        ngs_prefetch(&s.index[key_of(newest, size).a >> s.index_shift])


cdef bint _take_list(const SectionsC* s, Py_ssize_t place, FollowersC* out) noexcept nogil:
    if place + LIST_HEAD > s.followers_len:
        return False
    out.num = s.followers[place]
    out.total = <count_t>(s.followers[place + 1] & COUNT_MAX)
    out.best_count = <count_t>(s.followers[place + 2] & COUNT_MAX)
    out.pairs = s.followers + place + LIST_HEAD
    return out.num <= (s.followers_len - place - LIST_HEAD) >> 1


cdef bint static_find(const StaticC* c, const token_t* newest, Py_ssize_t size, FollowersC* out) noexcept nogil:
    """What followed the `size` tokens that end at `newest`; False when nothing is known."""
    cdef const SectionsC* s = &c.sizes[size]
    cdef const uint32_t* r
    cdef uint32_t best, many
    cdef Py_ssize_t i
    if s.num_ngrams == 0:
        return False
    for i in range(size):
        if (newest - i)[0] >= c.vocab_size:
            return False
    r = _find_record(s, key_of(newest, size), size)
    if r == NULL:
        return False
    if size < 3:
        many = r[0] >> SHORT_MANY_SHIFT & 1
        best = r[0] & STORED_TOKEN_MAX
    else:
        many = r[size - 1] >> MANY_SHIFT
        best = r[size - 1] & ~(<uint32_t>1 << MANY_SHIFT)
    if best >= <uint32_t>c.vocab_size:
        return False
    out.best = <token_t>best
    if many:
        return _take_list(s, r[record_words(size) - 1], out)
    out.best_count = out.total = <count_t>(r[record_words(size) - 1] & COUNT_MAX)
    out.pairs = NULL
    out.num = 1
    return True


cdef count_t followers_count(const FollowersC* f, token_t token) noexcept nogil:
    """How often the token followed; 0 = never."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = f.num
    cdef Py_ssize_t middle
    if token == f.best or f.pairs == NULL:
        return f.best_count if token == f.best else 0
    while low < high:
        middle = (low + high) >> 1
        if f.pairs[2 * middle] < <uint32_t>token:
            low = middle + 1
        else:
            high = middle
    if low < f.num and f.pairs[2 * low] == <uint32_t>token:
        return <count_t>(f.pairs[2 * low + 1] & COUNT_MAX)
    return 0


@cython.final
cdef class StaticCache:
    """StaticCache(sections, vocab_size, name="", fingerprint=None, offsets=None): counts of a corpus, read in place.

    Made by `ngramspec.open_cache`; serves as `static` of "ngram-cache" for any number of drafters.

    Args:
        sections: By n-gram size 1..4: records, followers and index, each uint32, shape (n,),
            little-endian, C-contiguous. Kept and read in place.
        vocab_size: Every token id is below it, 1..2097152.
        name: Where it comes from, for messages.
        fingerprint: Of the tokenizer, 16 bytes, or None when unknown.
        offsets: By n-gram size: where the sections begin in the file, in bytes, for messages.

    Raises:
        InputError: A size, vocab_size or the length of a section is invalid.

    Thread-safety: all methods, from any thread.
    """

    def __cinit__(self, sections not None, vocab_size, name="", fingerprint=None, offsets=None):
        cdef Py_ssize_t size
        if not isinstance(vocab_size, int) or not 1 <= vocab_size <= STORED_TOKEN_MAX + 1:
            raise InputError(f"vocab_size must be in 1..{STORED_TOKEN_MAX + 1}, got {vocab_size!r}")
        memset(&self.c, 0, sizeof(StaticC))
        self.c.vocab_size = vocab_size
        self.name = name
        self.fingerprint = fingerprint
        self.offsets = dict(offsets or {})
        self._held = []
        for key in sorted(sections):
            if key not in (1, 2, 3, 4):
                raise InputError(f"n-gram sizes must be in 1..{NGRAM_MAX}, got {key!r}")
            size = key
            records, followers, index = sections[key]
            self._take_sections(size, records, followers, index)
            self.c.ngram_min = self.c.ngram_min or size
            self.c.ngram_max = size

    cdef int _take_sections(self, Py_ssize_t size, object records, object followers, object index) except -1:
        cdef const uint32_t[::1] record_view, follower_view, index_view
        cdef SectionsC* s = &self.c.sizes[size]
        cdef Py_ssize_t bits
        try:
            record_view, follower_view, index_view = records, followers, index
        except (ValueError, TypeError, BufferError):
            raise InputError("sections must be uint32 arrays of shape (n,)") from None
        bits = (index_view.shape[0] - 1).bit_length() - 1
        if record_view.shape[0] % record_words(size) or record_view.shape[0] // record_words(size) >= 1 << 32:
            raise InputError(f"{record_view.shape[0]} words are not a whole number of records of {size}-grams")
        if bits < 0 or bits > 31 or index_view.shape[0] != (1 << bits) + 1:
            raise InputError(f"an index must have 2**k + 1 words, got {index_view.shape[0]}")
        self._held.append((record_view, follower_view, index_view))
        s.num_ngrams = record_view.shape[0] // record_words(size)
        s.records = &record_view[0] if s.num_ngrams else NULL
        s.followers_len = follower_view.shape[0]
        s.followers = &follower_view[0] if s.followers_len else NULL
        s.index = &index_view[0]
        s.index_shift = 64 - <int>bits
        return 0

    @property
    def ngram_min(self):
        """Return the shortest n-gram, in tokens; 0 when there is none."""
        return self.c.ngram_min

    @property
    def ngram_max(self):
        """Return the longest n-gram, in tokens; 0 when there is none."""
        return self.c.ngram_max

    @property
    def vocab_size(self):
        """Return a bound that every token id is below."""
        return self.c.vocab_size

    @property
    def nbytes(self):
        """Return the size of the sections in bytes, in memory only as far as they were read."""
        return sum(4 * len(view) for views in self._held for view in views)

    def __len__(self):
        """Return the number of n-grams."""
        return sum(self.num_ngrams(size) for size in range(1, NGRAM_MAX + 1))

    def num_ngrams(self, Py_ssize_t size):
        """Return the number of n-grams of `size` tokens; 0 for a missing size."""
        return self.c.sizes[size].num_ngrams if 1 <= size <= NGRAM_MAX else 0

    def sections(self, Py_ssize_t size):
        """Return records, followers and index of a size as read-only uint32 views, None for a missing size."""
        for views, held_size in zip(self._held, [s for s in range(1, NGRAM_MAX + 1) if self.c.sizes[s].index != NULL]):
            if held_size == size:
                return views
        return None

    def followers(self, token_ids):
        """Return what followed an n-gram as a dict token -> count, the most frequent first.

        Args:
            token_ids: The n-gram, oldest first. int32, shape (n,), 1 <= n <= 4.

        Raises:
            InputError: token_ids has another shape, dtype or length.

        Cost: one lookup, then O(followers).
        """
        cdef const token_t[::1] tokens = token_view(token_ids, "token_ids")
        cdef Py_ssize_t size = tokens.shape[0]
        cdef FollowersC followers
        cdef Py_ssize_t i
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"token_ids must hold 1..{NGRAM_MAX} tokens, got {size}")
        if not static_find(&self.c, &tokens[size - 1], size, &followers):
            return {}
        if followers.pairs == NULL:
            return {followers.best: followers.best_count}
        pairs = [(followers.pairs[2 * i], followers.pairs[2 * i + 1] & COUNT_MAX) for i in range(followers.num)]
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
