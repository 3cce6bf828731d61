"""Counts of what followed each n-gram: flat arrays, exact keys, best follower always at hand.

An n-gram with one follower, the usual case, is one 32-byte entry. Further followers are 16-byte
records found by a second table. The most frequent follower and the total are kept up to date, so
that proposing a token costs one probe per n-gram size. Adding can be undone exactly, newest first:
a context logs the changes of one slot's counts. If the number of n-grams is bounded, a clock hand drops
those unused for longest. Followers are bounded with them: one with many gives up a rare one of its own for
another, so it cannot displace the others.

Counts that threads share are split into shards. All n-grams that end with the same token are in one
shard, so a lookup or a learned token takes one lock, and threads contend only where their texts agree.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ngramspec._native.core.hash cimport (
    CellsC, table_check, table_clear, table_erase, table_free, table_nbytes, table_put, table_reserve, table_side,
)
from ngramspec._native.core.memory cimport grow
from ngramspec._native.core.types cimport (
    COUNT_MAX, NGRAM_MAX, STATUS_NO_MEMORY, STATUS_OK, Status, int64_t, ngs_give_way, ngs_lock,
    ngs_lock_shared, ngs_release, ngs_unlock, ngs_unlock_shared, uint64_t,
)

cdef enum:
    NONE = -1
    NO_ROOM = -2
    MAX_AGE = 3
    SHARD_BITS = 4        # MAX_SHARDS of them
    MIN_SHARED = 1 << 16  # max_ngrams from which shards are worth the memory and an uneven bound
    CHUNK = 4             # tokens learned per hold of a lock
    NEWEST = 16           # followers among which one goes if there is no room for another


cdef void counts_init(CountsC* c, Py_ssize_t max_ngrams) noexcept nogil:
    memset(c, 0, sizeof(CountsC))
    c.free_ngram = c.free_follower = NONE
    c.max_ngrams = max_ngrams


cdef inline bint _is_key(const NgramC* g, const token_t* newest, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if g.key[i] != newest[i + 1 - size]:
            return False
    return size == NGRAM_MAX or g.key[size] == NONE


cdef inline int32_t _find_ngram(const CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size) noexcept nogil:
    cdef const CellsC* t = table_side(&c.ngram_table, hash)
    cdef Py_ssize_t mask = t.capacity - 1
    cdef Py_ssize_t i = hash >> t.shift
    if t.capacity == 0:
        return NONE
    while t.cells[i].item:
        if t.cells[i].hash == hash and _is_key(&c.ngrams[t.cells[i].item - 1], newest, size):
            return <int32_t>t.cells[i].item - 1
        i = (i + 1) & mask
    return NONE


cdef inline int32_t _find_follower(const CountsC* c, int32_t ngram, token_t token) noexcept nogil:
    cdef uint32_t hash = follower_hash(ngram, token)
    cdef const CellsC* t = table_side(&c.follower_table, hash)
    cdef Py_ssize_t mask = t.capacity - 1
    cdef Py_ssize_t i = hash >> t.shift
    cdef const FollowerC* f
    while t.cells[i].item:
        f = &c.followers[t.cells[i].item - 1]
        if t.cells[i].hash == hash and f.ngram == ngram and f.token == token:
            return <int32_t>t.cells[i].item - 1
        i = (i + 1) & mask
    return NONE


cdef const NgramC* counts_find(const CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size) noexcept nogil:
    """The entry of the `size` tokens that end at `newest`, NULL when unknown; hash = ngram_hash of them."""
    cdef int32_t ngram = _find_ngram(c, hash, newest, size)
    return &c.ngrams[ngram] if ngram >= 0 else NULL


cdef const NgramC* counts_find_next(const CountsC* c, const NgramC* g, const token_t* newest, Py_ssize_t size) noexcept nogil:
    """The entry of the tokens that end at `newest` if it is one of the next few after g, otherwise NULL.

    N-grams of a text that occurred once are stored in its order, so following it needs no probe.
    """
    cdef const NgramC* end = c.ngrams + c.num_ngrams
    cdef Py_ssize_t _i
    for _i in range(NGRAM_MAX):
        g += 1
        if g >= end:
            return NULL
        if _is_key(g, newest, size):
            return g
    return NULL


cdef count_t counts_of(const CountsC* c, const NgramC* g, token_t token) noexcept nogil:
    """How often `token` followed the n-gram; 0 = never."""
    cdef int32_t follower
    if token == g.best or g.followers < 0:
        return g.best_count if token == g.best else 0
    follower = _find_follower(c, <int32_t>(g - c.ngrams), token)
    return c.followers[follower].count if follower >= 0 else 0


cdef Status counts_reserve(CountsC* c, Py_ssize_t num_adds) noexcept nogil:
    """Make room for num_adds calls of counts_add, which then cannot fail."""
    return counts_reserve_next(c, num_adds, num_adds)


cdef Status counts_reserve_next(CountsC* c, Py_ssize_t num_adds, Py_ssize_t coming) noexcept nogil:
    """The same if `coming` adds follow, num_adds of them before the next call; tables grow faster the more come."""
    cdef Py_ssize_t ngrams = c.num_ngrams - c.num_free_ngrams + num_adds
    cdef Py_ssize_t followers = c.num_followers - c.num_free_followers + 2 * num_adds
    if c.max_ngrams > 0 and ngrams > c.max_ngrams:
        ngrams = c.max_ngrams
    if c.max_ngrams > 0 and followers > 2 * c.max_ngrams:
        followers = 2 * c.max_ngrams
    if ngrams > 0x7FFFFFF0 or followers > 0x7FFFFFF0:
        return STATUS_NO_MEMORY
    if (grow(<void**>&c.ngrams, &c.ngrams_capacity, ngrams, sizeof(NgramC)) != STATUS_OK
            or grow(<void**>&c.followers, &c.followers_capacity, followers, sizeof(FollowerC)) != STATUS_OK
            or table_reserve(&c.ngram_table, ngrams, coming) != STATUS_OK
            or table_reserve(&c.follower_table, followers, 2 * coming) != STATUS_OK):
        return STATUS_NO_MEMORY
    if c.max_ngrams > 0:
        return grow(<void**>&c.ages, &c.ages_capacity, ngrams, sizeof(uint8_t))
    return STATUS_OK


cdef void counts_fetch(const CountsC* c, const token_t* tokens, Py_ssize_t start, Py_ssize_t end,
                       uint32_t* hashes) noexcept nogil:
    """Fetch the cells, then the n-grams, then the followers, each for all tokens.

    With long contexts they outgrow the CPU's caches, and waiting for one after the other costs most.
    """
    cdef Py_ssize_t num = (end - start) * NGRAM_MAX if start >= NGRAM_MAX else 0
    cdef Py_ssize_t i, size
    cdef uint64_t h
    for i in range(start, end):
        h = 0
        for size in range(1, (NGRAM_MAX if NGRAM_MAX < i else i) + 1):
            h = ngram_hash_step(h, tokens[i - size])
            hashes[(i - start) * NGRAM_MAX + size - 1] = <uint32_t>h
            counts_prefetch(c, <uint32_t>h)
    for i in range(num):
        counts_prefetch_ngram(c, hashes[i])
    for i in range(num):
        counts_prefetch_follower(c, hashes[i], tokens[start + i // NGRAM_MAX])


cdef int32_t _take_follower(CountsC* c, int32_t ngram, token_t token, count_t count) noexcept nogil:
    """Add a record to the n-gram's list and return it."""
    cdef int32_t item = c.free_follower
    cdef FollowerC* f
    if item >= 0:
        c.free_follower = c.followers[item].next
        c.num_free_followers -= 1
    else:
        item = <int32_t>c.num_followers
        c.num_followers += 1
    f = &c.followers[item]
    f.token = token
    f.count = count
    f.ngram = ngram
    f.next = c.ngrams[ngram].followers
    c.ngrams[ngram].followers = item
    table_put(&c.follower_table, follower_hash(ngram, token), <uint32_t>item)
    return item


