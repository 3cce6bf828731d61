# The log of llama.cpp: one callback for the whole process, which keeps the latest warnings and errors.
# LlamaContext and ChainSampler: llama.cpp called through the addresses of its functions.
from libcpp cimport bool as cbool

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t, int8_t, token_t, uint32_t, uint64_t, uint8_t
from ngramspec._native.engine.decode cimport Batch, Rows, Sampler
from ngramspec._native.grammar.constraint cimport Constraint, ConstraintC


cdef extern from "ngs_llama.h" nogil:
    enum:
        NGS_THREW
    ctypedef struct ngs_llama_batch:
        int32_t n_tokens
        int32_t* token
        float* embd
        int32_t* pos
        int32_t* n_seq_id
        int32_t** seq_id
        int8_t* logits
    ctypedef int32_t (*ngs_decode_fn)(void* context, ngs_llama_batch batch) noexcept
    ctypedef float* (*ngs_logits_fn)(void* context) noexcept
    ctypedef void* (*ngs_memory_fn)(void* context) noexcept
    ctypedef cbool (*ngs_seq_rm_fn)(void* memory, int32_t sequence, int32_t first, int32_t end) noexcept
    ctypedef void (*ngs_seq_cp_fn)(void* memory, int32_t source, int32_t sequence, int32_t first, int32_t end) noexcept
    ctypedef void (*ngs_seq_add_fn)(void* memory, int32_t sequence, int32_t first, int32_t end, int32_t delta) noexcept
    ctypedef cbool (*ngs_can_shift_fn)(void* memory) noexcept
    ctypedef int32_t (*ngs_seq_pos_fn)(void* memory, int32_t sequence) noexcept
    ctypedef void (*ngs_clear_fn)(void* memory, cbool data) noexcept
    ctypedef cbool (*ngs_is_end_fn)(const void* vocab, int32_t token) noexcept
    int32_t ngs_decode(ngs_decode_fn decode, ngs_logits_fn logits, void* context, ngs_llama_batch batch,
                       Py_ssize_t num_outputs, float** rows)
    cbool ngs_seq_cp(ngs_seq_cp_fn seq_cp, void* memory, int32_t source, int32_t sequence, int32_t first, int32_t end)
    cbool ngs_seq_rm(ngs_seq_rm_fn seq_rm, void* memory, int32_t sequence, int32_t first, int32_t end)

cdef void* call_address(calls, str name) except? NULL

# The functions of llama.cpp that LlamaContext calls.
cdef struct ContextCallsC:
    ngs_decode_fn decode
    ngs_logits_fn get_logits
    ngs_seq_rm_fn seq_rm
    ngs_seq_cp_fn seq_cp
    ngs_seq_add_fn seq_add
    ngs_can_shift_fn can_shift
    ngs_seq_pos_fn pos_min
    ngs_seq_pos_fn pos_max
    ngs_clear_fn clear

cdef class LlamaContext(Owner):
    cdef ContextCallsC calls
    cdef void* context             # NULL once closed
    cdef void* memory              # of the context
    cdef ngs_llama_batch batch     # token .. logits are pointed at a Batch for each decode
    cdef int32_t* sequence_counts  # batch.n_seq_id: 1 each outside of trees, max_batch entries
    cdef int32_t** sequences       # batch.seq_id: pointers into a Batch, or into tree_sequences
    cdef int32_t* tree_sequences   # of each token of a tree: max_batch * max_branches
    cdef int32_t* branch_lengths   # per further branch of a sequence: tokens of the text that its own id holds
    cdef uint32_t* used            # per sequence: the branches that the last decode wrote to
    cdef int32_t* last_counts      # per sequence: its tokens in the last decode
    cdef int32_t* first_positions  # per sequence: its first position in the running decode; -1 = not in it
    cdef token_t* padded           # token, position, sequence of a padded single token: 2 entries each
    cdef Rows rows                 # shows the logits of the last decode
    cdef readonly double branch_seconds  # what the last decode took to let branches hold their text
    cdef readonly long long log_start  # log_position() before the last decode
    cdef readonly Py_ssize_t vocab_size
    cdef readonly Py_ssize_t max_batch
    cdef readonly Py_ssize_t max_outputs
    cdef readonly Py_ssize_t num_sequences
    cdef readonly Py_ssize_t context_size
    cdef readonly int pad_sequence
    cdef readonly Py_ssize_t max_branches  # of a tree, >= 1
    cdef readonly Py_ssize_t state_width   # numbers that come with each token, 0 = none
    cdef int find(self, calls) except -1
    cdef int allocate(self) except -1
    cdef int check(self, Batch batch, Rows rows) except -1
    cdef int opened(self) except -1
    cdef int check_sequence(self, int32_t sequence) except -1
    cdef int32_t run(self, Batch batch, float** rows) noexcept nogil
    cdef int32_t branch_id(self, Py_ssize_t sequence, Py_ssize_t branch) noexcept nogil
    cdef bint follow(self, Batch batch) noexcept nogil
    cdef void point(self, Batch batch) noexcept nogil
    cdef void cut_branches(self, int32_t sequence, int32_t length) noexcept nogil
    cdef void note(self, Batch batch) noexcept nogil
    cdef void undo(self, bint computed) noexcept nogil


