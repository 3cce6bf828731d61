/* Comparisons and sums that compilers turn into vector code. */
#ifndef NGS_SUFFIX_H
#define NGS_SUFFIX_H

#include <math.h>
#include <stdint.h>

#include "ngs_native.h"
#include "ngs_wide.h"

enum { NGS_FEATURES = 34, NGS_HIDDEN = 32 };

/* Weights of one hidden layer, [feature][hidden], so that the inner loop runs over hidden units. */
typedef struct {
    float in[NGS_FEATURES][NGS_HIDDEN];
    float bias[NGS_HIDDEN];
    float out[NGS_HIDDEN];
    float out_bias;
} ngs_net;

/* The logit for a row of features. */
NGS_WIDE static float ngs_net_logit(const ngs_net *net, const float *x) {
    float sum[NGS_HIDDEN];
    float logit = net->out_bias;
    int i, k;
    for (k = 0; k < NGS_HIDDEN; k++) sum[k] = net->bias[k];
    for (i = 0; i < NGS_FEATURES; i++)
        for (k = 0; k < NGS_HIDDEN; k++) sum[k] += x[i] * net->in[i][k];
    for (k = 0; k < NGS_HIDDEN; k++) logit += (sum[k] > 0 ? sum[k] : 0) * net->out[k];
    return logit;
}

/* Words that another thread may write meanwhile. Vector loads read each word whole, though C does not
 * guarantee it; readers check afterwards that what they read is still valid. */
#if NGS_TSAN
#define NGS_READ(p) ngs_load32(p)
#define NGS_WRITE(p, v) ngs_store32(p, v)
#else
#define NGS_READ(p) (*(p))
#define NGS_WRITE(p, v) (*(p) = (v))
#endif

/* Bit i is set when a[-1-i] == b[-1-i], for i < n <= 32. `a` may be shared. */
NGS_WIDE static uint32_t ngs_alike(const int32_t *a, const int32_t *b, int n) {
    uint32_t mask = 0;
    int i;
    if (n >= 32) {
        for (i = 0; i < 32; i++) mask |= (uint32_t)((int32_t)NGS_READ(a - 1 - i) == b[-1 - i]) << i;
        return mask;
    }
    for (i = 0; i < n; i++) mask |= (uint32_t)((int32_t)NGS_READ(a - 1 - i) == b[-1 - i]) << i;
    return mask;
}

/* Number of zeros below the lowest set bit of a number that is not 0. */
static inline int ngs_lowest(uint32_t bits) {
#if defined(_MSC_VER)
    int n = 0;
    while (!(bits & 1)) { bits >>= 1; n++; }
    return n;
#else
    return __builtin_ctz(bits);
#endif
}

/* Number of trailing ones. */
static inline int ngs_run(uint32_t mask) { return ~mask ? ngs_lowest(~mask) : 32; }

