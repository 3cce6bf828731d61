# A cell of a pool: one aligned 32-bit word, read and written whole. 0 = empty, otherwise
#   bits 0..21 token + 1 | bits 22..29 check bits of the n-gram's hash | bits 30..31 confidence
# docs/reference/formats.md describes the same layout in files.
cdef enum:
    TOKEN_MASK = 0x3FFFFF         # of token + 1
    POOL_MAX_TOKEN = 0x3FFFFE     # larger ids are never pooled
    CHECK_POSITION = 22
    CONFIDENCE_ONE = 0x40000000
    MAX_CONFIDENCE = 3
