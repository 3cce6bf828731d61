"""Commit: what the target emitted joins a slot. The policy learns from every draft for it, sent or not.

Observation: what the target's logits said, for the sources that learn from them.

Follow: slots go on as the texts of a host do, which names no request. A row of a token table continues its slot if it
holds what the history ends with, and a few older tokens. Appending and indexing is done by several threads; what slots
share, by the caller, in the order of the rows.
"""

from libc.math cimport exp
from libc.string cimport memcmp

from ngramspec._native.core.history cimport HistoryC, common_prefix, history_common_prefix
from ngramspec._native.core.threads cimport call_workers, dismiss_workers
from ngramspec._native.core.top cimport NGS_TOP_MOST, ngs_top
from ngramspec._native.core.types cimport STATUS_BAD_TOKEN, STATUS_OK, int32_t, ngs_add64, ngs_prefetch_read, uint64_t
from ngramspec._native.drafter.driver cimport (
    AHEAD, TOGETHER, SlotC, draft_known, draft_right, driver_accept, driver_begin, driver_fetch, driver_index, driver_join,
    driver_share, driver_stays, lanes_begin, lanes_end, lanes_for, lanes_share,
)
from ngramspec._native.drafter.source cimport FETCH_ENTRIES, FETCH_STATE
from ngramspec._native.policy.auto cimport EmittedC
from ngramspec._native.policy.costs cimport calibration_learn

cdef enum:
    TAIL = 32     # newest tokens of a history that are compared with a row
    PROBES = 4    # older tokens compared as well, others each time
    MANY = 64     # the same in follow_find

cdef enum:        # of a row, in place of accepted tokens
    OTHER = -1    # it does not continue the slot
    NO_ROOM = -2  # no memory
    LATER = -3    # the caller has still to do all of it


cdef bint _had_right(const DriverC* d, const SlotC* s, Py_ssize_t source, const token_t* tokens,
                     Py_ssize_t n) noexcept nogil:
    """Whether a source's draft said all that was emitted, as far as it went."""
    cdef const token_t* row = s.rows + source * d.max_draft
    cdef const int32_t* links = s.links + source * d.max_draft
    cdef Py_ssize_t length = s.lengths[source], right = 0, node = -1, i
    cdef bint other = False  # the draft goes on after `node`, but otherwise
    if length <= 0:
        return False
    if not s.branched:
        return common_prefix(row, tokens, min(length, n)) == min(length, n)
    for i in range(length):  # children come after their parent
        if links[i] != node:
            continue
        other = row[i] != tokens[right]
        if not other:
            node = i
            right += 1
            if right == n:
                return True
    return not other


