# The likeliest tokens of a row of logits, and TopC: those of one row with their probabilities.
from ngramspec._native.core.types cimport token_t

cdef extern from "ngs_top.h" nogil:
    enum:
        NGS_TOP_MOST
    double ngs_row_exp_sum(const float* row, Py_ssize_t n, float top)
    int ngs_top_join(const float* row, Py_ssize_t start, Py_ssize_t end, int k, token_t* tokens, float* logits, int count)
    int ngs_top(const float* row, Py_ssize_t n, int k, token_t* tokens, float* probabilities)

cdef struct TopC:
    int n
    token_t[NGS_TOP_MOST] tokens
    float[NGS_TOP_MOST] p
