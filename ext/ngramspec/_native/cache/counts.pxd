# CountsC: n-gram -> followers with counts. Holds the context and dynamic counts of ngram-cache.
# ContextC: the counts of one slot's history; tokens can be taken back exactly.
# SharedC: counts that threads share, in shards by the newest token of an n-gram, each with a lock.
from ngramspec._native.core.hash cimport HASH_SEED, TableC, table_home
from ngramspec._native.core.types cimport (
    NGRAM_MAX, Status, count_t, int32_t, int64_t, ngs_prefetch, token_t, uint32_t, uint64_t, uint8_t,
)

cdef enum:
    TOGETHER = 16         # tokens whose n-grams are fetched together

cdef struct NgramC:
    token_t[NGRAM_MAX] key  # oldest first, -1 after the last token; key[0] = -1: entry is free
    count_t total         # sum over all followers, saturating
    token_t best          # most frequent follower; the one that reached the count last on ties
    count_t best_count    # its count, always up to date
    int32_t followers     # first FollowerC of the list, -1 while `best` is the only follower

cdef struct FollowerC:
    token_t token         # -1: free
    count_t count         # stale for the n-gram's best follower
    int32_t next          # next follower of the same n-gram, or next free one; -1 = end
    int32_t ngram         # entry it belongs to

cdef struct CountsC:
    NgramC* ngrams
    Py_ssize_t ngrams_capacity
    Py_ssize_t num_ngrams     # entries ever handed out; free ones among them are in the free list
    Py_ssize_t num_free_ngrams
    int32_t free_ngram        # first free entry, -1 = none (linked by `followers`)
    TableC ngram_table
    FollowerC* followers
    Py_ssize_t followers_capacity
    Py_ssize_t num_followers  # records ever handed out
    Py_ssize_t num_free_followers
    int32_t free_follower
    TableC follower_table
    uint8_t* ages             # per entry 0..3 for the clock hand; only when max_ngrams > 0
    Py_ssize_t ages_capacity
    Py_ssize_t max_ngrams     # most entries in use; 0 = unbounded
    Py_ssize_t hand
    int64_t num_adds          # calls of counts_add so far: tells whether anything changed

cdef inline uint64_t ngram_hash_step(uint64_t h, token_t token) noexcept nogil:
    """Extend an n-gram's hash by the token before it; start with 0 at the newest token."""
    h = (h + <uint64_t>token + 1) * HASH_SEED
    return h ^ (h >> 29)


cdef inline uint32_t ngram_hash(const token_t* newest, Py_ssize_t size) noexcept nogil:
    """Hash of the `size` tokens that end at `newest`."""
    cdef uint64_t h = 0
    cdef Py_ssize_t i
    for i in range(size):
        h = ngram_hash_step(h, newest[-i])
    return <uint32_t>h


cdef inline Py_ssize_t ngram_size(const NgramC* g) noexcept nogil:
    cdef Py_ssize_t size = 1
    while size < NGRAM_MAX and g.key[size] >= 0:
        size += 1
    return size


cdef inline void counts_prefetch(const CountsC* c, uint32_t hash) noexcept nogil:
    """Fetch the table cell where the n-gram's probe starts."""
    ngs_prefetch(table_home(&c.ngram_table, hash))


cdef inline void counts_prefetch_ngram(const CountsC* c, uint32_t hash) noexcept nogil:
    """Fetch the n-gram that the table cell names."""
    cdef uint32_t ngram = table_home(&c.ngram_table, hash).item
    if ngram:
        ngs_prefetch(&c.ngrams[ngram - 1])


cdef inline uint32_t follower_hash(int32_t ngram, token_t token) noexcept nogil:
    cdef uint64_t h = (<uint64_t><uint32_t>ngram << 32) ^ <uint32_t>token
    h *= HASH_SEED
    return <uint32_t>((h ^ (h >> 29)) >> 16)


cdef inline void counts_prefetch_follower(const CountsC* c, uint32_t hash, token_t token) noexcept nogil:
    """Fetch the cell of a follower that is not its n-gram's best."""
    cdef int32_t ngram = <int32_t>table_home(&c.ngram_table, hash).item - 1
    if ngram >= 0 and c.ngrams[ngram].best != token:
        ngs_prefetch(table_home(&c.follower_table, follower_hash(ngram, token)))


