/* llama.cpp through pointers to its functions. C++, because its exceptions must be caught here: the
 * callers are C, where an exception would end the process. */
#ifndef NGS_LLAMA_H
#define NGS_LLAMA_H

#include <stddef.h>
#include <stdint.h>

enum { NGS_THREW = -1000 }; /* not a status of llama_decode */

/* As in llama.h, passed by value; the installed library is checked against its size. */
struct ngs_llama_batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
};

typedef int32_t (*ngs_decode_fn)(void *context, ngs_llama_batch batch);
typedef float *(*ngs_logits_fn)(void *context);
typedef void *(*ngs_memory_fn)(void *context);
typedef bool (*ngs_seq_rm_fn)(void *memory, int32_t sequence, int32_t first, int32_t end);
typedef void (*ngs_seq_cp_fn)(void *memory, int32_t source, int32_t sequence, int32_t first, int32_t end);
typedef void (*ngs_seq_add_fn)(void *memory, int32_t sequence, int32_t first, int32_t end, int32_t delta);
typedef bool (*ngs_can_shift_fn)(void *memory);
typedef int32_t (*ngs_seq_pos_fn)(void *memory, int32_t sequence);
typedef void (*ngs_clear_fn)(void *memory, bool data);
typedef bool (*ngs_is_end_fn)(const void *vocab, int32_t token);

/* Decode and return the status; rows become the logits, NULL when there are none. */
static inline int32_t ngs_decode(ngs_decode_fn decode, ngs_logits_fn logits, void *context,
                                 ngs_llama_batch batch, ptrdiff_t num_outputs, float **rows) {
    *rows = NULL;
    try {
        const int32_t status = decode(context, batch);
        if (status != 0 || num_outputs == 0) return status;
        *rows = logits(context);
        return *rows ? 0 : NGS_THREW;
    } catch (...) {
        return NGS_THREW;
    }
}

static inline bool ngs_seq_rm(ngs_seq_rm_fn seq_rm, void *memory, int32_t sequence, int32_t first,
                              int32_t end) {
    try {
        return seq_rm(memory, sequence, first, end);
    } catch (...) {
        return false;
    }
}

/* Copy a range of positions; false, with a part of it copied, where there is no memory. */
static inline bool ngs_seq_cp(ngs_seq_cp_fn seq_cp, void *memory, int32_t source, int32_t sequence,
                              int32_t first, int32_t end) {
    try {
        seq_cp(memory, source, sequence, first, end);
        return true;
    } catch (...) {
        return false;
    }
}

#endif
