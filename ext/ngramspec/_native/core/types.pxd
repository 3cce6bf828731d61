# Types and platform helpers shared by all native modules.
from libc.stdint cimport int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t

ctypedef int32_t token_t     # token id, >= 0; -1 marks "none"
ctypedef int32_t count_t     # occurrences; saturates at COUNT_MAX
ctypedef uint64_t hash_t     # rolling n-gram hash

cdef enum:
    COUNT_MAX = 0x7FFFFFFF
    NGRAM_MAX = 4            # tokens of an n-gram with statistics, as in llama.cpp's files

# Returned by kernels that allocate.
cdef enum Status:
    STATUS_OK = 0
    STATUS_NO_MEMORY = 1
    STATUS_BAD_TOKEN = 2

cdef extern from "ngs_native.h" nogil:
    uint32_t ngs_load32(const uint32_t* cell)
    void ngs_store32(uint32_t* cell, uint32_t value)
    int64_t ngs_load64(const int64_t* cell)
    void ngs_store64(int64_t* cell, int64_t value)
    int64_t ngs_add64(int64_t* cell, int64_t value)
    bint ngs_swap32_if(uint32_t* cell, uint32_t old, uint32_t value)  # store if the cell still holds `old`
    bint ngs_swap64_if(int64_t* cell, int64_t old, int64_t value)
    void ngs_prefetch(const void* address)
    int64_t ngs_now_ns()
    uint32_t ngs_acquire32(const uint32_t* cell)
    void ngs_release32(uint32_t* cell, uint32_t value)
    void ngs_fence()
    void ngs_prefetch_read(const void* address)
    bint ngs_try_lock(int* lock)
    void ngs_lock(int* lock)
    bint ngs_unlock(int* lock)      # true: a thread waits
    void ngs_give_way(int* lock)
    void* ngs_lock_shared(int* lock)
    void ngs_unlock_shared(int* lock, void* left)
    void ngs_free_lock(int* lock)
    void* ngs_alloc(size_t num_bytes)
    void* ngs_zeroed(size_t num_bytes)

cdef extern from "ngs_memory.h" nogil:
    ctypedef struct ngs_rest:
        size_t bytes
    void* ngs_take(size_t num_bytes, bint at_once)
    void* ngs_extend(void* memory, size_t num_bytes, size_t needed)
    void ngs_touch(void* memory, size_t num_bytes)
    void ngs_release(void* memory, size_t num_bytes)
    void ngs_release_later(ngs_rest* rest, void* memory, size_t num_bytes)
    void ngs_release_some(ngs_rest* rest)
    void ngs_release_rest(ngs_rest* rest)
