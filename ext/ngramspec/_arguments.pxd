# The one place that turns Python arguments into C ones.
from ngramspec._types cimport token_t

cdef const token_t[::1] token_view(object token_ids, str name)
