"""EngineStats: counters of the engine; Timings: those of one request; Histogram: values in buckets."""

import time

cimport cython
from libc.string cimport memcpy

import numpy as np

cdef enum:
    MAX_POSITIONS = 4096  # of a draft that are counted individually
    FIRST_DRAFTS = 16     # of a request that memory is taken for at once; then for twice as many

SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0,
    2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@cython.final
cdef class Histogram(Owner):
    """Histogram(bounds): counts of values by bucket, their number and sum.

    Args:
        bounds: Upper bounds of the buckets, inclusive, ascending; one more bucket takes the rest.

    Raises:
        MemoryError: No room.

    Attributes:
        bounds: A tuple.
        total: Sum of all values.
    """

    def __cinit__(self, bounds):
        cdef Py_ssize_t i
        self.bounds = tuple(bounds)
        self.num_limits = len(self.bounds)
        self.limits = <double*>self.take(self.num_limits + 1, sizeof(double))
        self.counts = <int64_t*>self.take(self.num_limits + 1, sizeof(int64_t))
        for i in range(self.num_limits):
            self.limits[i] = self.bounds[i]

    cdef void add(self, double value, int64_t times) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.num_limits, middle
        while low < high:
            middle = (low + high) // 2
            if self.limits[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += times
        self.total += value * <double>times

    def observe(self, double value, int64_t times=1):
        """Count a value `times` times. Cost: O(log buckets)."""
        self.add(value, times)

    @property
    def buckets(self):
        """Return the counts of all buckets, the one above all bounds last, as a new list."""
        return [self.counts[i] for i in range(self.num_limits + 1)]

    @property
    def count(self):
        """Return how many values were counted."""
        return sum(self.buckets)

    def cumulative(self):
        """Return (upper bound, values up to it) for every bucket, the last one "+Inf"."""
        totals, running = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.buckets, strict=True):
            running += count
            totals.append(("+Inf" if bound == float("inf") else repr(float(bound)), running))
        return totals


@cython.final
cdef class Timings(Owner):
    """Timings(num_prompt=0): counts and times of one generation, seconds on the clock of time.perf_counter.

    Attributes:
        submitted, started, first_token, last_token, finished: When it was submitted, got a slot, and so
            on; 0.0 until that happens.
        num_prompt: Prompt tokens.
        num_cached: Prompt tokens found in the cache.
        num_discarded: Tokens of prompt and answer that context shifts discarded.
        num_steps: Decodes in which tokens were chosen for the request.
        num_drafts: Decodes that verified a draft.
        num_draft_tokens, num_accepted_tokens: Draft tokens, and how many of them were accepted.
        num_prediction_accepted, num_prediction_rejected: Draft tokens from the user's prediction.
        saved_seconds: What drafts have saved, negative if they have lost time: an estimate, 0.0 unless the policy knows
            what passes cost in seconds. The time to make drafts is not counted.
    """

    def __init__(self, int64_t num_prompt=0):
        self.submitted = time.perf_counter()
        self.num_prompt = num_prompt

    cdef int add_draft(self, Py_ssize_t drafted, Py_ssize_t accepted) except -1:
        cdef Py_ssize_t room = self.drafts_room
        if self.num_drafts >= room:
            room = max(2 * room, <Py_ssize_t>FIRST_DRAFTS)
            self.drafts = <int32_t*>self.enlarge(self.drafts, 2 * room, sizeof(int32_t))
            self.drafts_room = room
        self.drafts[2 * self.num_drafts] = <int32_t>drafted
        self.drafts[2 * self.num_drafts + 1] = <int32_t>accepted
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        return 0

    def per_draft(self):
        """Return for each verified draft its tokens and how many were accepted, a new int32 array of shape (num_drafts, 2)."""
        pairs = np.empty((self.num_drafts, 2), np.int32)
        cdef int32_t[:, ::1] rows = pairs
        if self.num_drafts:
            memcpy(&rows[0, 0], self.drafts, pairs.nbytes)
        return pairs

    @property
    def prompt_seconds(self):
        """Return the time from the slot to the first token, 0.0 if it never had one."""
        if not self.started:
            return 0.0
        return max(0.0, (self.first_token or self.finished) - self.started)

    @property
    def decode_seconds(self):
        """Return the time from the first token to the end, or to the latest token while it goes on."""
        end = self.finished or self.last_token
        return max(0.0, end - self.first_token) if self.first_token else 0.0


