# Observation: what a drafter that learns from logits is shown of a slot's pass.
from ngramspec._native.engine.decode cimport RowsC
from ngramspec._native.engine.slot cimport Slot

# show the slot's rows, if one of its drafters learns from logits; `count` tokens were chosen from them
cdef void slot_observe(Slot slot, const RowsC* rows, Py_ssize_t count) noexcept
