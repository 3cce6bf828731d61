"""Queue: requests that wait for a slot."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngramspec._slot import Slot
from ngramspec.engine.generation import Chunk, Generation

if TYPE_CHECKING:
    from ngramspec._sampler import Sampler
    from ngramspec.engine.sources import DraftSource

GATHER_SECONDS = 0.002  # that an idle engine waits at most for requests that are being prepared
OnChunk = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A submitted request with all that was made for it."""

    generation: Generation
    sampler: Sampler
    sources: tuple[DraftSource, ...]  # in order of priority
    on_chunk: OnChunk | None


class Queue:
    """First come, first served, but a request for one slot does not hold up the others.

    Thread-safety: `put` and len from any thread, the rest from the engine's.
    """

    def __init__(self) -> None:
        self.waiting: deque[Ticket] = deque()  # to be looked at only
        self._lock = threading.Lock()  # guards waiting
        self.cancelled = False  # one that waits may have been cancelled

    def __len__(self) -> int:
        return len(self.waiting)

    def put(self, ticket: Ticket) -> None:
        """Add a request at the end."""
        ticket.generation.on_cancel = self._note_cancel
        with self._lock:
            self.waiting.append(ticket)

    def take(self, idle: Sequence[Slot]) -> tuple[Ticket, list[Slot]] | None:
        """Remove the first request that an idle slot can serve, with the slots that can."""
        with self._lock:
            for ticket in self.waiting:
                wanted = ticket.generation.request.slot
                fitting = [slot for slot in idle if wanted in (-1, slot.id)]
                if fitting:
                    self.waiting.remove(ticket)
                    return ticket, fitting
        return None

    def take_cancelled(self) -> list[Ticket]:
        """Remove the cancelled requests and return them. Cost: nothing when there are none."""
        if not self.cancelled:
            return []
        self.cancelled = False
        with self._lock:
            gone = [ticket for ticket in self.waiting if ticket.generation.cancelled]
            for ticket in gone:
                self.waiting.remove(ticket)
        return gone

    def take_all(self) -> list[Ticket]:
        """Remove all requests and return them."""
        with self._lock:
            gone = list(self.waiting)
            self.waiting.clear()
        return gone

    def _note_cancel(self) -> None:
        self.cancelled = True


class Gathering:
    """Counts requests that are on their way, so that an idle engine can wait for them a moment.

    Thread-safety: safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _count
        self._count = 0
        self._all_here = threading.Event()
        self._all_here.set()

    def announce(self) -> Callable[[], None]:
        """Count one that is on its way; return what counts it as here, once at most."""
        arrived = [False]

        def arrive() -> None:
            with self._lock:
                self._count -= not arrived[0]
                arrived[0] = True
                if not self._count:
                    self._all_here.set()

        with self._lock:
            self._count += 1
            self._all_here.clear()
        return arrive

    def wait(self) -> None:
        """Return when all are here, or after GATHER_SECONDS."""
        self._all_here.wait(GATHER_SECONDS)
