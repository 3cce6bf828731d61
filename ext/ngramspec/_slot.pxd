# Slot: a place of the engine that runs one request at a time.
from ngramspec._figures cimport Timings
from ngramspec._sampler cimport Sampler
from ngramspec._slots cimport Slots
from ngramspec._transcript cimport Transcript
from ngramspec._types cimport int64_t, token_t

cdef class Slot:
    cdef readonly Py_ssize_t id
    cdef readonly object tokens          # int32, shape (size,)
    cdef token_t* data                   # of tokens
    cdef readonly Py_ssize_t size        # the context's
    cdef readonly Py_ssize_t room        # of guess; one less than that of chosen
    cdef public Py_ssize_t length        # tokens held: prompt and emitted ones
    cdef public Py_ssize_t num_past      # of these the first so many are in the target's cache
    cdef public Py_ssize_t num_before    # num_past before the last decode
    cdef public Py_ssize_t num_prompt
    cdef public Py_ssize_t count         # pending tokens in the step's decode, 0 = not in it
    cdef public Py_ssize_t first_row     # of its logits, -1 = none
    cdef public int64_t used             # order in which slots were given away
    cdef public bint decoding            # the prompt is read and the first token was chosen
    cdef public str namespace
    # The running request, None between requests.
    cdef readonly object generation
    cdef readonly object on_chunk
    cdef readonly Sampler sampler
    cdef readonly Transcript transcript
    cdef readonly Timings timings
    cdef public object saved             # the target's state before the draft
    cdef public double deadline          # on the clock of time.perf_counter, 0 = none
    cdef readonly Py_ssize_t max_draft   # that the request wants
    cdef readonly bint with_logprobs
    cdef tuple _sources
    cdef Slots native                    # the only source's drafter where it is a native one
    cdef str native_name                 # that source's name
    # The draft of this step.
    cdef token_t* guess
    cdef Py_ssize_t num_guessed
    cdef public object draft_source
    # What the step made of it.
    cdef token_t* chosen                 # num_out tokens, an end token included
    cdef readonly Py_ssize_t num_out
    cdef readonly Py_ssize_t num_drafted
    cdef readonly Py_ssize_t num_accepted
    cdef readonly Py_ssize_t num_added   # of num_out, tokens that joined the answer
    cdef readonly int ending             # of Ending
    cdef readonly bint begun             # its first tokens: the sources have not seen the prompt
    cdef readonly bint taught            # the sources have learnt of num_out tokens

    cdef void forget_draft(self)
    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity)
