"""The driver: one history per slot, sources asked in order, feedback to the source that drafted.

Kernels that do not return STATUS_OK have changed nothing, except driver_replay. A pending draft can have
branches: each token's parent comes before it. What each source did is counted as the driver does it. A batch's rows
are shared by lanes, which are threads with working memory and counts of their own.
"""

from libc.string cimport memcpy, memmove, memset

from ngramspec._native.core.history cimport (
    common_prefix, history_append, history_common_prefix, history_free, history_reserve,
)
from ngramspec._native.core.threads cimport call_workers, dismiss_workers
from ngramspec._native.core.types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_now_ns
from ngramspec._native.drafter.source cimport JOINED_AGAIN, JOINED_OUTPUT, JOINED_PROMPT, Fetch, Joined, StemC

from ngramspec.stats import SourceStats

cdef enum:
    TIMED_EVERY = 16      # one call in TIMED_EVERY reads the clock, which costs more than a short call
    NO_STEM = -1
    OUTSIDE = -2  # a token that is not in the stem
    ROWS_OF_LANE = 16     # fewer rows than this are not worth one more thread


cdef SourceCountsC* counts_make(Owner memory, Py_ssize_t num_sources, Py_ssize_t max_draft) except NULL:
    cdef SourceCountsC* counts = <SourceCountsC*>memory.take(num_sources, sizeof(SourceCountsC))
    cdef int64_t* accepted_at = <int64_t*>memory.take(num_sources * max_draft, sizeof(int64_t))
    cdef Py_ssize_t i
    for i in range(num_sources):
        counts[i].accepted_at = accepted_at + i * max_draft
    return counts


cdef void counts_clear(SourceCountsC* counts, Py_ssize_t num_sources, Py_ssize_t max_draft) noexcept nogil:
    cdef int64_t* accepted_at
    cdef Py_ssize_t i
    for i in range(num_sources):
        accepted_at = counts[i].accepted_at
        memset(accepted_at, 0, <size_t>max_draft * sizeof(int64_t))
        memset(&counts[i], 0, sizeof(SourceCountsC))
        counts[i].accepted_at = accepted_at


cdef void counts_copy(SourceCountsC* counts, const SourceCountsC* source, Py_ssize_t num_sources,
                      Py_ssize_t max_draft) noexcept nogil:
    cdef int64_t* accepted_at
    cdef Py_ssize_t i
    for i in range(num_sources):
        accepted_at = counts[i].accepted_at
        memcpy(accepted_at, source[i].accepted_at, <size_t>max_draft * sizeof(int64_t))
        counts[i] = source[i]
        counts[i].accepted_at = accepted_at


cdef void counts_add(SourceCountsC* counts, const SourceCountsC* more, Py_ssize_t num_sources,
                     Py_ssize_t max_draft) noexcept nogil:
    cdef SourceCountsC* all
    cdef const SourceCountsC* own
    cdef Py_ssize_t i, k
    for i in range(num_sources):
        all, own = &counts[i], &more[i]
        all.propose_calls += own.propose_calls
        all.accept_calls += own.accept_calls
        all.num_drafts += own.num_drafts
        all.num_draft_tokens += own.num_draft_tokens
        all.propose_ns += own.propose_ns
        all.accept_ns += own.accept_ns
        all.timed_proposes += own.timed_proposes
        all.timed_accepts += own.timed_accepts
        all.num_feedbacks += own.num_feedbacks
        all.num_accepted_drafts += own.num_accepted_drafts
        for k in range(max_draft):
            all.accepted_at[k] += own.accepted_at[k]


cdef object counts_stats(const SourceCountsC* c, str name, Py_ssize_t max_draft):
    cdef Py_ssize_t i, last = 0
    cdef int64_t num_accepted_tokens = 0
    for i in range(max_draft):
        num_accepted_tokens += c.accepted_at[i]
        if c.accepted_at[i]:
            last = i + 1
    return SourceStats(
        name=name,
        begin_calls=c.begin_calls,
        propose_calls=c.propose_calls,
        accept_calls=c.accept_calls,
        num_drafts=c.num_drafts,
        num_accepted_drafts=c.num_accepted_drafts,
        num_draft_tokens=c.num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        accepted_per_position=tuple([c.accepted_at[i] for i in range(last)]),
        begin_ns=c.begin_ns,
        propose_ns=_scaled(c.propose_ns, c.propose_calls, c.timed_proposes),
        accept_ns=_scaled(c.accept_ns, c.num_feedbacks, c.timed_accepts),
    )


