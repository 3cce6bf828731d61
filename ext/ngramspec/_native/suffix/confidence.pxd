# ModelC: how likely the target is to emit the tokens that the candidates propose.
from ngramspec._native.core.adapt cimport AdaptC
from ngramspec._native.core.types cimport token_t, uint16_t, uint32_t, uint8_t
from ngramspec._native.suffix.match cimport NUM_PLACES, CandidateC

cdef extern from "ngs_suffix.h" nogil:
    enum:
        NGS_FEATURES
        NGS_HIDDEN
    ctypedef struct ngs_net:
        float[34][32] inputs "in"
        float[32] bias
        float[32] out
        float out_bias

cdef enum:
    PLACES_IN_DRAFT = 4   # positions 0, 1, 2-3 and later each have their own tables
    KINDS = 2 * NUM_PLACES  # of text: place and whether it was generated
    NUM_RELIABLE = 12 * 4 * KINDS * 4 * 4
    TOKEN_BITS = 16
    NUM_TOKEN = 1 << TOKEN_BITS
    TOKEN_TABLES = 4      # token, run, rank; token, the one before; token, the second before; the one before, run, rank
    CORRECTIONS = 3 + TOKEN_TABLES  # inputs of the last, online stage
    SURE_RUN = 8          # shortest run for which a unanimous vote skips the network
    SURE_FROM = 2         # and first position
    NUM_SURE = 12 * 4 * 2 * 2
    SHIFTS = 24           # buckets of the claimed logit
    ORIGINS = 2           # of choices: the texts of requests; the static index alone

# How a request's recent drafts did.
cdef struct LatelyC:
    float hits            # running share of first tokens that were right
    uint32_t run          # tokens in a row that were right
    uint32_t history      # the newest first tokens: bit set = right

# One possible next token and the votes for it.
cdef struct ChoiceC:
    token_t token
    float odds            # sum over its candidates
    uint16_t best         # reliability of its best candidate, as in AdaptC.p
    uint8_t num_own
    uint8_t num_pool
    uint8_t run_own       # longest run of its candidates, by place
    uint8_t run_pool
    uint8_t rank
    bint foreign          # only the static index proposes it
    int best_candidate
    float p               # probability that the target emits it
    float[CORRECTIONS] inputs
    uint16_t shift        # bucket of the last stage
    uint32_t[TOKEN_TABLES] keys

cdef struct ModelC:
    ngs_net net
    float[1024] odds                               # p / (1 - p), by the upper 10 bits of an AdaptC's p
    AdaptC[NUM_RELIABLE] reliable                  # a candidate by run, likeness, kind, nearness, position
    AdaptC[TOKEN_TABLES][NUM_TOKEN] tokens         # whether a token was right when it was proposed
    float[ORIGINS * PLACES_IN_DRAFT][CORRECTIONS] weights
    AdaptC[ORIGINS * PLACES_IN_DRAFT * SHIFTS] shifts
    AdaptC[NUM_SURE] sure                          # a unanimous vote by run, votes and recent hits

cdef void model_start(ModelC* m) noexcept nogil
cdef uint16_t reliable_key(const CandidateC* c, Py_ssize_t position) noexcept nogil
# key of a unanimous vote after a long run, -1 for any other; its probability is model.sure[key]
cdef int sure_key(const ChoiceC* choice, int num_choices, const LatelyC* lately, Py_ssize_t position) noexcept nogil
cdef float model_sure(const ModelC* m, int key) noexcept nogil
# probabilities of the choices; `features` receives NGS_FEATURES floats for each
cdef void model_judge(const ModelC* m, ChoiceC* choices, int num, int num_choices, const CandidateC* candidates,
                      const LatelyC* lately, const token_t* before, Py_ssize_t length, Py_ssize_t position,
                      float* features) noexcept nogil
cdef void model_learn(ModelC* m, const ChoiceC* choice, Py_ssize_t position, bint right) noexcept nogil