cdef void _drop_follower(CountsC* c, int32_t item) noexcept nogil:
    """Free a record that has left its n-gram's list."""
    cdef FollowerC* f = &c.followers[item]
    table_erase(&c.follower_table, follower_hash(f.ngram, f.token), <uint32_t>item)
    f.token = NONE
    f.next = c.free_follower
    c.free_follower = item
    c.num_free_followers += 1


cdef void _drop_ngram(CountsC* c, int32_t ngram) noexcept nogil:
    """Free an entry and all its followers."""
    cdef NgramC* g = &c.ngrams[ngram]
    cdef Py_ssize_t size = ngram_size(g)
    cdef int32_t item = g.followers
    cdef int32_t following
    while item >= 0:
        following = c.followers[item].next
        _drop_follower(c, item)
        item = following
    table_erase(&c.ngram_table, ngram_hash(&g.key[size - 1], size), <uint32_t>ngram)
    g.key[0] = NONE
    g.followers = c.free_ngram
    c.free_ngram = ngram
    c.num_free_ngrams += 1


cdef bint _age_one(CountsC* c, int32_t spare, bint lists) noexcept nogil:
    """Move the clock hand until it drops an n-gram other than `spare`; lists: one that has a list of followers."""
    cdef Py_ssize_t _step
    cdef int32_t ngram
    for _step in range((MAX_AGE + 2) * c.num_ngrams):
        ngram = <int32_t>c.hand
        c.hand = c.hand + 1 if c.hand + 1 < c.num_ngrams else 0
        if ngram == spare or c.ngrams[ngram].key[0] < 0 or (lists and c.ngrams[ngram].followers < 0):
            continue
        if c.ages[ngram] > 0:
            c.ages[ngram] -= 1
        else:
            _drop_ngram(c, ngram)
            return True
    return False


