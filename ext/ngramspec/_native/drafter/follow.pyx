"""Follow: slots go on as the texts of a host do, which names no request.

A row of a token table continues its slot if it holds what the history ends with, and a few older tokens.
Appending and indexing is done by several threads; what slots share, by the caller, in the order of the rows.
"""

from libc.string cimport memcmp

from ngramspec._native.core.history cimport history_common_prefix
from ngramspec._native.core.types cimport STATUS_BAD_TOKEN, STATUS_OK, ngs_add64, ngs_prefetch_read, uint64_t
from ngramspec._native.core.workers cimport call_workers, dismiss_workers
from ngramspec._native.drafter.commit cimport commit_counts, commit_teach, commit_tokens
from ngramspec._native.drafter.driver cimport (
    SlotC, draft_right, driver_begin, driver_fetch, driver_index, driver_join, driver_share, driver_stays,
)
from ngramspec._native.drafter.lanes cimport AHEAD, TOGETHER, lanes_begin, lanes_end, lanes_for, lanes_share
from ngramspec._native.drafter.source cimport FETCH_ENTRIES, FETCH_STATE
from ngramspec._native.policy.auto cimport EmittedC

cdef enum:
    TAIL = 32     # newest tokens of a history that are compared with a row
    PROBES = 4    # older tokens compared as well, others each time
    MANY = 64     # the same in follow_find

cdef enum:        # of a row, in place of accepted tokens
    OTHER = -1    # it does not continue the slot
    NO_ROOM = -2  # no memory
    LATER = -3    # the caller has still to do all of it


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
