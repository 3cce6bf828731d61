"""How the suffix source drafts: candidates vote, the likeliest choice is taken, those that agree go on."""

from libc.string cimport memcpy

from ngramspec._confidence cimport NGS_FEATURES, ChoiceC, ModelC, model_judge, model_sure, reliable_key, sure_key
from ngramspec._match cimport PLACE_OWN, candidate_next
from ngramspec._suffix_state cimport ALL, JUDGED, VoteC
from ngramspec._types cimport uint8_t, uint16_t

cdef enum:
    VOTED = 16            # positions whose votes are remembered
    KEPT = 3              # candidates that go on where all say the same

cdef float LEAST_ODDS = 0.1  # choices with less than this share of the first one's are not judged


cdef int _vote(const ModelC* m, const CandidateC* candidates, int n, Py_ssize_t position, ChoiceC* choices,
               RecordC* r) noexcept nogil:
    """Gather what live candidates say, most odds first; return the number of different tokens."""
    cdef uint16_t key, p
    cdef int num = 0
    cdef int i, k, run
    cdef ChoiceC moved
    r.num_votes = 0
    for i in range(n):
        if not candidates[i].live:
            continue
        key = reliable_key(&candidates[i], position)
        p = m.reliable[key].p
        k = 0
        while k < num and choices[k].token != candidates[i].token:
            k += 1
        if k == num:
            num += 1
            choices[k].token = candidates[i].token
            choices[k].odds = 0
            choices[k].best = 0
            choices[k].num_own = choices[k].num_pool = choices[k].run_own = choices[k].run_pool = 0
        choices[k].odds += m.odds[p >> 6]
        run = candidates[i].run + <int>position
        if candidates[i].place == PLACE_OWN:
            choices[k].num_own += 1
            choices[k].run_own = <uint8_t>max(choices[k].run_own, run)
        else:
            choices[k].num_pool += 1
            choices[k].run_pool = <uint8_t>max(choices[k].run_pool, run)
        if p >= choices[k].best:
            choices[k].best = p
            choices[k].best_candidate = i
        if position < VOTED:
            r.votes[r.num_votes] = VoteC(candidates[i].token, key)
            r.num_votes += 1
    for i in range(1, num):
        moved = choices[i]
        k = i
        while k > 0 and choices[k - 1].odds < moved.odds:
            choices[k] = choices[k - 1]
            k -= 1
        choices[k] = moved
    return num


cdef void _judge(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, ChoiceC* choices, int num,
                 const CandidateC* candidates, const token_t* before, RecordC* r) noexcept nogil:
    """Note the likeliest of the choices with the most odds."""
    cdef int k
    r.num = 1
    while r.num < num and r.num < JUDGED and choices[r.num].odds > LEAST_ODDS * choices[0].odds:
        r.num += 1
    model_judge(c.model, choices, r.num, num, candidates, &s.lately, before, h.len, r.position,
                s.features + s.num_records * JUDGED * NGS_FEATURES)
    memcpy(r.choices, choices, <size_t>r.num * sizeof(ChoiceC))
    r.chosen = 0
    for k in range(1, r.num):
        if choices[k].p > choices[r.chosen].p:
            r.chosen = k


cdef void _keep(CandidateC* candidates, int n, int best) noexcept nogil:
    """Let few candidates go on where all say the same."""
    cdef int kept = 0
    cdef int i
    for i in range(n):
        if candidates[i].live and i != best:
            kept += 1
            candidates[i].live = kept < KEPT


cdef RecordC* suffix_consider(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, CandidateC* candidates, int n,
                              const token_t* before, int position, int after) noexcept nogil:
    cdef ChoiceC[ALL] choices
    cdef RecordC* r = &s.records[s.num_records]
    cdef int num = _vote(c.model, candidates, n, position, choices, r)
    cdef int k
    if num == 0:
        return NULL
    r.position, r.after = position, after
    for k in range(JUDGED):
        r.next[k] = -1
    r.sure = sure_key(&choices[0], num, &s.lately, position)
    if r.sure >= 0:
        r.num = 1
        r.chosen = 0
        r.choices[0].token = choices[0].token
        r.choices[0].p = model_sure(c.model, r.sure)
        _keep(candidates, n, choices[0].best_candidate)
    else:
        _judge(c, s, h, choices, num, candidates, before, r)
    s.num_records += 1
    return r


cdef Py_ssize_t suffix_draft(SuffixC* c, SuffixSlotC* s, const HistoryC* h, CandidateC* candidates, token_t* out,
                             float* confidence, Py_ssize_t limit) noexcept nogil:
    """Draft token by token from the candidates."""
    cdef token_t[66] before  # the last two tokens of the history, then the draft
    cdef RecordC* r
    cdef float all_right = 1
    cdef Py_ssize_t known = min(<Py_ssize_t>2, h.len)
    cdef int i, k
    memcpy(before, h.tokens + h.len - known, <size_t>known * sizeof(token_t))
    for i in range(<int>limit):
        r = suffix_consider(c, s, h, candidates, s.num_candidates, before + known + i, i, i - 1)
        if r == NULL:
            return i
        if i > 0:
            s.records[i - 1].next[s.records[i - 1].chosen] = i
        out[i] = before[known + i] = r.choices[r.chosen].token
        confidence[i] = r.choices[r.chosen].p
        all_right *= confidence[i]
        if all_right < c.floor:
            return i + 1
        for k in range(s.num_candidates):
            if candidates[k].live:
                candidates[k].live = candidates[k].token == out[i] and (
                    candidate_next(&candidates[k], h, c.pool, c.index, out, i + 1))
    return limit
