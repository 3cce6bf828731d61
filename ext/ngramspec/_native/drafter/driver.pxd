# SourceCountsC: what a source did so far.
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.threads cimport Task
from ngramspec._native.core.types cimport Status, int32_t, int64_t, token_t
from ngramspec._native.drafter.source cimport Fetch, SourceC
from ngramspec._native.policy.costs cimport CalibrationC

cdef struct SourceCountsC:
    int64_t begin_calls
    int64_t propose_calls
    int64_t accept_calls  # verified drafts with tokens of the source
    int64_t num_feedbacks  # verified drafts that it made
    int64_t num_drafts
    int64_t num_draft_tokens
    int64_t begin_ns
    int64_t propose_ns    # of the timed calls only
    int64_t accept_ns     # of the timed calls only
    int64_t timed_proposes
    int64_t timed_accepts
    int64_t num_accepted_drafts
    int64_t* accepted_at  # accepted tokens by their position in the draft, 0..max_draft - 1

# counts of 0 for each source
cdef SourceCountsC* counts_make(Owner memory, Py_ssize_t num_sources, Py_ssize_t max_draft) except NULL
cdef void counts_clear(SourceCountsC* counts, Py_ssize_t num_sources, Py_ssize_t max_draft) noexcept nogil
# make `counts` those of `source`
cdef void counts_copy(SourceCountsC* counts, const SourceCountsC* source, Py_ssize_t num_sources,
                      Py_ssize_t max_draft) noexcept nogil
# add what was counted apart, in calls other than begin
cdef void counts_add(SourceCountsC* counts, const SourceCountsC* more, Py_ssize_t num_sources,
                     Py_ssize_t max_draft) noexcept nogil
# one source's as SourceStats
cdef object counts_stats(const SourceCountsC* c, str name, Py_ssize_t max_draft)

# Branches: which token of a pending draft comes after which, where the draft is a tree.
# DriverC: slots with their histories, and the sources that draft for them.

# `parents` has one entry per token: an earlier one that it comes after, -1 = the tokens emitted so far.

# keep tokens with place[i] = 1 whose ancestors all have it, in their order; return their number. `place`: destroyed
cdef Py_ssize_t branches_keep(token_t* draft, int32_t* parents, float* confidence, Py_ssize_t n,
                              int32_t* place) noexcept nogil
# keep the first tokens that make at most `most` branches; the same otherwise
cdef Py_ssize_t branches_few(token_t* draft, int32_t* parents, float* confidence, Py_ssize_t n, Py_ssize_t most,
                             int32_t* place) noexcept nogil
# first broken invariant or NULL
cdef const char* branches_check(const token_t* draft, const int32_t* parents, Py_ssize_t n) noexcept nogil

cdef enum:
    MOST_AHEAD = 64       # tokens of another source's draft that drafts go on after

cdef struct SlotC:
    HistoryC history      # the newest tokens of the request, at most max_history
    Py_ssize_t base       # older tokens that were dropped; position in the request = base + index
    bint active           # between begin and end
    bint asked            # whether a draft was asked for since the newest token
    token_t* rows         # num_sources rows of max_draft tokens: what each source drafted; one more: the stem
    float* claims         # per drafted token: the probability that it is right if those before it are
    Py_ssize_t* lengths   # tokens per row
    token_t* draft        # the pending draft, in its row
    float* confidence     # its claims
    int32_t* parents      # of the pending draft where it is a tree: the index of each token's parent, -1 = the history
    int32_t* links        # num_sources rows of such parents, one of working memory, and the stem's
    bint branched         # the draft is a tree
    Py_ssize_t draft_len  # tokens of it that will be verified, 0 = none pending
    Py_ssize_t owner      # source of the pending draft
    Py_ssize_t ahead      # tokens of another source's draft that it comes after
    token_t* before       # these; room for MOST_AHEAD
    Py_ssize_t stem       # earlier source from whose draft a later one grew its own, -1 = none did
    Py_ssize_t stem_len   # tokens of that draft
    Py_ssize_t joined_from  # length of the history before the newest tokens joined, which sources have yet to see
    bint timed            # this call for them is timed
    Py_ssize_t joined     # while a batch is followed: how many those are ...
    Py_ssize_t sent       # ... and tokens of the draft before them
    Py_ssize_t streak     # newest tokens in a row that a draft for them had right, sent or not
    int64_t drafted       # the last batch that the slot was drafted for in
    int64_t followed      # the last one that its row was followed in

