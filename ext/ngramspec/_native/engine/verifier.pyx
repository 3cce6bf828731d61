"""Verifier: chooses the tokens of all slots from a decode's rows and commits them; the last part of a step.

The check of a draft is lossless: each token is chosen from its own row of logits, and the draft decides only which row
comes next. A drafter that learns from logits is shown the rows.
"""

import time

cimport cython
from libc.math cimport exp, log
from libc.string cimport memcpy

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.top cimport TopC, ngs_top
from ngramspec._native.core.types cimport STATUS_OK, int32_t, int64_t, ngs_now_ns, token_t, uint8_t, uint64_t
from ngramspec._native.drafter.commit cimport commit_tokens, observation_tell
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.drafter.driver cimport SlotC, draft_right
from ngramspec._native.engine.decode cimport (
    MUCH_TO_READ, CandidateC, PromptLogprobs, Rows, RowsC, Sampler, SamplerC, branch_of,
)
from ngramspec._native.engine.figures cimport EngineStats, Timings
from ngramspec._native.engine.plan cimport Plan
from ngramspec._native.engine.shadow cimport shadows_take
from ngramspec._native.engine.slot cimport NOT_TRACED, Slot
from ngramspec._native.engine.transcript cimport ENDING_FULL, ENDING_IMPOSSIBLE, ENDING_NONE, Transcript
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.costs cimport MOST_TOKENS, PassCosts

from ngramspec._native.engine.decode import GreedySampler
from ngramspec.errors import InputError

cdef enum:
    MOST_OBSERVED = 16  # rows of a slot that a drafter is shown: one takes four times as long as finding its maximum

cdef float ALIKE = 1e30          # from here on ngs_top takes logits for equal, and one may still be the largest
cdef double MOST_OFF = 16.0      # times what a pass is expected to take; what is beyond does not count
cdef double TREND_WINDOW = 2048.0    # passes that tell how what they take rises with their first cost
cdef double TREND_PRIOR = 1.0       # sum of squared logarithms of costs that the first table counts as
cdef double LEAST_SECONDS = 1e-9
cdef double STEP_OF_DICE = 1.0 / (1 << 53)


cdef double first_cost(PassCosts costs, Py_ssize_t tokens) noexcept:
    return costs.first[min(tokens, <Py_ssize_t>MOST_TOKENS)]


cdef Py_ssize_t next_row(const token_t* draft, const int32_t* parents, Py_ssize_t draft_len, Py_ssize_t row,
                         token_t token) noexcept nogil:
    """Return the row after a token that was chosen from `row`, -1 where the draft did not guess it.

    Row 0 follows the text, row i + 1 token i of the draft. `parents`: NULL = no tree.
    """
    cdef Py_ssize_t i
    if parents == NULL:
        return row + 1 if row < draft_len and draft[row] == token else -1
    for i in range(row, draft_len):  # children come after their parent
        if parents[i] == row - 1 and draft[i] == token:
            return i + 1
    return -1


cdef token_t choose_seen(SamplerC* sampler, const float* row, Py_ssize_t vocab_size, int k, TopC* seen) noexcept nogil:
    """Return the token that a sampler chooses which takes the likeliest, and set the k likeliest: both at one reading."""
    seen.n = ngs_top(row, vocab_size, k, seen.tokens, seen.p)
    if seen.n and row[seen.tokens[0]] < ALIKE:
        return seen.tokens[0]
    return sampler.choose(sampler.state, row, vocab_size)


# What decides in a benchmark whether drafted tokens are right.
cdef struct DiceC:
    double* takes         # by place in the draft: how probable a token is taken if those before it were
    Py_ssize_t num_places  # no token is taken beyond these
    uint64_t state        # of the random numbers
    const uint8_t* valid  # per token: whether a draft may hold it
    Py_ssize_t num_valid


