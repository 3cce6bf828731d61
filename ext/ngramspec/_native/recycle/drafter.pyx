"""recycle: draft what the target itself held likely after the same token, or the same two, before.

Each row of logits of a pass tells the successors that the target held likeliest there, of drafted tokens
too, right or not. They are kept in a pool of contexts. A draft grows from the newest tokens by the
successor that is likeliest to be emitted, with all before it; with a draft of an earlier source given, from
that draft's tokens as well: it gains branches and a longer end.

A successor's probability is learnt: how often successors were right that had about this probability when
they were observed, this rank, this place in the draft, a context of one or two tokens, and the same
verdict of the earlier source. It starts with what two models' logits taught (tools/train_recycle.py), and
every successor that was considered is compared with what the target emitted.

Sources: Token Recycling (arXiv 2408.08696); differs: two tokens as key, learnt probabilities, grafting.
"""

cimport cython

from ngramspec._native.core.adapt cimport AdaptC, adapt_learn, adapt_probability
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport int32_t, token_t, uint16_t, uint8_t
from ngramspec._native.drafter.growth cimport (
    MAX_DRAFT, GrowthC, LeafC, growth_begin, growth_has_room, growth_join, growth_offer,
)
from ngramspec._native.drafter.source cimport JOINED_OUTPUT, Joined, Source, StemC
from ngramspec._native.recycle.successors cimport (
    MOST, NONE_BEFORE, LikelyC, SuccessorPool, SuccessorsC, successors_find, successors_put,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    NODES = MAX_DRAFT + 1  # tokens of a tree and the text before them
    OUTSIDE = -2          # a node that is not in the stem
    KEYS = 2              # contexts of one token, of two
    PLACES = 3            # positions 0, 1, later
    VERDICTS = 6          # by what the earlier source gives its likeliest token here; 0 = it says nothing
    RANKS = 4             # 0, 1, 2, later
    BUCKETS = 16          # of the observed probability
    CLAIMS = KEYS * PLACES * VERDICTS * 2 * RANKS * BUCKETS
    PRIOR = 30            # observations that a trained claim counts for

cdef float SURE = 0.97        # where an earlier source is this sure, nothing is added
cdef float LEAST = 0.0005     # probabilities stay in LEAST..1 - LEAST

# Upper bounds of the buckets but the last, in 65,535ths.
cdef uint16_t[BUCKETS - 1] BOUNDS = [
    66, 197, 655, 1311, 2621, 5243, 9830, 16384, 26214, 36044, 45875, 52428, 58982, 62258, 64224]
cdef float[VERDICTS - 2] LEVELS = [0.2, 0.5, 0.8, 0.95]
cdef uint8_t[1024] BUCKET_OF  # of a probability's upper 10 bits


cdef void _prepare() noexcept:
    cdef int i, bucket = 0
    for i in range(1024):
        while bucket < BUCKETS - 1 and i * 64 + 32 > BOUNDS[bucket]:
            bucket += 1
        BUCKET_OF[i] = <uint8_t>bucket


_prepare()

# What was considered after a node, the text or a drafted token.
cdef struct ConsideredC:
    LikelyC followers
    uint16_t[MOST] claims  # which claim each was judged by

# A token that joined the tree.
cdef struct NodeC:
    token_t token
    int32_t parent        # -1 = the text
    int32_t stem_at       # where it is in the stem, -1 = before its first token, OUTSIDE
    int32_t depth         # drafted tokens up to it

cdef struct RecycleSlotC:
    Py_ssize_t base       # length of the history at the last proposal, -1 = none
    int num_nodes
    NodeC[NODES] nodes    # 0 is the text; node i + 1 is the draft's token i, as it was proposed
    ConsideredC* contexts    # NODES: what was considered after each

# Working memory of a tree while it grows.
cdef struct RecycleTreeC:
    GrowthC growth        # a leaf's place: where it is in the stem, or OUTSIDE
    int32_t[MAX_DRAFT + 1] child  # of the stem's tokens, and of the text: the first one after it, -1 = none
    int32_t[MAX_DRAFT] sibling  # the next one after the same token
    int32_t[MAX_DRAFT] chain  # parents of a draft without branches
    RecycleSlotC after    # in place of a slot, for what comes after another source's draft

cdef struct RecycleC:
    SuccessorsC* pool
    bint pairs            # contexts of two tokens too
    float floor           # a draft ends where the probability that all of it is right falls below it
    Py_ssize_t max_draft
    Py_ssize_t num_slots
    RecycleSlotC* slots
    AdaptC* claims        # CLAIMS
    RecycleTreeC* trees          # by lane
    int num_lanes


cdef inline int _place(int depth) noexcept nogil:
    return depth if depth < 2 else 2


cdef inline int _verdict(float p) noexcept nogil:
    """Class of the probability that an earlier source gives its likeliest token, 0 when it says nothing."""
    cdef int i
    if p <= 0:
        return 0
    for i in range(VERDICTS - 2):
        if p < LEVELS[i]:
            return i + 1
    return VERDICTS - 1


cdef inline int _claim(bint pair, int depth, int verdict, bint same, int rank, uint16_t p) noexcept nogil:
    return ((((pair * PLACES + _place(depth)) * VERDICTS + verdict) * 2 + same) * RANKS
            + (rank if rank < RANKS else RANKS - 1)) * BUCKETS + BUCKET_OF[p >> 6]


cdef bint _look_up(const RecycleC* c, token_t before, token_t last, LikelyC* followers) noexcept nogil:
    """Find the successors of the longest known context; True if it has two tokens."""
    if c.pairs and before >= 0:
        successors_find(c.pool, before, last, followers)
        if followers.n:
            return True
    successors_find(c.pool, NONE_BEFORE, last, followers)
    return False


cdef void _consider(const RecycleC* c, RecycleTreeC* t, RecycleSlotC* s, const HistoryC* h, const StemC* stem, int at,
                    float all_right, bint first) noexcept nogil:
    """Judge what may come after a node: the stem's tokens as they are, and other successors.

    They are offered where their depth has room; successors are learnt from in any case.
    """
    cdef const NodeC* node = &s.nodes[at]
    cdef ConsideredC* context = &s.contexts[at]
    cdef LikelyC* followers = &context.followers
    cdef LeafC[MOST + MAX_DRAFT] choices
    cdef int32_t top = -1, child = -1, i
    cdef float most = 0, p
    cdef token_t before
    cdef bint pair
    cdef int num = 0, best, verdict, k
    if node.stem_at != OUTSIDE:
        child = t.child[node.stem_at + 1]
    i = child
    while i >= 0:
        if stem.claims[i] > most:
            most, top = stem.claims[i], i
        choices[num] = LeafC(0, stem.claims[i], stem.tokens[i], at - 1, node.depth, i, False)
        num += 1
        i = t.sibling[i]
    followers.n = 0
    if most < SURE:
        if at == 0:
            before = h.tokens[h.len - 2] if h.len > 1 else NONE_BEFORE
            pair = _look_up(c, before, h.tokens[h.len - 1], followers)
        else:
            before = s.nodes[node.parent].token if node.parent > 0 else h.tokens[h.len - 1]
            pair = _look_up(c, before, node.token, followers)
        verdict = _verdict(most)
        for k in range(followers.n):
            i = child
            while i >= 0 and stem.tokens[i] != followers.tokens[k]:
                i = t.sibling[i]
            context.claims[k] = <uint16_t>_claim(pair, node.depth, verdict, i >= 0 and i == top, k, followers.p[k])
            if i < 0:
                p = adapt_probability(&c.claims[context.claims[k]])
                p = LEAST if p < LEAST else 1 - LEAST if p > 1 - LEAST else p
                choices[num] = LeafC(0, p, followers.tokens[k], at - 1, node.depth, OUTSIDE, False)
                num += 1
    if not growth_has_room(&t.growth, node.depth):
        return
    best = 0
    for k in range(1, num):
        if choices[k].p > choices[best].p:
            best = k
    for k in range(num):
        choices[k].all_right = all_right * choices[k].p
        choices[k].first = first and k == best
        growth_offer(&t.growth, &choices[k])


cdef void _link(RecycleTreeC* t, const StemC* stem) noexcept nogil:
    """Note the children of each token of the stem, in their order."""
    cdef Py_ssize_t i
    cdef int32_t parent
    for i in range(stem.n + 1):
        t.child[i] = -1
    for i in range(stem.n - 1, -1, -1):
        parent = stem.parents[i] if stem.parents != NULL else <int32_t>(i - 1)
        t.sibling[i] = t.child[parent + 1]
        t.child[parent + 1] = <int32_t>i


cdef Py_ssize_t recycle_tree(const RecycleC* c, RecycleTreeC* t, RecycleSlotC* s, const HistoryC* h, const StemC* stem,
                             token_t* out, int32_t* parents, float* confidence, Py_ssize_t limit, Py_ssize_t width,
                             const float* least) noexcept nogil:
    """Grow a tree from the text and the stem; it ends where all of it is less likely than the floor."""
    cdef LeafC leaf
    cdef int n
    s.base = h.len
    s.nodes[0] = NodeC(h.tokens[h.len - 1], -1, -1, 0)
    s.num_nodes = 1
    growth_begin(&t.growth, out, parents, confidence, width, least, c.floor)
    _link(t, stem)
    _consider(c, t, s, h, stem, 0, 1, True)
    while t.growth.n < limit and growth_join(&t.growth, &leaf):
        n = t.growth.n
        s.nodes[n] = NodeC(leaf.token, leaf.after + 1, leaf.place, leaf.depth + 1)
        s.contexts[n].followers.n = 0
        s.num_nodes = n + 1
        if n < limit:
            _consider(c, t, s, h, stem, n, leaf.all_right, leaf.first)
    return t.growth.n


cdef int _child(const RecycleSlotC* s, int at, token_t token) noexcept nogil:
    """The node that a token leads to, -1 = none."""
    cdef int next
    for next in range(at + 1, s.num_nodes):
        if s.nodes[next].parent == at and s.nodes[next].token == token:
            return next
    return -1


cdef void recycle_learn(const RecycleC* c, const RecycleSlotC* s, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    """Compare what was considered with what the target emitted."""
    cdef const ConsideredC* context
    cdef Py_ssize_t i
    cdef int at = 0, k
    for i in range(start, h.len):
        context = &s.contexts[at]
        for k in range(context.followers.n):
            adapt_learn(&c.claims[context.claims[k]], context.followers.tokens[k] == h.tokens[i])
        at = _child(s, at, h.tokens[i])
        if at < 0:
            return


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    (<RecycleC*>state).slots[slot].base = -1


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    cdef RecycleSlotC* s = &(<RecycleC*>state).slots[slot]
    if how == JOINED_OUTPUT and s.base == start:
        recycle_learn(<RecycleC*>state, s, h, start)
    s.base = -1


cdef Py_ssize_t _graft(void* state, Py_ssize_t slot, const HistoryC* h, const StemC* stem, token_t* out,
                       int32_t* parents, float* confidence, Py_ssize_t limit, Py_ssize_t width,
                       const float* least, int lane) noexcept nogil:
    cdef RecycleC* c = <RecycleC*>state
    cdef RecycleTreeC* t = &c.trees[lane]
    cdef StemC part = stem[0]
    if part.n > MAX_DRAFT:
        part.n = MAX_DRAFT
    if parents == NULL:
        parents = t.chain
    return recycle_tree(c, t, &c.slots[slot], h, &part, out, parents, confidence, limit, width, least)


cdef Py_ssize_t _propose_tree(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, int32_t* parents,
                              float* confidence, Py_ssize_t limit, Py_ssize_t width,
                              const float* least, int lane) noexcept nogil:
    cdef StemC nothing = StemC(NULL, NULL, NULL, 0)
    return _graft(state, slot, h, &nothing, out, parents, confidence, limit, width, least, lane)


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit, int lane) noexcept nogil:
    return _propose_tree(state, slot, h, out, NULL, confidence, limit, 1, NULL, lane)


cdef Py_ssize_t _propose_after(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t ahead, token_t* out,
                               float* confidence, Py_ssize_t limit, int lane) noexcept nogil:
    cdef RecycleC* c = <RecycleC*>state
    cdef RecycleTreeC* t = &c.trees[lane]
    cdef StemC nothing = StemC(NULL, NULL, NULL, 0)
    return recycle_tree(c, t, &t.after, h, &nothing, out, t.chain, confidence, limit, 1, NULL)


cdef void _observe(void* state, token_t before, token_t last, const token_t* tokens, const float* p,
                   Py_ssize_t n) noexcept nogil:
    """Keep the successors whose probability 16 bits can tell from 0."""
    cdef RecycleC* c = <RecycleC*>state
    cdef LikelyC followers
    cdef float scaled
    cdef Py_ssize_t i
    followers.n = 0
    for i in range(n):
        scaled = p[i] * 65535 + <float>0.5
        if not scaled >= 1:
            break
        followers.tokens[i], followers.p[i] = tokens[i], <uint16_t>min(scaled, <float>65535)
        followers.n += 1
    successors_put(c.pool, NONE_BEFORE, last, &followers)
    if c.pairs and before >= 0:
        successors_put(c.pool, before, last, &followers)


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef RecycleSlotC* s = &(<RecycleC*>state).slots[slot]
    cdef int i
    if s.base > h.len:
        return "recycle: a proposal is remembered that is longer than the history"
    for i in range(1, s.num_nodes):
        if not 0 <= s.nodes[i].parent < i or s.nodes[i].depth != s.nodes[s.nodes[i].parent].depth + 1:
            return "recycle: a token of a tree is out of order"
    return NULL


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef RecycleC* c = <RecycleC*>state
    return (CLAIMS * sizeof(AdaptC) + <size_t>c.num_lanes * (sizeof(RecycleTreeC) + NODES * sizeof(ConsideredC))
            + <size_t>c.num_slots * (sizeof(RecycleSlotC) + NODES * sizeof(ConsideredC)))


@cython.final
cdef class RecycleSource(Source):
    """RecycleSource(slots, pool, max_draft, floor, pairs, claims): the source behind "recycle".

    Args:
        slots: Number of slots, >= 1.
        pool: The SuccessorPool to read and fill; kept alive. Other sources can share it.
        max_draft: Longest draft in tokens, 1..64.
        floor: A draft ends where the probability that all of it is right falls below this, 0..1.
        pairs: Look up the newest two tokens first, then the newest one; False: the newest one only.
        claims: uint16 (2, 3, 6, 2, 4, 16): how often successors of each class are right at first, in 65,535ths,
            by length of the context, place in the draft, verdict of the earlier source, whether it has the
            successor as its likeliest, rank, and observed probability. Copied.

    Raises:
        InputError: A value is out of its bounds, or claims has another shape.
        MemoryError: The state cannot be allocated.
    """

    cdef RecycleC _state
    cdef readonly SuccessorPool pool

    def __cinit__(self, Py_ssize_t slots, SuccessorPool pool not None, Py_ssize_t max_draft, double floor, bint pairs,
                  claims not None):
        cdef const uint16_t[::1] start
        cdef Py_ssize_t i
        if slots < 1:
            raise InputError(f"slots must be >= 1, got {slots}")
        if not (1 <= max_draft <= MAX_DRAFT and 0 <= floor <= 1):
            raise InputError(f"max_draft must be in 1..{MAX_DRAFT} and floor in 0..1, got {max_draft} and {floor}")
        if claims.shape != (KEYS, PLACES, VERDICTS, 2, RANKS, BUCKETS):
            raise InputError(f"claims must have the shape {(KEYS, PLACES, VERDICTS, 2, RANKS, BUCKETS)}, "
                             f"got {claims.shape}")
        start = np.ascontiguousarray(claims, np.uint16).ravel()
        self.name = "recycle"
        self.slots = slots
        self.pool = pool
        self._state.pool = &pool.c
        self._state.pairs = pairs
        self._state.floor = <float>floor
        self._state.max_draft = max_draft
        self._state.num_slots = slots
        self._state.slots = <RecycleSlotC*>self.take(slots, sizeof(RecycleSlotC))
        self._state.claims = <AdaptC*>self.take(CLAIMS, sizeof(AdaptC))
        for i in range(slots):
            self._state.slots[i].base = -1
            self._state.slots[i].contexts = <ConsideredC*>self.take(NODES, sizeof(ConsideredC))
        for i in range(CLAIMS):
            self._state.claims[i] = AdaptC(start[i], PRIOR)
        self.c.state, self.c.max_draft = &self._state, max_draft
        self.c.rewind = _rewind
        self.c.extend = _extend
        self.c.propose, self.c.propose_tree, self.c.graft = _propose, _propose_tree, _graft
        self.c.propose_after = _propose_after
        self.c.observe, self.c.top, self.c.calibrated = _observe, pool.c.top, True
        self.c.check, self.c.nbytes = _check, _nbytes

    cdef int make_lanes(self, int num_lanes) except -1:
        cdef int lane
        self._state.trees = <RecycleTreeC*>self.take(num_lanes, sizeof(RecycleTreeC))
        for lane in range(num_lanes):
            self._state.trees[lane].after.contexts = <ConsideredC*>self.take(NODES, sizeof(ConsideredC))
        self._state.num_lanes = num_lanes
        return 0

    def considered(self, Py_ssize_t slot, tokens not None):
        """Return which successors of the last proposal were right: what accept would learn, for training.

        Args:
            slot: 0 <= slot < slots.
            tokens: Those that the target goes on with, 1-D.

        Returns:
            (claims, right): uint16 (n,) and bool (n,), a row for each successor that was considered after the
            text or after drafted tokens that these go on with: the index of its class in the flat claims, and
            whether they have it there. Empty without a proposal.

        Raises:
            InputError: slot is out of range.

        One thread at a time, and not during the drafter's calls.
        """
        cdef const RecycleSlotC* s
        cdef int at = 0, k
        if not 0 <= slot < self.slots:
            raise InputError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        s = &self._state.slots[slot]
        claims, right = [], []
        for token in tokens if s.base >= 0 else ():
            for k in range(s.contexts[at].followers.n):
                claims.append(s.contexts[at].claims[k])
                right.append(s.contexts[at].followers.tokens[k] == token)
            at = _child(s, at, token)
            if at < 0:
                break
        return np.array(claims, np.uint16), np.array(right, np.bool_)
