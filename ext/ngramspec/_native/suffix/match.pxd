# Candidates: earlier places whose text may continue as the history will.
from ngramspec._native.core.adapt cimport AdaptC
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport token_t, uint16_t, uint32_t, uint8_t
from ngramspec._native.suffix.index cimport LinesC, SuffixIndexC
from ngramspec._native.suffix.pool cimport SuffixPoolC, WriterC

cdef enum:
    MOST = 7              # candidates of one place
    NUM_PLACES = 3

# Where a candidate lies: in the request's own text, in the pool, in the static index.
cdef enum Place:
    PLACE_OWN = 0
    PLACE_POOL = 1
    PLACE_STATIC = 2

cdef struct MatchC:
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

cdef int match(TextC* text, const HistoryC* h, const SuffixPoolC* pool, const WriterC* w, MatchC* out) noexcept nogil
# ask for the lines that match will look up or, once they are there, for the texts that they name
cdef void match_fetch(const TextC* text, const HistoryC* h, const SuffixPoolC* pool, bint places) noexcept nogil
cdef int match_static(TextC* text, const HistoryC* h, const SuffixIndexC* index, MatchC* out,
                      int others) noexcept nogil
# move a candidate to the next token of its text; False at the end
cdef bint candidate_next(MatchC* c, const HistoryC* h, const SuffixPoolC* pool, const SuffixIndexC* index,
                         const token_t* draft, Py_ssize_t drafted) noexcept nogil

# ModelC: how likely the target is to emit the tokens that the candidates propose.

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
cdef uint16_t reliable_key(const MatchC* c, Py_ssize_t position) noexcept nogil
# key of a unanimous vote after a long run, -1 for any other; its probability is model.sure[key]
cdef int sure_key(const ChoiceC* choice, int num_choices, const LatelyC* lately, Py_ssize_t position) noexcept nogil
cdef float model_sure(const ModelC* m, int key) noexcept nogil
# probabilities of the choices; `features` receives NGS_FEATURES floats for each
cdef void model_judge(const ModelC* m, ChoiceC* choices, int num, int num_choices, const MatchC* candidates,
                      const LatelyC* lately, const token_t* before, Py_ssize_t length, Py_ssize_t position,
                      float* features) noexcept nogil
cdef void model_learn(ModelC* m, const ChoiceC* choice, Py_ssize_t position, bint right) noexcept nogil
