"""Input and output of a decode: Batch, Rows, Sampler, and the trees of drafted tokens in it.

Batch: the tokens of one decode, for many sequences, with logits only where they are needed.
Rows: the logits of one decode, read in place.
Sampler: how one request chooses a token from a row; GreedySampler takes the likeliest.
PromptLogprobs: how likely each token of a prompt was, from the rows of its passes. These are read before the next pass and
not kept: of each stay a number and the likeliest tokens.

A branch of a tree leads from the text to a leaf. Each has a number: a token's first child goes on with its parent's
branch, every further child begins a new one. So branch 0 holds the first token, its first child and so on,
and a draft without branches is branch 0. A token belongs to the branches of all leaves below it.

A cache takes tokens in the order of the batch. Where each branch's own tokens stand together, those of
branch 0 first, a text that goes on with branch 0 lies in its order, and what is freed comes after it.
"""

cimport cython
from libc.math cimport INFINITY, isfinite, log

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.top cimport ngs_row_exp_sum, ngs_top_join
from ngramspec._native.drafter.driver cimport SlotC, driver_keep

import numpy as np

from ngramspec.errors import CapacityError, InputError

cdef enum:
    HAS_CHILD = 1 << 31    # set in `branches` while they are made
    MOST_CANDIDATES = 1 << 20