cdef int32_t _take_ngram(CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size) noexcept nogil:
    """A new entry without followers."""
    cdef int32_t ngram
    cdef NgramC* g
    cdef Py_ssize_t i
    if c.max_ngrams > 0 and c.num_ngrams - c.num_free_ngrams >= c.max_ngrams:
        _age_one(c, NONE, False)
    ngram = c.free_ngram
    if ngram >= 0:
        c.free_ngram = c.ngrams[ngram].followers
        c.num_free_ngrams -= 1
    else:
        ngram = <int32_t>c.num_ngrams
        c.num_ngrams += 1
    g = &c.ngrams[ngram]
    for i in range(NGRAM_MAX):
        g.key[i] = newest[i + 1 - size] if i < size else NONE
    g.total = g.best_count = 0
    g.best = g.followers = NONE
    if c.max_ngrams > 0:
        c.ages[ngram] = 0
    table_put(&c.ngram_table, hash, <uint32_t>ngram)
    return ngram


cdef inline count_t _saturated(count_t a, count_t b) noexcept nogil:
    return a + b if a <= COUNT_MAX - b else COUNT_MAX


cdef token_t counts_add(CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size,
                        token_t token, count_t count) noexcept nogil:
    """Count `token` as a follower of the `size` tokens that end at `newest`. Needs counts_reserve.

    Returns the best follower that `token` replaced, -1 = none.
    """
    cdef int32_t ngram = _find_ngram(c, hash, newest, size)
    cdef token_t old_best = NONE
    cdef NgramC* g
    if ngram < 0:
        ngram = _take_ngram(c, hash, newest, size)
    elif c.max_ngrams > 0 and c.ages[ngram] < MAX_AGE:
        c.ages[ngram] += 1
    g = &c.ngrams[ngram]
    c.num_adds += 1
    if token == g.best or g.best_count == 0:
        g.best = token
        g.best_count = _saturated(g.best_count, count)
    else:
        old_best = _count_other(c, ngram, token, count)
        if old_best == NO_ROOM:
            return NONE
    g.total = _saturated(g.total, count)
    return old_best