static inline int ngs_ones(uint32_t mask) {
    mask -= (mask >> 1) & 0x55555555u;
    mask = (mask & 0x33333333u) + ((mask >> 2) & 0x33333333u);
    return (int)((((mask + (mask >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24);
}

/* log2 of a positive number, within 0.01. */
static inline float ngs_log2(float x) {
    union { float f; uint32_t u; } v;
    float e, m;
    v.f = x;
    e = (float)((int)(v.u >> 23) - 127);
    v.u = (v.u & 0x007FFFFFu) | 0x3F800000u;
    m = v.f;
    return e + (-0.33582878f * m + 2.0f) * m - 1.65871022f;
}

static inline float ngs_logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

/* A line holds the latest positions of the contexts that share it: 16 words, newest first. One thread
 * writes a line at a time; others may read it meanwhile and find a word twice, or miss one. */
enum { NGS_LINE = 16 };

#if defined(__SSE2__) && !NGS_TSAN
#include <emmintrin.h>
/* Bit i is set when word i is not 0 and has the tag of `word`, the bits of `mask`. */
static inline uint32_t ngs_line_hits(const uint32_t *line, uint32_t word, uint32_t mask) {
    const __m128i tag = _mm_set1_epi32((int)(word & mask)), bits = _mm_set1_epi32((int)mask);
    const __m128i zero = _mm_setzero_si128();
    uint32_t hits = 0;
    int i;
    for (i = 0; i < 4; i++) {
        __m128i words = _mm_loadu_si128((const __m128i *)(line + 4 * i));
        __m128i same = _mm_cmpeq_epi32(_mm_and_si128(words, bits), tag);
        same = _mm_andnot_si128(_mm_cmpeq_epi32(words, zero), same);
        hits |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(same)) << (4 * i);
    }
    return hits;
}

/* Move the first `last` words back by one and put `word` first. */
static inline void ngs_line_shift(uint32_t *line, uint32_t word, int last) {
    const __m128i end = _mm_set1_epi32(last + 1);
    __m128i places = _mm_set_epi32(3, 2, 1, 0);
    __m128i before = _mm_set1_epi32((int)word);
    int i;
    for (i = 0; i < 4; i++) {
        __m128i old = _mm_loadu_si128((const __m128i *)(line + 4 * i));
        __m128i moved = _mm_or_si128(_mm_slli_si128(old, 4), _mm_srli_si128(before, 12));
        __m128i moves = _mm_cmpgt_epi32(end, places);
        moved = _mm_or_si128(_mm_and_si128(moves, moved), _mm_andnot_si128(moves, old));
        _mm_storeu_si128((__m128i *)(line + 4 * i), moved);
        before = old;
        places = _mm_add_epi32(places, _mm_set1_epi32(4));
    }
}
#else
static inline uint32_t ngs_line_hits(const uint32_t *line, uint32_t word, uint32_t mask) {
    uint32_t hits = 0;
    int i;
    for (i = 0; i < NGS_LINE; i++)
        hits |= (uint32_t)(NGS_READ(line + i) != 0 && ((NGS_READ(line + i) ^ word) & mask) == 0) << i;
    return hits;
}

static inline void ngs_line_shift(uint32_t *line, uint32_t word, int last) {
    int i;
    for (i = last; i > 0; i--) NGS_WRITE(line + i, NGS_READ(line + i - 1));
    NGS_WRITE(line, word);
}
#endif

/* The line of a hash. */
static inline uint32_t *ngs_line(uint32_t *cells, uint64_t num_lines, uint64_t hash) {
    return cells + NGS_LINE * (((hash >> 32) * num_lines) >> 32);
}

/* Index of the word to drop for a new word with these hits, so that at most `most` words have its tag. */
static inline int ngs_line_last(uint32_t hits, int most) {
    if (ngs_ones(hits) < most) return NGS_LINE - 1;
    while (--most) hits &= hits - 1;
    return ngs_lowest(hits);
}

/* Put a position first in the line of each hash, with the hash's tag (the bits of `mask`). */
static inline void ngs_lines_push(uint32_t *cells, uint64_t num_lines, const uint64_t *hashes, int num, uint32_t position,
                                  uint32_t mask, int most) {
    int i;
    for (i = 0; i < num; i++) {
        uint32_t *line = ngs_line(cells, num_lines, hashes[i]), word = ((uint32_t)hashes[i] & mask) | position;
        ngs_line_shift(line, word, ngs_line_last(ngs_line_hits(line, word, mask), most));
    }
}

#if NGS_AVX2
#include <immintrin.h>
static inline int ngs_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
}

/* The same, half a line at a time. */
__attribute__((target("avx2,bmi,popcnt"))) static void ngs_lines_push_avx2(uint32_t *cells, uint64_t num_lines, const uint64_t *hashes,
                                                               int num, uint32_t position, uint32_t mask, int most) {
    const __m256i bits = _mm256_set1_epi32((int)mask), zero = _mm256_setzero_si256();
    const __m256i before = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6), low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    int i;
    for (i = 0; i < num; i++) {
        __m256i *line = (__m256i *)ngs_line(cells, num_lines, hashes[i]);
        const uint32_t word = ((uint32_t)hashes[i] & mask) | position;
        const __m256i tag = _mm256_set1_epi32((int)(word & mask));
        const __m256i a = _mm256_loadu_si256(line), b = _mm256_loadu_si256(line + 1);
        const __m256i like_a = _mm256_andnot_si256(_mm256_cmpeq_epi32(a, zero), _mm256_cmpeq_epi32(_mm256_and_si256(a, bits), tag));
        const __m256i like_b = _mm256_andnot_si256(_mm256_cmpeq_epi32(b, zero), _mm256_cmpeq_epi32(_mm256_and_si256(b, bits), tag));
        const uint32_t hits = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(like_a)) |
                              (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(like_b)) << 8;
        int left = most, last = NGS_LINE - 1; /* as ngs_line_last, with bmi and popcnt */
        uint32_t rest = hits;
        if (__builtin_popcount(hits) >= most) {
            while (--left) rest &= rest - 1;
            last = __builtin_ctz(rest);
        }
        const __m256i end = _mm256_set1_epi32(last + 1);
        const __m256i turned_a = _mm256_permutevar8x32_epi32(a, before), turned_b = _mm256_permutevar8x32_epi32(b, before);
        const __m256i moved_a = _mm256_blend_epi32(turned_a, _mm256_set1_epi32((int)word), 1);
        const __m256i moved_b = _mm256_blend_epi32(turned_b, turned_a, 1);
        _mm256_storeu_si256(line, _mm256_blendv_epi8(a, moved_a, _mm256_cmpgt_epi32(end, low)));
        _mm256_storeu_si256(line + 1, _mm256_blendv_epi8(b, moved_b, _mm256_cmpgt_epi32(end, high)));
    }
}
#else
static inline int ngs_has_avx2(void) { return 0; }
#define ngs_lines_push_avx2 ngs_lines_push
#endif

#endif
