/* Compile a function for wide vectors as well, where compiler and loader can choose at run time. */
#ifndef NGS_WIDE_H
#define NGS_WIDE_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define NGS_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define NGS_WIDE
#endif

enum { NGS_LANES = 32 };

#endif
