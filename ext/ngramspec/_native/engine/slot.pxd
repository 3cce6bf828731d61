# Pieces: the text of every token of a vocabulary, in one block.
# TranscriptC: what one request has emitted: tokens, and their text up to a stop text.
# Slot: a place of the engine that runs one request at a time.
cimport cython

from ngramspec._native.core.types cimport Status, int32_t, int64_t, token_t, uint8_t
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.engine.decode cimport CandidateC, Sampler
from ngramspec._native.engine.figures cimport Timings
from ngramspec._native.engine.tree cimport TreePlaceC

cdef class Pieces:
    cdef char* text           # UTF-8, one token after the other
    cdef int64_t* starts      # num_tokens + 1 offsets in text, ascending
    cdef uint8_t* ends        # 1 = the token ends a generation
    cdef readonly Py_ssize_t num_tokens

# Why an answer ends.
cdef enum Ending:
    ENDING_NONE = 0
    ENDING_TOKEN = 1       # an end token
    ENDING_STOP = 2        # a stop text
    ENDING_FULL = 3        # max_tokens reached, or the context is full
    ENDING_IMPOSSIBLE = 4  # no token is possible

cdef struct TranscriptC:
    token_t* tokens        # `len` of `room`
    uint8_t* accepted      # per token: a draft had guessed it
    int64_t* text_ends     # per token: bytes of text up to and including it
    Py_ssize_t len
    Py_ssize_t room
    Py_ssize_t max_tokens  # >= 0
    char* text             # UTF-8, cut before the stop text that was found
    int64_t text_len
    int64_t text_room
    int64_t taken          # bytes that were handed out; whole characters
    int64_t longest_stop   # bytes, 0 = there are no stop texts
    Py_ssize_t stop        # index of the stop text that was found, -1 = none
    int64_t min_indent     # white space that each line after the first begins with; 0 = any
    int64_t line           # where the newest line begins whose indent is not known yet, -1 = none

# A stretch of text whose tokens were all drafted, or all not.
cdef struct SpanC:
    int64_t end            # bytes of text before what follows it
    bint accepted

cdef class Transcript:
    cdef TranscriptC c
    cdef Pieces _pieces
    cdef tuple _stops           # bytes
    cdef cython.pymutex _lock   # guards c; no Python code runs while it is held
    cdef int add_tokens(self, const token_t* tokens, Py_ssize_t n, Py_ssize_t num_accepted) except -1
    cdef int64_t _size(self, token_t token) noexcept nogil
    cdef int _add(self, token_t token, bint accepted)
    cdef bint _find_stop(self, int64_t before)
    cdef bint _check_indent(self, int64_t before) noexcept
    cdef int64_t _open(self)
    cdef Py_ssize_t _spans(self, Py_ssize_t first, int64_t start, int64_t end, SpanC* out) noexcept

cdef class Slot:
    cdef readonly Py_ssize_t id
    cdef readonly object tokens          # int32, shape (size,)
    cdef token_t* data                   # of tokens
    cdef readonly Py_ssize_t size        # the context's
    cdef readonly bint shifts            # a full context shifts instead of ending the answer
    cdef readonly Py_ssize_t room        # of guess; chosen has room for one more
    cdef public Py_ssize_t length        # tokens held: prompt and emitted ones
    cdef public Py_ssize_t num_past      # number of these, from the first on, in the target's cache
    cdef public Py_ssize_t num_reusable  # of the cached ones, those before which nothing was discarded
    cdef public Py_ssize_t num_before    # num_past before the last decode
    cdef public Py_ssize_t num_prompt
    cdef public Py_ssize_t count         # pending tokens in the step's decode, 0 = not in it
    cdef public Py_ssize_t first_row     # of its logits, -1 = none
    cdef public int64_t used             # order in which slots were assigned
    cdef public bint decoding            # the prompt is read and the first token was chosen
    cdef public str namespace
    cdef public tuple adapters
    # The running request, None between requests.
    cdef readonly object generation
    cdef readonly object on_chunk
    cdef readonly Sampler sampler
    cdef readonly Transcript transcript
    cdef readonly Timings timings
    cdef public object saved             # the target's state before the draft
    cdef public double deadline          # on the clock of time.perf_counter, 0 = none
    cdef readonly Py_ssize_t max_draft   # longest draft that the request wants
    cdef readonly Py_ssize_t min_draft   # shorter ones are not sent
    cdef readonly bint with_logprobs
    cdef Py_ssize_t num_candidates       # likeliest ones to keep of every choice, -1 = keep nothing of it
    cdef tuple _sources
    cdef Drafter native                    # the drafter of the only source that is free, if it is native
    cdef str native_name                 # that source's name
    cdef readonly object native_source   # that source
    cdef readonly bint priced            # there are others, which take time
    cdef Drafter learner                 # of the sources' drafters, the one that learns from logits
    # The draft of this step.
    cdef token_t* guess
    cdef Py_ssize_t num_guessed
    cdef int32_t* parents                # of guess, if it is a tree: the index of each token's parent, -1 = the text
    cdef TreePlaceC* tree                # where each token of guess stands, if it is a tree
    cdef readonly bint branched          # it is a tree, of several branches
    cdef public Py_ssize_t num_own       # of its first tokens, those that draft_source alone has drafted; see Slot
    cdef readonly Py_ssize_t num_branches  # of the last decode's draft
    cdef public object draft_source
    # What the step made of it.
    cdef token_t* chosen                 # num_out tokens, an end token included
    cdef int32_t* rows                   # of their logits, counted from first_row
    cdef readonly int branch             # of the draft, the one that was right
    cdef CandidateC* candidates          # per chosen token: itself, then the likeliest; see places
    cdef Py_ssize_t candidates_room      # places in it
    cdef readonly Py_ssize_t num_out
    cdef readonly Py_ssize_t num_drafted
    cdef readonly Py_ssize_t num_accepted
    cdef readonly Py_ssize_t num_credited  # of these, those that a draft source had guessed
    cdef readonly Py_ssize_t num_own_right  # of these, those among the first num_own
    cdef readonly Py_ssize_t num_added   # of num_out, tokens that joined the answer
    cdef readonly int ending             # of Ending
    cdef readonly bint begun             # its first tokens: the sources have not seen the prompt
    cdef readonly bint taught            # the sources have learnt of num_out tokens

    cdef void forget_draft(self)
    cdef Py_ssize_t places(self) noexcept nogil
    cdef int reserve_candidates(self) except -1
    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity, Py_ssize_t outputs)