cdef void counts_init(CountsC* c, Py_ssize_t max_ngrams) noexcept nogil
cdef Status counts_reserve(CountsC* c, Py_ssize_t num_adds) noexcept nogil
# hash the n-grams before each of at most TOGETHER tokens, NGRAM_MAX hashes per token, and fetch what counting them touches
cdef void counts_fetch(const CountsC* c, const token_t* tokens, Py_ssize_t start, Py_ssize_t end,
                       uint32_t* hashes) noexcept nogil
cdef const NgramC* counts_find(const CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size) noexcept nogil
cdef const NgramC* counts_find_next(const CountsC* c, const NgramC* g, const token_t* newest, Py_ssize_t size) noexcept nogil
cdef token_t counts_add(CountsC* c, uint32_t hash, const token_t* newest, Py_ssize_t size,
                        token_t token, count_t count) noexcept nogil
cdef count_t counts_of(const CountsC* c, const NgramC* g, token_t token) noexcept nogil
cdef const char* counts_check(const CountsC* c) noexcept nogil
cdef size_t counts_nbytes(const CountsC* c) noexcept nogil
cdef void counts_free(CountsC* c) noexcept nogil

# A change of the best follower, kept so that removing the token restores the previous one.
cdef struct BestChangeC:
    uint32_t place        # history position of the follower * 8 + n-gram size
    token_t old_best

cdef struct ContextC:
    CountsC counts
    Py_ssize_t ngram_min
    Py_ssize_t ngram_max
    Py_ssize_t num_learned  # tokens of the history that are counted; fewer than all only when out of memory
    BestChangeC* changes  # oldest first
    Py_ssize_t num_changes
    Py_ssize_t changes_capacity

cdef void context_init(ContextC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max) noexcept nogil
cdef void context_learn(ContextC* x, const token_t* tokens, Py_ssize_t end) noexcept nogil
cdef void context_rewind(ContextC* x, const token_t* tokens, Py_ssize_t length) noexcept nogil
cdef const char* context_check(const ContextC* x, Py_ssize_t history_len) noexcept nogil
cdef size_t context_nbytes(const ContextC* x) noexcept nogil
cdef void context_free(ContextC* x) noexcept nogil

# Readers share the lock; a writer holds it alone.
cdef struct ShardC:
    CountsC counts
    int lock
    char[124] apart       # padding: the next shard is on other cache lines

cdef struct SharedC:
    ShardC* shards
    int num_shards
    int shift             # of a token's hash: what is left is the number of its shard
    Py_ssize_t ngram_min  # n-gram sizes that are learned
    Py_ssize_t ngram_max

# Sums over all shards, each read at one moment.
cdef struct FiguresC:
    Py_ssize_t num_ngrams
    Py_ssize_t num_followers  # records ever handed out, free ones included
    int64_t num_adds
    size_t nbytes

cdef enum:
    MAX_SHARDS = 16
    BLOCK = 256           # items sorted by shard at a time


cdef inline int shared_number(const SharedC* x, token_t newest) noexcept nogil:
    """The number of the shard with all n-grams that end with a token."""
    return <int>(<uint64_t>(<uint32_t>newest * <uint32_t>0x85EBCA6Bu) >> x.shift)


cdef inline ShardC* shared_shard(const SharedC* x, token_t newest) noexcept nogil:
    return &x.shards[shared_number(x, newest)]


cdef Status shared_init(SharedC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max, Py_ssize_t max_ngrams) noexcept nogil
cdef void shared_free(SharedC* x) noexcept nogil
# make room for num_adds[i] adds in shard i
cdef Status shared_reserve(SharedC* x, const Py_ssize_t* num_adds) noexcept nogil
# count tokens[start:end] as followers of the n-grams before each
cdef Status shared_learn(SharedC* x, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil
# write the indexes 0..num-1 of items, sorted by their shards, ties in order; num <= BLOCK
cdef void shared_order(const uint8_t* numbers, int num, uint8_t* order) noexcept nogil
cdef FiguresC shared_figures(const SharedC* x) noexcept nogil
# first broken invariant or NULL; O(n-grams)
cdef const char* shared_check(const SharedC* x) noexcept nogil
