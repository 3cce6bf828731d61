/* What Cython cannot express: atomics, prefetch, a clock, a short lock (ngs_lock.h),
 * and memory on large pages. C11 compilers of the GCC family and MSVC. */
#ifndef NGS_NATIVE_H
#define NGS_NATIVE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ThreadSanitizer recognises only atomics: with it, vectors that threads share are accessed word by word. */
#if defined(__SANITIZE_THREAD__)
#define NGS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NGS_TSAN 1
#endif
#endif
#if !defined(NGS_TSAN)
#define NGS_TSAN 0
#endif

#if defined(_MSC_VER)
#include <intrin.h>
#include <malloc.h>
#include <windows.h>
#define ngs_load32(p) (*(volatile const uint32_t *)(p))
#define ngs_store32(p, v) (*(volatile uint32_t *)(p) = (v))
#define ngs_add64(p, v) _InterlockedExchangeAdd64((volatile __int64 *)(p), (v))
#define ngs_load64(p) (*(volatile const int64_t *)(p))
#define ngs_store64(p, v) (*(volatile int64_t *)(p) = (v))
#define ngs_swap32_if(p, old, v) \
    (_InterlockedCompareExchange((volatile long *)(p), (long)(v), (long)(old)) == (long)(old))
#define ngs_swap64_if(p, old, v) \
    (_InterlockedCompareExchange64((volatile __int64 *)(p), (v), (old)) == (old))
#define ngs_acquire32(p) ngs_load32(p)
#define ngs_release32(p, v) ngs_store32(p, v)
#define ngs_fence() MemoryBarrier()
#define ngs_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define ngs_prefetch_read(p) ngs_prefetch(p)
static inline int64_t ngs_now_ns(void) {
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (int64_t)((double)now.QuadPart * 1e9 / (double)frequency.QuadPart);
}
static inline void *ngs_alloc(size_t bytes) { return malloc(bytes); }
#else
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#define ngs_load32(p) __atomic_load_n((const uint32_t *)(p), __ATOMIC_RELAXED)
#define ngs_store32(p, v) __atomic_store_n((uint32_t *)(p), (uint32_t)(v), __ATOMIC_RELAXED)
#define ngs_add64(p, v) __atomic_fetch_add((int64_t *)(p), (int64_t)(v), __ATOMIC_RELAXED)
#define ngs_load64(p) __atomic_load_n((const int64_t *)(p), __ATOMIC_RELAXED)
#define ngs_store64(p, v) __atomic_store_n((int64_t *)(p), (int64_t)(v), __ATOMIC_RELAXED)
static inline int ngs_swap32_if(uint32_t *p, uint32_t old, uint32_t v) {
    return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
static inline int ngs_swap64_if(int64_t *p, int64_t old, int64_t v) {
    return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define ngs_acquire32(p) __atomic_load_n((const uint32_t *)(p), __ATOMIC_ACQUIRE)
#define ngs_release32(p, v) __atomic_store_n((uint32_t *)(p), (uint32_t)(v), __ATOMIC_RELEASE)
#define ngs_fence() __atomic_thread_fence(__ATOMIC_ACQ_REL)
#define ngs_prefetch(p) __builtin_prefetch((p), 1, 3)
#define ngs_prefetch_read(p) __builtin_prefetch((p), 0, 3)
static inline int64_t ngs_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
/* Uninitialised memory, to be released by free. Large tables are accessed at random: large pages save
 * a fault per 4 KiB when they fill and a page walk per access later. */
static inline void *ngs_alloc(size_t bytes) {
    const size_t large_page = (size_t)1 << 21;
    void *memory = NULL;
    if (bytes < large_page) return malloc(bytes);
    if (posix_memalign(&memory, large_page, bytes)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}
#endif

/* Zeroed memory, to be released by free; pages are allocated on first use. */
static inline void *ngs_zeroed(size_t bytes) {
    char *memory = (char *)calloc(bytes, 1);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096;
    if (memory && bytes >= ((size_t)1 << 22)) {
        uintptr_t start = ((uintptr_t)memory + page - 1) & ~(page - 1);
        madvise((void *)start, ((uintptr_t)memory + bytes - start) & ~(page - 1), MADV_HUGEPAGE);
    }
#endif
    return memory;
}

#include "ngs_lock.h"

#endif