cdef bint _drop_rare(CountsC* c, NgramC* g) noexcept nogil:
    """Drop the rarest of the newest followers, but not the best; False if the list has no more than NEWEST."""
    cdef int32_t item = g.followers, before = NONE, rare = NONE, before_rare = NONE
    cdef int _i
    for _i in range(NEWEST):
        if item < 0:
            return False
        if c.followers[item].token != g.best and (rare < 0 or c.followers[item].count < c.followers[rare].count):
            rare, before_rare = item, before
        before = item
        item = c.followers[item].next
    if item < 0:
        return False
    if before_rare < 0:
        g.followers = c.followers[rare].next
    else:
        c.followers[before_rare].next = c.followers[rare].next
    if g.total != COUNT_MAX:
        g.total -= c.followers[rare].count
    _drop_follower(c, rare)
    return True


cdef bint _make_room(CountsC* c, int32_t ngram) noexcept nogil:
    """Make room for another follower of an n-gram; False if none can be made."""
    cdef NgramC* g = &c.ngrams[ngram]
    cdef Py_ssize_t needed = 1 if g.followers >= 0 else 2
    while c.num_followers - c.num_free_followers + needed > 2 * c.max_ngrams:
        if not _drop_rare(c, g) and not _age_one(c, ngram, True):
            return False
    return True


cdef token_t _count_other(CountsC* c, int32_t ngram, token_t token, count_t count) noexcept nogil:
    """Count a follower that is not the best one; return the old best if it was replaced, otherwise -1.

    NO_ROOM: the bound left no room for another follower, and nothing was counted.
    """
    cdef NgramC* g = &c.ngrams[ngram]
    cdef token_t old_best = g.best
    cdef int32_t item = _find_follower(c, ngram, token) if g.followers >= 0 else NONE
    if item < 0:
        if c.max_ngrams > 0 and not _make_room(c, ngram):
            return NO_ROOM
        if g.followers < 0:
            _take_follower(c, ngram, g.best, g.best_count)
        item = _take_follower(c, ngram, token, 0)
    c.followers[item].count = _saturated(c.followers[item].count, count)
    if c.followers[item].count < g.best_count:
        return NONE
    c.followers[_find_follower(c, ngram, old_best)].count = g.best_count
    g.best = token
    g.best_count = c.followers[item].count
    return old_best


cdef void counts_undo(CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size,
                      token_t token, token_t old_best) noexcept nogil:
    """Undo the latest counts_add, of count 1, that is not undone yet; old_best = what it returned."""
    cdef int32_t ngram = _find_ngram(c, hash, newest, size)
    cdef NgramC* g = &c.ngrams[ngram]
    cdef int32_t item = NONE
    cdef int32_t before
    g.total -= 1
    if g.total == 0:
        _drop_ngram(c, ngram)
        return
    if g.followers >= 0:
        item = _find_follower(c, ngram, token)
    if old_best >= 0:
        c.followers[item].count = g.best_count - 1
        g.best = old_best
        g.best_count = c.followers[_find_follower(c, ngram, old_best)].count
    elif token == g.best:
        g.best_count -= 1
        return
    else:
        c.followers[item].count -= 1
    if c.followers[item].count > 0:
        return
    before = g.followers
    if before == item:
        g.followers = c.followers[item].next
    else:
        while c.followers[before].next != item:
            before = c.followers[before].next
        c.followers[before].next = c.followers[item].next
    _drop_follower(c, item)


