"""Calibration: what a source's claimed probabilities are worth, learnt from what was emitted."""

cimport cython
from libc.math cimport exp, fabs
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from ngramspec._types cimport uint8_t

cdef double TRUST = 8.0      # tokens that a claim, or what is known of the place before, stands for
cdef double MEMORY = 400.0   # tokens that are remembered per place and level
cdef double LATELY = 16.0    # tokens that the quicker mean remembers
cdef double SHIFT = 0.4      # so far from the other one it takes its place
cdef double NOTHING = 1e-9   # tokens: what lies behind in a chain and is worth less is left out
cdef double LEAST = 1e-300   # probability that stands for 0 in chains
cdef double FIRST = -4.5     # log-odds of the lowest level; the others follow in steps of 1

cdef double LEVELS[NUM_LEVELS]     # claimed probability at the middle of each level
cdef double STEEP[NUM_LEVELS]      # 1 / distance to the next one
cdef uint8_t LEVEL_OF[257]         # 256 * probability -> lowest level that may be below it


cdef void prepare() noexcept:
    cdef Py_ssize_t i, level = 0
    for i in range(NUM_LEVELS):
        LEVELS[i] = 1.0 / (1.0 + exp(-(FIRST + <double>i)))
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
            c.trust[place][level] = TRUST


cdef Py_ssize_t locate(double claimed, double* share) noexcept nogil:
    """Return the level below a probability; share: how far it is on the way to the next, 0..1."""
    cdef Py_ssize_t low = LEVEL_OF[<Py_ssize_t>(claimed * 256.0)]
    while low < NUM_LEVELS - 2 and claimed >= LEVELS[low + 1]:
        low += 1
    share[0] = min(max((claimed - LEVELS[low]) * STEEP[low], 0.0), 1.0)
    return low


cdef double within(double p) noexcept nogil:
    """Return a probability; what is none, NaN too, counts as the nearest one or as 0."""
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
    """Set p, each > 0, for a chain of n claims; return how many of them are worth a look.

    Where the chance to get past a token, times all tokens that may come from there, is next to nothing,
    the chain ends with it: the work grows with the square of its length.
    """
    cdef Py_ssize_t i
    cdef double reached = <double>(n + 1)
    for i in range(n):
        p[i] = max(calibration_apply(c, i, claimed[i]), LEAST)
        reached *= p[i]
        if reached < NOTHING:
            return i + 1
    return n


cdef void learn_one(CalibrationC* c, Py_ssize_t place, Py_ssize_t level, double share, double error) noexcept nogil:
    cdef double* weight = &c.weight[place][level]
    cdef double* mean = &c.mean[place][level]
    cdef double* lately = &c.lately[place][level]
    cdef double kept
    if share == 0.0:
        return
    weight[0] += share
    mean[0] += share * (error - mean[0]) / weight[0]
    lately[0] += share * (error - lately[0]) / min(weight[0], LATELY)
    if fabs(lately[0] - mean[0]) > SHIFT:
        # Another kind of text has begun: what was right before says little about it.
        mean[0] = lately[0]
        weight[0] = min(weight[0], LATELY)
        c.trust[place][level] = 0.0
    if weight[0] + c.trust[place][level] > MEMORY:
        kept = MEMORY / (weight[0] + c.trust[place][level])
        weight[0] *= kept
        c.trust[place][level] *= kept


cdef void sum_up(CalibrationC* c, Py_ssize_t level) noexcept nogil:
    """Set excess of a level from what is known of each place.

    Later places are seldom seen as long as drafts are short: what is not known of one is taken from the
    place before, else short drafts would stay short.
    """
    cdef Py_ssize_t place
    cdef double before = 0.0
    for place in range(NUM_PLACES):
        before = ((c.weight[place][level] * c.mean[place][level] + c.trust[place][level] * before)
                  / (c.weight[place][level] + c.trust[place][level]))
        c.excess[place][level] = before


cdef void calibration_learn(CalibrationC* c, const float* claimed, Py_ssize_t n, Py_ssize_t num_right) noexcept nogil:
    """Learn from n tokens of a chain of which the first num_right were right.

    The token behind them was wrong, when it is among the n; what the ones behind that would have been
    is not known. A token counts for the two levels around its claim, by its distance to them: what
    was learnt of one claim is then the mean of its labels, wherever between two levels it lies.
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
cdef class Calibrations:
    """Calibrations(): what is learnt of each source, by its name; nothing is at first.

    Raises:
        MemoryError: No room for another source.
    """

    def __cinit__(self):
        self.ids = {}

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            free(self.each[i])
        free(self.each)

    cdef CalibrationC* of(self, str name) except NULL:
        """Return what is learnt of a source; it stays where it is as long as this object lives."""
        cdef void* memory
        known = self.ids.get(name)
        if known is not None:
            return self.each[<Py_ssize_t>known]
        memory = realloc(self.each, <size_t>(self.count + 1) * sizeof(CalibrationC*))
        if memory == NULL:
            raise MemoryError("no memory for another source")
        self.each = <CalibrationC**>memory
        memory = malloc(sizeof(CalibrationC))
        if memory == NULL:
            raise MemoryError("no memory for another source")
        self.each[self.count] = <CalibrationC*>memory
        calibration_start(self.each[self.count])
        self.count += 1
        self.ids[name] = self.count - 1
        return self.each[self.count - 1]