cdef token_t dice_throw(DiceC* dice, const token_t* draft, Py_ssize_t place, token_t chosen) noexcept nogil:
    """Return the drafted token where it is taken, else another one: the sampler's choice, unless that is the same.

    Then it is the nearest before that ends nothing, if there is any.
    """
    cdef uint64_t mixed
    cdef Py_ssize_t i, other = 0
    dice.state += <uint64_t>0x9E3779B97F4A7C15  # splitmix64
    mixed = dice.state
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
    mixed ^= mixed >> 31
    if place < dice.num_places and <double>(mixed >> 11) * STEP_OF_DICE < dice.takes[place]:
        return draft[place]
    if chosen != draft[place]:
        return chosen
    for i in range(1, dice.num_valid):
        other = (chosen + dice.num_valid - i) % dice.num_valid
        if dice.valid[other]:
            break
    return <token_t>other


@cython.final
cdef class Dice(Owner):
    """Dice(rates, seed=0): decides in a benchmark whether drafted tokens are right, whatever the target says.

    An engine that has it writes no text that means anything.

    Args:
        rates: By place in a draft, how often a draft is to be right up to there and including it, 0..1, none larger than
            the one before; 1 to 1024 of them. Further tokens are wrong.
        seed: The same one gives the same outcomes.

    Raises:
        InputError: A rate is out of its bounds.
        MemoryError: No room.

    Sources: llama.cpp's --spec-synth-rates, vLLM's rejection_sample_method "synthetic".
    """

    cdef DiceC c

    def __cinit__(self, rates, uint64_t seed=0):
        cdef double before = 1.0, rate
        cdef Py_ssize_t i, n = len(rates)
        if not 1 <= n <= MOST_TOKENS:
            raise InputError(f"expected 1 to {<int>MOST_TOKENS} rates, got {n}")
        self.c = DiceC(<double*>self.take(n, sizeof(double)), n, seed, NULL, 0)
        for i in range(n):
            rate = rates[i]
            if not 0.0 <= rate <= before:
                raise InputError(f"rates must be in 0..1 and none larger than the one before, got {rate} after {before}")
            self.c.takes[i] = rate / before if before > 0.0 else 0.0
            before = rate


cdef Py_ssize_t verify_rows(const float* logits, Py_ssize_t vocab_size, const token_t* draft, const int32_t* parents,
                            Py_ssize_t draft_len, SamplerC* sampler, token_t* out, int32_t* rows,
                            CandidateC* candidates, Py_ssize_t top, TopC* seen, int num_seen, DiceC* dice) noexcept nogil:
    """Write the emitted tokens; return their number, or -1 minus it when no token was possible.

    `parents`: NULL = no tree. `rows`: receives the row that each token was chosen from. `candidates`: what they were
    chosen from, top + 1 places per token; not asked for where top is -1. `seen`: NULL, or receives the num_seen likeliest
    tokens of the rows of the first MOST_OBSERVED tokens, if the sampler takes the likeliest. `dice`: NULL = the draft
    is compared.
    """
    cdef Py_ssize_t count, row = 0, num_out = 0
    cdef token_t token
    while True:
        if seen != NULL and num_out < MOST_OBSERVED:
            token = choose_seen(sampler, logits + row * vocab_size, vocab_size, num_seen, &seen[num_out])
        else:
            token = sampler.choose(sampler.state, logits + row * vocab_size, vocab_size)
        if token < 0:
            return -1 - num_out
        if dice != NULL and row < draft_len:
            token = dice_throw(dice, draft, row, token)
        if top >= 0:
            count = sampler.candidates(sampler.state, token, candidates, top)
            if count <= top:
                candidates[count].token = -1
            candidates += top + 1
        sampler.accept(sampler.state, token)
        out[num_out] = token
        rows[num_out] = <int32_t>row
        num_out += 1
        row = next_row(draft, parents, draft_len, row, token)
        if row < 0:
            return num_out


