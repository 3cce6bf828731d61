"""What a pass costs and how far a claim is right, both learnt from running.

Calibration: how often tokens were right, compared with the probabilities that their source claimed.
PassCosts: the time of passes by batch size, from a table, from observations, or from both.
"""

cimport cython
from libc.math cimport exp, fabs, isfinite, log, sqrt
from libc.string cimport memcpy, memset

from ngramspec._native.core.types cimport uint8_t

from ngramspec.costs import CostTable
from ngramspec.errors import InputError

cdef enum:
    MOST_FITTED = 256             # largest size in the fit: large batches follow other rules
    TYPICAL = 64                  # batch size whose cost must change before a new steepness is applied
    NEAR_PART = 4                 # sizes within 1 / NEAR_PART of one another count as alike
    FIRST_FEW = 8                 # observations during which a much lower one replaces the estimate
    NEAREST = 4                   # observed sizes whose ratio is used beyond the outermost
    HALVE_AFTER = 512             # observations after which all weights are halved

cdef double PRIOR_TOKENS = 8.0    # observed tokens that the prior, a claim or the place before, counts as
cdef double SLOW_TOKENS = 400.0   # window of the running mean, per place and level
cdef double QUICK_TOKENS = 16.0   # window of the mean that notices a change
cdef double AFRESH = 4.0           # observed tokens that what is then believed counts as, so that new ones soon outweigh it
cdef double CHANGED = 0.4         # when the two differ by more, the quick mean replaces the slow one
cdef double WORTH_NOTHING = 1e-9  # a chain ends where less than this many tokens can still be expected
cdef double LEAST_P = 1e-300      # stands for probability 0 in chains
cdef double LOWEST_LEVEL = -4.5   # log-odds of the lowest level; the others follow in steps of 1
cdef double CLAMP = 4.0           # an observation is clamped to within this factor of the estimate
cdef double PACE_STEP = 0.25      # part of a known size's change, in log time, that the pace of all sizes follows
cdef double WINDOW = 32.0         # observations that an estimate averages over
cdef double BRANCH_WINDOW = 16.0  # the same of what branches cost
cdef double GUESS_WEIGHT = 0.25   # observations that the guess for a size not seen yet counts as
cdef double REFILL_AT = 0.02      # relative change of a size's ratio that refills its unseen neighbours
cdef double TOKEN_COST = 0.1      # of each further token, in passes over one, where no table is given
cdef double ENOUGH_SEEN = 2.0     # observations that make a size known
cdef double PRIOR_SPREAD = 0.02   # weight of the given steepness in the fit
cdef double FLATTEST = 0.01       # bounds of the fitted steepness, times the given one
cdef double STEEPEST = 100.0

cdef double LEVELS[NUM_LEVELS]     # claimed probability at the middle of each level
cdef double STEEP[NUM_LEVELS]      # 1 / distance to the next one
cdef uint8_t LEVEL_OF[257]         # 256 * probability -> lowest level that may be below it


cdef void prepare() noexcept:
    cdef Py_ssize_t i, level = 0
    for i in range(NUM_LEVELS):
        LEVELS[i] = 1.0 / (1.0 + exp(-(LOWEST_LEVEL + <double>i)))
    for i in range(NUM_LEVELS - 1):
        STEEP[i] = 1.0 / (LEVELS[i + 1] - LEVELS[i])
    for i in range(257):
        while level < NUM_LEVELS - 2 and LEVELS[level + 1] <= <double>i / 256.0:
            level += 1
        LEVEL_OF[i] = <uint8_t>level


prepare()


cdef void calibration_start(CalibrationC* c) noexcept nogil:
    cdef Py_ssize_t place, level
    memset(c, 0, sizeof(CalibrationC))
    for place in range(NUM_PLACES):
        for level in range(NUM_LEVELS):
            c.trust[place][level] = PRIOR_TOKENS


