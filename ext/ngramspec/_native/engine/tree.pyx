"""Trees of drafted tokens in a decode: the depth of each token, and the branches that it belongs to.

A branch leads from the text to a leaf. Each has a number: a token's first child goes on with its parent's
branch, every further child begins a new one. So branch 0 holds the first token, its first child and so on,
and a draft without branches is branch 0. A token belongs to the branches of all leaves below it.

A cache takes tokens in the order of the batch. Where each branch's own tokens stand together, those of
branch 0 first, a text that goes on with branch 0 lies in its order, and what is freed comes after it.
"""

cdef enum:
    HAS_CHILD = 1 << 31    # set in `branches` while they are made


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
