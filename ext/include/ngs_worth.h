/* What the passes over a chain are worth. SSE2, which every x86-64 has, elsewhere plain loops. */
#ifndef NGS_WORTH_H
#define NGS_WORTH_H

#include <math.h>
#include <stddef.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#define NGS_WORTH_WIDE 1
#else
#define NGS_WORTH_WIDE 0
#endif

enum { NGS_WORTH_PAD = 2 };  /* entries that must follow worth[n] and costs[n]; in costs: any finite numbers */

/* Tokens i, i - 1, ..., `until` of a chain, for all ends up to n; see ngs_chain_worth. */
static inline double ngs_worth_rows(const double *p, ptrdiff_t i, ptrdiff_t until, ptrdiff_t n, const double *costs,
                                    double best, double *worth, double *all_best) {
    for (; i >= until; i--) {
        const double stay = 1.0 + p[i] * best;
        best = stay - costs[0] > 0.0 ? stay - costs[0] : 0.0;
        for (ptrdiff_t j = i + 1; j <= n; j++) {
            worth[j] = 1.0 + p[i] * worth[j];
            best = worth[j] - costs[j - i] > best ? worth[j] - costs[j - i] : best;
        }
        worth[i] = stay;
        all_best[i] = best;
    }
    return best;
}

#if NGS_WORTH_WIDE
/* Two ends, one token back: returns 1 + right * pair; best becomes the larger of itself and that minus the cost. */
static inline __m128d ngs_worth_two(__m128d pair, double right, const double *costs, __m128d *best) {
    pair = _mm_add_pd(_mm_set1_pd(1.0), _mm_mul_pd(_mm_set1_pd(right), pair));
    *best = _mm_max_pd(_mm_sub_pd(pair, _mm_loadu_pd(costs)), *best);
    return pair;
}

/* Four tokens 3, 2, 1, 0 together, for the ends from 4 to stop - 1; best gets the best of each. */
static inline void ngs_worth_group(const double *p, ptrdiff_t stop, const double *costs, double *worth, double *best) {
    __m128d best0 = _mm_set1_pd(-INFINITY), best1 = best0, best2 = best0, best3 = best0;
    for (ptrdiff_t j = 4; j < stop; j += 2) {
        __m128d pair = _mm_loadu_pd(worth + j);
        pair = ngs_worth_two(pair, p[3], costs + j - 3, &best3);
        pair = ngs_worth_two(pair, p[2], costs + j - 2, &best2);
        pair = ngs_worth_two(pair, p[1], costs + j - 1, &best1);
        pair = ngs_worth_two(pair, p[0], costs + j, &best0);
        _mm_storeu_pd(worth + j, pair);
    }
    _mm_storeu_pd(best, _mm_max_pd(_mm_unpacklo_pd(best0, best1), _mm_unpackhi_pd(best0, best1)));
    _mm_storeu_pd(best + 2, _mm_max_pd(_mm_unpacklo_pd(best2, best3), _mm_unpackhi_pd(best2, best3)));
}
#endif

/* Solve a chain of n >= 1 tokens from its end.
 *
 * p[i] > 0 is the probability that token i is right if those before it are, costs[k] what a pass with
 * k drafted tokens costs. After the last token nothing is gained: best(n) = 0. A pass at token i with
 * j - i drafted tokens emits the right ones before the first wrong one, and one more; if all were right
 * and that one is token j, the chain goes on after it. So, for every end j of the draft,
 *     worth(i, j) = 1 + p[i] * worth(i + 1, j),   worth(i, i) = 1 + p[i] * best(i + 1),
 *     best(i) = max(0, max over j of worth(i, j) - costs[j - i])
 * which takes one multiplication per token and end, in place. Only ends near i wait for best(i + 1), so
 * four tokens are done at once for all others. Ends after n are worth -INFINITY and stay so.
 *
 * Leaves worth[k] for k = 0..n drafted tokens at token 0, before costs, and best(i) in best[i], i = 0..n. */
static void ngs_chain_worth(const double *p, ptrdiff_t n, const double *costs, double *worth, double *best) {
    ptrdiff_t a = NGS_WORTH_WIDE ? (n - 1) / 4 * 4 : 0;
    const double spare = 1.0 - costs[0];
    double top = 0.0;
    worth[n] = 1.0;
    best[n] = 0.0;
    top = ngs_worth_rows(p, n - 1, a, n, costs, top, worth, best);
#if NGS_WORTH_WIDE
    const ptrdiff_t stop = n / 2 * 2 + 2;
    worth[stop - 1] = stop - 1 == n ? worth[n] : -INFINITY;
    while (a > 0) {
        double far[4];
        double *at = worth + (a -= 4);
        ngs_worth_group(p + a, stop - a, costs, at, far);
        for (int i = 3; i >= 0; i--) {
            const double right = p[a + i], come = right * top;
            double sent = far[i] > 0.0 ? far[i] : 0.0;
            for (int j = 3; j > i; j--) {
                at[j] = 1.0 + right * at[j];
                sent = at[j] - costs[j - i] > sent ? at[j] - costs[j - i] : sent;
            }
            at[i] = 1.0 + come;
            top = spare + come > sent ? spare + come : sent;
            best[a + i] = top;
        }
    }
#endif
}

#endif
