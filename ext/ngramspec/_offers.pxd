# Offers: what all sources of a drafter drafted for a slot, and the one that may be sent.
from ngramspec._auto cimport AutoPolicy
from ngramspec._candidate cimport CandidateC
from ngramspec._slots cimport Slots
from ngramspec._types cimport int32_t, token_t

cdef bint offers_ask(Slots drafter, Py_ssize_t slot, Py_ssize_t room)
cdef bint offers_best(Slots drafter, AutoPolicy policy, Py_ssize_t slot, Py_ssize_t room, Py_ssize_t batch_tokens,
                      Py_ssize_t decoding, CandidateC* best) except -1
cdef int offers_share(Slots drafter, AutoPolicy policy, const int32_t[::1] slots, const int32_t[::1] limits,
                      Py_ssize_t most) except -1
cdef int offers_learn(Slots drafter, AutoPolicy policy, Py_ssize_t slot, const token_t* tokens,
                      Py_ssize_t n) except -1