cdef Py_ssize_t locate(double claimed, double* share) noexcept nogil:
    """Return the level below a probability; share: how far it is on the way to the next, 0..1."""
    cdef Py_ssize_t low = LEVEL_OF[<Py_ssize_t>(claimed * 256.0)]
    while low < NUM_LEVELS - 2 and claimed >= LEVELS[low + 1]:
        low += 1
    share[0] = min(max((claimed - LEVELS[low]) * STEEP[low], 0.0), 1.0)
    return low


cdef double within(double p) noexcept nogil:
    """Clamp to 0..1; NaN becomes 0."""
    if not p > 0.0:
        return 0.0
    return p if p < 1.0 else 1.0


cdef Py_ssize_t place_of(Py_ssize_t i) noexcept nogil:
    return i if i < 2 else 2 if i < 4 else 3


cdef double calibration_apply(const CalibrationC* c, Py_ssize_t place, double claimed) noexcept nogil:
    """Return how probable token `place` of a chain is, given what its source claims."""
    cdef double share = 0.0
    cdef Py_ssize_t low
    cdef const double* excess
    claimed = within(claimed)
    if c == NULL:
        return claimed
    low = locate(claimed, &share)
    excess = c.excess[place_of(place)]
    return within(claimed + excess[low] + share * (excess[low + 1] - excess[low]))


cdef Py_ssize_t calibration_chain(const CalibrationC* c, const float* claimed, Py_ssize_t n, double* p) noexcept nogil:
    """Set p, each > 0, for a chain of n claims; return how many of them to use.

    The chain is cut where almost nothing can be expected of the rest, since the work grows with the
    square of its length.
    """
    cdef Py_ssize_t i
    cdef double reached = <double>(n + 1)
    for i in range(n):
        p[i] = max(calibration_apply(c, i, claimed[i]), LEAST_P)
        reached *= p[i]
        if reached < WORTH_NOTHING:
            return i + 1
    return n


cdef void learn_one(CalibrationC* c, Py_ssize_t place, Py_ssize_t level, double share, double error) noexcept nogil:
    cdef double* weight = &c.weight[place][level]
    cdef double* mean = &c.mean[place][level]
    cdef double* lately = &c.lately[place][level]
    cdef double scale
    if share == 0.0:
        return
    weight[0] += share
    mean[0] += share * (error - mean[0]) / weight[0]
    lately[0] += share * (error - lately[0]) / min(weight[0], QUICK_TOKENS)
    if fabs(lately[0] - mean[0]) > CHANGED:
        # The kind of text has changed: the old mean says little about it.
        mean[0] = lately[0]
        weight[0] = min(weight[0], AFRESH)
        c.trust[place][level] = 0.0
    if weight[0] + c.trust[place][level] > SLOW_TOKENS:
        scale = SLOW_TOKENS / (weight[0] + c.trust[place][level])
        weight[0] *= scale
        c.trust[place][level] *= scale


cdef void sum_up(CalibrationC* c, Py_ssize_t level) noexcept nogil:
    """Set excess of a level from what is known of each place.

    Later places are rarely seen while drafts are short, so each place has the one before as its prior.
    Otherwise short drafts would stay short.
    """
    cdef Py_ssize_t place
    cdef double before = 0.0
    for place in range(NUM_PLACES):
        before = ((c.weight[place][level] * c.mean[place][level] + c.trust[place][level] * before)
                  / (c.weight[place][level] + c.trust[place][level]))
        c.excess[place][level] = before