def verify(Rows rows not None, Py_ssize_t first_row, draft, Sampler sampler not None, token_t[::1] out not None,
           parents=None):
    """Choose tokens row by row while the draft is right.

    Row first_row follows the token before the draft, the next ones its tokens. Each token is
    chosen from its own row by the complete sampler and committed to it; the draft only decides
    which row comes next. So the text is the same whatever the draft was.

    Args:
        rows: Logits of the decode.
        first_row: Row of the token before the draft; rows up to first_row + len(draft) are read.
        draft: int32, shape (k,), k >= 0.
        sampler: Of the request; advanced by every returned token.
        out: int32, shape (>= k + 1,). Receives the tokens.
        parents: Where the draft is a tree: int32, shape (k,), the index of each token's parent, an earlier one, or
            -1. Of siblings that are the same token the first one counts.

    Returns:
        int: Number of tokens n. 1 <= n <= k + 1, and n - 1 of them are accepted draft tokens; or
        -1 - n when after n tokens no token was possible, such as at the end of a grammar.

    Raises:
        InputError: A row is missing, out is too short or parents is not as described. Nothing is changed then.
        MemoryError: No room. Nothing is changed then.

    Cost: n samplings. Threads: releases the GIL where there is much to read.
    Source: llama.cpp common/sampling.cpp, sample and accept in turn.
    """
    cdef TokensC guess
    cdef const float* logits = rows.row(first_row)
    cdef const int32_t[::1] above
    cdef const int32_t* links = NULL
    cdef Owner memory = Owner()
    cdef int32_t* chosen
    cdef Py_ssize_t outcome = 0
    tokens_view(draft, "draft", &guess)
    try:
        if first_row + guess.len >= rows.c.num_rows or out.shape[0] < guess.len + 1:
            raise InputError(f"a draft of {guess.len} tokens reads rows {first_row}..{first_row + guess.len} of "
                             f"{rows.c.num_rows} and needs {guess.len + 1} places in out, which has {out.shape[0]}")
        if parents is not None:
            above = parents_view(parents, guess.len)
            links = &above[0] if guess.len else NULL
        chosen = <int32_t*>memory.take(guess.len + 1, sizeof(int32_t))
        if (guess.len + 1) * rows.c.vocab_size < MUCH_TO_READ:
            outcome = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0], chosen,
                                  NULL, -1, NULL, 0, NULL)
        else:
            with nogil:
                outcome = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0],
                                      chosen, NULL, -1, NULL, 0, NULL)
    finally:
        tokens_release(&guess)
    return outcome


cdef void _observe_row(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size, Py_ssize_t row,
                       const TopC* seen) noexcept nogil:
    """Tell what the target would have said after the text, or after a token of the draft. seen: NULL = read the row."""
    cdef TopC read
    cdef token_t before, last = slot.data[slot.length - 1]
    cdef Py_ssize_t parent
    if seen == NULL:
        read.n = ngs_top(logits + row * vocab_size, vocab_size, <int>drafter.d.top, read.tokens, read.p)
        seen = &read
    if row == 0:
        before = slot.data[slot.length - 2] if slot.length > 1 else -1
    else:
        parent = slot.parents[row - 1] if slot.branched else row - 2
        before = slot.guess[parent] if parent >= 0 else last
        last = slot.guess[row - 1]
    with drafter._lock:
        observation_tell(&drafter.d, before, last, seen.tokens, seen.p, seen.n)


cdef void _observe_rows(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size, Py_ssize_t count,
                        const TopC* seen) noexcept nogil:
    """Show the rows that tokens were chosen from, then others."""
    cdef Py_ssize_t i, row, right = 0, left = MOST_OBSERVED
    for i in range(min(count, left)):
        _observe_row(slot, drafter, logits, vocab_size, slot.rows[i], &seen[i] if seen != NULL else NULL)
        left -= 1
    for row in range(slot.num_guessed + 1):
        if left == 0:
            break
        if right < count and slot.rows[right] == row:
            right += 1
            continue
        _observe_row(slot, drafter, logits, vocab_size, row, NULL)
        left -= 1


cdef void slot_observe(Slot slot, const RowsC* rows, Py_ssize_t count, const TopC* seen) noexcept:
    """Show the slot's rows to those of its drafters that learn from logits; `count` tokens were chosen from them.

    seen: What the rows of the first MOST_OBSERVED of these hold likely; NULL = they are read.
    """
    cdef Drafter drafter
    cdef const float* logits = rows.data + slot.first_row * rows.vocab_size
    for drafter in slot.learners:
        if min(slot.num_guessed + 1, <Py_ssize_t>MOST_OBSERVED) * rows.vocab_size < MUCH_TO_READ:
            _observe_rows(slot, drafter, logits, rows.vocab_size, count, seen)
        else:
            with nogil:
                _observe_rows(slot, drafter, logits, rows.vocab_size, count, seen)


