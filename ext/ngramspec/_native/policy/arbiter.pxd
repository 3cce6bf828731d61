# Mixer: what is sent of a free draft and of one that took time.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.chooser cimport PassC, TreeC
from ngramspec._native.policy.costs cimport CalibrationC

# The other draft beside a free one, a tree.
cdef struct OtherC:
    const token_t* tokens
    const float* claims
    const CalibrationC* calibration
    double* gain           # what each of them saves, in tokens
    int32_t* at            # the index of the same token in the free draft, which counts as its; n = there is none
    Py_ssize_t n
    int32_t start          # the free token that it begins after, -1 = the text

# The first `num_free` tokens of the free draft and the first `end` of the other.
cdef struct MixC:
    Py_ssize_t num_free
    Py_ssize_t end

cdef class Mixer(Owner):
    cdef AutoPolicy policy
    cdef double* gains     # see OtherC
    cdef int32_t* at
    cdef int32_t* links    # parents of a free draft that is a chain
    cdef int32_t* eldest   # the first child of each free token; entry 0: of the text
    cdef void join(self, OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t m, double apart) noexcept
    cdef MixC choose(self, const OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t room, Py_ssize_t branches,
                     const PassC* step) noexcept
    cdef int32_t end_of(self, const OtherC* other, Py_ssize_t num_free) noexcept nogil

# Arbiter: whether to ask a draft source that takes time, and for how many tokens.

cdef enum:
    MOST_DRAFTED = 1024  # tokens that a source is asked for
    NUM_DEPTHS = 5  # of a draft's tokens: 0, 1, 2 and 3, 4 to 7, later ones

# What came of a draft.
cdef enum:
    WRONG
    PART  # its first tokens were right
    RIGHT
    NUM_OUTCOMES

# How often a source's tokens were right, where those before them were; earlier drafts count less.
cdef struct RecordC:
    double seen[5]
    double right[5]

# What a source did for one slot.
cdef struct LaneC:
    RecordC record  # of this request
    int recent      # what came of its last two drafts: 0 = nothing yet, else 1 + NUM_OUTCOMES * the last but one + the last
    double credit   # time that drafts on trial may take, in passes over one token
    double stake    # what the draft on trial under way takes; 0 = none is
    double least    # below which probability of being right all through a draft that was asked for is not gone on with
    Py_ssize_t shortest  # tokens below which it is gone on with all the same, as it would not be sent
    double backlog  # seconds that reading takes what the source had not read of the text when it was last told of it

# What to ask of a source.
cdef struct AskedC:
    Py_ssize_t after    # tokens of the free draft's likeliest path that come first
    Py_ssize_t tokens   # 0 = do not ask
    bint beside         # what the free draft sends is sent, too
    double gain         # tokens gained over the free draft alone, drafting and pass included
    bint trial          # to see whether it is right

# What a free draft claims of all its tokens, of which the first `chosen` would be sent.
cdef struct ClaimsC:
    const float* p
    const int32_t* parents           # as in AutoPolicy.choose_tree, NULL = a chain
    Py_ssize_t n
    Py_ssize_t chosen
    const CalibrationC* calibration  # NULL = they are taken as they are

# See Terms.
cdef struct TermsC:
    Py_ssize_t room
    Py_ssize_t most
    Py_ssize_t batch_tokens
    Py_ssize_t decoding
    Py_ssize_t branches
    Py_ssize_t shortest
    Py_ssize_t left
    Py_ssize_t sharing
    bint extends
    bint stops
    double backlog

# The free draft of a slot, and the pass that it would go into.
cdef struct FreeC:
    const double* p      # of the likeliest path, n probabilities: token i is right if those before it are
    const double* later  # what its tokens from i on are worth to the next pass, if this one emits those before
    const double* levels  # how probable it is that a token sent at depth i - 1 is right, 0 < i <= deepest
    Py_ssize_t deepest
    const double* reached  # how probable it is that each sent token is right
    Py_ssize_t n
    Py_ssize_t sent      # tokens that would be sent ...
    Py_ssize_t path      # ... those of them on the likeliest path ...
    Py_ssize_t branches  # ... and the branches that they make
    Py_ssize_t room      # most tokens that the slot may draft
    Py_ssize_t shortest  # fewest tokens that are sent
    double sides         # expected right tokens beside the likeliest path
    double worth         # of the pass with these, before costs, what is left of the draft included
    double rate          # tokens that are emitted per unit of time
    double share         # added to the cost of a pass: the part of the bare pass that is not this slot's, negative
    Py_ssize_t base      # tokens of the pass without drafts of this slot
    bint extends         # the source may draft after it ...
    bint stands          # ... and beside it

cdef class Priced(Owner):
    cdef str name
    cdef double start      # what a draft takes, in the unit of the policy's costs
    cdef double per_token  # what each of its tokens takes beside that
    cdef double guess      # passes over one token that each takes as long as no seconds are known
    cdef double seconds    # `start` as it was timed, -1 = not yet
    cdef double seconds_per_token
    cdef double reading    # seconds that reading a token of text takes, 0 = nothing known
    cdef double faded      # part of these that counts: less with each step without a call, it may have been a stall
    cdef Py_ssize_t sharing  # slots of its last call
    cdef RecordC record    # of all slots
    cdef RecordC[1 + NUM_OUTCOMES * NUM_OUTCOMES] after  # the same by what came of the slot's last two drafts
    cdef double apart_seen   # how often its first token was to be right where a free draft beside it was wrong ...
    cdef double apart_right  # ... and how often it was
    cdef LaneC* lanes
    cdef Py_ssize_t num_lanes
    cdef LaneC* of(self, Py_ssize_t slot) except NULL
    cdef void expect(self, const LaneC* lane, double* p) noexcept nogil
    cdef double apart(self) noexcept nogil

cdef class Arbiter(Owner):
    cdef readonly AutoPolicy policy
    cdef dict _sources
    cdef double* levels    # see FreeC
    cdef Mixer mixer
    cdef Priced source(self, str name)
    cdef AskedC decide(self, Priced source, LaneC* lane, const ClaimsC* claims, const TermsC* terms) noexcept
    cdef bint may_gain(self, Priced source, const double* expected, Py_ssize_t chosen, const TermsC* terms,
                       double read) noexcept nogil
    cdef void set_price(self, Priced source) noexcept nogil
    cdef void fade(self, Priced source) noexcept nogil
    cdef double time_of(self, Priced source, Py_ssize_t tokens, Py_ssize_t sharing) noexcept nogil
    cdef void value(self, FreeC* free, const ClaimsC* claims, const TermsC* terms) noexcept
    cdef void value_tree(self, FreeC* free, const TreeC* tree, Py_ssize_t n, Py_ssize_t chosen, const PassC* step,
                         const CalibrationC* calibration) noexcept
    cdef double rate(self, const TermsC* terms) noexcept nogil
    cdef AskedC best(self, Priced source, const double* expected, const FreeC* free, Py_ssize_t most,
                     Py_ssize_t sharing, double read) noexcept nogil
    cdef void alone(self, AskedC* asked, Priced source, const double* expected, const FreeC* free, Py_ssize_t after,
                    Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil
    cdef double least_of(self, Priced source, const FreeC* free, const AskedC* asked, Py_ssize_t most,
                         Py_ssize_t sharing) noexcept nogil
    cdef void beside(self, AskedC* asked, Priced source, const double* expected, const FreeC* free,
                     Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil
