# Slot: a place of the engine that runs one request at a time.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t, token_t
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.engine.decode cimport CandidateC, PromptLogprobs, Sampler, TreePlaceC
from ngramspec._native.engine.figures cimport Timings
from ngramspec._native.engine.trace cimport DecisionTrace
from ngramspec._native.engine.transcript cimport Transcript


cdef enum:
    NOT_TRACED = -1

cdef class Slot(Owner):
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
    cdef readonly Py_ssize_t num_prompt_rows  # of its logits, those before first_row that tell how likely the prompt is
    cdef Py_ssize_t prompt_row           # the first of these
    cdef public int64_t used             # order in which slots were assigned
    cdef public bint decoding            # the prompt is read and the first token was chosen
    cdef public bint preempted           # its request waits for room in the cache, which holds nothing of it
    cdef public str namespace
    cdef public tuple adapters
    # The running request, None between requests.
    cdef readonly object generation
    cdef readonly object on_chunk
    cdef readonly Sampler sampler
    cdef readonly Transcript transcript
    cdef readonly Timings timings
    cdef readonly PromptLogprobs prompt_logprobs  # how likely its prompt is, None = it does not want to know
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
    cdef readonly tuple paid             # those that take time
    cdef readonly Py_ssize_t num_free    # the others
    cdef public Py_ssize_t num_told      # first tokens of the text that those that take time have been told of
    cdef public bint asked               # one of these has been asked since
    cdef Py_ssize_t most_untold          # tokens after which they are told although nobody asks them
    cdef tuple learners                  # of the drafters, those that learn from logits: of the sources one
    cdef readonly tuple shadows          # ShadowRuns; with any, nothing is sent
    cdef public DecisionTrace trace      # of all slots; None: nobody wants to know
    cdef int64_t number                  # the running request's
    cdef Py_ssize_t chain                # of the native drafter, in the trace; NOT_TRACED
    # The draft of this step.
    cdef token_t* guess
    cdef Py_ssize_t num_guessed
    cdef int32_t* parents                # of guess, if it is a tree: the index of each token's parent, -1 = the text
    cdef TreePlaceC* tree                # where each token of guess stands, if it is a tree
    cdef readonly bint branched          # it is a tree, of several branches
    cdef public Py_ssize_t num_own       # of its first tokens, those that draft_source alone has drafted; see Slot
    cdef readonly Py_ssize_t num_branches  # of the last decode's draft
    cdef public object draft_source
    cdef public object added_source      # that has drafted what comes after them, None = nobody
    # What the step made of it.
    cdef token_t* chosen                 # num_out tokens, an end token included
    cdef int32_t* rows                   # of their logits, counted from first_row
    cdef readonly int branch             # of the draft, the one that was right
    cdef CandidateC* candidates          # per chosen token: itself, then the likeliest; see places
    cdef Py_ssize_t candidates_room      # places in it
    cdef readonly Py_ssize_t num_out
    cdef readonly Py_ssize_t num_drafted
    cdef readonly Py_ssize_t num_accepted
    cdef readonly Py_ssize_t num_credited  # of these, those that a draft source had guessed and that joined the answer
    cdef readonly Py_ssize_t num_own_right  # of these, those among the first num_own
    cdef readonly Py_ssize_t num_added   # of num_out, tokens that joined the answer
    cdef readonly int ending             # of Ending
    cdef readonly bint begun             # its first tokens: the sources have not seen the prompt
    cdef readonly bint taught            # the sources that are free have learnt of num_out tokens
    cdef readonly bint untold            # those that take time are to be told of tokens now

    cpdef void forget_draft(self)
    cdef Py_ssize_t prompt_rows(self, Py_ssize_t count)
    cdef Py_ssize_t places(self) noexcept nogil
    cdef int reserve_candidates(self) except -1
    cdef Py_ssize_t draft_room(self, Py_ssize_t capacity, Py_ssize_t outputs)
