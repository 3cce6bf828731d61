# PassCosts: what a target's pass costs by the tokens in its batch, known or learnt on the way.

cdef enum:
    MOST_TOKENS = 1024  # largest batch with an entry of its own

cdef class PassCosts:
    cdef readonly bint timed     # a time was observed: costs are in seconds
    cdef double now[1025]        # cost by batch tokens, at pace 1; entry 0 is not used
    cdef double pace             # what such a cost takes now
    cdef double first[1025]      # what was given, in its own unit
    cdef double prior[1025]      # the same, as steep as was learnt
    cdef double weight[1025]     # observations of this size, 0 = none; `now` is then filled from others
    cdef double shown[1025]      # ratio of an observed size to its prior, as its neighbours know it
    cdef object given            # CostTable or None
    cdef double steep            # how much steeper than given
    cdef Py_ssize_t age          # observations since counts were last halved
    cdef double at(self, Py_ssize_t tokens) noexcept nogil
    cdef bint known(self, Py_ssize_t tokens) noexcept nogil
    cdef void add(self, Py_ssize_t tokens, double seconds) noexcept nogil
    cdef void show(self, Py_ssize_t tokens) noexcept nogil
    cdef void fill(self, Py_ssize_t a, Py_ssize_t b) noexcept nogil
    cdef double outer(self, Py_ssize_t tokens, Py_ssize_t step) noexcept nogil
    cdef void fade(self) noexcept nogil
    cdef void fit(self) noexcept nogil
    cdef void tilt(self, double steep) noexcept nogil
    cdef void refill(self) noexcept nogil
