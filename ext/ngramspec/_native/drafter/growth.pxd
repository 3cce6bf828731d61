# Growth: a tree of drafted tokens that grows by the token likeliest to be emitted.
#
# A token is emitted if it and all before it on its path are right, and its probability is the product of theirs. That
# product falls along a path, so taking the largest one known gives the tree of its size with the most expected
# accepted tokens, among what the source offers.
from libc.string cimport memset

from ngramspec._native.core.types cimport int32_t, token_t

cdef enum:
    MAX_DRAFT = 64        # tokens of a tree
    MOST_LEAVES = 2 * MAX_DRAFT  # those that wait, the likeliest

# A token that could join the tree next.
cdef struct LeafC:
    float all_right       # probability that it and all before it are right
    float p               # that it is right if those before it are
    token_t token
    int32_t after         # the drafted token that it comes after, -1 = the text
    int32_t depth         # drafted tokens before it
    int32_t place         # by which the source knows it
    bint first            # it and all before it are the likeliest after what is before them

cdef struct GrowthC:
    token_t* out          # the tree, as Source.propose_tree writes it
    int32_t* parents
    float* confidence
    int n                 # tokens of it
    const float* least    # see Source.propose_tree
    float floor           # no token joins that is emitted with a smaller probability
    Py_ssize_t width      # most tokens at one depth
    int[MAX_DRAFT] num_at  # tokens of the tree, by depth
    LeafC[MOST_LEAVES] leaves  # the likeliest last
    int num_leaves


cdef inline void growth_begin(GrowthC* g, token_t* out, int32_t* parents, float* confidence, Py_ssize_t width,
                              const float* least, float floor) noexcept nogil:
    g.out, g.parents, g.confidence = out, parents, confidence
    g.width, g.least, g.floor = width, least, floor
    g.n = g.num_leaves = 0
    memset(g.num_at, 0, sizeof(g.num_at))


cdef inline bint growth_has_room(const GrowthC* g, int depth) noexcept nogil:
    return g.num_at[depth] < g.width


cdef inline void growth_offer(GrowthC* g, const LeafC* leaf) noexcept nogil:
    """Let a token wait; among equals the one offered first is taken first. The least likely gives way to it."""
    cdef int i = g.num_leaves
    if i == MOST_LEAVES:
        if leaf.all_right <= g.leaves[0].all_right:
            return
        for i in range(MOST_LEAVES - 1):
            g.leaves[i] = g.leaves[i + 1]
        i = g.num_leaves = MOST_LEAVES - 1
    while i > 0 and g.leaves[i - 1].all_right >= leaf.all_right:
        g.leaves[i] = g.leaves[i - 1]
        i -= 1
    g.leaves[i] = leaf[0]
    g.num_leaves += 1


cdef inline void _growth_leave(GrowthC* g, int depth) noexcept nogil:
    """Drop what waits for a depth that is full."""
    cdef int i, count = 0
    for i in range(g.num_leaves):
        if g.leaves[i].depth != depth:
            g.leaves[count] = g.leaves[i]
            count += 1
    g.num_leaves = count


cdef inline bint growth_join(GrowthC* g, LeafC* leaf) noexcept nogil:
    """Let the likeliest token that waits join the tree; False: none may.

    Tokens that `least` excludes are left out, except the likeliest ones: what they promise to a later
    pass counts for the policy.
    """
    while g.num_leaves > 0:
        g.num_leaves -= 1
        leaf[0] = g.leaves[g.num_leaves]
        if leaf.all_right < g.floor:
            return False
        if g.least != NULL and leaf.all_right < g.least[g.n] and not leaf.first:
            continue
        g.out[g.n], g.parents[g.n], g.confidence[g.n] = leaf.token, leaf.after, leaf.p
        g.n += 1
        g.num_at[leaf.depth] += 1
        if g.num_at[leaf.depth] == g.width:
            _growth_leave(g, leaf.depth)
        return True
    return False
