"""ArcticRequest: one request of a SuffixDecodingCache (ngramspec.hosts.arctic), on a slot of a drafter."""

from collections.abc import Sequence
from operator import index

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from libc.string cimport memcmp

from ngramspec._native.core.arguments cimport bad_token
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport STATUS_OK, Status, int32_t, token_t
from ngramspec._native.drafter.commit cimport commit_tokens
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.drafter.driver cimport SlotC, draft_right, driver_begin, driver_shorten
from ngramspec._native.drafter.offer cimport AskC, ask_alone, offer_draft
from ngramspec._native.policy.chooser cimport OfferC

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    COMPARED = 32        # longest match that is measured; a match of 32 may be longer
    LONGEST = 64         # longest draft

cdef double ROUNDED = 1e-6  # tolerance for a bound that rounding puts below a whole number

# A draft after it was cut. n = -1: there was none.
cdef struct CutC:
    Py_ssize_t n
    token_t[LONGEST] ids
    int32_t[LONGEST] parents
    double[LONGEST] likely   # that each token and all before it are right
    double score
    long matched


@cython.final
cdef class ArcticRequest(Owner):
    """ArcticRequest(drafter, source, slot, depth): a text and its pending draft.

    Token ids are int32 arrays of shape (n,), contiguous, or sequences of int; they are copied. All
    of a step runs here: handling lists token by token in Python took most of its time.

    Args:
        drafter: Drafter with one source and no policy.
        source: That source, a SuffixSource.
        slot: A slot of the drafter that nothing else uses.
        depth: Tokens of a context to compare, >= 1.

    Raises:
        InputError: slot is out of range.

    Thread-safety: one thread at a time.
    """

    cdef Drafter drafter
    cdef object source
    cdef Py_ssize_t slot, depth
    cdef token_t* tokens     # the last argument, where it was a sequence
    cdef Py_ssize_t room
    cdef const token_t* data  # the last argument
    cdef Py_ssize_t len
    cdef Py_buffer buffer    # keeps data alive while `viewed`
    cdef bint viewed

    def __cinit__(self, Drafter drafter not None, source, Py_ssize_t slot, Py_ssize_t depth):
        drafter._slot(slot)
        self.drafter, self.source, self.slot, self.depth = drafter, source, slot, depth

    def __dealloc__(self):
        self.leave()

    def begin(self, token_ids, str name not None="prompt_token_ids"):
        """Start with a prompt, of n >= 0 tokens; errors call it `name`.

        Raises:
            InputError: The array is not as described, or an id is negative. Nothing is changed then.
            TypeError: It is not a sequence of int32 numbers. Nothing is changed then.
            MemoryError: No room. Nothing is changed.

        Cost: O(n).
        """
        cdef Status status
        self.view(token_ids, name, 0)
        try:
            self.check(name)
            with self.drafter._lock:
                with nogil:
                    status = driver_begin(&self.drafter.d, self.slot, self.data, self.len)
        finally:
            self.leave()
        if status != STATUS_OK:
            raise MemoryError("no memory for the prompt")

    def extend(self, token_ids):
        """Append what the target emitted, accepted tokens of the last draft included.

        Raises:
            StateError: No request has begun.
            InputError, TypeError, MemoryError: As `begin`.

        Cost: O(n).
        """
        cdef SlotC* s = self.drafter._active(self.slot, "extend")
        cdef Py_ssize_t right
        cdef Status status
        self.view(token_ids, "token_ids", 0)
        try:
            self.check("token_ids")
            with self.drafter._lock:
                right = draft_right(s, self.data, max(self.len - 1, 0))
                status = commit_tokens(&self.drafter.d, self.drafter._judge, self.slot, self.data, self.len, right, NULL)
        finally:
            self.leave()
        if status != STATUS_OK:
            raise MemoryError(f"no memory for {self.len} more tokens")

    def speculate(self, context, Py_ssize_t max_tokens, double factor, double offset, double min_probability,
                  Py_ssize_t width):
        """Draft what follows the text.

        Args:
            context: The end of the text; its last `depth` tokens are compared.
            max_tokens: Longest draft; above 64 it counts as 64.
            factor, offset: The draft has at most factor * match length + offset tokens, too.
            min_probability: A draft ends where the probability that all of it is right falls below this.
            width: Most tokens at the same depth of the tree; 1 = a chain.

        Returns:
            None if the context is not the end of the text, otherwise a tuple, empty without a draft or
            for a context below 2 tokens: token ids, parents, probabilities that each token and all before
            it are right (lists), their sum, and how many of the context's last 32 tokens match the text
            before the draft's source.

        Raises:
            StateError: No request has begun.
            InputError, TypeError: As `begin`, for the context; its ids are not checked.

        Cost: O(depth) bytes compared, O(drafted tokens); independent of the text.
        """
        cdef SlotC* s = self.drafter._active(self.slot, "speculate")
        cdef AskC ask = ask_alone(min(max_tokens, LONGEST), width if width > 1 else 0)
        cdef OfferC best
        cdef CutC draft
        cdef Py_ssize_t length, i
        self.view(context, "context", self.depth)
        length = self.len
        ends = (2 <= length <= s.history.len and
                not memcmp(s.history.tokens + s.history.len - length, self.data, <size_t>length * sizeof(token_t)))
        self.leave()
        if not ends:
            return () if length < 2 else None
        self.source.floor = min(max(0.0, min_probability), 1.0)
        with self.drafter._lock:
            offer_draft(&self.drafter.d, self.drafter._judge, self.slot, &ask, &best)
            self.cut(s, max_tokens, factor, offset, min_probability, &draft)
        if draft.n < 0:
            return ()
        # Made without the lock: before Python 3.12 a new list can begin a collection, which runs any code.
        return ([draft.ids[i] for i in range(draft.n)], [draft.parents[i] for i in range(draft.n)],
                [draft.likely[i] for i in range(draft.n)], draft.score, min(draft.matched, length - 1))

    cdef int cut(self, SlotC* s, Py_ssize_t max_tokens, double factor, double offset, double min_probability,
                 CutC* draft) except -1:
        """Cut the pending draft to what was asked for, and copy it."""
        cdef double bound
        cdef Py_ssize_t i, above, n = s.draft_len
        cdef long matched
        draft.n = -1
        if n == 0:
            return 0
        matched = self.source.match_length(self.slot, s.draft[0])
        bound = <double>(self.depth if matched == COMPARED else matched) * factor + offset + ROUNDED
        if bound < <double>min(max_tokens, n):
            n = <Py_ssize_t>max(bound, 0.0)
        draft.n, draft.score, draft.matched = 0, 0.0, matched
        for i in range(n):
            above = s.parents[i] if s.branched else i - 1
            draft.likely[i] = <double>s.confidence[i] * (draft.likely[above] if above >= 0 else 1.0)
            if draft.likely[i] < min_probability:
                break
            draft.score += draft.likely[i]
            draft.ids[i] = s.draft[i]
            draft.parents[i] = <int32_t>above
            draft.n += 1
        driver_shorten(&self.drafter.d, self.slot, draft.n)
        return 0

    cdef int check(self, str name) except -1:
        cdef Py_ssize_t i
        for i in range(self.len):
            if self.data[i] < 0:
                raise bad_token(name, self.data[i], i, 0)
        return 0

    cdef int view(self, values, str name, Py_ssize_t newest) except -1:
        """Set data and len: the last `newest` tokens of an argument, 0 = all; `leave` releases it."""
        cdef Py_ssize_t first
        if isinstance(values, np.ndarray):
            self.view_array(values, name)
        else:
            if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence):
                raise TypeError(f"{name} must be a sequence of int, got {type(values).__name__}")
            self.copy(values[-newest:] if newest else values, name)
        first = self.len - newest if newest and self.len > newest else 0
        self.data += first
        self.len -= first
        return 0

    cdef int view_array(self, values, str name) except -1:
        try:
            PyObject_GetBuffer(values, &self.buffer, PyBUF_FORMAT | PyBUF_ND)
        except (ValueError, BufferError):
            raise bad_array(values, name) from None
        self.viewed = True
        if values.dtype != np.int32 or self.buffer.ndim != 1:
            self.leave()
            raise bad_array(values, name)
        self.data = <const token_t*>self.buffer.buf
        self.len = self.buffer.shape[0]
        return 0

    cdef int copy(self, values, str name) except -1:
        cdef Py_ssize_t i = 0, n = len(values)
        cdef int beyond = 0
        cdef long token
        if n > self.room:
            self.tokens, self.room = <token_t*>self.enlarge(self.tokens, n, sizeof(token_t)), n
        for value in values:
            if not PyLong_CheckExact(value):
                try:
                    value = index(value)
                except TypeError as error:
                    raise TypeError(f"{name} must hold int32 numbers: {error}") from None
            token = PyLong_AsLongAndOverflow(value, &beyond)
            if beyond or token != <token_t>token or i == n:
                raise TypeError(f"{name} must hold int32 numbers, got {value}")
            self.tokens[i] = <token_t>token
            i += 1
        self.data, self.len = self.tokens, i
        return 0

    cdef void leave(self):
        if self.viewed:
            PyBuffer_Release(&self.buffer)
            self.viewed = False


cdef object bad_array(values, str name):
    return InputError(f"{name} must be a contiguous int32 array of shape (n,), got {values.dtype} of shape {values.shape}")