cdef void counts_reset(CountsC* c) noexcept nogil:
    """Forget everything, keep the memory."""
    c.num_ngrams = c.num_free_ngrams = c.num_followers = c.num_free_followers = c.hand = 0
    c.free_ngram = c.free_follower = NONE
    table_clear(&c.ngram_table)
    table_clear(&c.follower_table)


cdef const char* counts_check(const CountsC* c) noexcept nogil:
    """The first broken invariant, NULL when all hold. O(n-grams)."""
    cdef Py_ssize_t i, size
    cdef int32_t item
    cdef const NgramC* g
    cdef int64_t total
    cdef const char* broken = table_check(&c.ngram_table, c.num_ngrams)
    if broken == NULL:
        broken = table_check(&c.follower_table, c.num_followers)
    if broken != NULL:
        return broken
    if c.ngram_table.num_used != c.num_ngrams - c.num_free_ngrams:
        return "counts: table and n-grams differ in number"
    if c.follower_table.num_used != c.num_followers - c.num_free_followers:
        return "counts: table and followers differ in number"
    for i in range(c.num_ngrams):
        g = &c.ngrams[i]
        if g.key[0] < 0:
            continue
        size = ngram_size(g)
        if _find_ngram(c, ngram_hash(&g.key[size - 1], size), &g.key[size - 1], size) != i:
            return "counts: an n-gram cannot be found"
        total = 0 if g.followers >= 0 else g.best_count
        item = g.followers
        while item >= 0:
            if _find_follower(c, <int32_t>i, c.followers[item].token) != item:
                return "counts: a follower cannot be found"
            if c.followers[item].token == g.best:
                total += g.best_count
            else:
                total += c.followers[item].count
                if c.followers[item].count > g.best_count:
                    return "counts: another follower is more frequent than the best"
            item = c.followers[item].next
        if total != g.total and g.total != COUNT_MAX:
            return "counts: a total differs from the sum of its followers"
    return NULL


cdef size_t counts_nbytes(const CountsC* c) noexcept nogil:
    return (<size_t>c.ngrams_capacity * sizeof(NgramC) + <size_t>c.followers_capacity * sizeof(FollowerC)
            + table_nbytes(&c.ngram_table) + table_nbytes(&c.follower_table)
            + <size_t>c.ages_capacity)


cdef void counts_free(CountsC* c) noexcept nogil:
    ngs_release(c.ngrams, <size_t>c.ngrams_capacity * sizeof(NgramC))
    ngs_release(c.followers, <size_t>c.followers_capacity * sizeof(FollowerC))
    ngs_release(c.ages, <size_t>c.ages_capacity)
    table_free(&c.ngram_table)
    table_free(&c.follower_table)
    memset(c, 0, sizeof(CountsC))


cdef void context_init(ContextC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max) noexcept nogil:
    memset(x, 0, sizeof(ContextC))
    counts_init(&x.counts, 0)
    x.ngram_min = ngram_min
    x.ngram_max = ngram_max


cdef Status _learn_block(ContextC* x, const token_t* tokens, Py_ssize_t end, Py_ssize_t last) noexcept nogil:
    """Count tokens[num_learned:end], at most TOGETHER, and log each change of a best follower; blocks up to `last` follow."""
    cdef uint32_t[TOGETHER * NGRAM_MAX] hashes
    cdef Py_ssize_t start = x.num_learned
    cdef Py_ssize_t i, size
    cdef token_t old_best
    cdef Py_ssize_t num_changes = x.num_changes + (end - start) * NGRAM_MAX
    if (grow(<void**>&x.changes, &x.changes_capacity, num_changes, sizeof(BestChangeC)) != STATUS_OK
            or counts_reserve_next(&x.counts, (end - start) * NGRAM_MAX, (last - start) * NGRAM_MAX) != STATUS_OK):
        return STATUS_NO_MEMORY
    counts_fetch(&x.counts, tokens, start, end, hashes)
    for i in range(start, end):
        for size in range(x.ngram_min, (x.ngram_max if x.ngram_max < i else i) + 1):
            old_best = counts_add(&x.counts, hashes[(i - start) * NGRAM_MAX + size - 1], &tokens[i - 1], size, tokens[i], 1)
            if old_best >= 0:
                x.changes[x.num_changes] = BestChangeC(<uint32_t>(i * 8 + size), old_best)
                x.num_changes += 1
    x.num_learned = end
    return STATUS_OK


