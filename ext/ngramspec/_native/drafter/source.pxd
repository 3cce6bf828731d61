# Source: one way to guess tokens. The driver (_drafter) owns the histories and calls the kernels.
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport Status, int32_t, token_t

# How tokens join a history.
cdef enum Joined:
    JOINED_PROMPT = 0
    JOINED_OUTPUT = 1     # the target emitted them
    JOINED_AGAIN = 2      # they were in it before, at later positions: shared pools and caches have learnt them

# A draft to grow from; with n = 0, none.
cdef struct StemC:
    const token_t* tokens
    const int32_t* parents  # as propose_tree writes them; NULL = a chain
    const float* claims
    Py_ssize_t n

# What a source will read next, for `fetch`.
cdef enum Fetch:
    FETCH_STATE = 0       # the slot's own state, which other threads may be changing
    FETCH_PLACES = 1      # to draft: where the newest tokens were seen
    FETCH_TEXTS = 2       # to draft: the texts there
    FETCH_ENTRIES = 3     # to index tokens

# Kernels of a source. `state` is the source's own struct, `slot` is in range. None of them takes
# the GIL; only `reserve` can fail, and then it has changed nothing.
#
# Calls for different slots can run at the same time, except those of `extend`, `rewind`, `finish` and `observe`:
# they alone may change what slots share. While `extend` runs, `index` may run for any slot, that one included.
cdef struct SourceC:
    void* state
    Py_ssize_t max_draft  # longest draft that `propose` can return, in tokens
    # make room for extra tokens beyond h.len, so that extend cannot fail
    Status (*reserve)(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil
    # forget the tokens from `length` on; called before the history is cut
    void (*rewind)(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil
    # tokens from `start` on have joined: change what belongs to the slot alone. NULL: `extend` does
    void (*index)(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil
    # tokens from `start` on have joined. NULL: `index` does all
    void (*extend)(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil
    # write a draft of at most `limit` tokens (<= max_draft) and the probability that each is right if
    # those before it are; return its length. `lane`: below the number given to make_lanes, as in all that follow;
    # no two calls at the same time have the same
    Py_ssize_t (*propose)(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                          Py_ssize_t limit, int lane) noexcept nogil
    # the same where the last `ahead` tokens of h are another source's draft, which joins nothing: of the slot nothing is
    # changed but what `feedback` needs. NULL: `propose` does it
    Py_ssize_t (*propose_after)(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t ahead, token_t* out,
                                float* confidence, Py_ssize_t limit, int lane) noexcept nogil
    # propose as a tree with at most `width` tokens at one depth, likeliest first; `parents`: the index of
    # each token's parent, -1 = the history. After n tokens no branch needs to join that is emitted with a
    # probability below least[n], which has limit + 1 entries; NULL: any may. NULL kernel: the source has no trees
    Py_ssize_t (*propose_tree)(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, int32_t* parents,
                               float* confidence, Py_ssize_t limit, Py_ssize_t width,
                               const float* least, int lane) noexcept nogil
    # the first `right` tokens of the source's last draft were right; `rejected`: then the target chose another.
    # Called before the committed tokens join the history; changes what belongs to the slot alone.
    void (*feedback)(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t right, bint rejected) noexcept nogil
    # the request is over
    void (*finish)(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil
    # first broken invariant or NULL
    const char* (*check)(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil
    size_t (*nbytes)(void* state) noexcept nogil
    # propose_tree that grows from an earlier source's draft too, which it holds then as far as it fits; `parents`
    # NULL: a draft without branches. NULL kernel: the source drafts by itself only
    Py_ssize_t (*graft)(void* state, Py_ssize_t slot, const HistoryC* h, const StemC* stem, token_t* out,
                        int32_t* parents, float* confidence, Py_ssize_t limit, Py_ssize_t width,
                        const float* least, int lane) noexcept nogil
    # the target's n <= top likeliest tokens, likeliest first, after `before` (-1: none) and `last`, and their
    # probabilities; called if top > 0, from any thread that holds the drafter's lock
    void (*observe)(void* state, token_t before, token_t last, const token_t* tokens, const float* p,
                    Py_ssize_t n) noexcept nogil
    Py_ssize_t top        # tokens that `observe` takes, 0 = the target's logits are of no use
    # ask for memory that a call for the slot will read soon. NULL kernel: there is little
    void (*fetch)(void* state, Py_ssize_t slot, const HistoryC* h, Fetch what) noexcept nogil
    bint calibrated       # it learns itself how often its claims are right: a policy takes them as they are
    # free what grew with the slot's texts; called while the history is empty. NULL kernel: nothing grows
    void (*release)(void* state, Py_ssize_t slot) noexcept nogil

# Claims for a draft copied from position `at`: the more tokens before `at` match the history's end, the higher.
cdef void claim_copy(const HistoryC* h, Py_ssize_t at, float* confidence, Py_ssize_t n) noexcept nogil

cdef class Source(Owner):
    cdef SourceC c        # kernels that a source does not set need no room, ignore feedback and the end of a request
    cdef readonly str name
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t max_history
    cdef object __weakref__
    cdef bint _taken      # already part of a Drafter: its state follows that drafter's histories
    # make working memory for calls that run at the same time; a source that has none needs nothing
    cdef int make_lanes(self, int num_lanes) except -1