cdef int64_t _scaled(int64_t ns, int64_t calls, int64_t timed):
    """The time of all calls, by those that were timed."""
    return <int64_t>(<double>ns * <double>calls / <double>timed) if timed else 0


cdef void branches_chain(int32_t* parents, Py_ssize_t n) noexcept nogil:
    """The parents of a draft without branches."""
    cdef Py_ssize_t i
    for i in range(n):
        parents[i] = <int32_t>(i - 1)


cdef Py_ssize_t branches_right(const token_t* draft, const int32_t* parents, Py_ssize_t n, const token_t* tokens,
                               Py_ssize_t num_tokens, Py_ssize_t* last) noexcept nogil:
    """Count the drafted tokens that were right. One pass is enough: siblings differ, and children follow parents."""
    cdef Py_ssize_t right = 0
    cdef Py_ssize_t i
    last[0] = -1
    for i in range(n):
        if right == num_tokens:
            break
        if parents[i] == last[0] and draft[i] == tokens[right]:
            last[0] = i
            right += 1
    return right


cdef bint branches_go_on(const int32_t* parents, Py_ssize_t n, Py_ssize_t node) noexcept nogil:
    """Whether a token comes after this one."""
    cdef Py_ssize_t i
    for i in range(node + 1, n):
        if parents[i] == node:
            return True
    return False


cdef Py_ssize_t branches_keep(token_t* draft, int32_t* parents, float* confidence, Py_ssize_t n,
                              int32_t* place) noexcept nogil:
    cdef Py_ssize_t i, count = 0
    cdef int32_t parent
    for i in range(n):
        parent = parents[i]
        if place[i] != 1 or (parent >= 0 and place[parent] < 0):
            place[i] = -1
            continue
        place[i] = <int32_t>count
        draft[count], confidence[count] = draft[i], confidence[i]
        parents[count] = place[parent] if parent >= 0 else -1
        count += 1
    return count


cdef Py_ssize_t branches_few(token_t* draft, int32_t* parents, float* confidence, Py_ssize_t n, Py_ssize_t most,
                             int32_t* place) noexcept nogil:
    cdef Py_ssize_t i, branches = 0
    cdef int32_t parent
    cdef bint begins
    for i in range(n):
        place[i] = 0
        parent = parents[i]
        if parent >= 0 and place[parent] == 0:
            continue
        begins = parent < 0 or place[parent] == 2  # 2: it has a child already
        if begins and branches == most:
            continue
        branches += begins
        place[i] = 1
        if parent >= 0:
            place[parent] = 2
    for i in range(n):
        place[i] = place[i] > 0
    return branches_keep(draft, parents, confidence, n, place)


