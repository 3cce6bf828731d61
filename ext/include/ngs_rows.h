/* Loops over rows of logits, compiled for wide vectors where compiler and loader can choose one. */
#ifndef NGS_ROWS_H
#define NGS_ROWS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "ngs_wide.h"

enum { NGS_ROW_PART = 4096 };

/* Largest value; NaN is skipped. -INFINITY for none. */
NGS_WIDE static float ngs_row_max(const float *row, ptrdiff_t n) {
    float lanes[NGS_LANES];
    float best = -INFINITY;
    ptrdiff_t i = 0;
    for (int j = 0; j < NGS_LANES; j++) lanes[j] = -INFINITY;
    for (; i + NGS_LANES <= n; i += NGS_LANES)
        for (int j = 0; j < NGS_LANES; j++) lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
    for (int width = NGS_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] = lanes[j + width] > lanes[j] ? lanes[j + width] : lanes[j];
    best = lanes[0];
    for (; i < n; i++) best = row[i] > best ? row[i] : best;
    return best;
}

/* Smallest index of `value`, n when it is not there. */
NGS_WIDE static ptrdiff_t ngs_row_find(const float *row, ptrdiff_t n, float value) {
    ptrdiff_t i = 0;
    for (; i + NGS_LANES <= n; i += NGS_LANES) {
        int hit = 0;
        for (int j = 0; j < NGS_LANES; j++) hit |= row[i + j] == value;
        if (hit) break;
    }
    for (; i < n; i++)
        if (row[i] == value) return i;
    return n;
}

/* Smallest index of the largest value, n when all are NaN. What is read twice is a part that is still in the fastest cache. */
static ptrdiff_t ngs_row_argmax(const float *row, ptrdiff_t n) {
    float best = -INFINITY;
    ptrdiff_t at = 0;
    for (ptrdiff_t start = 0; start < n; start += NGS_ROW_PART) {
        const float most = ngs_row_max(row + start, n - start < NGS_ROW_PART ? n - start : NGS_ROW_PART);
        if (most > best) {
            best = most;
            at = start;
        }
    }
    return at + ngs_row_find(row + at, n - at, best);
}

/* First block of NGS_LANES logits from index `start` on, a multiple of NGS_LANES, that holds a logit
 * above `bound` or is marked (marks may be NULL); n when there is none. */
NGS_WIDE static ptrdiff_t ngs_next_block(const float *row, ptrdiff_t start, ptrdiff_t n, float bound,
                                         const uint8_t *marks) {
    ptrdiff_t i = start;
    for (; i + NGS_LANES <= n; i += NGS_LANES) {
        int hit = 0;
        for (int j = 0; j < NGS_LANES; j++) hit |= row[i + j] > bound;
        if (hit || (marks && marks[i / NGS_LANES])) return i;
    }
    return i < n ? i : n;
}

#endif