# One slot's rows.
cdef struct CheckC:
    const float* logits
    const token_t* draft
    const int32_t* parents  # NULL = no tree
    Py_ssize_t draft_len
    SamplerC* sampler
    token_t* chosen
    int32_t* rows
    CandidateC* candidates  # top + 1 places per token, NULL where top is -1
    Py_ssize_t top
    TopC* seen              # what is found at the same reading for the drafter that learns from logits, NULL = nothing
    int num_seen            # likeliest tokens of each
    Py_ssize_t outcome      # as verify_rows returns it


@cython.final
cdef class Verifier(Owner):
    """Verifier(plan, rows, policy, stats, valid, dice=None): verify and accept. The last part of a step.

    Args:
        plan: The step's plan.
        rows: Where the target's logits are after the decode.
        policy: Learns what came of drafts.
        stats: Counters.
        valid: As for Proposer.
        dice: Decides in a benchmark what is right of drafts that are sent, and only these teach the policy; they have no
            branches then.

    Raises:
        MemoryError: No room.
    """

    cdef Dice dice
    cdef const uint8_t[::1] valid
    cdef Plan plan
    cdef Rows rows
    cdef AutoPolicy policy
    cdef EngineStats stats
    cdef CheckC* checks
    cdef TopC* seen         # MOST_OBSERVED per check
    cdef object clock
    # The logarithms of what passes cost by the policy's first table and of what they take: means, variance, covariance.
    cdef double num_passes
    cdef double mean_cost
    cdef double mean_took
    cdef double spread
    cdef double common

    def __cinit__(self, Plan plan not None, Rows rows not None, AutoPolicy policy not None, EngineStats stats not None,
                  const uint8_t[::1] valid not None, Dice dice=None):
        self.plan, self.rows, self.policy, self.stats, self.dice, self.valid = plan, rows, policy, stats, dice, valid
        if dice is not None:
            dice.c.valid, dice.c.num_valid = &valid[0], valid.shape[0]
        self.clock = time.perf_counter
        self.checks = <CheckC*>self.take(len(plan.slots) + 1, sizeof(CheckC))
        self.seen = <TopC*>self.take((len(plan.slots) + 1) * MOST_OBSERVED, sizeof(TopC))

    def verify(self):
        """Choose and commit tokens for every slot of the plan whose last pending token was decoded.

        Each token is chosen from its own row by the request's sampler, for as long as the draft
        guessed the token before. Texts, transcripts, native drafters, policy and counters are updated
        here.

        Returns:
            list: Slots that need more work: they have free sources that are not native, or others were asked or are to be
            told of tokens; their answer ends, is streamed or wants log-probabilities, their context is full, or a rejected
            draft must be rolled back. `emitted`, `num_drafted`, `num_accepted`, `num_added`, `ending`, `begun`, `taught`
            and `untold` hold the results; the caller clears their drafts.

        Raises:
            InputError: A row is missing. Nothing is changed then.
            MemoryError: No room.

        Cost: O(slots) and one sampling per emitted token. Threads: releases the GIL where there is much to read.
        """
        cdef Slot slot
        cdef Py_ssize_t i = 0, n
        cdef int64_t started = ngs_now_ns()
        cdef int64_t drafted = self.stats.num_draft_tokens, accepted = self.stats.num_accepted_tokens
        cdef double now
        cdef list left = []
        self.note_prompts()
        n = self.choose()
        if n:
            now = self.clock()
            if self.policy._weighs():
                self.note_step(n)
            for slot in self.plan.work:
                slot.num_drafted = slot.num_credited = 0
                if slot.first_row >= 0:
                    self.commit(slot, &self.checks[i])
                    i += 1
                    if self.emit(slot, now):
                        left.append(slot)
                    else:
                        slot.forget_draft()
            drafted = self.stats.num_draft_tokens - drafted
            if self.policy._weighs():
                self.note_saved(n, drafted, self.stats.num_accepted_tokens - accepted)
        self.stats.verify_seconds += 1e-9 * <double>(ngs_now_ns() - started)
        return left

    cdef int note_prompts(self) except -1:
        """Note how likely the tokens of prompts are, for requests that want to know: the next pass overwrites the rows."""
        cdef Slot slot
        cdef PromptLogprobs likelihoods
        cdef const float* logits
        cdef Py_ssize_t i, count, vocab_size = self.rows.c.vocab_size
        for slot in self.plan.work:
            count, slot.num_prompt_rows = slot.num_prompt_rows, 0
            if count == 0:
                continue
            if slot.prompt_row + count > self.rows.c.num_rows:
                raise InputError(f"a prompt reads rows {slot.prompt_row}..{slot.prompt_row + count - 1}, but there are "
                                 f"{self.rows.c.num_rows}")
            likelihoods = slot.prompt_logprobs
            logits = self.rows.c.data + slot.prompt_row * vocab_size
            with nogil:
                for i in range(count):
                    likelihoods.add(logits + i * vocab_size, vocab_size, slot.data[likelihoods.len + 1])
        return 0

    cdef Py_ssize_t choose(self) except -1:
        """Fill the checks and choose tokens; return the number of checks."""
        cdef Slot slot
        cdef Drafter drafter
        cdef CheckC* check
        cdef DiceC* dice = &self.dice.c if self.dice is not None else NULL
        cdef Py_ssize_t n = 0, read = 0, vocab_size = self.rows.c.vocab_size
        for slot in self.plan.work:
            if slot.first_row < 0:
                continue
            if slot.first_row + slot.num_guessed >= self.rows.c.num_rows:
                raise InputError(f"a draft of {slot.num_guessed} tokens reads rows {slot.first_row}.."
                                 f"{slot.first_row + slot.num_guessed}, but there are {self.rows.c.num_rows}")
            check = &self.checks[n]
            check.logits = self.rows.c.data + slot.first_row * vocab_size
            check.draft, check.draft_len = slot.guess, slot.num_guessed
            check.parents = slot.parents if slot.branched else NULL
            check.sampler = &slot.sampler.c
            check.chosen, check.rows = slot.chosen, slot.rows
            slot.reserve_candidates()
            check.candidates, check.top = slot.candidates, slot.num_candidates
            check.seen, check.num_seen = NULL, 0
            if slot.learners and type(slot.sampler) is GreedySampler:
                check.seen = self.seen + n * MOST_OBSERVED
                for drafter in slot.learners:
                    check.num_seen = max(check.num_seen, <int>drafter.d.top)
            read += (slot.num_guessed + 1) * vocab_size
            n += 1
        if read < MUCH_TO_READ:
            check_all(self.checks, n, vocab_size, dice)
        else:
            with nogil:
                check_all(self.checks, n, vocab_size, dice)
        return n

    cdef int commit(self, Slot slot, const CheckC* check) except -1:
        """Add the tokens to the slot's text; update the native drafter and the policy."""
        cdef Py_ssize_t drafted = slot.num_guessed, outcome = check.outcome
        cdef Py_ssize_t count = outcome if outcome >= 0 else -1 - outcome
        cdef Py_ssize_t accepted = count - 1 if outcome >= 0 else min(count, drafted)
        cdef Py_ssize_t last = 0  # row after the accepted tokens
        slot.ending = ENDING_NONE if outcome >= 0 else ENDING_IMPOSSIBLE
        slot.num_out, slot.num_drafted, slot.num_accepted = count, drafted, accepted
        slot.begun = count > 0 and not slot.decoding
        slot_observe(slot, &self.rows.c, count, check.seen)
        slot.branch = 0
        if slot.branched and accepted:
            last = next_row(slot.guess, slot.parents, drafted, slot.rows[accepted - 1], slot.chosen[accepted - 1])
            slot.branch = branch_of(slot.tree[last - 1].branches)
        memcpy(slot.data + slot.length, slot.chosen, <size_t>count * sizeof(token_t))
        slot.length += count
        slot.decoding = slot.decoding or count > 0
        if slot.shadows and count:
            shadows_take(slot.shadows, slot.id, slot.tokens[:slot.num_prompt] if slot.begun else None, slot.chosen, count)
        self.add(slot, accepted if slot.draft_source is not None else 0)
        slot.taught = not slot._sources or not slot.decoding or (slot.num_free == 0 and not slot.begun)
        if slot.native is not None and slot.draft_source is slot.native_source and slot.num_own == 0:
            slot.num_own = drafted  # drafted in Python
        slot.num_own_right = own_right(slot, last)
        if slot.native is not None and slot.decoding and not slot.begun:
            slot.taught = teach(slot, self.dice is not None)
        if drafted and slot.draft_source is not None:
            self.policy.note_sent(slot.id, slot.draft_source.name, drafted, accepted)
        return 0

    cdef int note_step(self, Py_ssize_t n) except -1:
        """Report to the policy how many tokens the pass emitted, unless it read prompts too."""
        cdef Py_ssize_t emitted = 0, tokens = 0, i
        cdef Slot slot
        for slot in self.plan.work:
            if not slot.decoding or slot.first_row < 0 or slot.count != 1:
                return 0
            tokens += 1 + slot.num_guessed
        for i in range(n):
            emitted += self.checks[i].outcome if self.checks[i].outcome >= 0 else -1 - self.checks[i].outcome
        self.policy.add_step(emitted, tokens, 0.0)
        return 0

    cdef int add(self, Slot slot, Py_ssize_t guessed) except -1:
        """Add the tokens to the answer, of which drafts had guessed some; those behind its end credit nobody."""
        cdef Transcript transcript = slot.transcript
        cdef Py_ssize_t before = transcript.c.len
        cdef int reason = transcript.add_tokens(slot.chosen, slot.num_out, guessed)
        slot.num_added = transcript.c.len - before
        slot.num_credited = min(guessed, slot.num_added)
        if reason != ENDING_NONE:
            slot.ending = reason
        elif slot.ending == ENDING_NONE and slot.length >= slot.size and not slot.shifts:
            slot.ending = ENDING_FULL
        return 0

    cdef int note_saved(self, Py_ssize_t n, int64_t drafted, int64_t accepted) except -1:
        """Count what a pass with drafts of n slots saved: an accepted token its share of a pass without drafts.

        A request has its part by its accepted tokens, and of what drafts added by all its drafted ones. Without drafts,
        the same pass on the same busy machine would have taken less, as its size costs less by the first table. How much
        steeper or flatter this machine is, a line through the logarithms of all passes tells. The policy's costs would not
        do: they are too low for sizes that it has seen a few times on a busy machine.
        """
        cdef PassCosts costs = self.policy._costs
        cdef Py_ssize_t without = self.plan.tokens - drafted
        cdef double seconds = self.plan.seconds, cost, each_accepted, each_drafted
        cdef Slot slot
        if costs.timed:  # a halt of the machine is no part of what passes take
            seconds = min(seconds, MOST_OFF * costs.pace * costs.at(self.plan.tokens))
        cost = log(first_cost(costs, self.plan.tokens))
        if without == n:  # no prompt was read
            self.trend_add(cost, log(max(seconds, LEAST_SECONDS)))
        if not drafted:
            return 0
        each_accepted = seconds * self.trend_part(log(first_cost(costs, n)) - cost) / <double>n
        each_drafted = seconds * (1.0 - self.trend_part(log(first_cost(costs, without)) - cost)) / <double>drafted
        self.stats.accepted_seconds += each_accepted * <double>accepted
        self.stats.drafted_seconds += each_drafted * <double>drafted
        if costs.timed:
            for slot in self.plan.work:
                slot.timings.saved_seconds += each_accepted * <double>slot.num_credited - each_drafted * <double>slot.num_drafted
        return 0

    cdef void trend_add(self, double cost, double took) noexcept:
        """Add the logarithms of a pass's first cost and of its seconds to the running means."""
        cdef double off, weight
        self.num_passes = min(self.num_passes + 1.0, TREND_WINDOW)
        weight = 1.0 / self.num_passes
        off = cost - self.mean_cost
        self.mean_cost += weight * off
        self.spread += weight * ((1.0 - weight) * off * off - self.spread)
        self.common += weight * ((1.0 - weight) * off * (took - self.mean_took) - self.common)
        self.mean_took += weight * (took - self.mean_took)

    cdef double trend_part(self, double less) noexcept:
        """Return what a pass takes of the time of one whose first cost's logarithm differs by `less`."""
        cdef double prior = TREND_PRIOR / max(self.num_passes, 1.0)
        return min(exp(less * max((self.common + prior) / (self.spread + prior), 0.0)), 1.0)

    cdef int count_draft(self, Slot slot) except -1:
        """Count the slot's draft."""
        cdef Timings timings = slot.timings
        cdef Py_ssize_t own = slot.num_drafted, right = slot.num_credited
        self.stats.add_draft(slot.num_drafted, slot.num_credited)
        timings.add_draft(slot.num_drafted, slot.num_credited)
        if slot.native is None and slot.draft_source.name == "prediction":
            if slot.added_source is not None:
                own, right = slot.num_own, slot.num_own_right
            timings.num_prediction_accepted += right
            timings.num_prediction_rejected += own - right
        return 0

    cdef bint emit(self, Slot slot, double now) except -1:
        """Count what came of the step; return whether the slot needs more work."""
        if slot.num_drafted and slot.draft_source is not None:
            self.count_draft(slot)
        self.note_time(slot, now)
        slot.untold = len(slot.paid) > 0 and slot.decoding and (slot.asked or slot.length - slot.num_told >= slot.most_untold)
        return (slot.ending != ENDING_NONE or slot.untold or slot.on_chunk is not None or slot.with_logprobs or not slot.taught
                or slot.num_accepted < slot.num_drafted or slot.saved is not None or slot.length >= slot.size)

    cdef void note_time(self, Slot slot, double now):
        cdef Timings timings = slot.timings
        cdef EngineStats stats = self.stats
        stats.num_emitted_tokens += slot.num_added
        stats.num_slot_steps += 1
        timings.num_steps += 1
        if timings.first_token == 0.0:
            timings.first_token = now
            stats.time_to_first_token.add(now - timings.submitted, 1)
        elif slot.num_added:
            stats.inter_token_latency.add((now - timings.last_token) / <double>slot.num_added, slot.num_added)
        timings.last_token = now


