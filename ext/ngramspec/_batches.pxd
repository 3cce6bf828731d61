# Batches: base class of Drafter with the calls that do much at once.
from ngramspec._trees cimport Trees

cdef class Batches(Trees):
    pass
