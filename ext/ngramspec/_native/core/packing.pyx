"""Sort packed entries: one scatter by the evenly spread top bits, then radix sort within the cache.

Some 5 to 8 passes over 64 KiB at a time, whatever the corpus; bits in which all items of a part
agree cost nothing.
"""

from libc.string cimport memcpy, memset

from ngramspec._native.core.types cimport uint32_t, uint64_t

cdef enum:
    PART_BYTES = 1 << 16  # two parts fit a core's own cache
    DIGIT_BITS = 11
    FEW = 48              # items that insertion sorts faster


cdef inline uint64_t _word(const item_t* x, int word) noexcept nogil:
    """The lower (0) or upper (1) word of the sort key."""
    if item_t is EntryC:
        return x.a if word else x.b >> FOLLOWER_SHIFT
    else:
        return x[0] if word else 0


cdef inline bint _less(const item_t* x, const item_t* y) noexcept nogil:
    if item_t is EntryC:
        return entry_less(x, y)
    else:
        return x[0] < y[0]


cdef void _insertion_sort(item_t* items, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef item_t x
    for i in range(1, n):
        x = items[i]
        j = i
        while j > 0 and _less(&x, &items[j - 1]):
            items[j] = items[j - 1]
            j -= 1
        items[j] = x


cdef void _digit_pass(const item_t* source, item_t* target, Py_ssize_t n, int word, int shift) noexcept nogil:
    """Scatter by DIGIT_BITS bits of a word, keeping the order of equal items."""
    cdef uint32_t[1 << DIGIT_BITS] starts
    cdef uint32_t start = 0
    cdef uint32_t count
    cdef Py_ssize_t i
    memset(starts, 0, sizeof(starts))
    for i in range(n):
        starts[_word(&source[i], word) >> shift & ((1 << DIGIT_BITS) - 1)] += 1
    for i in range(1 << DIGIT_BITS):
        count = starts[i]
        starts[i] = start
        start += count
    for i in range(n):
        count = _word(&source[i], word) >> shift & ((1 << DIGIT_BITS) - 1)
        target[starts[count]] = source[i]
        starts[count] += 1


cdef void _sort_part(item_t* source, item_t* spare, item_t* result, Py_ssize_t n) noexcept nogil:
    """Sort the items of `source` into `result`, which is one of `source` and `spare`."""
    cdef uint64_t[2] varying
    cdef item_t* target = spare
    cdef int word, shift
    cdef Py_ssize_t i
    if n <= FEW:
        if source != result:
            memcpy(result, source, <size_t>n * sizeof(item_t))
        _insertion_sort(result, n)
        return
    varying[0] = varying[1] = 0
    for i in range(1, n):
        varying[0] |= _word(&source[i], 0) ^ _word(&source[0], 0)
        varying[1] |= _word(&source[i], 1) ^ _word(&source[0], 1)
    for word in range(2):
        shift = 0
        while shift < 64 and varying[word] >> shift:
            while not varying[word] >> shift & 1:
                shift += 1
            _digit_pass(source, target, n, word, shift)
            source, target = target, source
            shift += DIGIT_BITS
    if source != result:
        memcpy(result, source, <size_t>n * sizeof(item_t))


cdef int part_bits(Py_ssize_t n, size_t item_bytes) noexcept nogil:
    """The number of upper bits that select a part when n items are sorted."""
    cdef int bits = 0
    while bits < MAX_PART_BITS and <size_t>n * item_bytes >> bits > PART_BYTES:
        bits += 1
    return bits


cdef void sort_parts(item_t* items, item_t* spare, const uint32_t* ends, int bits) noexcept nogil:
    """Sort items that lie in 2**bits parts by their upper bits; spare has room for the largest part."""
    cdef uint32_t start = 0
    cdef Py_ssize_t i
    for i in range(<Py_ssize_t>1 << bits):
        _sort_part(items + start, spare, items + start, ends[i] - start)
        start = ends[i]


cdef void sort_items(item_t* items, item_t* scratch, Py_ssize_t n) noexcept nogil:
    """Sort n < 2**32 items in place; scratch has room for n."""
    cdef uint32_t[1 << MAX_PART_BITS] places
    cdef Py_ssize_t i
    cdef uint32_t part, start = 0, count
    cdef int bits = part_bits(n, sizeof(item_t))
    if bits == 0:
        _sort_part(items, scratch, items, n)
        return
    memset(places, 0, sizeof(places))
    for i in range(n):
        places[_word(&items[i], 1) >> (64 - bits)] += 1
    for i in range(1 << bits):
        count = places[i]
        places[i] = start
        start += count
    for i in range(n):
        part = <uint32_t>(_word(&items[i], 1) >> (64 - bits))
        scratch[places[part]] = items[i]
        places[part] += 1
    memcpy(items, scratch, <size_t>n * sizeof(item_t))
    sort_parts(items, scratch, places, bits)


cdef Py_ssize_t sum_equal(EntryC* e, Py_ssize_t n) noexcept nogil:
    """Merge neighbours with the same n-gram and follower in place; return the number of entries left."""
    cdef Py_ssize_t i, last = 0
    cdef uint64_t total
    if n == 0:
        return 0
    for i in range(1, n):
        if same_pair(&e[i], &e[last]):
            total = (e[last].b & ENTRY_COUNT_MAX) + (e[i].b & ENTRY_COUNT_MAX)
            if total <= ENTRY_COUNT_MAX:
                e[last].b += e[i].b & ENTRY_COUNT_MAX
                continue
            e[last].b |= ENTRY_COUNT_MAX
            last += 1
            e[last] = e[i]
            e[last].b = (e[i].b & ~<uint64_t>ENTRY_COUNT_MAX) | (total - ENTRY_COUNT_MAX)
        else:
            last += 1
            e[last] = e[i]
    return last + 1
