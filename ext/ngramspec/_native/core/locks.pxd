# Registry of the locks that threads share, so that a fork can take them all.
# register a lock, from any thread; MemoryError when there is no room
cdef int locks_add(int* lock) except -1
# unregister a lock before its memory is freed; an unknown lock is ignored
cdef void locks_remove(int* lock) noexcept
