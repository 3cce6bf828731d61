# Registry of the locks that threads share, so that a fork can take them all.
# register a lock, from any thread; MemoryError when there is no room
cdef int locks_add(int* lock) except -1
# unregister a lock before its memory is freed; an unknown lock is ignored
cdef void locks_remove(int* lock) noexcept

# Threads that help a caller with the rows of a batch.

# part of a job: takes rows until none is left. `lane` tells apart those who work on it; 0 is the caller
ctypedef void (*Task)(void* job, int lane) noexcept nogil

# let up to lanes - 1 other threads run the task, as lanes 1 and up; the caller does its part, as lane 0, and then
# dismisses them. False: none will come, so there is none to dismiss
cdef bint call_workers(Task task, void* job, int lanes) noexcept nogil
cdef void dismiss_workers() noexcept nogil
# the most lanes that pay by default: the cores that this process may use, up to a bound
cdef int usable_cores() except -1