cdef void _teach_tails(DriverC* d, const SlotC* s, const SlotC* t, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    """Note which claims of what came after another source's draft were right: where that was wrong, the first is."""
    cdef Py_ssize_t num_judged = draft_known(s, tokens, n), i, row, judged
    if num_judged == 0 and common_prefix(s.before, tokens, min(n, s.ahead)) == n:
        return  # the text ends within it
    for i in range(d.num_sources):
        judged, row = min(t.lengths[i], max(num_judged, <Py_ssize_t>1)), i * d.max_draft
        if judged > 0:
            calibration_learn(d.tails.calibrations[i], t.claims + row, judged,
                              common_prefix(t.rows + row, tokens + s.ahead, min(judged, num_judged)))


cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil:
    """Note what drafts got right: for how long, and of which claims, for every source that the policy calibrates."""
    cdef SlotC* s = &d.slots[slot]
    cdef token_t* row
    cdef Py_ssize_t i, judged
    cdef bint right = False
    for i in range(d.num_sources):
        right = right or _had_right(d, s, i, tokens, n)
        if d.calibrations[i] == NULL:
            continue
        row = s.rows + i * d.max_draft
        judged = min(s.lengths[i], n)
        if judged > 0:
            calibration_learn(d.calibrations[i], s.claims + i * d.max_draft, judged, common_prefix(row, tokens, judged))
    s.streak = s.streak + n if right else 0
    if s.ahead:
        _teach_tails(d, s, &d.tails.slots[slot], tokens, n)
    if emitted != NULL:
        emitted.tokens += n
        emitted.batch_tokens += 1 + s.ahead + draft_len
        if emitted.slots == <const void*>d.slots:
            emitted.own += 1 + draft_len
            emitted.longest = max(emitted.longest, draft_len)


cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef bint taught = s.asked and judge is not None
    cdef Py_ssize_t draft_len = s.draft_len
    cdef Status status = driver_accept(d, slot, tokens, n, num_accepted)
    if taught and status == STATUS_OK and n:
        commit_teach(d, slot, tokens, n, draft_len, emitted)
    return status


cdef EmittedC* commit_counts(AutoPolicy judge) noexcept nogil:
    return NULL if judge is None else &judge.emitted


cdef Py_ssize_t observation_most(const SlotC* s, bint placed, Py_ssize_t position) noexcept nogil:
    if not placed:
        return s.ahead + s.draft_len + 1 if s.history.len else 0
    return s.base + s.history.len - position if 0 <= position <= s.base + s.history.len else -1


cdef void _history_context(const HistoryC* h, Py_ssize_t at, token_t* before, token_t* last) noexcept nogil:
    """Set the token at an index of the history, and the one before it."""
    last[0] = h.tokens[at]
    before[0] = h.tokens[at - 1] if at > 0 else -1


cdef inline token_t _drafted(const SlotC* s, Py_ssize_t i) noexcept nogil:
    return s.before[i] if i < s.ahead else s.draft[i - s.ahead]


cdef void _draft_context(const SlotC* s, Py_ssize_t row, token_t* before, token_t* last) noexcept nogil:
    """Set the tokens that a row of the pending draft's pass follows."""
    cdef const HistoryC* h = &s.history
    cdef Py_ssize_t parent
    if row == 0:
        _history_context(h, h.len - 1, before, last)
        return
    parent = s.parents[row - 1] if s.branched and not s.ahead else row - 2
    last[0] = _drafted(s, row - 1)
    before[0] = _drafted(s, parent) if parent >= 0 else h.tokens[h.len - 1]


cdef bint _context(const DriverC* d, Py_ssize_t slot, Py_ssize_t position, Py_ssize_t row, token_t* before,
                   token_t* last) noexcept nogil:
    """Set the tokens that a row follows. False: the slot does not hold them any more."""
    cdef const SlotC* s = &d.slots[slot]
    if position < 0:
        _draft_context(s, row, before, last)
    elif position + row >= s.base:
        _history_context(&s.history, position + row - s.base, before, last)
    else:
        return False
    return True


cdef void observation_tell(DriverC* d, token_t before, token_t last, const token_t* tokens, const float* p,
                           Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        if d.sources[i].top:
            d.sources[i].observe(d.sources[i].state, before, last, tokens, p, min(n, d.sources[i].top))


cdef void observation_show_logits(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const float* rows,
                                  Py_ssize_t num_rows, Py_ssize_t vocab_size) noexcept nogil:
    cdef token_t[NGS_TOP_MOST] tokens
    cdef float[NGS_TOP_MOST] p
    cdef token_t before = -1, last = -1
    cdef Py_ssize_t i
    cdef int n
    for i in range(num_rows if d.top else 0):
        if _context(d, slot, position, i, &before, &last):
            n = ngs_top(rows + i * vocab_size, vocab_size, <int>d.top, tokens, p)
            observation_tell(d, before, last, tokens, p, n)


cdef void observation_show_top(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const token_t* tokens, const float* logs,
                               Py_ssize_t num_rows, Py_ssize_t width) noexcept nogil:
    cdef float[NGS_TOP_MOST] p
    cdef token_t before = -1, last = -1
    cdef Py_ssize_t n = min(width, d.top), i, k
    for i in range(num_rows if n else 0):
        if _context(d, slot, position, i, &before, &last):
            for k in range(n):
                p[k] = <float>min(exp(logs[i * width + k]), 1.0)
            observation_tell(d, before, last, tokens + i * width, p, n)


cdef bint _fits(const SlotC* s, const token_t* row, Py_ssize_t length, Py_ssize_t probes) noexcept nogil:
    """Whether a row holds the history, judged by its newest tokens and `probes` older ones."""
    cdef Py_ssize_t held = s.history.len, total = s.base + held
    cdef Py_ssize_t tail = held if held < TAIL else TAIL
    cdef Py_ssize_t i, place
    if length < total or (held == 0 and length > total and s.base):  # all has aged away: any text would go on
        return False
    if memcmp(row + total - tail, s.history.tokens + held - tail, <size_t>tail * sizeof(token_t)):
        return False
    for i in range(probes if held > tail else 0):
        place = <Py_ssize_t>((((<uint64_t>total + <uint64_t>i) * <uint64_t>0x9E3779B97F4A7C15) >> 33)
                             * <uint64_t>(held - tail) >> 31)
        if row[s.base + place] != s.history.tokens[place]:
            return False
    return True


cdef int32_t _right_of(const SlotC* s, const token_t* row, Py_ssize_t length) noexcept nogil:
    """How many tokens of the pending draft the new tokens of a row confirm, or OTHER."""
    cdef Py_ssize_t total, i
    if not s.active or not _fits(s, row, length, PROBES):
        return OTHER
    total = s.base + s.history.len
    for i in range(total, length):
        if row[i] < 0:
            return OTHER
    return <int32_t>draft_right(s, row + total, length - total - 1) if length > total else 0


cdef void _fetch_text(const FollowedC* f, const DriverC* d, Py_ssize_t i) noexcept nogil:
    """Ask for what tells whether a row continues its slot."""
    cdef const SlotC* s
    cdef const token_t* end
    if f.slots[i] < 0:
        return
    s = &d.slots[f.slots[i]]
    end = f.rows + i * f.width + f.lengths[i]
    ngs_prefetch_read(end - 1)
    ngs_prefetch_read(end - TAIL if f.lengths[i] >= TAIL else end - 1)
    ngs_prefetch_read(s.history.tokens + s.history.len)
    ngs_prefetch_read(s.history.tokens + s.history.len - (TAIL if s.history.len >= TAIL else 0))
    ngs_prefetch_read(s.draft)


cdef void _join_lane(void* job, int lane) noexcept nogil:
    """Take rows and append their new tokens to the histories, until no row is left."""
    cdef FollowedC* f = <FollowedC*>job
    cdef DriverC* d = f.lanes.drivers[lane]
    cdef const token_t* row
    cdef Py_ssize_t start = <Py_ssize_t>ngs_add64(&f.next, f.together)
    cdef Py_ssize_t i, total, length, end
    cdef SlotC* s
    while start < f.num:
        end = min(start + f.together, f.num)
        for i in range(start, end):
            if i + AHEAD < end:  # others may change other rows
                _fetch_text(f, d, i + AHEAD)
            f.accepted[i] = OTHER
            if f.slots[i] < 0:
                continue
            s = &d.slots[f.slots[i]]
            row, length = f.rows + i * f.width, f.lengths[i]
            f.accepted[i] = _right_of(s, row, length)
            total = s.base + s.history.len
            s.sent = s.draft_len
            s.joined = 0
            if f.accepted[i] == OTHER or length == total:
                continue
            if not driver_stays(d, f.slots[i], length - total):
                f.accepted[i] = LATER
            elif driver_join(d, f.slots[i], row + total, length - total, f.accepted[i]) != STATUS_OK:
                f.accepted[i] = NO_ROOM
            else:
                s.joined = length - total
        start = <Py_ssize_t>ngs_add64(&f.next, f.together)


cdef void _index_lane(void* job, int lane) noexcept nogil:
    """Take rows from the last one on and index what has joined, until no row is left."""
    cdef FollowedC* f = <FollowedC*>job
    cdef DriverC* d = f.lanes.drivers[lane]
    cdef Py_ssize_t start = <Py_ssize_t>ngs_add64(&f.next, f.together)
    cdef Py_ssize_t i, k, end
    while start < f.num:
        end = min(start + f.together, f.num)
        for k in range(start, end):
            i = f.num - 1 - k
            if k + 1 < end and f.accepted[i - 1] >= 0 and d.slots[f.slots[i - 1]].joined:
                driver_fetch(d, f.slots[i - 1], FETCH_ENTRIES)
            if f.accepted[i] >= 0 and d.slots[f.slots[i]].joined:
                driver_index(d, f.slots[i])
        start = <Py_ssize_t>ngs_add64(&f.next, f.together)


cdef void _show_rows(const FollowedC* f, AutoPolicy judge, EmittedC* emitted) noexcept nogil:
    """Show sources and policy what has joined, in the order of the rows: one thread changes what slots share."""
    cdef DriverC* d = f.lanes.drivers[0]
    cdef Py_ssize_t i
    cdef const token_t* row
    cdef bint taught
    cdef SlotC* s
    for i in range(f.num):
        if i + 1 < f.num and f.accepted[i + 1] >= 0:
            driver_fetch(d, f.slots[i + 1], FETCH_STATE)
        if f.accepted[i] < 0:
            continue
        s = &d.slots[f.slots[i]]
        if s.joined:
            row = f.rows + i * f.width + f.lengths[i] - s.joined
            taught = s.asked and judge is not None
            driver_share(d, f.slots[i])
            if taught:
                commit_teach(d, f.slots[i], row, s.joined, s.sent, emitted)


cdef Py_ssize_t _follow_rest(FollowedC* f, AutoPolicy judge, EmittedC* emitted) noexcept nogil:
    """Commit rows whose slots must drop tokens; return the last row of all without room, -1 = none."""
    cdef DriverC* d = f.lanes.drivers[0]
    cdef Py_ssize_t i, total, full = -1
    cdef const token_t* row
    cdef SlotC* s
    for i in range(f.num):
        if f.accepted[i] == LATER:
            s = &d.slots[f.slots[i]]
            row, total = f.rows + i * f.width, s.base + s.history.len
            f.accepted[i] = <int32_t>draft_right(s, row + total, f.lengths[i] - total - 1)
            if commit_tokens(d, judge, f.slots[i], row + total, f.lengths[i] - total, f.accepted[i], emitted) != STATUS_OK:
                f.accepted[i] = NO_ROOM
        if f.accepted[i] == NO_ROOM:
            f.accepted[i] = OTHER
            full = i
    return full


cdef Py_ssize_t follow_rows(FollowedC* f, AutoPolicy judge) noexcept nogil:
    cdef int lanes = lanes_for(f.lanes, f.num)
    cdef EmittedC* emitted = commit_counts(judge)
    cdef bint called
    lanes_begin(f.lanes, lanes)
    f.together = TOGETHER if lanes > 1 else f.num
    f.next = 0
    lanes_share(_join_lane, f, lanes)
    f.next = 0
    called = call_workers(_index_lane, f, lanes)
    _show_rows(f, judge, emitted)
    _index_lane(f, 0)
    if called:
        dismiss_workers()
    lanes_end(f.lanes, lanes)
    return _follow_rest(f, judge, emitted)


cdef Py_ssize_t follow_text(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                            Py_ssize_t vocab_size, Status* status) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t total = s.base + s.history.len
    # Where all that was held has aged away, any text would go on from it.
    cdef bint goes_on = s.active and n >= total and (s.history.len > 0 or n == total or s.base == 0) and (
        history_common_prefix(&s.history, tokens + s.base, n - s.base) == s.history.len)
    cdef token_t last = <token_t>(vocab_size - 1) if vocab_size else 0x7FFFFFFF
    cdef Py_ssize_t accepted, i
    for i in range(total if goes_on else 0, n):
        if tokens[i] < 0 or tokens[i] > last:
            status[0] = STATUS_BAD_TOKEN
            return i
    status[0] = STATUS_OK
    if not goes_on:
        status[0] = driver_begin(d, slot, tokens, n)
        return -1
    if n == total:
        return 0
    accepted = draft_right(s, tokens + total, n - total - 1)
    status[0] = commit_tokens(d, judge, slot, tokens + total, n - total, accepted, commit_counts(judge))
    return accepted


cdef int32_t follow_find(const DriverC* d, const int32_t* slots, Py_ssize_t num_slots, const token_t* row,
                         Py_ssize_t length, const int32_t* taken, Py_ssize_t num_taken) noexcept nogil:
    cdef const SlotC* s
    cdef Py_ssize_t i, j, total, longest = 0
    cdef int32_t best = -1
    for i in range(num_slots):
        s = &d.slots[slots[i]]
        total = s.base + s.history.len
        if s.history.len == 0 or not longest < total <= length or not _fits(s, row, length, MANY):
            continue
        for j in range(num_taken):
            if taken[j] == slots[i]:
                break
        else:
            best, longest = slots[i], total
    return best