@cython.final
cdef class EngineStats(Owner):
    """EngineStats(): counters since the engine was made. The engine's thread writes them, any thread may read.

    Raises:
        MemoryError: No room.

    Attributes:
        num_requests: Submitted requests.
        finished: Finished requests by finish reason.
        num_prompt_tokens, num_cached_tokens: Prompt tokens that were decoded, and that the cache held.
        num_emitted_tokens: Tokens of answers.
        num_steps: Decodes.
        num_batch_tokens, num_busy_slots, num_slot_steps: Tokens in all decodes, slots in them, and
            slots whose tokens were chosen.
        num_drafts, num_draft_tokens, num_accepted_tokens: Verified drafts, their tokens, and the accepted ones.
        num_rollback_failures: Sequences recomputed because tokens could not be rolled back.
        num_preempted: How often a running request had to wait for room in the cache.
        num_reread_tokens, num_restored_tokens: Tokens of these that were decoded again, and that were brought back
            from memory.
        longest: Most tokens of prompt and answer that a slot held when its request ended.
        num_context_shifts: How often a full context lost a part of its tokens.
        prompt_seconds, decode_seconds: Time of decodes with prompt tokens, and of the others.
        draft_seconds, verify_seconds: Time to propose drafts, and to choose tokens.
        accepted_seconds, drafted_seconds: Time that accepted tokens would have taken without drafts, and that drafted
            ones added to their passes: estimates, made when each pass ends. Only an AutoPolicy can tell.
        time_to_first_token, inter_token_latency, request_latency, queue_time: Histograms, in seconds.
        batch_tokens, draft_lengths: Histograms, in tokens.
    """

    def __cinit__(self):
        self.ended = <int64_t*>self.take(MAX_POSITIONS + 1, sizeof(int64_t))
        self.finished = {}
        self.time_to_first_token = Histogram(SECONDS)
        self.inter_token_latency = Histogram(SECONDS)
        self.request_latency = Histogram(SECONDS)
        self.queue_time = Histogram(SECONDS)
        self.batch_tokens = Histogram(COUNTS)
        self.draft_lengths = Histogram(COUNTS)

    @property
    def accepted_per_position(self):
        """Return how many drafts were accepted up to their first, second, ... token, as a new list."""
        cdef Py_ssize_t i
        cdef int64_t right = 0
        counts = []
        for i in range(MAX_POSITIONS, 0, -1):
            right += self.ended[i]
            if right:
                counts.append(right)
        return counts[::-1]

    cdef void add_draft(self, Py_ssize_t drafted, Py_ssize_t accepted) noexcept nogil:
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.draft_lengths.add(<double>drafted, 1)
        self.ended[min(accepted, <Py_ssize_t>MAX_POSITIONS)] += 1

    def count_draft(self, Py_ssize_t drafted, Py_ssize_t accepted):
        """Count one verified draft, 0 <= accepted <= drafted."""
        self.add_draft(drafted, max(accepted, 0))

    cdef void add_decode(self, Py_ssize_t tokens, Py_ssize_t slots, Py_ssize_t prompts, double seconds) noexcept nogil:
        self.num_steps += 1
        self.num_batch_tokens += tokens
        self.num_busy_slots += slots
        self.batch_tokens.add(<double>tokens, 1)
        if prompts:
            self.prompt_seconds += seconds
            self.num_prompt_tokens += prompts
        else:
            self.decode_seconds += seconds