cdef void calibration_learn(CalibrationC* c, const float* claimed, Py_ssize_t n, Py_ssize_t num_right) noexcept nogil:
    """Learn from n tokens of a chain of which the first num_right were right.

    The one after them was wrong, if it is among the n; nothing is known of later ones. A token counts
    for the two levels around its claim, weighted by distance, so what is learnt of a claim is the mean of
    its outcomes wherever it lies between two levels.
    """
    cdef Py_ssize_t i, low, place
    cdef unsigned touched = 0  # levels, a bit each
    cdef double p, error, share = 0.0
    for i in range(min(n, num_right + 1)):
        p = within(claimed[i])
        error = (1.0 if i < num_right else 0.0) - p
        low = locate(p, &share)
        place = place_of(i)
        learn_one(c, place, low, 1.0 - share, error)
        learn_one(c, place, low + 1, share, error)
        touched |= <unsigned>3 << low
    for i in range(NUM_LEVELS):
        if touched & (<unsigned>1 << i):
            sum_up(c, i)


@cython.final
cdef class Calibrations(Owner):
    """Calibrations(): what was learnt of each source, by its name; empty at first.

    Raises:
        MemoryError: No room for another source.
    """

    def __cinit__(self):
        self.ids = {}

    cdef CalibrationC* of(self, str name) except NULL:
        """Return the calibration of a source; its address stays valid as long as this object lives."""
        index = self.ids.get(name)
        if index is not None:
            return self.each[<Py_ssize_t>index]
        self.each = <CalibrationC**>self.enlarge(self.each, self.count + 1, sizeof(CalibrationC*))
        self.each[self.count] = <CalibrationC*>self.take(1, sizeof(CalibrationC))
        calibration_start(self.each[self.count])
        self.count += 1
        self.ids[name] = self.count - 1
        return self.each[self.count - 1]


