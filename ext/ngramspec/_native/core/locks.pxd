# Locks that threads share, known so that a fork can take them all.
# make a lock known, from any thread; MemoryError when there is no room
cdef int locks_add(int* lock) except -1
# before its memory goes; one that is not known is ignored
cdef void locks_remove(int* lock) noexcept
