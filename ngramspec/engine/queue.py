"""Queue: requests that wait for a slot."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngramspec._native.engine.slot import Slot
from ngramspec.engine.generation import Chunk, Generation
from ngramspec.engine.request import Adapters

if TYPE_CHECKING:
    from ngramspec._native.engine.decode import Sampler
    from ngramspec._native.engine.shadow import ShadowRun
    from ngramspec.engine.sources.source import DraftSource

GATHER_SECONDS = 0.002  # longest wait of an idle engine for announced requests
OnChunk = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A submitted request with all that was made for it."""

    generation: Generation
    sampler: Sampler
    sources: tuple[DraftSource, ...]  # in order of priority
    on_chunk: OnChunk | None
    shadows: tuple[ShadowRun, ...] = ()  # of drafters that are only judged


class Queue:
    """First come, first served, but a request for a certain slot does not block the others.

    The tenant with the fewest running requests is served first; tenants with equal counts take
    turns.

    Thread-safety: `put`, `num_waiting` and len from any thread, the rest from the engine's.
    """

    def __init__(self) -> None:
        # By tenant, the last served at the end; none is empty.
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()  # guards both
        self.cancelled = False  # a waiting request may have been cancelled

    def __len__(self) -> int:
        return self._size

    def num_waiting(self, tenant: str) -> int:
        with self._lock:
            return len(self._waiting.get(tenant, ()))

    def put(self, ticket: Ticket) -> None:
        ticket.generation.on_cancel = self._note_cancel
        with self._lock:
            self._waiting.setdefault(ticket.generation.tenant, deque()).append(ticket)
            self._size += 1

    def next(
        self,
        idle: Sequence[Slot],
        running: Sequence[str] = (),
        adapters: Adapters | None = None,
    ) -> tuple[Ticket, list[Slot]] | None:
        """Return the next request that an idle slot can serve, with the slots that can.

        running: The tenant of each request that runs.
        adapters: Those that they run with; the next request waits, and with it all others, until it
            can run with these, so that none waits forever. None = any.
        """
        with self._lock:
            for tenant in sorted(self._waiting, key=running.count):
                for ticket in self._waiting[tenant]:
                    slot_id = ticket.generation.request.slot
                    fitting = [slot for slot in idle if slot_id in (-1, slot.id)]
                    if fitting and adapters not in (None, ticket.generation.request.adapters):
                        return None
                    if fitting:
                        return ticket, fitting
        return None

    def take(self, ticket: Ticket) -> None:
        """Remove the request that `next` returned: it is served. No error if it is gone already."""
        with self._lock:
            tenant = ticket.generation.tenant
            if ticket in self._waiting.get(tenant, ()):
                self._waiting.move_to_end(tenant)
                self._remove(ticket)

    def take_cancelled(self) -> list[Ticket]:
        """Remove the cancelled requests and return them. Cost: nothing when there are none."""
        if not self.cancelled:
            return []
        self.cancelled = False
        with self._lock:
            gone = [ticket for ticket in self._all() if ticket.generation.cancelled]
            for ticket in gone:
                self._remove(ticket)
        return gone

    def take_all(self) -> list[Ticket]:
        with self._lock:
            gone = self._all()
            self._waiting.clear()
            self._size = 0
        return gone

    def _all(self) -> list[Ticket]:
        return [ticket for tickets in self._waiting.values() for ticket in tickets]

    def _remove(self, ticket: Ticket) -> None:
        tenant = ticket.generation.tenant
        self._waiting[tenant].remove(ticket)
        self._size -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _note_cancel(self) -> None:
        self.cancelled = True


class Gathering:
    """Counts announced requests, so that an idle engine can wait briefly for them.

    Thread-safety: safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _count
        self._count = 0
        self._all_here = threading.Event()
        self._all_here.set()

    def announce(self) -> Callable[[], None]:
        """Count a request as announced; return the function that counts it as arrived."""
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
        """Return when all have arrived, or after GATHER_SECONDS."""
        self._all_here.wait(GATHER_SECONDS)
