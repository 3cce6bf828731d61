"""How the suffix source drafts a tree: what is likeliest to be emitted is taken in next.

A token is emitted if it and all before it on its path are right, which the product of their
probabilities says. That product falls along a path, so taking the largest one known gives the tree of
its size that promises most accepted tokens, among the choices that were judged. Each token has the
candidates that agree with its path: a choice that is not the likeliest keeps those of its own.
Published relatives: Sequoia (arXiv 2402.12374) for trees of the largest expected length, SuffixDecoding
(arXiv 2411.04975), which grows a tree of counts in the same order.
"""

from libc.string cimport memcpy, memset

from ngramspec._match cimport CandidateC, candidate_next
from ngramspec._suffix_draft cimport suffix_consider
from ngramspec._suffix_state cimport LeafC, RecordC, TreeC


cdef void _offer(TreeC* t, float all_right, int record, int choice) noexcept nogil:
    """Enter a choice; of equals the first one to be entered is taken in first."""
    cdef int i = t.num_leaves
    while i > 0 and t.leaves[i - 1].all_right >= all_right:
        t.leaves[i] = t.leaves[i - 1]
        i -= 1
    t.leaves[i] = LeafC(all_right, record, choice)
    t.num_leaves += 1


cdef bint _consider(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, const token_t* before, int position,
                    int after, float all_right) noexcept nogil:
    """Let the candidates of the next record vote, and offer what they say; False when that is nothing."""
    cdef TreeC* t = c.tree
    cdef int record = <int>s.num_records
    cdef RecordC* r = suffix_consider(c, s, h, t.candidates[record], t.num_candidates[record], before, position, after)
    cdef int k
    if r == NULL:
        return False
    # As in a draft without branches, the chosen one goes before its equals.
    _offer(t, all_right * r.choices[r.chosen].p, record, r.chosen)
    for k in range(r.num):
        if k != r.chosen:
            _offer(t, all_right * r.choices[k].p, record, k)
    return True


cdef void _go_on(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, const LeafC* leaf, const token_t* out,
                 const int32_t* parents, int node) noexcept nogil:
    """Consider what comes after a token that was taken in: the last one, a choice of leaf.record."""
    cdef token_t[66] before  # the last two tokens of the history, then the path
    cdef int known = <int>min(<Py_ssize_t>2, h.len)
    cdef RecordC* r = &s.records[leaf.record]
    cdef int length = r.position + 1
    cdef CandidateC* said = c.tree.candidates[leaf.record]
    cdef int record = <int>s.num_records
    cdef CandidateC* agree = c.tree.candidates[record]
    cdef int n = 0
    cdef int i, at = node
    memcpy(before, h.tokens + h.len - known, <size_t>known * sizeof(token_t))
    for i in range(known + length - 1, known - 1, -1):
        before[i] = out[at]
        at = parents[at]
    for i in range(c.tree.num_candidates[leaf.record]):
        if said[i].live and said[i].token == out[node]:
            agree[n] = said[i]
            n += candidate_next(&agree[n], h, c.pool, c.index, before + known, length)
    c.tree.num_candidates[record] = n
    if _consider(c, s, h, before + known + length, length, node, leaf.all_right):
        r.next[leaf.choice] = record


cdef Py_ssize_t suffix_tree(SuffixC* c, SuffixSlotC* s, const HistoryC* h, token_t* out, int32_t* parents,
                            float* confidence, Py_ssize_t limit, Py_ssize_t width) noexcept nogil:
    """Grow a tree from the slot's candidates; it ends like a draft without branches."""
    cdef TreeC* t = c.tree
    cdef const RecordC* r
    cdef LeafC leaf
    cdef int n = 0
    t.num_leaves = 0
    memset(t.width, 0, sizeof(t.width))
    memcpy(t.candidates[0], s.candidates, <size_t>s.num_candidates * sizeof(CandidateC))
    t.num_candidates[0] = s.num_candidates
    _consider(c, s, h, h.tokens + h.len, 0, -1, 1)
    while t.num_leaves > 0:
        t.num_leaves -= 1
        leaf = t.leaves[t.num_leaves]
        r = &s.records[leaf.record]
        if t.width[r.position] == width:
            continue
        t.width[r.position] += 1
        out[n], parents[n], confidence[n] = r.choices[leaf.choice].token, r.after, r.choices[leaf.choice].p
        n += 1
        if n == limit or leaf.all_right < c.floor:
            break
        _go_on(c, s, h, &leaf, out, parents, n - 1)
    return n
