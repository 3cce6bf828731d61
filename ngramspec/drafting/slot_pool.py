"""SlotPool: slots for any number of requests, for hosts that do not limit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.errors import InputError

MOST_AT_ONCE = 1024  # most slots of one drafter
KEPT = 4096  # tokens of a text whose memory its slot keeps for the next one


class SlotLease(NamedTuple):
    """A slot of a drafter."""

    drafter: Drafter
    slot: int


class SlotPool:
    """Hand out slots; make another drafter whenever all are taken.

    Args:
        make: Returns a drafter with this number of slots, on what all requests share.
        first: Slots of the first drafter, 1..1024; each further one doubles the total, adding
            1024 at most.

    Raises:
        InputError: first is out of its bounds.

    Not locked: one thread at a time.
    """

    def __init__(self, make: Callable[[int], Drafter], first: int = 64) -> None:
        if not 1 <= first <= MOST_AT_ONCE:
            raise InputError(f"first must be in 1..{MOST_AT_ONCE}, got {first}")
        self._make = make
        self._next = first
        self._free: list[SlotLease] = []
        self.drafters: list[Drafter] = []

    def take(self) -> SlotLease:
        """Return a free slot, the one given back last if there is one.

        Raises:
            MemoryError: No room for another drafter.

        Cost: O(1), plus a new drafter when no slot is free.
        """
        if not self._free:
            drafter = self._make(self._next)
            self.drafters.append(drafter)
            self._free += [SlotLease(drafter, slot) for slot in reversed(range(self._next))]
            self._next = min(MOST_AT_ONCE, sum(drafter.slots for drafter in self.drafters))
        return self._free.pop()

    def give_back(self, lease: SlotLease) -> None:
        """End the lease's request and free the lease, and the memory of a long text.

        Raises:
            StateError: No request is active there.

        Cost: As Drafter.end, and Drafter.forget for a long text.
        """
        lease.drafter.end(lease.slot)
        if lease.drafter.length(lease.slot) > KEPT:
            lease.drafter.forget(lease.slot)
        self._free.append(lease)

    def leave(self, lease: SlotLease) -> None:
        """Free a lease on which no request has begun."""
        self._free.append(lease)
