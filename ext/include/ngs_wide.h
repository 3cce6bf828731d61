/* Compile a function for AVX2 as well, and let the processor at hand choose when the module is loaded, where
 * compiler and loader can do that. Everything else keeps to the architecture's baseline. No fused
 * multiply-add: sums are the same on every processor, and ngs_net_logit is faster without. NGS_BASELINE
 * leaves AVX2 out. */
#ifndef NGS_WIDE_H
#define NGS_WIDE_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(NGS_BASELINE)
#define NGS_AVX2 1
#define NGS_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define NGS_AVX2 0
#define NGS_WIDE
#endif

/* Compile a function within each that calls it, wide where that one is. */
#if defined(__GNUC__)
#define NGS_WITHIN inline __attribute__((always_inline))
#else
#define NGS_WITHIN inline
#endif

enum { NGS_LANES = 32 };

#endif
