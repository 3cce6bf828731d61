"""Transcript: the tokens emitted for one request and their text, up to a stop text, without an object per token.

Pieces holds the text of every token of the vocabulary.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._native.core.types cimport STATUS_NO_MEMORY, STATUS_OK

import numpy as np

from ngramspec.errors import InputError


@cython.final
cdef class Pieces(Owner):
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
        self.text = <char*>self.take(size, 1)
        self.starts = <int64_t*>self.take(self.num_tokens + 1, sizeof(int64_t))
        self.ends = <uint8_t*>self.take(self.num_tokens, 1)
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
    cdef const void* address
    if start >= end:
        return -1
    address = memchr(text + start, <uint8_t>byte, <size_t>(end - start))
    return <const char*>address - text if address != NULL else -1


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
        cdef list pieces = []
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
                pieces.append((PyUnicode_DecodeUTF8(text + end - start, spans[i].end - end, "replace"),
                               bool(spans[i].accepted)))
                end = spans[i].end
        finally:
            free(text)
            free(spans)
        return tuple(pieces)

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
        tokens = np.empty(num, np.int32)
        if num:
            view = tokens
            with self._lock:
                memcpy(&view[0], self.c.tokens + max(start, 0), <size_t>num * sizeof(token_t))
        return tokens

    def accepted(self):
        """Return for each token whether a draft had guessed it, as a new bool array."""
        cdef Py_ssize_t num = self.c.len
        cdef uint8_t[::1] view
        flags = np.empty(num, np.uint8)
        if num:
            view = flags
            with self._lock:
                memcpy(&view[0], self.c.accepted, <size_t>num)
        return flags.view(np.bool_)

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
