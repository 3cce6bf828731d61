"""Seats: slots for any number of requests, for hosts that name requests and set no bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.errors import InputError

MOST_AT_ONCE = 1024  # slots that one drafter is made with, at most


class Seat(NamedTuple):
    """A slot of a drafter."""

    drafter: Drafter
    slot: int


class Seats:
    """Free slots; another drafter is made whenever all are taken.

    Args:
        make: Returns a drafter with this number of slots, and gives it what all requests share.
        first: Slots of the first drafter, 1..1024; each further drafter doubles their number.

    Raises:
        InputError: first is out of its bounds.

    Not locked: one thread at a time.
    """

    def __init__(self, make: Callable[[int], Drafter], first: int = 64) -> None:
        if not 1 <= first <= MOST_AT_ONCE:
            raise InputError(f"first must be in 1..{MOST_AT_ONCE}, got {first}")
        self._make = make
        self._next = first
        self._free: list[Seat] = []
        self.drafters: list[Drafter] = []

    def take(self) -> Seat:
        """Return a slot that no request is active on; the one that was given back last, if any.

        Raises:
            MemoryError: No room for another drafter.

        Cost: O(1) but for a new drafter.
        """
        if not self._free:
            drafter = self._make(self._next)
            self.drafters.append(drafter)
            self._free += [Seat(drafter, slot) for slot in reversed(range(self._next))]
            self._next = min(MOST_AT_ONCE, sum(drafter.slots for drafter in self.drafters))
        return self._free.pop()

    def give_back(self, seat: Seat) -> None:
        """End the seat's request and let another one have it.

        Raises:
            StateError: No request is active there.
        """
        seat.drafter.end(seat.slot)
        self._free.append(seat)

    def leave(self, seat: Seat) -> None:
        """Let another request have a seat on which none has begun."""
        self._free.append(seat)