cdef Py_ssize_t tree_places(const int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil:
    cdef Py_ssize_t i, num = 0
    cdef int32_t parent
    for i in range(n):
        parent = parents[i]
        places[i].depth = places[parent].depth + 1 if parent >= 0 else 0
        if parent >= 0 and not places[parent].branches & <uint32_t>HAS_CHILD:
            places[i].branches, places[i].own = places[parent].branches, places[parent].own
            places[parent].branches |= <uint32_t>HAS_CHILD
        elif num == MOST_BRANCHES:
            return -1
        else:
            places[i].branches, places[i].own = <uint32_t>1 << num, <int32_t>num
            num += 1
    for i in range(n - 1, -1, -1):
        places[i].branches &= ~<uint32_t>HAS_CHILD
        if parents[i] >= 0:
            places[parents[i]].branches |= places[i].branches
    return num


cdef Py_ssize_t tree_arrange(token_t* tokens, int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil:
    cdef Py_ssize_t i, branch, at = 0, num = tree_places(parents, n, places)
    for branch in range(num):
        for i in range(n):
            if places[i].own == branch:
                places[i].index = <int32_t>at
                places[at].token = tokens[i]
                places[at].parent = places[parents[i]].index if parents[i] >= 0 else -1
                at += 1
    for i in range(at):
        tokens[i], parents[i] = places[i].token, places[i].parent
    return tree_places(parents, n, places)


cdef int branch_of(uint32_t branches) noexcept nogil:
    cdef int number = 0
    while branches and not branches >> number & 1:
        number += 1
    return number


@cython.final
cdef class Batch(Owner):
    """Batch(capacity): tokens, positions, sequences and output flags of one decode.

    Args:
        capacity: Most tokens, >= 1.

    Raises:
        InputError: capacity < 1.
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t capacity):
        if capacity < 1:
            raise InputError(f"capacity must be >= 1, got {capacity}")
        self.capacity = capacity
        self.tokens = <token_t*>self.take(capacity, sizeof(token_t))
        self.positions = <int32_t*>self.take(capacity, sizeof(int32_t))
        self.sequences = <int32_t*>self.take(capacity, sizeof(int32_t))
        self.outputs = <int8_t*>self.take(capacity, sizeof(int8_t))
        self.branches = <uint32_t*>self.take(capacity, sizeof(uint32_t))

    def __len__(self):
        return self.len

    def clear(self):
        """Remove all tokens."""
        self.len = 0
        self.num_outputs = 0

    def add(self, int32_t sequence, Py_ssize_t position, token_ids, draft=None, bint output=True, parents=None):
        """Add the next tokens of a sequence and the draft to verify after them.

        Args:
            sequence: Sequence id, >= 0.
            position: Place of the first token in its sequence, >= 0.
            token_ids: int32, shape (n,), n >= 1. Copied.
            draft: int32, shape (k,), or None. Needs output.
            output: Whether to compute logits for the last of token_ids and for all of draft.
            parents: Where the draft is a tree: int32, shape (k,), the index of each token's parent, an
                earlier one, or -1 = the last of token_ids. At most 31 leaves.

        Returns:
            int: Row of the first logits among this batch's outputs, -1 without output.

        Raises:
            InputError: An argument is not as described. Nothing is added then.
            CapacityError: The tokens do not fit. Nothing is added then.
            MemoryError: No room. Nothing is added then.
        """
        cdef TokensC first, guess
        cdef Py_ssize_t i, row = self.num_outputs if output else -1
        cdef bint viewed = False
        cdef const int32_t[::1] above
        cdef Owner memory = None
        cdef TreePlaceC* places = NULL
        if sequence < 0 or position < 0 or (draft is not None and not output):
            raise InputError(f"sequence {sequence} and position {position} must be >= 0; a draft needs output")
        tokens_view(token_ids, "token_ids", &first)
        guess.len = 0
        try:
            if draft is not None:
                tokens_view(draft, "draft", &guess)
                viewed = True
            if first.len == 0:
                raise InputError("token_ids must hold at least one token")
            if self.len + first.len + guess.len > self.capacity:
                raise CapacityError(f"{first.len} + {guess.len} tokens do not fit: {self.len} of {self.capacity} "
                                    f"are taken")
            if parents is not None:
                above = parents_view(parents, guess.len)
                memory = Owner()
                places = <TreePlaceC*>memory.take(guess.len + 1, sizeof(TreePlaceC))
                if guess.len and tree_places(&above[0], guess.len, places) < 0:
                    raise InputError(f"a tree may have at most {MOST_BRANCHES} leaves")
            for i in range(first.len):
                self.put(first.data[i], position + i, sequence, output and i == first.len - 1, 1)
            self.put_draft(guess.data, guess.len, places, first.len, position + first.len, sequence)
        finally:
            tokens_release(&first)
            if viewed:
                tokens_release(&guess)
        return row

    def arrays(self):
        """Return copies of tokens, positions, sequences (int32) and output flags (bool)."""
        cdef Py_ssize_t n = self.len
        if n == 0:
            return tuple(np.empty(0, dtype) for dtype in (np.int32, np.int32, np.int32, np.bool_))
        return (np.array(<token_t[:n]>self.tokens), np.array(<int32_t[:n]>self.positions),
                np.array(<int32_t[:n]>self.sequences), np.array(<int8_t[:n]>self.outputs).astype(np.bool_))

    def tokens_of(self):
        """Return the tokens as a copy, int32."""
        return np.array(<token_t[:self.len]>self.tokens) if self.len else np.empty(0, np.int32)

    def branches_of(self):
        """Return the branches of each token as a copy, uint32: a bit per branch, 1 where there is no tree."""
        return np.array(<uint32_t[:self.len]>self.branches) if self.len else np.empty(0, np.uint32)

    def parts(self):
        """Return where the tokens of each sequence stand, which follow one another.

        Returns:
            list: One tuple per sequence, in order: its id, the position of its first token, the index of that, the index
            after its last one, how many come before the first one that has logits, and whether they are a tree.
        """
        cdef Py_ssize_t i, sure, start = 0
        cdef bint branched
        cdef list parts = []
        while start < self.len:
            i, sure, branched = start, -1, False
            while i < self.len and self.sequences[i] == self.sequences[start]:
                if sure < 0 and self.outputs[i]:
                    sure = i - start
                branched = branched or self.branches[i] != 1
                i += 1
            parts.append((self.sequences[start], self.positions[start], start, i, sure if sure >= 0 else i - start,
                          bool(branched)))
            start = i
        return parts

    cdef void put(self, token_t token, Py_ssize_t position, int32_t sequence, bint output,
                  uint32_t branches) noexcept nogil:
        self.tokens[self.len] = token
        self.positions[self.len] = <int32_t>position
        self.sequences[self.len] = sequence
        self.outputs[self.len] = output
        self.branches[self.len] = branches
        self.num_outputs += output
        self.len += 1

    cdef void put_draft(self, const token_t* draft, Py_ssize_t n, const TreePlaceC* places, Py_ssize_t before,
                        Py_ssize_t position, int32_t sequence) noexcept nogil:
        """Add a draft after the `before` tokens of its sequence that were put last. places: NULL = no tree."""
        cdef uint32_t all = 1
        cdef Py_ssize_t i, start = self.len
        for i in range(n):
            if places == NULL:
                self.put(draft[i], position + i, sequence, True, 1)
            else:
                all |= places[i].branches
                self.put(draft[i], position + places[i].depth, sequence, True, places[i].branches)
        for i in range(start - before, start):
            self.branches[i] = all


cdef extern from "ngs_rows.h" nogil:
    float ngs_row_max(const float* row, Py_ssize_t n)
    Py_ssize_t ngs_row_argmax(const float* row, Py_ssize_t n)


cdef token_t row_argmax(const float* row, Py_ssize_t n) noexcept nogil:
    """Return the smallest id with the largest logit, 0 when all are NaN."""
    cdef Py_ssize_t index = ngs_row_argmax(row, n)
    return <token_t>index if index < n else 0


cdef double log_sum_of(const float* row, Py_ssize_t n, float* top) noexcept nogil:
    cdef Py_ssize_t i, equal = 0
    top[0] = ngs_row_max(row, n)
    if isfinite(top[0]):
        return log(ngs_row_exp_sum(row, n, top[0]))
    for i in range(n):
        equal += row[i] == top[0] or top[0] == -INFINITY
    return log(<double>equal)


cdef Py_ssize_t likeliest_of(const float* row, Py_ssize_t n, Py_ssize_t top, token_t* tokens, float* logits) noexcept nogil:
    return ngs_top_join(row, 0, n, <int>top, tokens, logits, 0) if top > 0 else 0


cdef int32_t rank_of(const float* row, Py_ssize_t n, float logit) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t rank = 1
    if logit != logit:  # counts as minus infinity
        logit = -INFINITY
    for i in range(n):
        rank += row[i] > logit
    return rank


cdef double log_share(float logit, double top, double total) noexcept nogil:
    return -total if logit == top or top == -INFINITY else logit - top - total if logit < top else -INFINITY


@cython.final
cdef class Rows:
    """Rows(vocab_size): the logits of the last decode, in the order of the batch's outputs.

    A target fills it; nothing is copied. Invalid after the target's next decode.

    Args:
        vocab_size: Logits per row, >= 1.

    Raises:
        InputError: vocab_size < 1.
    """

    def __cinit__(self, Py_ssize_t vocab_size):
        if vocab_size < 1:
            raise InputError(f"vocab_size must be >= 1, got {vocab_size}")
        self.c.vocab_size = vocab_size

    def __len__(self):
        return self.c.num_rows

    @property
    def vocab_size(self):
        """Return the number of logits per row."""
        return self.c.vocab_size

    def set(self, const float[:, ::1] logits not None):
        """Use these logits from now on.

        Args:
            logits: float32, shape (n, vocab_size), C-contiguous. Not copied, kept alive.

        Raises:
            InputError: The second dimension is not vocab_size.
        """
        if logits.shape[1] != self.c.vocab_size:
            raise InputError(f"logits must have {self.c.vocab_size} columns, got {logits.shape[1]}")
        self.c.num_rows = logits.shape[0]
        self.c.data = &logits[0, 0] if logits.shape[0] else NULL
        self._owner = logits

    def argmax(self, Py_ssize_t index):
        """Return the most likely token of a row, the smallest id among equals.

        Raises:
            InputError: No such row.

        Cost: O(vocab_size), vectorised.
        """
        return row_argmax(self.row(index), self.c.vocab_size)

    def copy(self, Py_ssize_t index):
        """Return a row as a new float32 array of shape (vocab_size,).

        Raises:
            InputError: No such row.
        """
        cdef const float[::1] view = <const float[:self.c.vocab_size]>self.row(index)
        return np.array(view)

    def logprobs(self, Py_ssize_t index, token_t token, Py_ssize_t top):
        """Return the log-probability of a token under a row's softmax, and the likeliest tokens.

        NaN counts as -inf. Infinite logits share all of the probability; where no token is possible, all share it.

        Args:
            index: The row.
            token: 0 <= token < vocab_size.
            top: How many of the likeliest tokens to return, 0..vocab_size.

        Returns:
            tuple: float, then a list of (token, log-probability), likeliest first.

        Raises:
            InputError: An argument is out of its bounds.

        Cost: O(vocab_size).
        """
        cdef const float* row = self.row(index)
        cdef Owner memory = Owner()
        cdef token_t* likeliest
        cdef float* logits
        cdef double total
        cdef float largest
        cdef Py_ssize_t i, count
        if not (0 <= token < self.c.vocab_size and 0 <= top <= self.c.vocab_size):
            raise InputError(f"token must be in 0..{self.c.vocab_size - 1} and top in 0..{self.c.vocab_size}, "
                             f"got {token} and {top}")
        likeliest = <token_t*>memory.take(top, sizeof(token_t))
        logits = <float*>memory.take(top, sizeof(float))
        with nogil:
            total = log_sum_of(row, self.c.vocab_size, &largest)
            count = likeliest_of(row, self.c.vocab_size, top, likeliest, logits)
        ids = [likeliest[i] for i in range(count)]
        if not isfinite(largest):
            ids = [ids[i] for i in np.argsort([-row[i] for i in ids], kind="stable")]
        if count < top:  # then those that are not possible
            ids += [i for i in range(self.c.vocab_size) if not row[i] > -INFINITY][:top - count]
        return log_share(row[token], largest, total), [(i, log_share(row[i], largest, total)) for i in ids]

    cdef const float* row(self, Py_ssize_t index) except NULL:
        if not 0 <= index < self.c.num_rows:
            raise InputError(f"row must be in 0..{self.c.num_rows - 1}, got {index}")
        return self.c.data + index * self.c.vocab_size


cdef token_t _nothing(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    return -1


cdef void _ignore(void* state, token_t token) noexcept nogil:
    pass


cdef Py_ssize_t _uncertain(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    return 0


cdef Py_ssize_t only_candidate(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil:
    cdef Py_ssize_t i, count = 2 if top > 0 else 1
    for i in range(count):
        out[i] = CandidateC(chosen, 1.0)
    return count


cdef Py_ssize_t sampler_fit(SamplerC* sampler, DriverC* d, Py_ssize_t slot) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef int32_t* fits = s.links + d.num_sources * d.max_draft
    if sampler.fits == NULL:
        return s.draft_len
    sampler.fits(sampler.state, s.draft, s.parents if s.branched else NULL, s.draft_len, fits)
    return driver_keep(d, slot, fits)


cdef tuple logprobs_of(const CandidateC* candidates, Py_ssize_t count):
    cdef Py_ssize_t i
    top = [(candidates[i].token, log(candidates[i].probability)) for i in range(1, count)]
    return log(candidates[0].probability), top


cdef token_t _greedy_choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    return row_argmax(row, vocab_size)


cdef class Sampler(Owner):
    """Base class of samplers: finds no token possible. Each request owns one; threads must not share it."""

    def __cinit__(self):
        self.c.choose = _nothing
        self.c.accept = _ignore
        self.c.certain = _uncertain
        self.c.candidates = only_candidate
        self.c.fits = NULL
        self.c.forced = NULL

    @property
    def problem(self):
        """Return why it finds no token possible, "" without a problem of its own. The base has none."""
        return ""

    @property
    def may_end(self):
        """Return whether the text is complete where no token is possible. The base never says so."""
        return False

    def choose(self, Rows rows not None, Py_ssize_t index):
        """Return the token chosen from a row, -1 when none is possible; commits nothing.

        Raises:
            InputError: No such row.
        """
        return self.c.choose(self.c.state, rows.row(index), rows.c.vocab_size)

    def candidates(self, token_t token, Py_ssize_t top):
        """Return how probable the token just chosen was, and the likeliest that it was chosen from.

        To be called before accept, and before another sampler of the thread chooses.

        Args:
            token: What choose returned, >= 0.
            top: How many of the likeliest to return, >= 0.

        Returns:
            tuple: float, then a list of (token, log-probability), likeliest first. Fewer than `top` where
            the sampler left fewer.

        Raises:
            InputError: An argument is out of its bounds.
            MemoryError: No room.
        """
        cdef Owner memory = Owner()
        cdef CandidateC* candidates
        if token < 0 or not 0 <= top <= MOST_CANDIDATES:
            raise InputError(f"token must be >= 0 and top in 0..{MOST_CANDIDATES}, got {token} and {top}")
        candidates = <CandidateC*>memory.take(top + 1, sizeof(CandidateC))
        return logprobs_of(candidates, self.c.candidates(self.c.state, token, candidates, top))

    def accept(self, token_t token):
        """Commit an emitted token: penalties and grammar advance."""
        self.c.accept(self.c.state, token)

    def accept_prompt(self, token_ids):
        """Let penalties look back on the prompt, before the first choice; a grammar does not advance.

        The base does nothing.

        Args:
            token_ids: int32, shape (n,).
        """

    def for_drafts(self, Py_ssize_t vocab_size):
        """Return a sampler that chooses drafts as this one would, from rows of vocab_size logits.

        None, as of the base, where the likeliest tokens are what this one chooses.
        """

    def begin_draft(self, token_ids):
        """Go on from where the request's own sampler is, after tokens that are taken for chosen.

        Of samplers that for_drafts returns, before each draft. The base does nothing.
        """


@cython.final
cdef class GreedySampler(Sampler):
    """GreedySampler(): the likeliest token, the smallest id among equals; stateless."""

    def __cinit__(self):
        self.c.choose = _greedy_choose


@cython.final
cdef class PromptLogprobs(Owner):
    """PromptLogprobs(size, top): log-probabilities of the tokens of a prompt, added in their order.

    Args:
        size: Tokens of the prompt but the first, which nothing comes before, >= 0.
        top: Likeliest tokens to keep for each, >= 0.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room for size * (8 + 8 * top) bytes.

    Thread-safety: one thread writes; others may read what `len` covers.
    """

    def __cinit__(self, Py_ssize_t size, Py_ssize_t top):
        if size < 0 or top < 0:
            raise InputError(f"size and top must be >= 0, got {size} and {top}")
        self.size, self.top = size, top
        self.logprobs = <float*>self.take(size, sizeof(float))
        self.ranks = <int32_t*>self.take(size, sizeof(int32_t))
        self.likeliest = <token_t*>self.take(size * top, sizeof(token_t))
        self.likely = <float*>self.take(size * top, sizeof(float))

    def __len__(self):
        """Return how many are known."""
        return self.len

    def at(self, Py_ssize_t index):
        """Return what is known of the token after prompt token `index`.

        Args:
            index: 0 <= index < len.

        Returns:
            tuple: Its log-probability; its rank, 1 if no other token was likelier; a list of (token,
            log-probability) of the likeliest, likeliest first.

        Raises:
            InputError: It is not known.
        """
        cdef Py_ssize_t i, first = index * self.top
        if not 0 <= index < self.len:
            raise InputError(f"index must be in 0..{self.len - 1}, got {index}")
        top = [(self.likeliest[i], self.likely[i]) for i in range(first, first + self.top) if self.likeliest[i] >= 0]
        return self.logprobs[index], self.ranks[index], top

    cdef void add(self, const float* row, Py_ssize_t vocab_size, token_t token) noexcept nogil:
        """Add the next token, by the row of the token before it."""
        cdef float highest
        cdef double total = log_sum_of(row, vocab_size, &highest)
        cdef token_t* ids = self.likeliest + self.len * self.top
        cdef float* values = self.likely + self.len * self.top
        cdef Py_ssize_t i, count = likeliest_of(row, vocab_size, self.top, ids, values)
        for i in range(self.top):
            if i < count:
                values[i] = <float>log_share(row[ids[i]], highest, total)
            else:
                ids[i] = -1
        self.logprobs[self.len] = <float>log_share(row[token], highest, total)
        self.ranks[self.len] = rank_of(row, vocab_size, row[token])
        self.len += 1
