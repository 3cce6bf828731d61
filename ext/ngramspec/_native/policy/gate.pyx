"""Gate: a draft length that grows while drafts are right, and rests where they are not."""

cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from ngramspec.errors import InputError

cdef enum:
    _FIRST_PAUSE = 4  # steps without drafts after the acceptance fell too low
    _MAX_PAUSE = 128
    _PROBE = 3        # tokens of the draft that ends a rest
    _START = 8        # tokens of a request's first draft, unless the source was mostly right recently
    _MAX_SLOTS = 1 << 16

FIRST_PAUSE, MAX_PAUSE, PROBE, START = _FIRST_PAUSE, _MAX_PAUSE, _PROBE, _START

cdef double ENOUGH = 0.6        # share of accepted tokens below which drafts are not worth their cost
cdef double SURE = 0.8          # share from which on a source counts as mostly right
cdef double SLOT_DECAY = 0.7    # weight of earlier drafts in a slot's running share
cdef double SOURCE_DECAY = 0.95  # the same in the share over all slots


@cython.final
cdef class _Lanes:
    """_Lanes(): what one source did for every slot."""

    def __cinit__(self):
        self.share = 1.0

    def __dealloc__(self):
        free(self.lanes)

    cdef LaneC* of(self, Py_ssize_t slot) except NULL:
        cdef void* grown
        if not 0 <= slot < _MAX_SLOTS:
            raise InputError(f"slot must be in 0..{_MAX_SLOTS - 1}, got {slot}")
        if slot >= self.count:
            grown = realloc(self.lanes, <size_t>(slot + 1) * sizeof(LaneC))
            if not grown:
                raise MemoryError("no memory for the policy")
            self.lanes = <LaneC*>grown
            memset(self.lanes + self.count, 0, <size_t>(slot + 1 - self.count) * sizeof(LaneC))
            self.count = slot + 1
        return &self.lanes[slot]


@cython.final
cdef class Gate:
    """Gate(max_draft): grow drafts while they are right, shrink them when not, rest when they fail.

    After a right draft the limit doubles, after a wrong one it falls to slightly more than what was
    right. When the running share of accepted tokens falls below ENOUGH the source rests for some
    steps on that slot; rests double as long as the probes after them fail, so on text that never
    repeats about one step in MAX_PAUSE has a short draft. A new request starts from how the
    source did recently on all slots: at max_draft if it was mostly right, short otherwise.

    Args:
        max_draft: Longest draft in tokens.
    """

    def __cinit__(self, Py_ssize_t max_draft):
        self._max_draft, self._sources = max_draft, {}

    cdef int begin(self, Py_ssize_t slot) except -1:
        """Forget what was learnt about the slot."""
        for lanes in self._sources.values():
            (<_Lanes>lanes).of(slot).begun = False
        return 0

    cdef _Lanes lanes_of(self, str source):
        lanes = self._sources.get(source)
        if lanes is None:
            lanes = self._sources[source] = _Lanes()
        return lanes

    cdef Py_ssize_t ask(self, Py_ssize_t slot, str source) except -1:
        """Return the longest draft to ask for now, 0 while the source rests."""
        cdef _Lanes lanes = self.lanes_of(source)
        cdef LaneC* lane = lanes.of(slot)
        if not lane.begun:
            lane.begun = True
            lane.rest = 0
            lane.rate = max(lanes.share, ENOUGH)
            lane.limit = self._max_draft if lanes.share >= SURE else min(<Py_ssize_t>_START, self._max_draft)
            lane.pause = _FIRST_PAUSE
            if lanes.share < ENOUGH / 2:
                lane.limit = min(<Py_ssize_t>_PROBE, self._max_draft)
                lane.pause = _FIRST_PAUSE * 4
        if lane.rest:
            lane.rest -= 1
            return 0
        return lane.limit

    cdef int learn(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1:
        """Learn from a verified draft."""
        cdef _Lanes lanes = self.lanes_of(source)
        cdef LaneC* lane = lanes.of(slot)
        cdef double share
        if not lane.begun or drafted <= 0:
            return 0
        share = <double>accepted / <double>drafted
        lane.rate = SLOT_DECAY * lane.rate + (1 - SLOT_DECAY) * share
        lanes.share = SOURCE_DECAY * lanes.share + (1 - SOURCE_DECAY) * share
        if accepted == drafted:
            lane.limit = min(self._max_draft, max(lane.limit, drafted) * 2)
            lane.rate = max(lane.rate, ENOUGH)
            lane.pause = _FIRST_PAUSE
            return 0
        lane.limit = min(self._max_draft, max(<Py_ssize_t>_PROBE, accepted + accepted // 2 + 1))
        if lane.rate < ENOUGH:
            lane.rest = lane.pause
            lane.pause = min(<Py_ssize_t>_MAX_PAUSE, lane.pause * 2)
            lane.limit = min(<Py_ssize_t>_PROBE, self._max_draft)
            lane.rate = ENOUGH  # the probe decides
        return 0
