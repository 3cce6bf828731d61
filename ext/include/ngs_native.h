/* The few lines that Cython cannot say: relaxed atomics, prefetch, a clock, a short lock,
 * and memory on large pages. C11 compilers of the GCC family and MSVC. */
#ifndef NGS_NATIVE_H
#define NGS_NATIVE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#include <intrin.h>
#include <malloc.h>
#include <windows.h>
#define ngs_load32(p) (*(volatile const uint32_t *)(p))
#define ngs_store32(p, v) (*(volatile uint32_t *)(p) = (v))
#define ngs_add64(p, v) _InterlockedExchangeAdd64((volatile __int64 *)(p), (v))
#define ngs_load64(p) (*(volatile const int64_t *)(p))
#define ngs_store64(p, v) (*(volatile int64_t *)(p) = (v))
#define ngs_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define ngs_try_lock(p) (_InterlockedExchange((volatile long *)(p), 1) == 0)
#define ngs_unlock(p) _InterlockedExchange((volatile long *)(p), 0)
static inline void ngs_yield(void) { SwitchToThread(); }
static inline int64_t ngs_now_ns(void) {
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (int64_t)((double)now.QuadPart * 1e9 / (double)frequency.QuadPart);
}
static inline void *ngs_alloc_zeroed(size_t bytes) {
    void *memory = _aligned_malloc(bytes, 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}
static inline void ngs_free_zeroed(void *memory) { _aligned_free(memory); }
#else
#include <sched.h>
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#define ngs_load32(p) __atomic_load_n((const uint32_t *)(p), __ATOMIC_RELAXED)
#define ngs_store32(p, v) __atomic_store_n((uint32_t *)(p), (uint32_t)(v), __ATOMIC_RELAXED)
#define ngs_add64(p, v) __atomic_fetch_add((int64_t *)(p), (int64_t)(v), __ATOMIC_RELAXED)
#define ngs_load64(p) __atomic_load_n((const int64_t *)(p), __ATOMIC_RELAXED)
#define ngs_store64(p, v) __atomic_store_n((int64_t *)(p), (int64_t)(v), __ATOMIC_RELAXED)
#define ngs_prefetch(p) __builtin_prefetch((p), 1, 3)
#define ngs_try_lock(p) (__atomic_exchange_n((int *)(p), 1, __ATOMIC_ACQUIRE) == 0)
#define ngs_unlock(p) __atomic_store_n((int *)(p), 0, __ATOMIC_RELEASE)
static inline void ngs_yield(void) { sched_yield(); }
static inline int64_t ngs_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static inline void *ngs_alloc_zeroed(size_t bytes) {
    void *memory = NULL;
    /* Random access over many megabytes: large pages save a page walk per access. */
    size_t alignment = bytes >= ((size_t)1 << 21) ? (size_t)1 << 21 : 64;
    if (posix_memalign(&memory, alignment, bytes)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment > 64) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    memset(memory, 0, bytes);
    return memory;
}
static inline void ngs_free_zeroed(void *memory) { free(memory); }
#endif

/* A lock held for microseconds around kernels that neither raise nor take the GIL. */
static inline void ngs_lock(int *flag) {
    int spins = 0;
    while (!ngs_try_lock(flag)) {
        if (++spins > 64) {
            ngs_yield();
            spins = 0;
        }
    }
}

#endif
