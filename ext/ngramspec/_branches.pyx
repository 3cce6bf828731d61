"""Branches of a pending draft: walks along its parents. A parent comes before its children."""


cdef void branches_chain(int32_t* parents, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        parents[i] = <int32_t>(i - 1)


cdef Py_ssize_t branches_right(const token_t* draft, const int32_t* parents, Py_ssize_t n, const token_t* tokens,
                               Py_ssize_t num_tokens, Py_ssize_t* last) noexcept nogil:
    """One pass is enough: siblings differ, and what comes after a token stands behind it."""
    cdef Py_ssize_t right = 0
    cdef Py_ssize_t i
    last[0] = -1
    for i in range(n):
        if right == num_tokens:
            break
        if parents[i] == last[0] and draft[i] == tokens[right]:
            last[0] = i
            right += 1
    return right


cdef bint branches_go_on(const int32_t* parents, Py_ssize_t n, Py_ssize_t node) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(node + 1, n):
        if parents[i] == node:
            return True
    return False


cdef Py_ssize_t branches_prune(token_t* draft, const int32_t* parents, float* confidence, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t node = -1
    cdef Py_ssize_t length = 0
    cdef Py_ssize_t i
    for i in range(n):
        if parents[i] == node:
            draft[length], confidence[length] = draft[i], confidence[i]
            length += 1
            node = i
    return length


cdef const char* branches_check(const token_t* draft, const int32_t* parents, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, k
    for i in range(n):
        if not -1 <= parents[i] < i:
            return "drafter: a token of a tree stands before the one that it comes after"
        for k in range(i):
            if parents[k] == parents[i] and draft[k] == draft[i]:
                return "drafter: a tree has the same token twice at one place"
    return NULL