cdef void context_learn(ContextC* x, const token_t* tokens, Py_ssize_t end) noexcept nogil:
    """Count all tokens up to `end`. If memory runs out, the rest waits for the next call; drafting goes on."""
    while x.num_learned < end:
        if _learn_block(x, tokens, min(end, x.num_learned + TOGETHER), end) != STATUS_OK:
            return


cdef void _unlearn(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil:
    """Undo the counts of tokens[length:num_learned], the newest first."""
    cdef Py_ssize_t i, size
    cdef token_t old_best
    cdef BestChangeC* change
    for i in range(x.num_learned - 1, (length if length > 1 else 1) - 1, -1):
        for size in range(x.ngram_max if x.ngram_max < i else i, x.ngram_min - 1, -1):
            old_best = -1
            change = &x.changes[x.num_changes - 1]
            if x.num_changes > 0 and change.place == <uint32_t>(i * 8 + size):
                old_best = change.old_best
                x.num_changes -= 1
            counts_undo(&x.counts, ngram_hash(&tokens[i - 1], size), &tokens[i - 1], size, tokens[i], old_best)
    x.num_learned = length


cdef void context_rewind(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil:
    """Forget the tokens from `length` on, one by one or by starting over, whichever is cheaper."""
    if x.num_learned <= length:
        return
    if x.num_learned - length <= length:
        _unlearn(x, tokens, length)
    else:
        counts_reset(&x.counts)
        x.num_changes = x.num_learned = 0
        context_learn(x, tokens, length)


cdef const char* context_check(const ContextC* x, Py_ssize_t history_len) noexcept nogil:
    """The first broken invariant, NULL when all hold."""
    if x.num_learned > history_len:
        return "context: more tokens are counted than the history holds"
    if x.num_changes > 0 and x.changes[x.num_changes - 1].place >> 3 >= <uint64_t>history_len:
        return "context: a change is logged past the history"
    return counts_check(&x.counts)


cdef size_t context_nbytes(const ContextC* x) noexcept nogil:
    return sizeof(ContextC) + counts_nbytes(&x.counts) + <size_t>x.changes_capacity * sizeof(BestChangeC)


cdef void context_free(ContextC* x) noexcept nogil:
    counts_free(&x.counts)
    ngs_release(x.changes, <size_t>x.changes_capacity * sizeof(BestChangeC))
    x.changes = NULL


cdef Status shared_init(SharedC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max, Py_ssize_t max_ngrams) noexcept nogil:
    """Set up empty counts of at most max_ngrams n-grams, each shard with its part of them."""
    cdef int bits = SHARD_BITS if max_ngrams >= MIN_SHARED else 0
    cdef int i
    x.shards = <ShardC*>calloc(<size_t>1 << bits, sizeof(ShardC))
    if x.shards == NULL:
        return STATUS_NO_MEMORY
    x.num_shards = 1 << bits
    x.shift = 32 - bits
    x.ngram_min = ngram_min
    x.ngram_max = ngram_max
    for i in range(x.num_shards):
        counts_init(&x.shards[i].counts, max_ngrams >> bits)
    return STATUS_OK


cdef void shared_free(SharedC* x) noexcept nogil:
    cdef int i
    for i in range(x.num_shards):
        counts_free(&x.shards[i].counts)
    free(x.shards)
    x.shards = NULL
    x.num_shards = 0


cdef Status shared_reserve(SharedC* x, const Py_ssize_t* num_adds) noexcept nogil:
    cdef Status status = STATUS_OK
    cdef int i
    for i in range(x.num_shards):
        if status == STATUS_OK and num_adds[i]:
            ngs_lock(&x.shards[i].lock)
            status = counts_reserve(&x.shards[i].counts, num_adds[i])
            ngs_unlock(&x.shards[i].lock)
    return status


cdef void _add_run(const SharedC* x, CountsC* c, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Count tokens[start:end]; the caller holds the lock of their shard."""
    cdef uint32_t[CHUNK * NGRAM_MAX] hashes
    cdef Py_ssize_t i, size
    counts_fetch(c, tokens, start, end, hashes)
    for i in range(start, end):
        for size in range(x.ngram_min, (x.ngram_max if x.ngram_max < i else i) + 1):
            counts_add(c, hashes[(i - start) * NGRAM_MAX + size - 1], &tokens[i - 1], size, tokens[i], 1)


cdef Status shared_learn(SharedC* x, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef ShardC* shard
    cdef Py_ssize_t stop
    cdef Status status
    start = start if start > 0 else 1  # the first token follows no n-gram
    while start < end:
        shard = shared_shard(x, tokens[start - 1])
        stop = start + 1
        while stop < end and stop - start < CHUNK and shared_shard(x, tokens[stop - 1]) == shard:
            stop += 1
        ngs_lock(&shard.lock)
        status = counts_reserve(&shard.counts, (stop - start) * NGRAM_MAX)
        if status == STATUS_OK:
            _add_run(x, &shard.counts, tokens, start, stop)
        if ngs_unlock(&shard.lock):
            ngs_give_way(&shard.lock)
        if status != STATUS_OK:
            return status
        start = stop
    return STATUS_OK


cdef void shared_order(const uint8_t* numbers, int num, uint8_t* order) noexcept nogil:
    cdef int[MAX_SHARDS + 1] at
    cdef int i
    memset(at, 0, sizeof(at))
    for i in range(num):
        at[numbers[i] + 1] += 1
    for i in range(MAX_SHARDS):
        at[i + 1] += at[i]
    for i in range(num):
        order[at[numbers[i]]] = <uint8_t>i
        at[numbers[i]] += 1


cdef FiguresC shared_figures(const SharedC* x) noexcept nogil:
    cdef FiguresC figures = FiguresC(0, 0, 0, sizeof(ShardC) * <size_t>x.num_shards)
    cdef ShardC* shard
    cdef void* left
    cdef int i
    for i in range(x.num_shards):
        shard = &x.shards[i]
        left = ngs_lock_shared(&shard.lock)
        figures.num_ngrams += shard.counts.num_ngrams - shard.counts.num_free_ngrams
        figures.num_followers += shard.counts.num_followers
        figures.num_adds += shard.counts.num_adds
        figures.nbytes += counts_nbytes(&shard.counts)
        ngs_unlock_shared(&shard.lock, left)
    return figures


cdef const char* _check_shard(const SharedC* x, int number) noexcept nogil:
    cdef const CountsC* c = &x.shards[number].counts
    cdef const char* broken = counts_check(c)
    cdef Py_ssize_t i
    if broken != NULL:
        return broken
    if c.num_ngrams - c.num_free_ngrams > c.max_ngrams:
        return "shared: a shard holds more n-grams than its bound"
    for i in range(c.num_ngrams):
        if c.ngrams[i].key[0] >= 0 and shared_number(x, c.ngrams[i].key[ngram_size(&c.ngrams[i]) - 1]) != number:
            return "shared: an n-gram is in the wrong shard"
    return NULL


cdef const char* shared_check(const SharedC* x) noexcept nogil:
    cdef const char* broken = NULL
    cdef void* left
    cdef int i
    for i in range(x.num_shards):
        left = ngs_lock_shared(&x.shards[i].lock)
        broken = _check_shard(x, i)
        ngs_unlock_shared(&x.shards[i].lock, left)
        if broken != NULL:
            break
    return broken
