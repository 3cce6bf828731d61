# Lanes: the threads that work on a batch, the caller's among them, each with counts of its own.
from ngramspec._native.core.workers cimport Task
from ngramspec._native.drafter.driver cimport DriverC

cdef enum:
    MOST_LANES = 64
    TOGETHER = 8          # rows that a lane takes at a time
    AHEAD = 2             # rows whose memory is fetched before it is needed

cdef struct LanesC:
    DriverC** drivers     # the drafter's driver as each lane has it; entry 0, the caller's, is the drafter's own
    int num               # most lanes

# at most `most` lanes, fewer where there are few slots; `lanes` holds zeros. lanes_free takes also what failed
cdef int lanes_make(LanesC* lanes, DriverC* d, int most) except -1
cdef void lanes_free(LanesC* lanes) noexcept
# how many lanes work on a number of rows
cdef int lanes_for(const LanesC* lanes, Py_ssize_t num_rows) noexcept nogil
# before the work of `num` lanes: they count from 0; after it: what they counted is the drafter's
cdef void lanes_begin(const LanesC* lanes, int num) noexcept nogil
cdef void lanes_end(const LanesC* lanes, int num) noexcept nogil
# run a task on this thread, and on others if there are any to spare
cdef void lanes_share(Task task, void* job, int num) noexcept nogil
