"""Which n-grams of a StaticCache are worth their bytes: usefulness classes, and reading only the best.

The value of an n-gram is how often its draft was right in the corpus. One that the next shorter
n-gram drafts too, or that may not draft by itself, is worth a small part of that: it re-weights.
All in integers, so that every machine keeps the same n-grams.
"""

from ngramspec._packing cimport PACKED_MAX, key_mask, key_tokens
from ngramspec._static cimport (
    LIST_HEAD, FollowersC, SectionsC, StaticC, StaticCache, record_a, record_words,
    static_find,
)
from ngramspec._types cimport int64_t, token_t, uint32_t, uint64_t

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    NUM_CLASSES = 2048
    MANTISSA_BITS = 5
    INDEX_BYTES = 2       # of the index, per n-gram, at most
    MIN_SAMPLE = 2        # what ngram-cache asks of static counts by default
    MIN_PERCENT = 50
    WHOLE = 64            # worth of a right draft; without effect: 1


cdef Py_ssize_t _class_of(uint64_t value, uint64_t num_bytes) noexcept nogil:
    """A number that grows with value per byte: the leading bits of the quotient."""
    cdef uint64_t score = (value << 20) // num_bytes
    cdef Py_ssize_t exponent = 0
    while score >> MANTISSA_BITS >> exponent > 1:
        exponent += 1
    return (exponent << MANTISSA_BITS) + <Py_ssize_t>(score >> exponent)


cdef bint _drafts(const FollowersC* f) noexcept nogil:
    return f.total >= MIN_SAMPLE and 100 * <int64_t>f.best_count >= MIN_PERCENT * <int64_t>f.total


cdef Py_ssize_t _measure(const StaticC* c, Py_ssize_t size, Py_ssize_t record, uint64_t* num_bytes) noexcept nogil:
    """The class of a record; its bytes, those of its list and of the index."""
    cdef const SectionsC* s = &c.sizes[size]
    cdef const uint32_t* r = s.records + record * record_words(size)
    cdef token_t[PACKED_MAX] tokens
    cdef FollowersC own, shorter
    cdef uint64_t worth = 1
    key_tokens(record_a(r) & key_mask(size), r[2] if size > 3 else 0, size, tokens)
    num_bytes[0] = 4 * record_words(size) + INDEX_BYTES
    if not static_find(c, &tokens[size - 1], size, &own):
        return 0
    if own.pairs != NULL:
        num_bytes[0] += 4 * (LIST_HEAD + 2 * own.num)
    if _drafts(&own):
        worth = WHOLE
        if size > 1 and static_find(c, &tokens[size - 1], size - 1, &shorter):
            if shorter.best == own.best and _drafts(&shorter):
                worth = 1
    return _class_of(<uint64_t>own.best_count * worth, num_bytes[0])


def usefulness(StaticCache cache not None, Py_ssize_t size):
    """Return how many n-grams of a size are in each usefulness class, and their bytes.

    Args:
        cache: The statistics.
        size: Tokens per n-gram, 1..4.

    Returns:
        Two arrays, int64, shape (2048,): numbers and bytes by class, the least useful first.

    Raises:
        InputError: size is out of its bounds.

    Cost: O(n-grams), one or two lookups each. Threads: releases the GIL.
    """
    cdef Py_ssize_t i, cls
    cdef uint64_t num_bytes = 0
    if not 1 <= size <= PACKED_MAX:
        raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
    numbers, sums = np.zeros(NUM_CLASSES, dtype=np.int64), np.zeros(NUM_CLASSES, dtype=np.int64)
    cdef int64_t[::1] number_view = numbers
    cdef int64_t[::1] sum_view = sums
    with nogil:
        for i in range(cache.c.sizes[size].num_ngrams):
            cls = _measure(&cache.c, size, i, &num_bytes)
            number_view[cls] += 1
            sum_view[cls] += <int64_t>num_bytes
    return numbers, sums


def useful_ngrams(StaticCache cache not None, Py_ssize_t size, Py_ssize_t least, int64_t max_ngrams, int64_t max_bytes):
    """Return which n-grams of a size to keep.

    Args:
        cache: The statistics.
        size: Tokens per n-gram, 1..4.
        least: Class above which all are kept.
        max_ngrams, max_bytes: How many of that class are kept too, those that come first in the file.

    Returns:
        uint8, shape (n-grams of the size,): 1 = keep, in the order of the file; then the number and the
        bytes of those kept of the class `least`.

    Raises:
        InputError: size is out of its bounds.

    Cost: as usefulness. Threads: releases the GIL.
    """
    cdef Py_ssize_t i, cls
    cdef uint64_t num_bytes = 0
    cdef int64_t kept = 0, kept_bytes = 0
    if not 1 <= size <= PACKED_MAX:
        raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
    made = np.zeros(cache.c.sizes[size].num_ngrams, dtype=np.uint8)
    cdef unsigned char[::1] keep = made
    with nogil:
        for i in range(keep.shape[0]):
            cls = _measure(&cache.c, size, i, &num_bytes)
            if cls > least:
                keep[i] = 1
            elif cls == least and kept < max_ngrams and kept_bytes + <int64_t>num_bytes <= max_bytes:
                keep[i] = 1
                kept += 1
                kept_bytes += <int64_t>num_bytes
    return made, kept, kept_bytes
