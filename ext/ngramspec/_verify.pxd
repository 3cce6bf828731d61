# verify_rows: sample and match.
from ngramspec._sampler cimport SamplerC
from ngramspec._types cimport token_t

cdef enum:
    MUCH_TO_READ = 1 << 19  # logits that take some 50 us; giving the GIL away for less costs more

cdef Py_ssize_t verify_rows(const float* row, Py_ssize_t vocab_size, const token_t* draft, Py_ssize_t draft_len,
                            SamplerC* sampler, token_t* out) noexcept nogil
