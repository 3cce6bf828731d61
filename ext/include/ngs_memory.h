/* Memory for blocks that grow while in use: pages are taken, moved and freed a few at a time, so that
 * no single call waits for megabytes. On Linux large blocks have pages of their own; otherwise the C
 * library is used. */
#ifndef NGS_MEMORY_H
#define NGS_MEMORY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is left of a block that is freed in pieces. */
typedef struct {
    char *memory;
    size_t bytes;
} ngs_rest;

#if defined(__linux__)
#include <sys/mman.h>

#define NGS_MAPPED ((size_t)1 << 17)     /* blocks from here on have pages of their own */
#define NGS_PIECE ((size_t)1 << 16)      /* a multiple of any page size; some 15 us to free */
#define NGS_LARGE_PAGE ((size_t)1 << 21)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static inline size_t ngs_whole(size_t bytes) { return (bytes + NGS_PIECE - 1) & ~(NGS_PIECE - 1); }

/* Address space for a block. Large ones begin at a large page: moving them moves page tables. */
static inline char *ngs_place(size_t bytes) {
    const size_t more = bytes < NGS_LARGE_PAGE ? 0 : NGS_LARGE_PAGE;
    size_t before;
    char *at = (char *)mmap(NULL, bytes + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == (char *)MAP_FAILED) return NULL;
    if (!more) return at;
    before = (size_t)(-(uintptr_t)at & (NGS_LARGE_PAGE - 1));
    if (before) munmap(at, before);
    if (before < more) munmap(at + before + bytes, more - before);
    return at + before;
}

/* Fault in all pages of zeroed memory. Kernels before 5.14 need a write to each page. */
static inline void ngs_touch(void *memory, size_t bytes) {
    const size_t page = 4096;
    volatile char *at = (volatile char *)memory;
    size_t i;
    if (!bytes || !madvise(memory, bytes, MADV_POPULATE_WRITE)) return;
    for (i = 0; i < bytes; i += page) at[i] = 0;
    at[bytes - 1] = 0;
}

/* Zeroed memory, NULL when there is none. `at_once`: all of it is about to be used, so it gets large
 * pages now; otherwise pages are allocated on first use. */
static inline void *ngs_take(size_t bytes, int at_once) {
    char *at;
    if (bytes < NGS_MAPPED) return calloc(bytes ? bytes : 1, 1);
    at = ngs_place(ngs_whole(bytes));
    if (!at) return NULL;
    if (mmap(at, ngs_whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        munmap(at, ngs_whole(bytes));
        return NULL;
    }
    if (at_once) {
#if defined(MADV_HUGEPAGE)
        madvise(at, ngs_whole(bytes), MADV_HUGEPAGE);
#endif
        ngs_touch(at, ngs_whole(bytes));
    }
    return at;
}

/* Free memory of ngs_take or ngs_extend; `bytes`: what was asked for. */
static inline void ngs_release(void *memory, size_t bytes) {
    if (!memory) return;
    if (bytes < NGS_MAPPED)
        free(memory);
    else
        munmap(memory, ngs_whole(bytes));
}

/* Make a block larger; memory beyond `bytes` is uninitialised. NULL when there is no room; the block is unchanged. */
static inline void *ngs_extend(void *memory, size_t bytes, size_t needed) {
    const size_t now = ngs_whole(bytes), then = ngs_whole(needed);
    char *moved;
    if (needed < NGS_MAPPED) return realloc(memory, needed);
    if (!memory || bytes < NGS_MAPPED) {
        moved = (char *)ngs_take(needed, 0);
        if (moved && memory) {
            memcpy(moved, memory, bytes);
            free(memory);
        }
        return moved;
    }
    if (then <= now) return memory;
    if (mremap(memory, now, then, 0) == memory) return memory;
    moved = ngs_place(then);
    if (!moved) return NULL;
    if (mremap(memory, now, then, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == (void *)moved) return moved;
    return NULL; /* the place may have been given up, and be another thread's by now: it is not unmapped */
}

/* Free a piece of the rest; cheap when there is none. */
static inline void ngs_release_some(ngs_rest *rest) {
    const size_t piece = rest->bytes < NGS_PIECE ? rest->bytes : NGS_PIECE;
    if (!piece) return;
    rest->bytes -= piece;
    munmap(rest->memory + rest->bytes, piece);
}

static inline void ngs_release_rest(ngs_rest *rest) {
    if (rest->bytes) munmap(rest->memory, rest->bytes);
    rest->bytes = 0;
}

/* Free a block in pieces, by calls of ngs_release_some; the rest of an earlier block is freed now. */
static inline void ngs_release_later(ngs_rest *rest, void *memory, size_t bytes) {
    ngs_release_rest(rest);
    if (bytes < NGS_MAPPED) {
        free(memory);
        return;
    }
    rest->memory = (char *)memory;
    rest->bytes = ngs_whole(bytes);
}
#else
static inline void ngs_touch(void *memory, size_t bytes) { memset(memory, 0, bytes); }

static inline void *ngs_take(size_t bytes, int at_once) {
    (void)at_once;
    return calloc(bytes ? bytes : 1, 1);
}

static inline void ngs_release(void *memory, size_t bytes) {
    (void)bytes;
    free(memory);
}

static inline void *ngs_extend(void *memory, size_t bytes, size_t needed) {
    (void)bytes;
    return realloc(memory, needed);
}

static inline void ngs_release_some(ngs_rest *rest) { (void)rest; }

static inline void ngs_release_rest(ngs_rest *rest) { (void)rest; }

static inline void ngs_release_later(ngs_rest *rest, void *memory, size_t bytes) {
    (void)rest;
    (void)bytes;
    free(memory);
}
#endif

#endif
