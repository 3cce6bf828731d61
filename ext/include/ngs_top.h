/* The likeliest tokens of a row of logits, with their probabilities. */
#ifndef NGS_TOP_H
#define NGS_TOP_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "ngs_rows.h"

enum { NGS_TOP_MOST = 16, NGS_TOP_PART = 1024 };

/* Numbers of a block, as numbers or as their bits: conversions that compilers turn into vectors. */
typedef union {
    float number[NGS_LANES];
    int32_t bits[NGS_LANES];
} ngs_block;

/* Sum of e^(logit - top) of a part of a row, top being no less than any of them, which are finite, NaN or -INFINITY.
 *
 * e^d is 2^t, t = d * log2(e): a polynomial for what t lacks to a whole number, within 1e-7 relatively, or
 * 8e-5 where it need not be fine, and that number added to the exponent. What is below 2^-126, and NaN, counts as that. */
static NGS_WITHIN double ngs_exp_sum_by(const float *row, ptrdiff_t n, float top, int fine) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float lanes[NGS_LANES];
    ngs_block powers, wholes;
    for (int j = 0; j < NGS_LANES; j++) lanes[j] = 0.0f;
    for (ptrdiff_t i = 0; i < n; i += NGS_LANES) {
        float t[NGS_LANES];
        const ptrdiff_t some = n - i < NGS_LANES ? n - i : NGS_LANES;
        if (some < NGS_LANES)
            for (int j = 0; j < NGS_LANES; j++) t[j] = -INFINITY;
        for (int j = 0; j < some; j++) t[j] = (row[i + j] - top) * 1.44269504f;
        /* A loop of its own: together with the next one, a compiler would jump where it could compute. */
        for (int j = 0; j < NGS_LANES; j++) t[j] = t[j] > -126.0f ? t[j] : -126.0f;
        for (int j = 0; j < NGS_LANES; j++) {
            float rest;
            wholes.number[j] = t[j] + shift;
            rest = t[j] - (wholes.number[j] - shift);
            powers.number[j] =
                fine ? 1.00000007f + rest * (0.693146967f + rest * (0.240221197f + rest * (0.0555071328f
                     + rest * (0.00967554154f + rest * 0.00132764717f))))
                     : 0.999928074f + rest * (0.693260985f + rest * (0.242611122f + rest * 0.0551716691f));
        }
        for (int j = 0; j < NGS_LANES; j++) /* the lowest bits of t + shift are the whole part */
            powers.bits[j] = (int32_t)((uint32_t)powers.bits[j] + ((uint32_t)wholes.bits[j] << 23));
        for (int j = 0; j < NGS_LANES; j++) lanes[j] += powers.number[j];
    }
    for (int width = NGS_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

NGS_WIDE static double ngs_exp_sum(const float *row, ptrdiff_t n, float top) { return ngs_exp_sum_by(row, n, top, 1); }
NGS_WIDE static double ngs_coarse_sum(const float *row, ptrdiff_t n, float top) { return ngs_exp_sum_by(row, n, top, 0); }

/* The same for a row of any length: lanes are single precision, so parts of it are summed in double. */
static double ngs_row_exp_sum(const float *row, ptrdiff_t n, float top) {
    double sum = 0.0;
    for (ptrdiff_t start = 0; start < n; start += NGS_TOP_PART)
        sum += ngs_exp_sum(row + start, n - start < NGS_TOP_PART ? n - start : NGS_TOP_PART, top);
    return sum;
}

/* Fetch a part while the one before it is worked on, whose sum takes longer than fetching: the processor sees that it is
 * wanted only when it is read. */
static inline void ngs_fetch(const float *part, ptrdiff_t n) {
#if defined(__GNUC__)
    for (ptrdiff_t i = 0; i < n; i += 16) __builtin_prefetch(part + i);
#endif
}

/* A logit that sums can bear: infinity becomes finite. */
static inline float ngs_bearable(float logit) { return logit < 1e30f ? logit : 1e30f; }

/* Put the logits of row[start:end] that are above the k-th largest so far among them; returns how many there are. */
static int ngs_top_join(const float *row, ptrdiff_t start, ptrdiff_t end, int k, int32_t *tokens, float *logits, int count) {
    ptrdiff_t block = start;
    for (;;) {
        float bound = count == k ? logits[k - 1] : -INFINITY;
        ptrdiff_t last, i;
        block = ngs_next_block(row, block, end, bound, NULL);
        if (block >= end) return count;
        last = block + NGS_LANES < end ? block + NGS_LANES : end;
        for (i = block; i < last; i++) {
            int at;
            if (!(row[i] > bound)) continue;
            const float logit = ngs_bearable(row[i]);
            if (!(logit > bound)) continue; /* infinity after infinities */
            at = count < k ? count++ : k - 1;
            for (; at > 0 && logits[at - 1] < logit; at--) {
                logits[at] = logits[at - 1];
                tokens[at] = tokens[at - 1];
            }
            logits[at] = logit;
            tokens[at] = (int32_t)i;
            bound = count == k ? logits[k - 1] : -INFINITY;
        }
        block = last;
    }
}

/* Write the k <= NGS_TOP_MOST tokens with the largest logits, largest first, of equals the smaller id first, and
 * their probabilities under the softmax of all n logits, within 8e-5 relatively. NaN and -infinity are no tokens. Returns how many there are.
 * The row is read from memory once: a part at a time, its largest logit, its sum and its tokens. Sums are coarse where
 * the largest logit so far is not: a sure token has probability 1. */
static int ngs_top(const float *row, ptrdiff_t n, int k, int32_t *tokens, float *probabilities) {
    float logits[NGS_TOP_MOST], highest = -INFINITY;
    double sum = 0.0;
    int count = 0;
    for (ptrdiff_t start = 0; start < n; start += NGS_TOP_PART) {
        const ptrdiff_t end = start + NGS_TOP_PART < n ? start + NGS_TOP_PART : n;
        const float largest = ngs_row_max(row + start, end - start), most = ngs_bearable(largest);
        ngs_fetch(row + end, n - end < NGS_TOP_PART ? n - end : NGS_TOP_PART);
        if (most == -INFINITY) continue;
        if (most > highest) {
            sum *= exp((double)highest - (double)most);
            highest = most;
        }
        if (largest == most)
            sum += most == highest ? ngs_exp_sum(row + start, end - start, highest)
                                   : ngs_coarse_sum(row + start, end - start, highest);
        else /* infinities, and what counts as much, share all there is */
            for (ptrdiff_t i = start; i < end; i++) sum += row[i] >= most;
        if (count < k || most > logits[k - 1]) count = ngs_top_join(row, start, end, k, tokens, logits, count);
    }
    for (int i = 0; i < count; i++) probabilities[i] = (float)(exp((double)logits[i] - (double)highest) / sum);
    return count;
}

#endif
