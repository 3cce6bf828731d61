# Which occurrences of the contexts of a line are kept.
from ngramspec._types cimport hash_t, token_t, uint32_t

# One occurrence of a context.
cdef struct OccurrenceC:
    hash_t hash
    uint32_t position
    token_t token         # what follows

# A kept one.
cdef struct SeatC:
    int rank              # among those of its context, 0 = the first
    hash_t hash
    uint32_t position

# write the words of a line whose n occurrences are given, or with NULL only count; `seats` has room for n.
# Returns how many words there would be with room for all.
cdef Py_ssize_t fill_line(OccurrenceC* found, Py_ssize_t n, SeatC* seats, uint32_t tag_mask,
                          uint32_t* line) noexcept nogil
