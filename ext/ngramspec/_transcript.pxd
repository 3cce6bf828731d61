# TranscriptC: what one request has emitted: tokens, and their text up to a stop text.
from ngramspec._types cimport Status, int64_t, token_t, uint8_t

cdef struct TranscriptC:
    token_t* tokens        # `len` of `room`
    uint8_t* accepted      # per token: a draft had guessed it
    int64_t* text_ends     # per token: bytes of text up to and with it
    Py_ssize_t len
    Py_ssize_t room
    Py_ssize_t max_tokens  # >= 0
    char* text             # UTF-8, cut before the stop text that was found
    int64_t text_len
    int64_t text_room
    int64_t taken          # bytes that were handed out; whole characters
    int64_t longest_stop   # bytes, 0 = there are no stop texts
    Py_ssize_t stop        # index of the stop text that was found, -1 = none
