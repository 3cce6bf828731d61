"""Rules: a grammar as flat arrays."""

cimport cython

import numpy as np

from ngramspec.errors import InputError


def _checked(object array, str name, Py_ssize_t least):
    """Return an array as int32 in one piece."""
    flat = np.ascontiguousarray(array, dtype=np.int32)
    if flat.ndim != 1 or flat.size < least:
        raise InputError(f"{name} must have one dimension and at least {least} entries")
    return flat


def _check_offsets(object offsets, str name, Py_ssize_t end):
    """Check that offsets rise from 0 to `end`."""
    if offsets[0] != 0 or offsets[offsets.size - 1] != end or np.any(np.diff(offsets) < 0):
        raise InputError(f"{name} must rise from 0 to {end}")


@cython.final
cdef class Rules:
    """Rules(kinds, values, rule_starts, starts, node_edges, edges): a grammar, rule 0 is its root.

    Args:
        kinds: int32, shape (n,): 0 the end of an alternative, 1 a rule, 2 a character, 3 a token,
            4 any other token.
        values: int32, shape (n,): the rule, the node, or the token id.
        rule_starts: int32, shape (rules + 1,): where the entries of each rule begin in starts.
        starts: int32, shape (s,): the element with which each alternative begins.
        node_edges: int32, shape (nodes + 1,): where the entries of each node begin in edges.
        edges: int32, shape (e, 3): lowest and highest byte, and the next node; -1 = the character is
            complete.

    Raises:
        InputError: The arrays do not fit together.

    Immutable, so threads may share it.
    """

    def __cinit__(self, kinds, values, rule_starts, starts, node_edges, edges):
        cdef const int32_t[::1] view
        arrays = [_checked(array, name, least) for array, name, least in (
            (kinds, "kinds", 1), (values, "values", 1), (rule_starts, "rule_starts", 2), (starts, "starts", 1),
            (node_edges, "node_edges", 1), (np.ravel(edges), "edges", 0))]
        kinds, values, rule_starts, starts, node_edges, edges = arrays
        if kinds.size != values.size or kinds[kinds.size - 1] != ELEMENT_END or edges.size % 3:
            raise InputError("kinds and values must be of one length, and end with the end of an alternative")
        self.num_elements = kinds.size
        _check_offsets(rule_starts, "rule_starts", starts.size)
        _check_offsets(node_edges, "node_edges", edges.size // 3)
        table = edges.reshape(-1, 3)
        limits = ((starts, kinds.size), (values[kinds == ELEMENT_RULE], rule_starts.size - 1),
                  (values[kinds == ELEMENT_CHAR], node_edges.size - 1), (table[:, :2].ravel(), 256),
                  (table[table[:, 2] >= 0, 2], node_edges.size - 1), (kinds, ELEMENT_NOT_TOKEN + 1))
        if any(np.any((array < 0) | (array >= limit)) for array, limit in limits):
            raise InputError("an entry refers to something that is not there")
        marks = np.zeros(257, dtype=np.int64)
        marks[table[:, 0]] = 1
        marks[table[:, 1] + 1] = 1
        marks[0] = 0
        classes = np.cumsum(marks[:256])
        self.c.num_classes = classes[255] + 1
        for byte in range(256):
            self.c.classes[byte] = classes[byte]
        if edges.size == 0:
            arrays[5] = np.zeros(3, dtype=np.int32)
        self.arrays = tuple(arrays)
        view = arrays[0]
        self.c.kinds = &view[0]
        view = arrays[1]
        self.c.values = &view[0]
        view = arrays[2]
        self.c.rule_starts = &view[0]
        view = arrays[3]
        self.c.starts = &view[0]
        view = arrays[4]
        self.c.node_edges = &view[0]
        view = arrays[5]
        self.c.edges = &view[0]