cdef const char* branches_check(const token_t* draft, const int32_t* parents, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, k
    for i in range(n):
        if not -1 <= parents[i] < i:
            return "drafter: a token of a tree comes before its parent"
        for k in range(i):
            if parents[k] == parents[i] and draft[k] == draft[i]:
                return "drafter: two siblings in a tree are the same token"
    return NULL


cdef Status _reserve(DriverC* d, Py_ssize_t slot, Py_ssize_t extra) noexcept nogil:
    """Make room in the history and in all sources for extra tokens."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    if history_reserve(&s.history, extra) != STATUS_OK:
        return STATUS_NO_MEMORY
    for i in range(d.num_sources):
        if d.sources[i].reserve(d.sources[i].state, slot, &s.history, extra) != STATUS_OK:
            return STATUS_NO_MEMORY
    return STATUS_OK


cdef void _extend(DriverC* d, Py_ssize_t slot, Py_ssize_t start, Joined how) noexcept nogil:
    """Pass the tokens of the history from `start` on to all sources."""
    _index(d, slot)
    _share(d, slot, start, how)


cdef void _index(DriverC* d, Py_ssize_t slot) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        if d.sources[i].index != NULL:
            d.sources[i].index(d.sources[i].state, slot, &d.slots[slot].history)


cdef void _share(DriverC* d, Py_ssize_t slot, Py_ssize_t start, Joined how) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        if d.sources[i].extend != NULL:
            d.sources[i].extend(d.sources[i].state, slot, &d.slots[slot].history, start, how)


cdef void driver_fetch(const DriverC* d, Py_ssize_t slot, Fetch what) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        if d.sources[i].fetch != NULL:
            d.sources[i].fetch(d.sources[i].state, slot, &d.slots[slot].history, what)


cdef void _rewind(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil:
    """Cut the held history to `length` tokens."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        d.sources[i].rewind(d.sources[i].state, slot, &s.history, length)
    s.history.len = length
    _extend(d, slot, length, JOINED_PROMPT)


cdef void _append(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Joined how) noexcept nogil:
    cdef Py_ssize_t start = d.slots[slot].history.len
    history_append(&d.slots[slot].history, tokens, n)
    _extend(d, slot, start, how)


cdef void _age(DriverC* d, Py_ssize_t slot, Py_ssize_t keep) noexcept nogil:
    """Drop all but the newest `keep` tokens of the history; sources index these again, at their new positions."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t dropped = s.history.len - keep
    _rewind(d, slot, 0)
    memmove(s.history.tokens, s.history.tokens + dropped, <size_t>keep * sizeof(token_t))
    s.history.len = keep
    s.base += dropped
    _extend(d, slot, 0, JOINED_AGAIN)


cdef Status driver_begin(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    """Make the history equal to the prompt; a shared prefix is kept and only compared.

    If the prompt exceeds max_history, a quarter of max_history stays free for the output.
    """
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t fits = n if n <= d.max_history else d.max_history - d.max_history // 4
    cdef Py_ssize_t first = s.base  # position of the first token that will be held
    cdef Py_ssize_t shared = 0
    cdef Py_ssize_t i
    cdef int64_t started = ngs_now_ns()
    s.streak = 0
    if n > s.base:
        shared = history_common_prefix(&s.history, tokens + s.base, n - s.base)
    # Dropped tokens are not taken back in, unless less than half of what fits would be held.
    if shared == 0 or n - s.base > d.max_history or 2 * (n - s.base) < fits:
        first = n - fits
    # Tokens that differ are removed before new ones join, so only a longer history needs room.
    if n - first > s.history.len and _reserve(d, slot, n - first - s.history.len) != STATUS_OK:
        return STATUS_NO_MEMORY
    if first < s.base:
        shared = 0
    _rewind(d, slot, shared)
    if first > s.base:
        shared = max(shared - (first - s.base), <Py_ssize_t>0)
        _age(d, slot, shared)
    s.base = first
    if shared < n - first:
        _append(d, slot, tokens + first + shared, n - first - shared, JOINED_PROMPT)
    s.active = True
    s.draft_len = s.ahead = 0
    s.asked = False
    started = ngs_now_ns() - started
    for i in range(d.num_sources):
        d.counts[i].begin_calls += 1
        d.counts[i].begin_ns += started
    return STATUS_OK


cdef Py_ssize_t _draft(const SourceC* c, Py_ssize_t slot, const HistoryC* h, Py_ssize_t ahead, const StemC* stem,
                       token_t* row, int32_t* parents, float* claims, Py_ssize_t limit, Py_ssize_t width,
                       const float* least, int lane) noexcept nogil:
    """Let a source write a draft, with parents if width > 0; the last `ahead` tokens have not joined its history."""
    cdef Py_ssize_t length
    if ahead and c.propose_after != NULL:
        return c.propose_after(c.state, slot, h, ahead, row, claims, limit, lane)
    if stem.n:
        return c.graft(c.state, slot, h, stem, row, parents if width else NULL, claims, limit, width or 1, least,
                       lane)
    if width and c.propose_tree != NULL:
        return c.propose_tree(c.state, slot, h, row, parents, claims, limit, width, least, lane)
    length = c.propose(c.state, slot, h, row, claims, limit, lane)
    if width:
        branches_chain(parents, length)
    return length


cdef void _find_stem(const DriverC* d, SlotC* s, Py_ssize_t source, StemC* stem) noexcept nogil:
    """Set the draft that a source may grow from: the first one of an earlier source."""
    cdef Py_ssize_t i
    stem.n = 0
    if d.sources[source].graft == NULL or s.ahead:
        return
    for i in range(source):
        if s.lengths[i] > 0:
            stem.tokens, stem.claims = s.rows + i * d.max_draft, s.claims + i * d.max_draft
            stem.parents = s.links + i * d.max_draft if s.branched else NULL
            stem.n = s.lengths[i]
            s.stem = i
            return


cdef void _keep_stem(DriverC* d, SlotC* s, const StemC* stem) noexcept nogil:
    """Remember the draft that another grows from: what is cut of it later does not matter then."""
    cdef int32_t* parents = s.links + (d.num_sources + 1) * d.max_draft
    s.stem_len = stem.n
    memcpy(s.rows + d.num_sources * d.max_draft, stem.tokens, <size_t>stem.n * sizeof(token_t))
    if stem.parents != NULL:
        memcpy(parents, stem.parents, <size_t>stem.n * sizeof(int32_t))
    else:
        branches_chain(parents, stem.n)


cdef Py_ssize_t _in_stem(const DriverC* d, const SlotC* s, Py_ssize_t at, token_t token) noexcept nogil:
    """Return where the stem has a token after its own one at `at` (-1: the text), OUTSIDE where it has not."""
    cdef const token_t* tokens = s.rows + d.num_sources * d.max_draft
    cdef const int32_t* parents = s.links + (d.num_sources + 1) * d.max_draft
    cdef Py_ssize_t i
    for i in range(at + 1 if at != OUTSIDE else s.stem_len, s.stem_len):
        if parents[i] == at and tokens[i] == token:
            return i
    return OUTSIDE


cdef Py_ssize_t _count_copied(const DriverC* d, const SlotC* s) noexcept nogil:
    """Return how many tokens of the pending draft the stem has too, after the same ones."""
    cdef int32_t* place = s.links + d.num_sources * d.max_draft
    cdef Py_ssize_t i, parent, copied = 0
    if s.stem == NO_STEM or s.ahead or d.sources[s.owner].graft == NULL:
        return 0
    for i in range(s.draft_len):
        parent = s.parents[i] if s.branched else i - 1
        place[i] = <int32_t>_in_stem(d, s, place[parent] if parent >= 0 else -1, s.draft[i])
        copied += place[i] != OUTSIDE
    return copied


cdef void _count_verified(SourceCountsC* c, Py_ssize_t drafted, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    """Count the part of a verified draft that is a source's, if there is one: first..stop - 1 are its right tokens."""
    cdef Py_ssize_t i
    if not drafted:
        return
    c.num_drafts += 1
    c.num_draft_tokens += drafted
    c.accept_calls += 1
    c.num_accepted_drafts += stop > first
    for i in range(first, stop):
        c.accepted_at[i] += 1


cdef Py_ssize_t _ask(DriverC* d, Py_ssize_t source, Py_ssize_t slot, Py_ssize_t limit, Py_ssize_t width,
                     const float* least) noexcept nogil:
    """Ask one source for a draft; one call in TIMED_EVERY is timed."""
    cdef SlotC* s = &d.slots[slot]
    cdef SourceC* c = &d.sources[source]
    cdef SourceCountsC* counts = &d.counts[source]
    cdef token_t* row = s.rows + source * d.max_draft
    cdef float* claims = s.claims + source * d.max_draft
    cdef int32_t* parents = s.links + source * d.max_draft
    cdef StemC stem
    cdef Py_ssize_t length
    cdef int64_t started
    _find_stem(d, s, source, &stem)
    if stem.n:
        _keep_stem(d, s, &stem)
    counts.propose_calls += 1
    if limit > c.max_draft:
        limit = c.max_draft
    if counts.propose_calls % TIMED_EVERY != 1:
        return _draft(c, slot, &s.history, s.ahead, &stem, row, parents, claims, limit, width, least, d.lane)
    started = ngs_now_ns()
    length = _draft(c, slot, &s.history, s.ahead, &stem, row, parents, claims, limit, width, least, d.lane)
    counts.propose_ns += ngs_now_ns() - started
    counts.timed_proposes += 1
    return length


cdef void _ask_anew(DriverC* d, SlotC* s, bint branched) noexcept nogil:
    s.draft_len = s.ahead = 0
    s.asked = True
    s.branched = branched
    s.stem = NO_STEM
    memset(s.lengths, 0, <size_t>d.num_sources * sizeof(Py_ssize_t))


cdef Py_ssize_t driver_propose(DriverC* d, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t width) noexcept nogil:
    """Fill the slot's pending draft from the first source that has one; return its length."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    _ask_anew(d, s, width > 0)
    if max_tokens <= 0 or s.history.len == 0:
        return 0
    for i in range(d.num_sources):
        s.lengths[i] = _ask(d, i, slot, max_tokens, width, NULL)
        if s.lengths[i] > 0:
            driver_take(d, slot, i, s.lengths[i])
            break
    return s.draft_len


cdef void driver_ask_all(DriverC* d, Py_ssize_t slot, Py_ssize_t max_tokens, Py_ssize_t width,
                         const float* least) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    _ask_anew(d, s, width > 0)
    if max_tokens > 0 and s.history.len:
        for i in range(d.num_sources):
            s.lengths[i] = _ask(d, i, slot, max_tokens, width, least)


cdef Status driver_ask_after(DriverC* d, Py_ssize_t slot, const token_t* before, Py_ssize_t n,
                             Py_ssize_t max_tokens) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef SlotC* t = &d.tails.slots[slot]
    cdef Py_ssize_t i
    if history_reserve(&s.history, n) != STATUS_OK:
        return STATUS_NO_MEMORY
    memcpy(s.before, before, <size_t>n * sizeof(token_t))
    t.history = s.history
    history_append(&t.history, before, n)  # the slot's own is no longer than before
    _ask_anew(d.tails, t, False)
    if not s.asked:  # what was asked before tells as well
        _ask_anew(d, s, False)
    s.draft_len = 0
    s.ahead = t.ahead = n
    for i in range(d.num_sources):
        t.lengths[i] = _ask(d.tails, i, slot, max_tokens, 0, NULL)
    return STATUS_OK


cdef void driver_take_after(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef const SlotC* t = &d.tails.slots[slot]
    s.owner, s.draft, s.confidence, s.parents = t.owner, t.draft, t.confidence, t.parents
    s.draft_len = length


cdef Py_ssize_t draft_known(const SlotC* s, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    if n <= s.ahead or common_prefix(s.before, tokens, s.ahead) < s.ahead:
        return 0
    return n - s.ahead


cdef void driver_prune(DriverC* d, Py_ssize_t slot, Py_ssize_t most) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i, row
    for i in range(d.num_sources):
        row = i * d.max_draft
        s.lengths[i] = branches_few(s.rows + row, s.links + row, s.claims + row, s.lengths[i], most,
                                    s.links + d.num_sources * d.max_draft)


cdef void driver_take(DriverC* d, Py_ssize_t slot, Py_ssize_t source, Py_ssize_t length) noexcept nogil:
    """Make the first `length` tokens that a source drafted the pending draft."""
    cdef SlotC* s = &d.slots[slot]
    s.owner = source
    s.draft = s.rows + source * d.max_draft
    s.confidence = s.claims + source * d.max_draft
    s.parents = s.links + source * d.max_draft
    s.draft_len = length


cdef Py_ssize_t draft_right(const SlotC* s, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    """How many tokens of the pending draft the target's tokens confirm."""
    cdef Py_ssize_t last
    if s.ahead:
        return common_prefix(s.draft, tokens + s.ahead, min(draft_known(s, tokens, n), s.draft_len))
    if s.branched:
        return branches_right(s.draft, s.parents, s.draft_len, tokens, n, &last)
    return common_prefix(s.draft, tokens, n if n < s.draft_len else s.draft_len)


cdef bint _goes_on(const SlotC* s, const token_t* tokens, Py_ssize_t n, Py_ssize_t right) noexcept nogil:
    """Whether the draft goes on after its first `right` tokens."""
    cdef Py_ssize_t last
    if s.ahead or not s.branched:
        return right < s.draft_len
    branches_right(s.draft, s.parents, s.draft_len, tokens, n, &last)
    return branches_go_on(s.parents, s.draft_len, last)


cdef void _feed_back(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t num_accepted) noexcept nogil:
    """Give feedback to the pending draft's source. A draft longer than what was verified is not rejected."""
    cdef SlotC* s = &d.slots[slot]
    cdef SourceC* c = &d.sources[s.owner]
    cdef Py_ssize_t right = draft_right(s, tokens, n)
    cdef Py_ssize_t num_copied = _count_copied(d, s), copied = 0, at = -1
    d.counts[s.owner].num_feedbacks += 1
    if num_copied:  # these are the stem's
        while copied < num_accepted:
            at = _in_stem(d, s, at, tokens[copied])
            if at == OUTSIDE:
                break
            copied += 1
        _count_verified(&d.counts[s.stem], num_copied, 0, copied)
    _count_verified(&d.counts[s.owner], s.draft_len - num_copied, copied, num_accepted)
    if s.ahead:
        n = draft_known(s, tokens, n)
    c.feedback(c.state, slot, &s.history, right, right < n and _goes_on(s, tokens, n, right))
    s.draft_len = 0


cdef bint driver_stays(const DriverC* d, Py_ssize_t slot, Py_ssize_t n) noexcept nogil:
    return d.slots[slot].history.len + n <= d.max_history


cdef Status driver_join(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                        Py_ssize_t num_accepted) noexcept nogil:
    """Append what the target emitted, and give feedback; the caller has checked num_accepted against the draft."""
    cdef SlotC* s = &d.slots[slot]
    cdef SourceCountsC* counts = &d.counts[s.owner]
    cdef Py_ssize_t half = d.max_history // 2
    cdef Py_ssize_t older = s.history.len, joins = n  # older and new tokens that will be held
    cdef bint stays = driver_stays(d, slot, n)
    cdef int64_t started = 0
    if not stays:
        older, joins = half if n <= half else 0, min(n, half)
    if older + joins > s.history.len and _reserve(d, slot, older + joins - s.history.len) != STATUS_OK:
        return STATUS_NO_MEMORY
    s.timed = s.draft_len > 0 and counts.num_feedbacks % TIMED_EVERY == 0
    if s.timed:
        started = ngs_now_ns()
        counts.timed_accepts += 1
    if s.draft_len > 0:
        _feed_back(d, slot, tokens, n, num_accepted)
    if not stays:
        _age(d, slot, older)
        s.base += n - joins
    s.joined_from = s.history.len
    history_append(&s.history, tokens + n - joins, joins)
    if s.timed:
        counts.accept_ns += ngs_now_ns() - started
    return STATUS_OK


cdef void driver_index(DriverC* d, Py_ssize_t slot) noexcept nogil:
    """Let each source take up what has joined, for the slot alone."""
    cdef SlotC* s = &d.slots[slot]
    cdef int64_t started = ngs_now_ns() if s.timed else 0
    _index(d, slot)
    if s.timed:
        d.counts[s.owner].accept_ns += ngs_now_ns() - started


cdef void driver_share(DriverC* d, Py_ssize_t slot) noexcept nogil:
    """Show the sources what has joined."""
    cdef SlotC* s = &d.slots[slot]
    cdef int64_t started = ngs_now_ns() if s.timed else 0
    s.asked = False
    _share(d, slot, s.joined_from, JOINED_OUTPUT)
    if s.timed:
        d.counts[s.owner].accept_ns += ngs_now_ns() - started


cdef Status driver_accept(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted) noexcept nogil:
    """Commit what the target emitted; the caller has checked num_accepted against the draft."""
    if driver_join(d, slot, tokens, n, num_accepted) != STATUS_OK:
        return STATUS_NO_MEMORY
    driver_index(d, slot)
    driver_share(d, slot)
    return STATUS_OK


cdef void driver_shorten(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil:
    """Keep the first tokens of the pending draft."""
    cdef SlotC* s = &d.slots[slot]
    s.draft_len = min(s.draft_len, length)


cdef Py_ssize_t driver_keep(DriverC* d, Py_ssize_t slot, int32_t* place) noexcept nogil:
    """Nothing is learnt of what is dropped."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t length = 0
    if s.branched:
        length = branches_keep(s.draft, s.parents, s.confidence, s.draft_len, place)
    else:
        while length < s.draft_len and place[length] == 1:
            length += 1
    s.lengths[s.owner] = length
    driver_shorten(d, slot, length)
    return length


cdef void driver_end(DriverC* d, Py_ssize_t slot) noexcept nogil:
    """End the request; its history stays for a later request that shares it."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    s.active = False
    s.draft_len = s.ahead = 0
    s.asked = False
    for i in range(d.num_sources):
        d.sources[i].finish(d.sources[i].state, slot, &s.history)


cdef void driver_forget(DriverC* d, Py_ssize_t slot) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    _rewind(d, slot, 0)
    s.base = 0
    history_free(&s.history)
    for i in range(d.num_sources):
        if d.sources[i].release != NULL:
            d.sources[i].release(d.sources[i].state, slot)


cdef void driver_truncate(DriverC* d, Py_ssize_t slot, Py_ssize_t length) noexcept nogil:
    """Cut the request to `length` tokens; if all of them were dropped already, nothing is left to draft from."""
    cdef SlotC* s = &d.slots[slot]
    s.draft_len = s.ahead = 0
    s.asked = False
    s.streak = 0
    if length >= s.base:
        _rewind(d, slot, length - s.base)
    else:
        _rewind(d, slot, 0)
        s.base = length


cdef Status driver_replay(DriverC* d, Py_ssize_t slot, const token_t* prompt, Py_ssize_t prompt_len,
                          const token_t* output, Py_ssize_t n, Py_ssize_t max_tokens,
                          ReplayC* r, int64_t* draft_lengths) noexcept nogil:
    """Play a recorded request: begin, then draft, accept the right prefix and one token, repeat."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t limit, length, accepted
    cdef int64_t started = ngs_now_ns()
    cdef Status status = driver_begin(d, slot, prompt, prompt_len)
    cdef int64_t begun = ngs_now_ns()
    memset(r, 0, sizeof(ReplayC))
    if n > 0 and status == STATUS_OK:
        status = driver_accept(d, slot, output, 1, 0)
    while i + 1 < n and status == STATUS_OK:
        limit = n - i - 1
        if max_tokens and limit > max_tokens:
            limit = max_tokens
        length = driver_propose(d, slot, limit, 0)
        accepted = draft_right(s, output + i + 1, n - i - 1)
        r.steps += 1
        r.drafts += length > 0
        r.drafted += length
        r.accepted += accepted
        draft_lengths[length] += 1
        length = accepted + 1 if i + 1 + accepted < n else accepted
        status = driver_accept(d, slot, output + i + 1, length, accepted)
        r.tokens += length
        i += accepted + 1
    r.begin_ns = begun - started
    r.step_ns = ngs_now_ns() - begun
    return status


cdef int lanes_make(LanesC* lanes, Owner memory, DriverC* d, int most) except -1:
    cdef int lane
    lanes.num = <int>max(<Py_ssize_t>1, min(<Py_ssize_t>most, d.num_slots // ROWS_OF_LANE))
    lanes.drivers = <DriverC**>memory.take(lanes.num, sizeof(DriverC*))
    lanes.drivers[0] = d
    for lane in range(1, lanes.num):
        lanes.drivers[lane] = <DriverC*>memory.take(1, sizeof(DriverC))
        lanes.drivers[lane][0] = d[0]
        lanes.drivers[lane].lane = lane
        lanes.drivers[lane].counts = counts_make(memory, d.num_sources, d.max_draft)
    return 0


cdef int lanes_for(const LanesC* lanes, Py_ssize_t num_rows) noexcept nogil:
    return <int>max(<Py_ssize_t>1, min(<Py_ssize_t>lanes.num, num_rows // ROWS_OF_LANE))


cdef void lanes_begin(const LanesC* lanes, int num) noexcept nogil:
    cdef const DriverC* d = lanes.drivers[0]
    cdef int lane
    for lane in range(1, num):
        counts_clear(lanes.drivers[lane].counts, d.num_sources, d.max_draft)


cdef void lanes_end(const LanesC* lanes, int num) noexcept nogil:
    cdef const DriverC* d = lanes.drivers[0]
    cdef int lane
    for lane in range(1, num):
        counts_add(d.counts, lanes.drivers[lane].counts, d.num_sources, d.max_draft)


cdef void lanes_share(Task task, void* job, int num) noexcept nogil:
    cdef bint called = call_workers(task, job, num)
    task(job, 0)
    if called:
        dismiss_workers()
