"""Lanes: a batch's rows on several threads. Each lane drafts with working memory and counts of its own."""

from libc.stdlib cimport calloc, free, malloc

from ngramspec._native.core.workers cimport call_workers, dismiss_workers
from ngramspec._native.drafter.counts cimport counts_add, counts_clear, counts_make

cdef enum:
    ROWS_OF_LANE = 16     # fewer rows than this are not worth one more thread


cdef int lanes_make(LanesC* lanes, DriverC* d, int most) except -1:
    cdef int lane
    lanes.num = <int>max(<Py_ssize_t>1, min(<Py_ssize_t>most, d.num_slots // ROWS_OF_LANE))
    lanes.drivers = <DriverC**>calloc(<size_t>lanes.num, sizeof(DriverC*))
    if lanes.drivers == NULL:
        raise MemoryError("drafter: no memory for threads")
    lanes.drivers[0] = d
    for lane in range(1, lanes.num):
        lanes.drivers[lane] = <DriverC*>malloc(sizeof(DriverC))
        if lanes.drivers[lane] == NULL:
            raise MemoryError("drafter: no memory for threads")
        lanes.drivers[lane][0] = d[0]
        lanes.drivers[lane].lane = lane
        lanes.drivers[lane].counts = NULL
        lanes.drivers[lane].counts = counts_make(d.num_sources, d.max_draft)
    return 0


cdef void lanes_free(LanesC* lanes) noexcept:
    cdef int lane
    for lane in range(1, lanes.num if lanes.drivers != NULL else 0):
        if lanes.drivers[lane] != NULL:
            free(lanes.drivers[lane].counts)
        free(lanes.drivers[lane])
    free(lanes.drivers)


cdef int lanes_for(const LanesC* lanes, Py_ssize_t num_rows) noexcept nogil:
    return <int>max(<Py_ssize_t>1, min(<Py_ssize_t>lanes.num, num_rows // ROWS_OF_LANE))


cdef void lanes_begin(const LanesC* lanes, int num) noexcept nogil:
    cdef const DriverC* d = lanes.drivers[0]
    cdef int lane
    for lane in range(1, num):
        counts_clear(lanes.drivers[lane].counts, d.num_sources, d.max_draft)


cdef void lanes_end(const LanesC* lanes, int num) noexcept nogil:
    cdef const DriverC* d = lanes.drivers[0]
    cdef int lane
    for lane in range(1, num):
        counts_add(d.counts, lanes.drivers[lane].counts, d.num_sources, d.max_draft)


cdef void lanes_share(Task task, void* job, int num) noexcept nogil:
    cdef bint called = call_workers(task, job, num)
    task(job, 0)
    if called:
        dismiss_workers()