cdef struct DriverC:
    SlotC* slots
    Py_ssize_t num_slots
    SourceC* sources
    SourceCountsC* counts  # one per source
    Py_ssize_t num_sources
    Py_ssize_t max_draft
    Py_ssize_t max_history
    Py_ssize_t top        # most of the target's likeliest tokens that a source takes, 0 = none takes any
    CalibrationC** calibrations  # those of the policy that judges drafts, one per source; NULL: it is calibrated
    # the same for what comes after another source's draft: its slots' histories are the slots' own with that draft behind
    # them, its calibrations others. NULL: nobody has asked for any
    DriverC* tails
    int lane              # which of the threads that work on a batch this is for, each with counts of its own

cdef struct ReplayC:
    int64_t tokens
    int64_t steps
    int64_t drafts
    int64_t drafted
    int64_t accepted
    int64_t begin_ns
    int64_t step_ns

cdef Status driver_begin(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n) noexcept nogil
# ask the sources in turn and make the first draft that one has the pending one, a tree with at most `width` tokens at one
# depth if width > 0 (a chain where the source has no trees); return its length
cdef Py_ssize_t driver_propose(DriverC* d, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t width) noexcept nogil
# ask all sources, for trees if width > 0; nothing is pending until one of them is taken
cdef void driver_ask_all(DriverC* d, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t width,
                         const float* least) noexcept nogil
# ask all sources of `tails` for chains after n <= MOST_AHEAD drafted tokens, which are kept in `before`; nothing is pending
cdef Status driver_ask_after(DriverC* d, Py_ssize_t slot, const token_t* before, Py_ssize_t n,
                             Py_ssize_t max_tokens) noexcept nogil
# make the first `length` tokens of the pending draft of `tails` the slot's pending one
cdef void driver_take_after(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil
# of the emitted tokens, how many tell of the pending draft: those after `ahead` others that are all right
cdef Py_ssize_t draft_known(const SlotC* s, const token_t* tokens, Py_ssize_t n) noexcept nogil
# cut the trees of all sources to `most` branches
cdef void driver_prune(DriverC* d, Py_ssize_t slot, Py_ssize_t most) noexcept nogil
cdef void driver_take(DriverC* d, Py_ssize_t slot, Py_ssize_t source, Py_ssize_t length) noexcept nogil
cdef Status driver_accept(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted) noexcept nogil
# driver_accept in three parts. The first and the last can run at the same time for different slots, the last also
# while the second one runs. `driver_stays`: not if the slot's oldest tokens must be dropped
cdef bint driver_stays(const DriverC* d, Py_ssize_t slot, Py_ssize_t n) noexcept nogil
cdef Status driver_join(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                        Py_ssize_t num_accepted) noexcept nogil
cdef void driver_share(DriverC* d, Py_ssize_t slot) noexcept nogil
cdef void driver_index(DriverC* d, Py_ssize_t slot) noexcept nogil
# ask for memory that a call for the slot will read soon
cdef void driver_fetch(const DriverC* d, Py_ssize_t slot, Fetch what) noexcept nogil
cdef void driver_shorten(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil
# drop tokens of the pending draft without place[i] = 1, and those after them; return its length. `place`: destroyed
cdef Py_ssize_t driver_keep(DriverC* d, Py_ssize_t slot, int32_t* place) noexcept nogil
cdef void driver_end(DriverC* d, Py_ssize_t slot) noexcept nogil
# empty the history of a slot without a request, and free what grew with its texts
cdef void driver_forget(DriverC* d, Py_ssize_t slot) noexcept nogil
cdef void driver_truncate(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil
cdef Py_ssize_t draft_right(const SlotC* s, const token_t* tokens, Py_ssize_t n) noexcept nogil
cdef Status driver_replay(DriverC* d, Py_ssize_t slot, const token_t* prompt, Py_ssize_t prompt_len,
                          const token_t* output, Py_ssize_t n, Py_ssize_t max_tokens,
                          ReplayC* r, int64_t* draft_lengths) noexcept nogil

# Lanes: the threads that work on a batch, the caller's among them, each with counts of its own.

cdef enum:
    MOST_LANES = 64
    TOGETHER = 8          # rows that a lane takes at a time
    AHEAD = 2             # rows whose memory is fetched before it is needed

cdef struct LanesC:
    DriverC** drivers     # the drafter's driver as each lane has it; entry 0, the caller's, is the drafter's own
    int num               # most lanes

# at most `most` lanes, fewer where there are few slots
cdef int lanes_make(LanesC* lanes, Owner memory, DriverC* d, int most) except -1
# how many lanes work on a number of rows
cdef int lanes_for(const LanesC* lanes, Py_ssize_t num_rows) noexcept nogil
# before the work of `num` lanes: they count from 0; after it: what they counted is the drafter's
cdef void lanes_begin(const LanesC* lanes, int num) noexcept nogil
cdef void lanes_end(const LanesC* lanes, int num) noexcept nogil
# run a task on this thread, and on others if there are any to spare
cdef void lanes_share(Task task, void* job, int num) noexcept nogil
