# Candidates: earlier places whose text may continue as the history will.
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport token_t, uint32_t, uint8_t
from ngramspec._native.suffix.index cimport SuffixIndexC
from ngramspec._native.suffix.lines cimport LinesC
from ngramspec._native.suffix.pool cimport SuffixPoolC, WriterC

cdef enum:
    MOST = 7              # candidates of one place
    NUM_PLACES = 3

# Where a candidate lies: in the request's own text, in the pool, in the static index.
cdef enum Place:
    PLACE_OWN = 0
    PLACE_POOL = 1
    PLACE_STATIC = 2

cdef struct CandidateC:
    Py_ssize_t position   # of the token that would come next
    uint32_t mask         # bit i: the token i + 1 places before it equals the history's
    uint8_t place
    uint8_t output        # it was generated, not part of a prompt
    uint8_t run           # tokens in a row that agree, at most 32
    uint8_t alike         # 0..3: how much of the text before the run agrees
    uint8_t near          # 0: no expectation, 1: far from what was expected, 2: near, 3: there
    bint live             # it agrees with the draft so far
    uint32_t generation   # of the text in the pool that it lies in
    token_t token         # the token that it proposes

# What the search for a request's candidates needs of its text.
cdef struct TextC:
    LinesC own            # of the history
    Py_ssize_t prompt_len
    Py_ssize_t[NUM_PLACES] expected  # by Place: where the followed text continues, -1 = unknown

cdef int match(TextC* text, const HistoryC* h, const SuffixPoolC* pool, const WriterC* w, CandidateC* out) noexcept nogil
# ask for the lines that match will look up or, once they are there, for the texts that they name
cdef void match_fetch(const TextC* text, const HistoryC* h, const SuffixPoolC* pool, bint places) noexcept nogil
cdef int match_static(TextC* text, const HistoryC* h, const SuffixIndexC* index, CandidateC* out,
                      int others) noexcept nogil
# move a candidate to the next token of its text; False at the end
cdef bint candidate_next(CandidateC* c, const HistoryC* h, const SuffixPoolC* pool, const SuffixIndexC* index,
                         const token_t* draft, Py_ssize_t drafted) noexcept nogil
