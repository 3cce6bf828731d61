/* The candidates that llama.cpp samples from, and its samplers called through pointers. C++ for the
 * same reason as ngs_llama.h. */
#ifndef NGS_CANDIDATES_H
#define NGS_CANDIDATES_H

#include <algorithm>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "ngs_rows.h"

/* As in llama.h; the installed library is checked against their sizes. */
struct ngs_candidate {
    int32_t id;
    float logit;
    float p;
};

struct ngs_candidates {
    ngs_candidate *data;
    size_t size;
    int64_t selected;
    bool sorted;
};

typedef void (*ngs_apply_fn)(void *sampler, ngs_candidates *candidates);
typedef void (*ngs_accept_fn)(void *sampler, int32_t token);
typedef void *(*ngs_clone_fn)(const void *sampler);
typedef void (*ngs_free_fn)(void *sampler);

static inline bool ngs_apply(ngs_apply_fn apply, void *sampler, ngs_candidates *candidates) {
    try {
        apply(sampler, candidates);
        return true;
    } catch (...) {
        return false;
    }
}

static inline bool ngs_accept(ngs_accept_fn accept, void *sampler, int32_t token) {
    try {
        accept(sampler, token);
        return true;
    } catch (...) {
        return false;
    }
}

/* Bring the `top` most probable candidates to the front, likeliest first, of equals the smaller id;
 * 0 <= top <= size. llama.cpp's samplers often leave them in that order. */
static inline void ngs_sort_likeliest(ngs_candidates *candidates, size_t top) {
    if (candidates->sorted) return;
    std::partial_sort(candidates->data, candidates->data + top, candidates->data + candidates->size,
                      [](const ngs_candidate &a, const ngs_candidate &b) {
                          return a.p > b.p || (a.p == b.p && a.id < b.id);
                      });
}

/* A logit that cannot break llama.cpp's sorting: NaN becomes -infinity, +infinity finite. */
static inline float ngs_sane(float logit) {
    const float most = 1e30f;
    return logit < most ? logit : logit >= most ? most : -INFINITY;
}

static void ngs_fill(ngs_candidate *out, const float *row, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        out[i].id = (int32_t)i;
        out[i].logit = ngs_sane(row[i]);
        out[i].p = 0.0f;
    }
}

/* Copy a row of n logits, those of tokens whose bit of the mask is not set as -infinity. */
NGS_WIDE static void ngs_mask_row(float *out, const float *row, const uint64_t *mask, ptrdiff_t n) {
    ptrdiff_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const uint64_t bits = mask[i / 64];
        for (int j = 0; j < 64; j += 32) {
            const uint32_t half = (uint32_t)(bits >> j); /* without a branch: which bits are set has no pattern */
            for (int lane = 0; lane < 32; lane++)
                out[i + j + lane] = half & (uint32_t)1 << lane ? row[i + j + lane] : -INFINITY;
        }
    }
    for (; i < n; i++) out[i] = mask[i / 64] >> (i % 64) & 1 ? row[i] : -INFINITY;
}

static inline void ngs_sink(float *heap, ptrdiff_t k, ptrdiff_t at) {
    const float value = heap[at];
    for (;;) {
        ptrdiff_t child = 2 * at + 1;
        if (child >= k) break;
        if (child + 1 < k && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

/* Write the logits, of n, that can affect llama.cpp's selection of the k largest: the first k, and
 * every later one that is larger than the k-th largest before it. std::partial_sort skips all others,
 * so the result has the same order, of equal logits too. Tokens marked in `counted` (NULL: none) may
 * still change their logit before the selection: they are always written and displace none. `marks`
 * has a byte per NGS_LANES tokens, set if a token of these is counted. 0 < k < n; heap has k places.
 * Returns the number written. */
static ptrdiff_t ngs_prefilter(ngs_candidate *out, const float *row, ptrdiff_t n, ptrdiff_t k, float *heap,
                               const uint8_t *counted, const uint8_t *marks) {
    ptrdiff_t size = k, block = k / NGS_LANES * NGS_LANES;
    ngs_fill(out, row, k);
    for (ptrdiff_t i = 0; i < k; i++) heap[i] = counted && counted[i] ? -INFINITY : out[i].logit;
    for (ptrdiff_t i = k / 2; i-- > 0;) ngs_sink(heap, k, i);
    for (;;) {
        block = ngs_next_block(row, block, n, heap[0], marks);
        if (block >= n) return size;
        const ptrdiff_t end = block + NGS_LANES < n ? block + NGS_LANES : n;
        for (ptrdiff_t i = block < k ? k : block; i < end; i++) {
            const bool may_change = counted && counted[i];
            if (!may_change && !(row[i] > heap[0])) continue;
            out[size].id = (int32_t)i;
            out[size].logit = ngs_sane(row[i]);
            out[size++].p = 0.0f;
            if (may_change) continue;
            heap[0] = out[size - 1].logit;
            ngs_sink(heap, k, 0);
        }
        block = end;
    }
}

#endif
