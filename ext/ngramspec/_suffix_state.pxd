# SuffixC: what the suffix source keeps for its slots.
from ngramspec._confidence cimport ChoiceC, LatelyC, ModelC
from ngramspec._history cimport HistoryC
from ngramspec._lines cimport NextLinesC
from ngramspec._match cimport NUM_PLACES, CandidateC, TextC
from ngramspec._suffix_index cimport SuffixIndexC
from ngramspec._suffix_pool cimport SuffixPoolC, WriterC
from ngramspec._types cimport token_t, uint16_t

cdef enum:
    ALL = 21              # candidates at most, MOST of each place
    JUDGED = 3            # choices per position that get a probability
    MAX_DRAFT = 64

cdef struct VoteC:
    token_t token
    uint16_t key

# What was considered for one position of a draft.
cdef struct RecordC:
    ChoiceC[JUDGED] choices
    int num
    int chosen
    VoteC[ALL] votes
    int num_votes
    int sure              # key of a unanimous vote that was not judged, -1 = none
    int position          # drafted tokens before it
    int after             # the last one of them in the order of the draft, -1 = none
    int[JUDGED] next      # record of what comes after each choice, -1 = nothing was considered

cdef struct SuffixSlotC:
    TextC text
    LatelyC lately
    WriterC writer
    NextLinesC next_own      # to replace text.own
    Py_ssize_t num_indexed   # tokens of the history whose contexts are in text.own
    Py_ssize_t prompt_from   # tokens from here to text.prompt_len are still to be pooled
    Py_ssize_t output_from   # and from here to the end of the history
    Py_ssize_t[NUM_PLACES] lost       # tokens since the followed text agreed, by place
    CandidateC[ALL] candidates  # of the last proposal, as they were found
    int num_candidates
    Py_ssize_t base          # length of the history then
    Py_ssize_t num_records
    RecordC* records         # max_draft
    float* features          # max_draft * JUDGED * NGS_FEATURES

# A choice that a tree could take in next.
cdef struct LeafC:
    float all_right       # probability that it and all before it are right
    int record
    int choice

# Working memory of a tree while it grows.
cdef struct TreeC:
    LeafC[MAX_DRAFT * JUDGED] leaves  # the likeliest last
    int num_leaves
    CandidateC[MAX_DRAFT][ALL] candidates  # those that agree with the tokens before each record
    int[MAX_DRAFT] num_candidates
    int[MAX_DRAFT] width  # tokens taken in, by depth

cdef struct SuffixC:
    SuffixPoolC* pool        # NULL: nothing is shared
    const SuffixIndexC* index  # NULL: no static index
    bint prompts             # pool prompts too
    float floor              # drafts end where the probability that all is right falls below it
    Py_ssize_t max_draft
    Py_ssize_t num_slots
    SuffixSlotC* slots
    ModelC* model
    TreeC* tree              # one for all slots: the driver's calls wait for one another