cdef void check_all(CheckC* checks, Py_ssize_t n, Py_ssize_t vocab_size, DiceC* dice) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        checks[i].outcome = verify_rows(checks[i].logits, vocab_size, checks[i].draft, checks[i].parents,
                                        checks[i].draft_len, checks[i].sampler, checks[i].chosen, checks[i].rows,
                                        checks[i].candidates, checks[i].top, checks[i].seen, checks[i].num_seen, dice)


cdef Py_ssize_t own_right(Slot slot, Py_ssize_t last) noexcept nogil:
    """Return how many right tokens are among the first num_own of the draft, where two sources may have made it."""
    cdef Py_ssize_t i, row, right = 0
    if not slot.branched:
        return min(slot.num_credited, slot.num_own)
    for i in range(slot.num_credited):  # what comes after an added token was added, too
        row = slot.rows[i + 1] if i + 1 < slot.num_accepted else last
        right += not slot.tree[row - 1].added
    return right


cdef bint teach(Slot slot, bint by_dice):
    """Commit the emitted tokens to the slot's native drafter; False if Python must do it, to raise its error."""
    cdef SlotC* s = &slot.native.d.slots[slot.id]
    cdef Py_ssize_t credited = slot.num_own_right, i
    if slot.added_source is slot.native_source:  # its draft is behind another one
        credited = slot.num_credited - credited
    with slot.native._lock:
        if not s.active or credited > draft_right(s, slot.chosen, slot.num_out):
            return False
        if slot.trace is not None and slot.chain != NOT_TRACED:
            slot.trace.add(&slot.native.d, s, slot.number, slot.chain, False,
                           slot.num_drafted if slot.draft_source is not None else 0,  # else text that was forced
                           slot.num_credited, slot.chosen, slot.num_out)
        for i in range(slot.native.d.num_sources if by_dice else 0):  # they say nothing of what was not sent
            s.lengths[i] = min(s.lengths[i], slot.num_drafted)
        return commit_tokens(&slot.native.d, slot.native._judge, slot.id, slot.chosen, slot.num_out, credited,
                             NULL) == STATUS_OK