@cython.final
cdef class PassCosts:
    """PassCosts(costs=None): the cost of a pass by the tokens in its batch.

    Until a time is observed, the given table is used, in its unit. An observation corrects its own
    size. Sizes in between and beyond keep the table's shape, scaled like their neighbours; nothing is
    smoothed across sizes, since costs jump where a library changes its method. How steeply the whole
    shape rises is learnt too: the table may come from another machine. When known sizes slow down or speed
    up, as with longer contexts or a busy machine, all sizes follow.

    Args:
        costs: A CostTable in any unit, None = each further token costs a tenth of a pass over one.

    Attributes:
        timed: Whether a time was observed; costs are then in seconds.

    Raises:
        InputError: costs is neither a CostTable nor None.
    """

    def __cinit__(self, costs=None):
        cdef Py_ssize_t i
        if costs is not None and not isinstance(costs, CostTable):
            raise InputError(f"costs must be a CostTable or None, got {type(costs).__name__}")
        self.cost_table = costs
        self.listed = 0 if costs is None else max(size for size, _ in costs.costs)
        dense = None if costs is None else costs.dense(MOST_TOKENS)
        for i in range(1, MOST_TOKENS + 1):
            self.first[i] = 1.0 + TOKEN_COST * <double>(i - 1) if dense is None else dense[i - 1]
        memcpy(self.prior, self.first, sizeof(self.first))
        memcpy(self.now, self.first, sizeof(self.first))
        self.steep = self.pace = 1.0

    def cost(self, Py_ssize_t tokens):
        """Return the cost of a pass over this number of tokens.

        Raises:
            InputError: tokens < 1.
        """
        if tokens < 1:
            raise InputError(f"tokens must be >= 1, got {tokens}")
        return self.pace * self.at(tokens)

    def observe(self, Py_ssize_t tokens, double seconds):
        """Learn what a pass took; times that are not > 0 and passes over more than 1024 tokens are ignored.

        Cost: O(1) amortised.
        """
        self.add(tokens, seconds)

    def table(self):
        """Return the costs as known now, a CostTable of the given and the observed sizes, 1 and 1024."""
        cdef Py_ssize_t i
        sizes = {1, MOST_TOKENS}
        if self.cost_table is not None:
            sizes.update(size for size, _ in self.cost_table.costs if size <= MOST_TOKENS)
        for i in range(1, MOST_TOKENS + 1):
            if self.weight[i] > 0.0:
                sizes.add(i)
        name = "" if self.cost_table is None else self.cost_table.name
        return CostTable(tuple((size, self.pace * self.at(size)) for size in sorted(sizes)), name)

    cdef double at(self, Py_ssize_t tokens) noexcept nogil:
        cdef double slope
        if tokens <= MOST_TOKENS:
            return self.now[max(tokens, <Py_ssize_t>1)]
        slope = (self.now[MOST_TOKENS] - self.now[MOST_TOKENS // 2]) / <double>(MOST_TOKENS - MOST_TOKENS // 2)
        return self.now[MOST_TOKENS] + max(slope, 0.0) * <double>(tokens - MOST_TOKENS)

    cdef bint seen_often(self, Py_ssize_t tokens) noexcept nogil:
        """Whether sizes near this one were seen a few times."""
        cdef Py_ssize_t i
        cdef double seen = 0.0
        for i in range(tokens - tokens // NEAR_PART, min(tokens + tokens // NEAR_PART, <Py_ssize_t>MOST_TOKENS) + 1):
            seen += self.weight[i]
        return seen >= ENOUGH_SEEN

    cdef void add(self, Py_ssize_t tokens, double seconds) noexcept nogil:
        cdef double estimate, ratio, change
        if not (0 < tokens <= MOST_TOKENS and seconds > 0.0 and isfinite(seconds)):
            return
        estimate = self.now[tokens]
        if not self.timed:
            self.timed = True
            estimate = seconds
        elif self.weight[tokens] == 0.0:
            self.weight[tokens] = GUESS_WEIGHT
        seconds = min(max(seconds / self.pace, estimate / CLAMP), estimate * CLAMP)
        if self.weight[tokens] >= FIRST_FEW:
            change = exp(PACE_STEP * log(seconds / estimate))
            self.pace *= change
            seconds /= change
        if seconds < estimate / 2 and self.weight[tokens] < FIRST_FEW:
            # A pass can be slow by accident, above all the first ones, but never fast.
            self.weight[tokens] = 1.0
            self.now[tokens] = seconds
        else:
            self.weight[tokens] = min(self.weight[tokens] + 1.0, WINDOW)
            self.now[tokens] = estimate + (seconds - estimate) / self.weight[tokens]
        ratio = self.now[tokens] / self.prior[tokens]
        if fabs(ratio - self.shown[tokens]) > REFILL_AT * self.shown[tokens]:
            self.show(tokens)
            self.fit()
        self.age += 1
        if self.age == HALVE_AFTER:
            self.fade()

    cdef void add_branches(self, Py_ssize_t branches, double seconds) noexcept nogil:
        """Learn how long it took to take back all branches of a tree but the right one.

        That is about as much for each. They had to be made, too, which took as long and is no part of the pass.
        """
        cdef double each
        if not (self.timed and branches > 1 and seconds > 0.0 and isfinite(seconds)):
            return
        each = 2.0 * seconds / <double>branches / self.pace
        if self.branch > 0.0:
            each = self.branch + (min(each, CLAMP * self.branch) - self.branch) / BRANCH_WINDOW
        self.branch = each

    cdef void show(self, Py_ssize_t tokens) noexcept nogil:
        """Fill the sizes that were never seen, up to the next seen ones or the ends."""
        cdef Py_ssize_t below = tokens - 1, above = tokens + 1
        self.shown[tokens] = self.now[tokens] / self.prior[tokens]
        while below > 0 and self.weight[below] == 0.0:
            below -= 1
        while above <= MOST_TOKENS and self.weight[above] == 0.0:
            above += 1
        self.fill(below, tokens)
        self.fill(tokens, above)

    cdef void fill(self, Py_ssize_t a, Py_ssize_t b) noexcept nogil:
        """Fill the sizes between two that were seen; 0 and MOST_TOKENS + 1 stand for none.

        The prior is scaled by the mean ratio of the two, and the error that is left at either end is spread
        linearly over the sizes between: jumps of the prior stay, and a line becomes the line between them.
        """
        cdef Py_ssize_t i
        cdef double scale, low = 0.0, high = 0.0
        if b - a < 2:
            return
        if a > 0 and b <= MOST_TOKENS:
            scale = sqrt(self.shown[a] * self.shown[b])
            low, high = self.prior[a] * (self.shown[a] - scale), self.prior[b] * (self.shown[b] - scale)
        else:
            scale = self.outer(b, 1) if a == 0 else self.outer(a, -1)
        for i in range(a + 1, b):
            self.now[i] = max(self.prior[i] * scale + low + (high - low) * <double>(i - a) / <double>(b - a),
                              self.prior[i] * scale / CLAMP)

    cdef double outer(self, Py_ssize_t tokens, Py_ssize_t step) noexcept nogil:
        """Return the ratio to use beyond the outermost seen size: the weighted mean of the NEAREST seen ones."""
        cdef double total = 0.0, weight = 0.0
        cdef Py_ssize_t seen = 0, first = tokens
        while 0 < tokens <= MOST_TOKENS and seen < NEAREST and first <= 2 * tokens and tokens <= 2 * first:
            if self.weight[tokens] > 0.0:
                total += self.weight[tokens] * log(self.shown[tokens])
                weight += self.weight[tokens]
                seen += 1
            tokens += step
        return exp(total / weight)

    cdef void fit(self) noexcept nogil:
        """Learn how much steeper costs rise than the given ones: fit a line of observed over given costs.

        Least squares of relative errors. PRIOR_SPREAD keeps the given steepness where costs hardly rise at
        all: noise alone does not change it.
        """
        cdef Py_ssize_t i
        cdef double x, y, w, total = 0.0, xs = 0.0, ys = 0.0, xx = 0.0, xy = 0.0, steep, base, span
        for i in range(1, MOST_FITTED + 1):
            if self.weight[i] > 0.0:
                x, y = self.first[i] / self.first[1] - 1.0, self.now[i] / self.now[1]
                w = self.weight[i] / (y * y)
                total += w
                xs += w * x
                ys += w * y
                xx += w * x * x
                xy += w * x * y
        if total == 0.0:
            return
        steep = (xy - xs * ys / total + PRIOR_SPREAD) / (xx - xs * xs / total + PRIOR_SPREAD)
        base = (ys - steep * xs) / total
        steep = STEEPEST if base <= 0.0 else min(max(steep / base, FLATTEST), STEEPEST)
        span = fabs(self.first[TYPICAL] / self.first[1] - 1.0)
        if fabs(steep - self.steep) * span > REFILL_AT * (1.0 + self.steep * span):
            self.tilt(steep)

    cdef void tilt(self, double steep) noexcept nogil:
        cdef Py_ssize_t i
        cdef double x
        self.steep = steep
        for i in range(1, MOST_TOKENS + 1):
            x = self.first[i] / self.first[1]
            self.prior[i] = max(1.0 + steep * (x - 1.0), FLATTEST * x)
        self.refill()

    cdef void fade(self) noexcept nogil:
        """Halve all weights and forget sizes that are no longer seen, so that an outlier does not last."""
        cdef Py_ssize_t i
        self.age = 0
        for i in range(1, MOST_TOKENS + 1):
            self.weight[i] *= 0.5
            if self.weight[i] < GUESS_WEIGHT:
                self.weight[i] = self.shown[i] = 0.0
        self.refill()

    cdef void refill(self) noexcept nogil:
        """Fill all sizes that were never seen."""
        cdef Py_ssize_t i, last = 0
        for i in range(1, MOST_TOKENS + 1):
            if self.weight[i] > 0.0:
                self.shown[i] = self.now[i] / self.prior[i]
        for i in range(1, MOST_TOKENS + 1):
            if self.weight[i] > 0.0:
                self.fill(last, i)
                last = i
        if last:
            self.fill(last, MOST_TOKENS + 1)
