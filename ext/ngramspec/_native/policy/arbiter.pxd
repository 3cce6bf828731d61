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
    NUM_DEPTHS = 5  # of a draft's tokens: 0, 1, 2 and 3, 4 to 7, later ones

# How often a source's tokens were right, where those before them were; earlier drafts count less.
cdef struct RecordC:
    double seen[5]
    double right[5]

# What a source did for one slot.
cdef struct LaneC:
    RecordC record  # of this request
    int recent      # what came of its last two drafts: 0 = nothing yet, else 1 + 3 * the last but one + the last
    double credit   # time that drafts on trial may take, in passes over one token
    double stake    # what the draft on trial under way takes; 0 = none is
    double least    # below which probability of being right all through a draft that was asked for is not gone on with
    Py_ssize_t shortest  # tokens below which it is gone on with all the same, as it would not be sent

# What to ask of a source.
cdef struct AskedC:
    Py_ssize_t after    # tokens of the free draft's likeliest path that come first
    Py_ssize_t tokens   # 0 = do not ask
    bint beside         # what the free draft sends is sent, too
    double gain         # tokens gained over the free draft alone, drafting and pass included

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
    cdef RecordC record    # of all slots
    cdef RecordC[10] after  # the same by what came of the slot's last two drafts
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
    cdef double time_of(self, Priced source, Py_ssize_t tokens, Py_ssize_t sharing) noexcept nogil
    cdef int value(self, FreeC* free, str source, const float[::1] claims, const int32_t[::1] parents,
                   Py_ssize_t chosen, Py_ssize_t room, Py_ssize_t base, Py_ssize_t decoding) except -1
    cdef void value_tree(self, FreeC* free, const TreeC* tree, Py_ssize_t n, Py_ssize_t chosen, const PassC* step,
                         const CalibrationC* calibration) noexcept
    cdef AskedC best(self, Priced source, const double* expected, const FreeC* free, Py_ssize_t most,
                     Py_ssize_t sharing, double read) noexcept nogil
    cdef void alone(self, AskedC* asked, Priced source, const double* expected, const FreeC* free, Py_ssize_t after,
                    Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil
    cdef double least_of(self, Priced source, const FreeC* free, const AskedC* asked, Py_ssize_t most,
                         Py_ssize_t sharing) noexcept nogil
    cdef void beside(self, AskedC* asked, Priced source, const double* expected, const FreeC* free,
                     Py_ssize_t most, Py_ssize_t sharing, double read) noexcept nogil
