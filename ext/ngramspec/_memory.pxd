# Blocks that grow while they are used, without a call that waits for megabytes.
cdef extern from "ngs_memory.h" nogil:
    ctypedef struct ngs_rest:
        size_t bytes
    void* ngs_take(size_t num_bytes, bint at_once)
    void* ngs_extend(void* memory, size_t num_bytes, size_t wanted)
    void ngs_touch(void* memory, size_t num_bytes)
    void ngs_release(void* memory, size_t num_bytes)
    void ngs_release_later(ngs_rest* rest, void* memory, size_t num_bytes)
    void ngs_release_some(ngs_rest* rest)
    void ngs_release_rest(ngs_rest* rest)
