# GuidanceTokens: a vocabulary as llguidance wants it. GuidanceMatcher: where one text is in a grammar of its Lark.
from libcpp cimport bool as cbool

from ngramspec._native.core.types cimport int32_t, token_t, uint32_t, uint64_t, uint8_t
from ngramspec._native.grammar.constraint cimport Constraint
from ngramspec._native.grammar.matcher cimport Tokens, TokensTreeC
from ngramspec._native.core.memory cimport Owner


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* As in llguidance.h. */
    struct ngs_llg_tokenizer_init {
        size_t struct_size;
        uint32_t vocab_size;
        uint32_t tok_eos;
        const uint32_t *token_lens;
        const uint8_t *token_bytes;
        const char *tokenizer_json;
        bool tokenize_assumes_string;
        size_t (*tokenize_fn)(const void *user, const uint8_t *bytes, size_t size, uint32_t *out, size_t room);
        bool use_approximate_greedy_tokenize_fn;
        const void *tokenize_user_data;
        const char *const *slices;
        const uint32_t *tok_eos_extra;
        uint32_t tok_eos_extra_count;
    };
    struct ngs_llg_limits {
        size_t max_items_in_row;
        uint64_t initial_lexer_fuel;
        uint64_t step_lexer_fuel;
        size_t step_max_items;
        size_t max_lexer_states;
        size_t max_grammar_size;
        bool precompute_large_lexemes;
        bool verbose_errors;
    };
    struct ngs_llg_init {
        const void *tokenizer;
        uint32_t log_buffer_level;
        uint32_t log_stderr_level;
        bool ff_tokens_ok;
        bool backtrack_ok;
        ngs_llg_limits limits;
    };
    typedef int32_t (*ngs_tokenize_fn)(const void *vocab, const char *text, int32_t size, int32_t *out, int32_t room,
                                       bool add_special, bool parse_special);

    /* The tokens of a text; 0 where llama.cpp cannot tell: its exceptions must not get into llguidance. */
    static inline int32_t ngs_tokenize(ngs_tokenize_fn tokenize, const void *vocab, const uint8_t *text, int32_t size,
                                       int32_t *out, int32_t room, bool special) {
        try {
            return tokenize(vocab, (const char *)text, size, out, room, false, special);
        } catch (...) {
            return 0;
        }
    }
    """
    ctypedef struct ngs_llg_tokenizer_init:
        size_t struct_size
        uint32_t vocab_size
        uint32_t tok_eos
        const uint32_t* token_lens
        const uint8_t* token_bytes
        cbool tokenize_assumes_string
        size_t (*tokenize_fn)(const void* user, const uint8_t* text, size_t size, uint32_t* out, size_t room) noexcept nogil
        cbool use_approximate_greedy_tokenize_fn
        const void* tokenize_user_data
        const uint32_t* tok_eos_extra
        uint32_t tok_eos_extra_count
    ctypedef struct ngs_llg_limits:
        size_t max_items_in_row
        uint64_t initial_lexer_fuel
        uint64_t step_lexer_fuel
        size_t step_max_items
        size_t max_lexer_states
        size_t max_grammar_size
        cbool precompute_large_lexemes
        cbool verbose_errors
    ctypedef struct ngs_llg_init:
        const void* tokenizer
        uint32_t log_buffer_level
        uint32_t log_stderr_level
        ngs_llg_limits limits
    ctypedef int32_t (*ngs_tokenize_fn)(const void* vocab, const char* text, int32_t size, int32_t* out, int32_t room,
                                        cbool add_special, cbool parse_special) noexcept nogil
    int32_t ngs_tokenize(ngs_tokenize_fn tokenize, const void* vocab, const uint8_t* text, int32_t size, int32_t* out,
                         int32_t room, cbool special) noexcept nogil

# Functions of llguidance, from its shared library.
cdef struct GuidanceC:
    void* (*new_tokenizer)(const ngs_llg_tokenizer_init* init, char* error, size_t room) noexcept nogil
    void (*free_tokenizer)(void* tokenizer) noexcept nogil
    void* (*new_matcher)(const ngs_llg_init* init, const char* kind, const char* text) noexcept nogil
    void* (*clone_matcher)(const void* matcher) noexcept nogil
    void (*free_matcher)(void* matcher) noexcept nogil
    const char* (*get_error)(void* matcher) noexcept nogil
    cbool (*is_accepting)(void* matcher) noexcept nogil
    int32_t (*compute_mask)(void* matcher, uint32_t* mask, size_t num_bytes) noexcept nogil
    size_t (*mask_bytes)(const void* matcher) noexcept nogil
    int32_t (*consume)(void* matcher, uint32_t token) noexcept nogil
    int32_t (*validate)(void* matcher, const uint32_t* tokens, size_t n) noexcept nogil
    int32_t (*forced)(void* matcher, uint32_t* out, size_t room) noexcept nogil

# How a vocabulary writes texts.
cdef struct SpellingC:
    ngs_tokenize_fn tokenize    # NULL: not known
    const void* vocab
    const uint8_t* ends         # per token: it ends a generation
    Py_ssize_t vocab_size
    bint closed                 # the llama_vocab is about to be freed

cdef class GuidanceTokens(Owner):
    cdef GuidanceC calls
    cdef SpellingC writer
    cdef void* tokenizer
    cdef readonly Tokens tokens
    cdef readonly object library    # keeps the functions loaded

cdef struct GuidanceMatcherC:
    const GuidanceC* calls
    const TokensTreeC* tokens
    void* matcher
    uint64_t* mask
    size_t mask_bytes
    uint32_t* path              # tokens of a draft, from the text to a leaf
    int32_t* places             # where they are in the draft
    Py_ssize_t room             # of both
    token_t allowed             # the last token that was found to be allowed here; -1 = none
    bint failed                 # no memory

cdef class GuidanceMatcher(Constraint):
    cdef GuidanceMatcherC m
    cdef readonly GuidanceTokens tokens
