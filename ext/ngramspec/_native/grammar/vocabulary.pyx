"""Tokens: the texts of a vocabulary as a tree."""

cimport cython

import numpy as np

from ngramspec.errors import InputError


@cython.final
cdef class Tokens:
    """Tokens(texts, ends): the texts of a vocabulary, for grammars.

    Args:
        texts: bytes per token. Tokens with an empty text, or with a NUL in it, have none for grammars.
        ends: Per token, whether it ends a generation; its text does not count.

    Raises:
        InputError: There is no token, or `ends` has another length.

    Cost: sorts the texts; some 20 bytes per byte of them.
    Immutable, so threads may share it.
    """

    def __cinit__(self, texts, ends):
        cdef Py_ssize_t size = len(texts), total = sum(map(len, texts))
        cdef int32_t[::1] depths = np.empty(total + 1, np.int32), skips = np.empty(total + 1, np.int32)
        cdef int32_t[::1] firsts = np.empty(total + 1, np.int32), others = np.full(max(1, size), -1, np.int32)
        cdef int32_t[::1] offsets = np.zeros(size + 1, np.int32)
        cdef uint8_t[::1] letters = np.empty(total + 1, np.uint8)
        cdef const uint8_t[::1] joined = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
        cdef const uint8_t[::1] flags = np.frombuffer(bytes(map(bool, ends)) + b"\0", np.uint8)
        cdef int32_t[::1] path  # the node at each depth
        cdef Py_ssize_t n = 0, depth = 0, same, i, token
        cdef bytes text, before = b""
        if not size or flags.shape[0] != size + 1:
            raise InputError(f"ends must have one entry for each of at least one token, got {flags.shape[0] - 1} "
                             f"for {size}")
        np.cumsum(list(map(len, texts)), out=np.asarray(offsets)[1:])
        self.c.deepest = max(map(len, texts))
        path = np.empty(self.c.deepest + 1, np.int32)
        for token in sorted(range(size), key=texts.__getitem__):
            text = texts[token]
            if not text or flags[token] or 0 in text:
                continue
            same = 0
            while same < len(text) and same < len(before) and text[same] == before[same]:
                same += 1
            for i in range(same + 1, depth + 1):
                skips[path[i]] = <int32_t>n
            for depth in range(same + 1, len(text) + 1):
                letters[n], depths[n], firsts[n] = text[depth - 1], <int32_t>depth, -1
                path[depth] = <int32_t>n
                n += 1
            depth = len(text)
            others[token] = firsts[path[depth]]
            firsts[path[depth]] = <int32_t>token
            before = text
        for i in range(1, depth + 1):
            skips[path[i]] = <int32_t>n
        self.arrays = (letters, depths, skips, firsts, others, offsets, joined, flags)
        self.c.bytes, self.c.depths, self.c.skips, self.c.firsts = &letters[0], &depths[0], &skips[0], &firsts[0]
        self.c.others, self.c.offsets, self.c.texts, self.c.ends = &others[0], &offsets[0], &joined[0], &flags[0]
        self.c.num_nodes, self.c.vocab_size = n, size

    def __len__(self):
        return self.c.vocab_size
