# Counters that a step of the engine writes without Python objects.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t

cdef class Histogram(Owner):
    cdef readonly tuple bounds
    cdef public double total      # sum of the values
    cdef double* limits           # bounds, ascending
    cdef int64_t* counts          # num_limits + 1; the last one takes what is above all bounds
    cdef Py_ssize_t num_limits
    cdef void add(self, double value, int64_t times) noexcept nogil

cdef class Timings(Owner):
    cdef public double submitted
    cdef public double started
    cdef public double first_token
    cdef public double last_token
    cdef public double finished
    cdef public int64_t num_prompt
    cdef public int64_t num_cached
    cdef public int64_t num_discarded
    cdef public int64_t num_steps
    cdef readonly int64_t num_drafts
    cdef readonly int64_t num_draft_tokens
    cdef readonly int64_t num_accepted_tokens
    cdef public int64_t num_prediction_accepted
    cdef public int64_t num_prediction_rejected
    cdef public double saved_seconds
    cdef int32_t* drafts          # per verified draft its tokens and how many of them were accepted
    cdef Py_ssize_t drafts_room   # drafts that it has room for
    cdef int add_draft(self, Py_ssize_t drafted, Py_ssize_t accepted) except -1

cdef class EngineStats(Owner):
    cdef public int64_t num_requests
    cdef public int64_t num_prompt_tokens
    cdef public int64_t num_cached_tokens
    cdef public int64_t num_emitted_tokens
    cdef public int64_t num_steps
    cdef public int64_t num_batch_tokens
    cdef public int64_t num_busy_slots
    cdef public int64_t num_slot_steps
    cdef public int64_t num_drafts
    cdef public int64_t num_draft_tokens
    cdef public int64_t num_accepted_tokens
    cdef public int64_t num_rollback_failures
    cdef public int64_t num_preempted
    cdef public int64_t num_reread_tokens
    cdef public int64_t num_restored_tokens
    cdef public int64_t longest
    cdef public int64_t num_context_shifts
    cdef public double prompt_seconds
    cdef public double decode_seconds
    cdef public double draft_seconds
    cdef public double verify_seconds
    cdef public double accepted_seconds
    cdef public double drafted_seconds
    cdef readonly dict finished
    cdef readonly Histogram time_to_first_token
    cdef readonly Histogram inter_token_latency
    cdef readonly Histogram request_latency
    cdef readonly Histogram queue_time
    cdef readonly Histogram batch_tokens
    cdef readonly Histogram draft_lengths
    cdef int64_t* ended           # verified drafts by accepted tokens, index 0..MAX_POSITIONS
    cdef void add_decode(self, Py_ssize_t tokens, Py_ssize_t slots, Py_ssize_t prompts, double seconds) noexcept nogil
    cdef void add_draft(self, Py_ssize_t drafted, Py_ssize_t accepted) noexcept nogil
