# Trees: drafts with branches; base class of Drafter.
from ngramspec._slots cimport Slots

cdef class Trees(Slots):
    pass
