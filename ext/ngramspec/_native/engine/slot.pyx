"""Slot: a place of the engine that runs one request at a time and remembers the last one.

Its Transcript holds the tokens emitted and their text, up to a stop text, without an object per token;
Pieces holds the text of every token of the vocabulary.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.history cimport common_prefix
from ngramspec._native.core.types cimport STATUS_NO_MEMORY, STATUS_OK
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.engine.decode cimport CandidateC, Sampler, logprobs_of

import numpy as np

from ngramspec.errors import InputError


@cython.final
cdef class Pieces:
    """Pieces(pieces, ends=()): the UTF-8 text of every token, and which tokens end a generation.

    Args:
        pieces: One bytes object per token id; it may hold a part of a character. Copied.
        ends: Token ids, each below len(pieces).

    Raises:
        InputError: No pieces, or an end token beyond them.
        MemoryError: No room.
    """

    def __cinit__(self, pieces, ends=()):
        cdef bytes piece
        cdef Py_ssize_t i, size = 0
        self.num_tokens = len(pieces)
        if self.num_tokens < 1:
            raise InputError("pieces must hold at least one token")
        for piece in pieces:
            size += len(piece)
        self.text = <char*>malloc(<size_t>(size if size else 1))
        self.starts = <int64_t*>malloc(<size_t>(self.num_tokens + 1) * sizeof(int64_t))
        self.ends = <uint8_t*>calloc(<size_t>self.num_tokens, 1)
        if not (self.text and self.starts and self.ends):
            raise MemoryError(f"no memory for {size} bytes of text")
        size = 0
        for i in range(self.num_tokens):
            piece = pieces[i]
            self.starts[i] = size
            memcpy(self.text + size, <const char*>piece, <size_t>len(piece))
            size += len(piece)
        self.starts[self.num_tokens] = size
        for i in ends:
            if not 0 <= i < self.num_tokens:
                raise InputError(f"end tokens must be in 0..{self.num_tokens - 1}, got {i}")
            self.ends[i] = 1

    def __dealloc__(self):
        free(self.text)
        free(self.starts)
        free(self.ends)

    def __len__(self):
        return self.num_tokens


# Why feed stopped; feed never returns IMPOSSIBLE, the verifier sets it.
GOES_ON, END_TOKEN, STOP_TEXT, FULL, IMPOSSIBLE = range(5)


cdef Status transcript_reserve(TranscriptC* t, Py_ssize_t tokens, int64_t num_bytes) noexcept nogil:
    """Make room for more tokens and bytes; nothing changes when there is none."""
    cdef Py_ssize_t room = t.room
    cdef int64_t text_room = t.text_room
    cdef void* grown
    if t.len + tokens > room:
        room = max(2 * room, t.len + tokens + 32)
        grown = realloc(t.tokens, <size_t>room * sizeof(token_t))
        if not grown:
            return STATUS_NO_MEMORY
        t.tokens = <token_t*>grown
        grown = realloc(t.accepted, <size_t>room)
        if not grown:
            return STATUS_NO_MEMORY
        t.accepted = <uint8_t*>grown
        grown = realloc(t.text_ends, <size_t>room * sizeof(int64_t))
        if not grown:
            return STATUS_NO_MEMORY
        t.text_ends = <int64_t*>grown
        t.room = room
    if t.text_len + num_bytes > text_room:
        text_room = max(2 * text_room, t.text_len + num_bytes + 128)
        grown = realloc(t.text, <size_t>text_room)
        if not grown:
            return STATUS_NO_MEMORY
        t.text = <char*>grown
        t.text_room = text_room
    return STATUS_OK


cdef int64_t whole_characters(const char* text, int64_t start, int64_t end) noexcept nogil:
    """Return where text[start:end] ends without an unfinished character."""
    cdef int64_t i = end - 1
    cdef int need
    cdef uint8_t byte
    while i >= start and i >= end - 4:
        byte = <uint8_t>text[i]
        if byte < 0x80:
            return end
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return i if end - i < need and byte < 0xF8 else end
        i -= 1
    return end


cdef int64_t character_start(const char* text, int64_t start, int64_t at) noexcept nogil:
    """Return the start of the character that text[at] belongs to, at least `start`."""
    cdef int64_t i = at
    while i > start and i > at - 3 and (<uint8_t>text[i] & 0xC0) == 0x80:
        i -= 1
    return i if (<uint8_t>text[i] & 0xC0) == 0xC0 else at


cdef int64_t next_byte(const char* text, char byte, int64_t start, int64_t end) noexcept nogil:
    """Return where the byte first occurs in text[start:end], -1 if it does not."""
    cdef const void* found
    if start >= end:
        return -1
    found = memchr(text + start, <uint8_t>byte, <size_t>(end - start))
    return <const char*>found - text if found != NULL else -1


@cython.final
cdef class Transcript:
    """Transcript(pieces, stops=(), max_tokens=-1, min_indent=0): tokens and text of one request as they come.

    Text that may begin a stop text, and bytes of an unfinished character, are held back until it is
    clear what they are.

    Args:
        pieces: Text of the vocabulary's tokens.
        stops: UTF-8 texts that end the answer, none of them empty.
        max_tokens: Most tokens, -1 for any number.
        min_indent: A line after the first that begins with fewer spaces and tabs ends the answer, and is
            cut off behind them; 0 = lines may begin as they like.

    Raises:
        InputError: A stop text is empty, max_tokens < -1 or min_indent < 0.

    Thread-safety: safe; one thread feeds, any may read.
    """

    def __cinit__(self, Pieces pieces not None, stops=(), Py_ssize_t max_tokens=-1, Py_ssize_t min_indent=0):
        if max_tokens < -1:
            raise InputError(f"max_tokens must be -1 or more, got {max_tokens}")
        if min_indent < 0:
            raise InputError(f"min_indent must be >= 0, got {min_indent}")
        self._pieces = pieces
        self._stops = tuple(bytes(stop) for stop in stops)
        if b"" in self._stops:
            raise InputError("a stop text must not be empty")
        self.c.max_tokens = max_tokens if max_tokens >= 0 else <Py_ssize_t>1 << 60
        self.c.longest_stop = max(map(len, self._stops), default=0)
        self.c.stop = -1
        self.c.min_indent, self.c.line = min_indent, -1

    def __dealloc__(self):
        free(self.c.tokens)
        free(self.c.accepted)
        free(self.c.text_ends)
        free(self.c.text)

    def __len__(self):
        return self.c.len

    def feed(self, token_ids, Py_ssize_t num_accepted=0):
        """Add emitted tokens up to the first that ends the answer.

        Args:
            token_ids: int32, shape (n,), ids below len(pieces).
            num_accepted: How many of them, from the first on, are accepted draft tokens.

        Returns:
            int: GOES_ON, or why the rest was left out: END_TOKEN (it is not added), STOP_TEXT (the
            text is cut before it), FULL (max_tokens reached, or a line with too little indent).

        Raises:
            InputError: A token is out of range. Nothing is added then.
            MemoryError: No room. Nothing is added then.

        Cost: O(bytes of text), and a search for the first byte of each stop text.
        """
        cdef TokensC tokens
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            return self.add_tokens(tokens.data, tokens.len, num_accepted)
        finally:
            tokens_release(&tokens)

    def take(self, bint last=False):
        """Return the text that is final by now and was not taken yet.

        Args:
            last: Take all that is left; an unfinished character becomes U+FFFD.

        Returns:
            tuple: (text, accepted) pieces; accepted: the piece comes from accepted draft tokens. A
            character of several tokens belongs to the last of them.

        Raises:
            MemoryError: No room.
        """
        cdef int64_t end, start, held
        cdef char* text = NULL
        cdef SpanC* spans = NULL
        cdef Py_ssize_t num = 0, first, i
        cdef list made = []
        with self._lock:
            start, end = self.c.taken, self.c.text_len
            if not last:
                held = self._open()  # begins a stop text, so the character before it gets no more bytes
                end = end - held if held else whole_characters(self.c.text, start, end)
            if end > start:
                first = self.c.len - 1
                while first > 0 and self.c.text_ends[first - 1] > start:
                    first -= 1
                text = <char*>malloc(<size_t>(end - start))
                spans = <SpanC*>malloc(<size_t>(self.c.len - first) * sizeof(SpanC))
                if text != NULL and spans != NULL:
                    memcpy(text, self.c.text + start, <size_t>(end - start))
                    num = self._spans(first, start, end, spans)
                    self.c.taken = end
        try:
            if end > start and num == 0:
                raise MemoryError(f"no memory for {end - start} bytes of text")
            end = start
            for i in range(num):
                made.append((PyUnicode_DecodeUTF8(text + end - start, spans[i].end - end, "replace"),
                             bool(spans[i].accepted)))
                end = spans[i].end
        finally:
            free(text)
            free(spans)
        return tuple(made)

    @property
    def text(self):
        """Return the text that was taken."""
        cdef int64_t size = self.c.taken  # these bytes do not change, only their address may
        cdef bytes copied = PyBytes_FromStringAndSize(NULL, size)
        if size:
            with self._lock:
                memcpy(PyBytes_AS_STRING(copied), self.c.text, <size_t>size)
        return copied.decode("utf-8", "replace")

    @property
    def stop(self):
        """Return the index of the stop text that was found, -1 for none."""
        return self.c.stop

    def token_ids(self, Py_ssize_t start=0):
        """Return the tokens from `start` on as a new int32 array."""
        cdef Py_ssize_t num = max(self.c.len - max(start, 0), 0)  # tokens do not change, only their address may
        cdef token_t[::1] view
        made = np.empty(num, np.int32)
        if num:
            view = made
            with self._lock:
                memcpy(&view[0], self.c.tokens + max(start, 0), <size_t>num * sizeof(token_t))
        return made

    def accepted(self):
        """Return for each token whether a draft had guessed it, as a new bool array."""
        cdef Py_ssize_t num = self.c.len
        cdef uint8_t[::1] view
        made = np.empty(num, np.uint8)
        if num:
            view = made
            with self._lock:
                memcpy(&view[0], self.c.accepted, <size_t>num)
        return made.view(np.bool_)

    cdef int add_tokens(self, const token_t* tokens, Py_ssize_t n, Py_ssize_t num_accepted) except -1:
        cdef int reason = ENDING_NONE
        cdef int64_t num_bytes = 0
        cdef Py_ssize_t i
        for i in range(n):
            if not 0 <= tokens[i] < self._pieces.num_tokens:
                raise InputError(f"token ids must be in 0..{self._pieces.num_tokens - 1}, got {tokens[i]}")
            num_bytes += self._size(tokens[i])
        with self._lock:
            if transcript_reserve(&self.c, n, num_bytes) != STATUS_OK:
                reason = -1
            else:
                for i in range(n):
                    reason = self._add(tokens[i], i < num_accepted)
                    if reason != ENDING_NONE:
                        break
        if reason < 0:
            raise MemoryError(f"no memory for {num_bytes} bytes of text")
        return reason

    cdef int64_t _size(self, token_t token) noexcept nogil:
        return self._pieces.starts[token + 1] - self._pieces.starts[token]

    cdef int _add(self, token_t token, bint accepted):
        cdef int64_t size = self._size(token), before = self.c.text_len
        if self.c.len >= self.c.max_tokens:
            return ENDING_FULL
        if self._pieces.ends[token]:
            return ENDING_TOKEN
        if size:  # a text without bytes may have no memory yet
            memcpy(self.c.text + before, self._pieces.text + self._pieces.starts[token], <size_t>size)
        self.c.text_len += size
        self.c.tokens[self.c.len] = token
        self.c.accepted[self.c.len] = accepted
        self.c.text_ends[self.c.len] = self.c.text_len
        self.c.len += 1
        if size and self.c.longest_stop and self._find_stop(before):
            return ENDING_STOP
        if size and self.c.min_indent and not self._check_indent(before):
            return ENDING_FULL
        return ENDING_FULL if self.c.len >= self.c.max_tokens else ENDING_NONE

    cdef bint _check_indent(self, int64_t before) noexcept:
        """Look at the lines that begin in the newest bytes; cut the text within one with too little indent."""
        cdef int64_t at
        cdef char byte
        for at in range(before, self.c.text_len):
            byte = self.c.text[at]
            if self.c.line >= 0 and byte != b" " and byte != b"\t":
                if at - self.c.line < self.c.min_indent:
                    self.c.text_len = at
                    return False
                self.c.line = -1
            if byte == b"\n":
                self.c.line = at + 1
        return True

    cdef bint _find_stop(self, int64_t before):
        """Look for stop texts that end in the newest bytes; cut the text before the earliest."""
        cdef int64_t at, size, best = self.c.text_len
        cdef Py_ssize_t index
        cdef bytes stop
        for index in range(len(self._stops)):
            stop = self._stops[index]
            size = len(stop)
            at = max(self.c.taken, before - size + 1)
            while True:
                at = next_byte(self.c.text, (<const char*>stop)[0], at, min(best, self.c.text_len - size + 1))
                if at < 0:
                    break
                if memcmp(self.c.text + at, <const char*>stop, <size_t>size) == 0:
                    best, self.c.stop = at, index
                    break
                at += 1
        if self.c.stop < 0:
            return False
        self.c.text_len = best
        return True

    cdef int64_t _open(self):
        """Return the length of the longest suffix of the untaken text that begins a stop text."""
        cdef int64_t at, end = self.c.text_len, first = end
        cdef bytes stop
        if self.c.stop >= 0:
            return 0
        for stop in self._stops:
            at = max(self.c.taken, end - <int64_t>len(stop) + 1)
            while True:
                at = next_byte(self.c.text, (<const char*>stop)[0], at, first)
                if at < 0:
                    break
                if memcmp(self.c.text + at, <const char*>stop, <size_t>(end - at)) == 0:
                    first = at
                    break
                at += 1
        return end - first

    cdef Py_ssize_t _spans(self, Py_ssize_t first, int64_t start, int64_t end, SpanC* out) noexcept:
        """Write text[start:end], from token `first` on, as stretches of equal flags; return their number."""
        cdef Py_ssize_t i = first, j, num = 0
        cdef int64_t cut
        while start < end:
            j = i
            while j + 1 < self.c.len and self.c.text_ends[j] < end and self.c.accepted[j + 1] == self.c.accepted[i]:
                j += 1
            cut = end
            if self.c.text_ends[j] < end:
                cut = character_start(self.c.text, start, self.c.text_ends[j])
            if cut > start:
                out[num] = SpanC(cut, self.c.accepted[i])
                num += 1
                start = cut
            i = j + 1
        return num


cdef object _no_tokens = np.empty(0, np.int32)
_no_tokens.flags.writeable = False


@cython.final
cdef class Slot:
    """Slot(id, context_size, max_draft, shifts=False): one sequence of the target and the request that runs on it.

    Args:
        id: Its number, and the sequence's.
        context_size: Most tokens it holds, >= 1.
        max_draft: Longest draft it gets, >= 0.
        shifts: A full context does not end the answer: the engine discards a part of it.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room.

    Attributes:
        tokens: int32, shape (context_size,); the first `length` are prompt and emitted tokens.
        num_own: How many of the first tokens of this step's draft are the pending draft of the native drafter, or of
            another free source; a source that takes time may have drafted the rest.
        num_own_right: How many of these were right in the last step.
        num_past: How many of these, from the first on, are in the target's cache. While a request decodes
            all but the newest; fewer while a prompt is read or after a checkpoint was restored.
        num_reusable: How many of the cached ones another prompt may reuse: what follows was computed after
            tokens that a shift has discarded.
        count: How many tokens after num_past are in the step's decode.
        draft: The draft of this step, a new int32 array; set to change it, to one without branches.
        branch: Of the last step's draft, the one that was right; 0 unless it was a tree.

    Thread-safety: one thread; others may read the numbers.
    """

    def __cinit__(self, Py_ssize_t id, Py_ssize_t context_size, Py_ssize_t max_draft, bint shifts=False):
        cdef token_t[::1] view
        if context_size < 1 or max_draft < 0:
            raise InputError(f"context_size must be >= 1 and max_draft >= 0, got {context_size} and {max_draft}")
        self.id, self.size, self.max_draft = id, context_size, max_draft
        self.num_reusable, self.shifts = context_size, shifts
        self.tokens = np.zeros(context_size, dtype=np.int32)
        view = self.tokens
        self.data = &view[0]
        self.guess = <token_t*>malloc(<size_t>(max_draft + 1) * sizeof(token_t))
        self.chosen = <token_t*>malloc(<size_t>(max_draft + 1) * sizeof(token_t))
        self.rows = <int32_t*>malloc(<size_t>(max_draft + 1) * sizeof(int32_t))
        self.parents = <int32_t*>malloc(<size_t>(max_draft + 1) * sizeof(int32_t))
        self.tree = <TreePlaceC*>malloc(<size_t>(max_draft + 1) * sizeof(TreePlaceC))
        if not (self.guess and self.chosen and self.rows and self.parents and self.tree):
            raise MemoryError(f"no memory for drafts of {max_draft} tokens")
        self.namespace, self.adapters, self.first_row = "", (), -1
        self.room, self._sources, self.num_candidates = max_draft, (), -1

    def __dealloc__(self):
        free(self.guess)
        free(self.chosen)
        free(self.rows)
        free(self.parents)
        free(self.tree)
        free(self.candidates)

    def start(self, generation, Sampler sampler not None, sources=(), on_chunk=None, max_draft=None, double deadline=0.0,
              Py_ssize_t min_draft=0):
        """Give the slot to a request.

        Args:
            generation: The request's; steps write to its transcript and timings.
            sampler: The request's own.
            sources: Draft sources in order of priority.
            on_chunk: Called by the engine with what a step emitted, or None.
            max_draft: Longest draft the request wants, None = no limit of its own.
            deadline: When the request times out, on the clock of time.perf_counter; 0 = never.
            min_draft: Shortest draft the request wants; shorter ones are not sent.

        Raises:
            TypeError: generation has no Transcript or Timings.
        """
        self.transcript, self.timings = generation.transcript, generation.timings
        if self.transcript is None or self.timings is None:
            raise TypeError("a generation needs a transcript and timings")
        self.generation, self.sampler, self.on_chunk = generation, sampler, on_chunk
        self.sources = sources
        self.max_draft = self.room if max_draft is None else max_draft
        self.min_draft = min_draft
        self.with_logprobs = generation.request.logprobs is not None
        self.num_candidates = -1
        if self.with_logprobs and generation.request.post_sampling_probs:
            self.num_candidates = generation.request.logprobs
        self.deadline, self.decoding = deadline, False
        self.forget_draft()

    def release(self):
        """Free the slot; its tokens stay in the cache for the next request."""
        self.generation = self.on_chunk = None
        self.sampler, self.transcript, self.timings = None, None, None
        self.sources, self.decoding, self.deadline = (), False, 0.0
        free(self.candidates)
        self.candidates, self.candidates_room = NULL, 0

    @property
    def sources(self):
        """Return the draft sources of its request, in order of priority."""
        return self._sources

    @sources.setter
    def sources(self, sources):
        self._sources = tuple(sources)
        self.native = self.native_name = self.native_source = self.learner = None
        unpaid = [source for source in self._sources if not getattr(source, "own_passes", False)]
        for source in self._sources:
            drafter = getattr(source, "native", None)
            if not isinstance(drafter, Drafter):
                continue
            if len(unpaid) == 1 and unpaid[0] is source:
                self.native, self.native_name, self.native_source = drafter, source.name, source
            if self.learner is None and drafter.top:
                self.learner = drafter
        self.priced = self.native is not None and len(self._sources) > 1

    @property
    def draft(self):
        """Return the draft to verify in this step."""
        return np.array(<token_t[:self.num_guessed]>self.guess) if self.num_guessed else _no_tokens

    @draft.setter
    def draft(self, token_ids):
        cdef TokensC tokens
        tokens_view(token_ids, "draft", &tokens)
        try:
            if tokens.len > self.room:
                raise InputError(f"a draft may have at most {self.room} tokens, got {tokens.len}")
            if tokens.len:
                memcpy(self.guess, tokens.data, <size_t>tokens.len * sizeof(token_t))
            self.num_guessed, self.num_own, self.branched = tokens.len, 0, False
        finally:
            tokens_release(&tokens)

    def send(self, token_ids, parents, Py_ssize_t num_own):
        """Set the draft of this step to a tree of two sources.

        Args:
            token_ids: int32, shape (n,).
            parents: int32, shape (n,): the index of each token's parent, an earlier one, or -1 = the text.
            num_own: How many of them, from the first on, are the free source's, 0..n.

        Raises:
            InputError: An argument is not as described, or there are more tokens than fit. Nothing is changed then.
        """
        cdef TokensC tokens
        cdef Py_ssize_t i
        cdef const int32_t[::1] links
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            links = parents_view(parents, tokens.len)
            if tokens.len > self.room or not 0 <= num_own <= tokens.len:
                raise InputError(f"a draft may have at most {self.room} tokens, {tokens.len} of them its source's, got "
                                 f"{tokens.len} and {num_own}")
            self.branched = False
            for i in range(tokens.len):
                self.guess[i], self.parents[i] = tokens.data[i], links[i]
                self.branched = self.branched or links[i] != i - 1
            self.num_guessed, self.num_own = tokens.len, num_own
        finally:
            tokens_release(&tokens)

    @property
    def emitted(self):
        """Return the tokens that the last step chose here, a new int32 array."""
        return np.array(<token_t[:self.num_out]>self.chosen) if self.num_out else _no_tokens

    def row(self, Py_ssize_t index):
        """Return the row of the last decode's logits that an emitted token was chosen from.

        Args:
            index: Of `emitted`.

        Raises:
            InputError: There is no such token.
        """
        if not 0 <= index < self.num_out:
            raise InputError(f"index must be in 0..{self.num_out - 1}, got {index}")
        return self.first_row + self.rows[index]

    def logprobs(self, Py_ssize_t index):
        """Return how probable an emitted token was to the sampler, and the likeliest that it chose from.

        For a request with post_sampling_probs, before the slot is released.

        Args:
            index: Of `emitted`.

        Returns:
            tuple: float, then a list of (token, log-probability), likeliest first.

        Raises:
            InputError: There is no such token, or its candidates were not asked for.
        """
        cdef Py_ssize_t count = 1
        cdef CandidateC* first
        if not 0 <= index < self.num_out or self.num_candidates < 0 or (
                self.candidates_room < (index + 1) * self.places()):
            raise InputError(f"no candidates were kept of token {index}: a slot keeps those of the last step's "
                             f"{self.num_out} tokens if the request has post_sampling_probs")
        first = self.candidates + index * self.places()
        while count < self.places() and first[count].token >= 0:
            count += 1
        return logprobs_of(first, count)

    @property
    def num_pending(self):
        """Return how many tokens the target has not seen."""
        return self.length - self.num_past

    @property
    def output(self):
        """Return whether a token is chosen after the step's decode."""
        return self.count > 0 and self.count == self.length - self.num_past

    def common_prefix(self, token_ids):
        """Return how many reusable cached tokens match the start of token_ids, int32 of shape (n,)."""
        cdef TokensC tokens
        cdef Py_ssize_t count
        tokens_view(token_ids, "token_ids", &tokens)
        count = common_prefix(self.data, tokens.data, min(self.num_past, self.num_reusable, tokens.len))
        tokens_release(&tokens)
        return count

    def discard(self, Py_ssize_t first, Py_ssize_t count):
        """Drop `count` tokens from index `first` on; those after them close the gap, as in the cache.

        Raises:
            InputError: The cache does not hold these tokens and one more.
        """
        if not (first >= 0 and count >= 1 and first < self.num_past - count):
            raise InputError(f"cannot discard {count} tokens from {first} on of {self.num_past}")
        memmove(self.data + first, self.data + first + count,
                <size_t>(self.length - first - count) * sizeof(token_t))
        self.length -= count
        self.num_past -= count
        self.num_reusable = min(self.num_reusable, first)

    def clear_draft(self):
        """Forget the draft of the step."""
        self.forget_draft()

    cdef void forget_draft(self):
        self.num_guessed = self.num_own = 0
        self.branched = False
        self.first_row = -1
        self.draft_source = None
        self.saved = None

    cdef Py_ssize_t places(self) noexcept nogil:
        """Return how many places of `candidates` a chosen token has; unused ones hold token -1."""
        return self.num_candidates + 1

    cdef int reserve_candidates(self) except -1:
        """Make room for what the step's tokens are chosen from, if the request asks for it."""
        cdef Py_ssize_t wanted = self.places() * (self.num_guessed + 1)
        cdef CandidateC* grown
        if wanted <= self.candidates_room:
            return 0
        grown = <CandidateC*>realloc(self.candidates, <size_t>wanted * sizeof(CandidateC))
        if grown == NULL:
            raise MemoryError(f"no memory for the candidates of {self.num_guessed + 1} tokens")
        self.candidates, self.candidates_room = grown, wanted
        return 0

    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity, Py_ssize_t outputs):
        """Return the longest draft for the request, its context, and a decode of `capacity` tokens and `outputs` rows."""
        cdef Py_ssize_t longest = min(self.size - self.length - 1, capacity - (self.length - self.num_past), outputs - 1)
        longest = min(longest, self.room, self.max_draft)
        if self.transcript is not None:
            longest = min(longest, self.transcript.c.max_tokens - self.transcript.c.len - 1)
        return max(<Py_ssize_t>0, longest)