cdef extern from "ngs_candidates.h" nogil:
    enum:
        NGS_LANES
    ctypedef struct ngs_candidate:
        int32_t id
        float logit
        float p
    ctypedef struct ngs_candidates:
        ngs_candidate* data
        size_t size
        int64_t selected
        cbool sorted
    ctypedef void (*ngs_apply_fn)(void* sampler, ngs_candidates* candidates) noexcept
    ctypedef void (*ngs_accept_fn)(void* sampler, int32_t token) noexcept
    ctypedef void* (*ngs_clone_fn)(const void* sampler) noexcept
    ctypedef void (*ngs_free_fn)(void* sampler) noexcept
    cbool ngs_apply(ngs_apply_fn apply, void* sampler, ngs_candidates* candidates)
    cbool ngs_accept(ngs_accept_fn accept, void* sampler, int32_t token)
    void ngs_sort_likeliest(ngs_candidates* candidates, size_t top)
    void ngs_fill(ngs_candidate* out, const float* row, Py_ssize_t n)
    void ngs_mask_row(float* out, const float* row, const uint64_t* mask, Py_ssize_t n)
    Py_ssize_t ngs_prefilter(ngs_candidate* out, const float* row, Py_ssize_t n, Py_ssize_t k, float* heap,
                             const uint8_t* counted, const uint8_t* marks)

cdef class Candidates(Owner):
    cdef ngs_candidate* data       # vocab_size entries
    cdef float* allowed            # vocab_size entries: a row as a grammar leaves it
    cdef readonly Py_ssize_t vocab_size
    cdef readonly bint closed      # llama.cpp's vocabulary is freed: choose nothing more

# State of a ChainSampler.
cdef struct ChainC:
    ngs_apply_fn apply
    ngs_accept_fn accept_call
    void* chain
    ConstraintC* grammar            # NULL = none
    ngs_candidate* data            # of the shared Candidates
    float* allowed                 # the same
    ngs_candidates left            # what the last choice was made from, in data until another one is made
    const bint* closed             # of the shared Candidates
    Py_ssize_t keep                # the chain needs the `keep` largest logits only; 0 = all
    Py_ssize_t lookback            # accepted tokens that change logits; 0 = none
    float* heap                    # keep entries
    uint8_t* counted               # per token: its logit may change in the chain; NULL = none does
    uint8_t* marks                 # per NGS_LANES tokens: one of them is counted
    Py_ssize_t vocab_size
    bint greedy                    # the chain takes the likeliest, and sets no probabilities
    bint forbidden                 # a token was accepted that the grammar forbids: choose nothing more

cdef class ChainSampler(Sampler):
    cdef ChainC chain
    cdef Candidates candidates     # keeps data alive
    cdef Constraint grammar
    cdef object owner              # frees the chain
    cdef ngs_clone_fn clone
    cdef ngs_free_fn free_call
    cdef int prepare(self, bint counts, biased) except -1

# DraftSampler: a chain that goes on as another one would.
cdef class DraftSampler(Sampler):
    cdef ChainC chain
    cdef ChainSampler origin       # keeps what both use alive
    cdef ngs_free_fn free_call
    cdef void drop(self) noexcept nogil
