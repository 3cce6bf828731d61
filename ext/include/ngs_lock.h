/* A reader-writer lock of one word: one thread that writes, or any number that read.
 *
 * Held around kernels of microseconds that neither raise nor call Python, by threads with and without
 * the GIL. A thread that has to wait spins for about as long as such a kernel takes, then sleeps. If
 * it holds the GIL, it releases it first and takes it again after it has left the lock, so no thread
 * ever waits for the GIL while it holds a lock. 0 = free. */
#ifndef NGS_LOCK_H
#define NGS_LOCK_H

#include <Python.h>
#include <stdint.h>

#if defined(_MSC_VER)
#include <intrin.h>
#include <windows.h>
static inline uint32_t ngs_word(const uint32_t *word) { return *(const volatile uint32_t *)word; }
static inline int ngs_swap_if(uint32_t *word, uint32_t is, uint32_t becomes) {
    return (uint32_t)_InterlockedCompareExchange((volatile long *)word, (long)becomes, (long)is) == is;
}
static inline uint32_t ngs_keep_bits(uint32_t *word, uint32_t bits) {
    return (uint32_t)_InterlockedAnd((volatile long *)word, (long)bits);
}
static inline uint32_t ngs_subtract(uint32_t *word, uint32_t n) {
    return (uint32_t)_InterlockedExchangeAdd((volatile long *)word, -(long)n);
}
static inline void ngs_relax(void) { YieldProcessor(); }
static inline void ngs_sleep_while(uint32_t *word, uint32_t is) { (void)word, (void)is, Sleep(1); }
static inline void ngs_wake(uint32_t *word) { (void)word; }
#else
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <time.h>
static inline uint32_t ngs_word(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline int ngs_swap_if(uint32_t *word, uint32_t is, uint32_t becomes) {
    return __atomic_compare_exchange_n(word, &is, becomes, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}
static inline uint32_t ngs_keep_bits(uint32_t *word, uint32_t bits) {
    return __atomic_fetch_and(word, bits, __ATOMIC_RELEASE);
}
static inline uint32_t ngs_subtract(uint32_t *word, uint32_t n) {
    return __atomic_fetch_sub(word, n, __ATOMIC_RELEASE);
}
static inline void ngs_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}
#if defined(__linux__)
static inline void ngs_sleep_while(uint32_t *word, uint32_t is) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, is, NULL, NULL, 0);
}
static inline void ngs_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, NULL, NULL, 0); }
#else
static inline void ngs_sleep_while(uint32_t *word, uint32_t is) {
    const struct timespec moment = {0, 50000};
    (void)word, (void)is;
    nanosleep(&moment, NULL);
}
static inline void ngs_wake(uint32_t *word) { (void)word; }
#endif
#endif

#define NGS_HELD 0x80000000u     /* a writer is in */
#define NGS_DETACHED 0x40000000u /* it released the GIL to wait */
#define NGS_WANTED 0x20000000u   /* a writer waits: readers that come now wait too */
#define NGS_ASKED 0x10000000u    /* a reader waits */
#define NGS_ASLEEP 0x08000000u   /* someone sleeps until the word changes */
#define NGS_READERS 0x07FFFFFFu  /* number of readers inside */
enum { NGS_SPINS = 128 };

/* The state of this thread if it holds the GIL and can release it, otherwise NULL. */
static inline PyThreadState *ngs_attached(void) {
#if PY_VERSION_HEX >= 0x030D0000
    PyThreadState *state = PyThreadState_GetUnchecked();
#else
    PyThreadState *state = _PyThreadState_UncheckedGet(); /* before 3.12: of any thread */
#endif
    return state != NULL && state == PyGILState_GetThisThreadState() ? state : NULL;
}

/* Wait a moment for the word to change; `flag` tells the holders that a thread waits. */
static inline void ngs_wait(uint32_t *word, uint32_t seen, uint32_t flag, int *spins) {
    if (!(seen & flag)) {
        ngs_swap_if(word, seen, seen | flag);
    } else if (++*spins < NGS_SPINS) {
        ngs_relax();
    } else if ((seen & NGS_ASLEEP) || ngs_swap_if(word, seen, seen | NGS_ASLEEP)) {
        ngs_sleep_while(word, seen | NGS_ASLEEP);
        *spins = 0;
    }
}

/* Take the lock exclusively if it is free. */
static inline int ngs_try_lock(int *lock) {
    const uint32_t seen = ngs_word((uint32_t *)lock);
    return !(seen & (NGS_HELD | NGS_READERS)) && ngs_swap_if((uint32_t *)lock, seen, (seen & ~NGS_WANTED) | NGS_HELD);
}

/* Take the lock exclusively. */
static inline void ngs_lock(int *lock) {
    uint32_t *word = (uint32_t *)lock, seen, held = NGS_HELD;
    int spins = 0;
    if (ngs_try_lock(lock)) return;
    if (ngs_attached()) { /* restored by ngs_unlock */
        PyEval_SaveThread();
        held |= NGS_DETACHED;
    }
    for (;;) {
        seen = ngs_word(word);
        if (seen & (NGS_HELD | NGS_READERS))
            ngs_wait(word, seen, NGS_WANTED, &spins);
        else if (ngs_swap_if(word, seen, (seen & ~NGS_WANTED) | held))
            break;
    }
}

/* Release after ngs_lock or ngs_try_lock; true when a thread waits. */
static inline int ngs_unlock(int *lock) {
    uint32_t *word = (uint32_t *)lock;
    const uint32_t was = ngs_keep_bits(word, NGS_WANTED);
    if (was & NGS_ASLEEP) ngs_wake(word);
    if (was & NGS_DETACHED) PyEval_RestoreThread(PyGILState_GetThisThreadState());
    return (was & (NGS_WANTED | NGS_ASKED | NGS_ASLEEP)) != 0;
}

/* Between two holds of a long operation, after ngs_unlock returned true: let a waiting thread go first. */
static inline void ngs_give_way(int *lock) {
    int spins = 0;
    while (++spins < NGS_SPINS && !(ngs_word((uint32_t *)lock) & (NGS_HELD | NGS_READERS))) ngs_relax();
}

/* Take the lock as one of many readers; pass the result to ngs_unlock_shared. */
static inline void *ngs_lock_shared(int *lock) {
    uint32_t *word = (uint32_t *)lock, seen = ngs_word(word);
    PyThreadState *left = NULL;
    int spins = 0;
    if (!(seen & (NGS_HELD | NGS_WANTED)) && ngs_swap_if(word, seen, seen + 1)) return NULL;
    for (;;) {
        seen = ngs_word(word);
        if (!(seen & (NGS_HELD | NGS_WANTED))) {
            if (ngs_swap_if(word, seen, seen + 1)) return left;
        } else {
            if (left == NULL && ngs_attached()) left = PyEval_SaveThread();
            ngs_wait(word, seen, NGS_ASKED, &spins);
        }
    }
}

static inline void ngs_unlock_shared(int *lock, void *left) {
    uint32_t *word = (uint32_t *)lock;
    const uint32_t was = ngs_subtract(word, 1);
    if ((was & NGS_READERS) == 1 && (was & NGS_ASLEEP)) {
        ngs_keep_bits(word, ~NGS_ASLEEP);
        ngs_wake(word);
    }
    if (left != NULL) PyEval_RestoreThread((PyThreadState *)left);
}

/* Reset the lock to free, in the child of a fork. */
static inline void ngs_free_lock(int *lock) {
    ngs_keep_bits((uint32_t *)lock, 0);
}

#endif
