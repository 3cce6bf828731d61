"""DraftPolicy: how long drafts may be; Gate, the default, stops drafting where it does not pay."""

from __future__ import annotations

from typing import Protocol


class DraftPolicy(Protocol):
    """Decides before each proposal how long it may be, and learns what came of it.

    Calls come from the engine's thread. `source` is the name of a draft source of the chain, such
    as "ngram" for the n-gram drafters, "prediction" or "draft-model".
    """

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot: another request runs on it."""

    def limit(self, slot: int, source: str) -> int:
        """Return the longest draft to ask the source for now, 0 for none. Once per step."""

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a verified draft were right."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a decode of so many tokens cost."""


class FixedLength:
    """Let every source draft up to a fixed length."""

    def __init__(self, max_draft: int) -> None:
        self._max_draft = max_draft

    def begin(self, slot: int) -> None:
        """Do nothing."""

    def limit(self, slot: int, source: str) -> int:
        """Return the fixed length."""
        return self._max_draft

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Do nothing."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""


class _Lane:
    """What one source did for one slot.

    limit: longest draft allowed.
    rate: running share of drafted tokens that were accepted.
    rest: steps left in which the source is not asked.
    pause: length of the next rest in steps.
    """

    __slots__ = ("limit", "pause", "rate", "rest")

    def __init__(self, limit: int, rate: float) -> None:
        self.limit = limit
        self.rate = rate
        self.rest = 0
        self.pause = FIRST_PAUSE


FIRST_PAUSE = 4  # steps without drafts after the acceptance fell too low
MAX_PAUSE = 128
PROBE = 3  # tokens of the draft that ends a rest
START = 8  # tokens of a request's first draft
ENOUGH = 0.6  # share of accepted tokens below which drafts are not worth their cost
MEMORY = 0.7  # weight of the past in the running share, per verified draft


class Gate:
    """Grow drafts while they are right, shrink them when they are not, and rest when they fail.

    After a right draft the limit doubles, after a wrong one it falls to what was right and a
    little. When the running share of accepted tokens falls below ENOUGH the source rests for some
    steps on that slot; rests double as long as the probes after them fail, so on text that never
    repeats about one step in MAX_PAUSE has a short draft. A new request begins with the share
    that the source had lately on all slots.

    Args:
        max_draft: Longest draft in tokens, >= 1.
    """

    def __init__(self, max_draft: int = 64) -> None:
        self._max_draft = max_draft
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._shares: dict[str, float] = {}  # per source, over all slots

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot."""
        for key in [key for key in self._lanes if key[0] == slot]:
            del self._lanes[key]

    def limit(self, slot: int, source: str) -> int:
        """Return the longest draft to ask for now, 0 while the source rests."""
        lane = self._lanes.get((slot, source))
        if lane is None:
            lane = self._lanes[slot, source] = self._fresh(source)
        if lane.rest:
            lane.rest -= 1
            return 0
        return lane.limit

    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None:
        """Learn from a verified draft."""
        lane = self._lanes.get((slot, source))
        if lane is None or drafted <= 0:
            return
        share = accepted / drafted
        lane.rate = MEMORY * lane.rate + (1 - MEMORY) * share
        shared = self._shares.get(source, 1.0)
        self._shares[source] = 0.98 * shared + 0.02 * share
        if accepted == drafted:
            lane.limit = min(self._max_draft, max(lane.limit, drafted) * 2)
            lane.rate = max(lane.rate, ENOUGH)
            lane.pause = FIRST_PAUSE
        else:
            lane.limit = min(self._max_draft, max(PROBE, accepted + accepted // 2 + 1))
            if lane.rate < ENOUGH:
                self._rest(lane)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Do nothing: this policy does not weigh costs."""

    def _fresh(self, source: str) -> _Lane:
        share = self._shares.get(source, 1.0)
        lane = _Lane(min(START, self._max_draft), max(share, ENOUGH))
        if share < ENOUGH / 2:
            lane.limit = min(PROBE, self._max_draft)
            lane.pause = FIRST_PAUSE * 4
        return lane

    def _rest(self, lane: _Lane) -> None:
        lane.rest = lane.pause
        lane.pause = min(MAX_PAUSE, lane.pause * 2)
        lane.limit = min(PROBE, self._max_draft)
        lane.rate = ENOUGH  # the probe decides
