"""Stepper: one step of the engine: schedule, propose, decode, verify, accept, emit."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ngramspec._batch import Batch
from ngramspec._rows import Rows
from ngramspec.engine.emission import Emission
from ngramspec.engine.figures import EngineStats
from ngramspec.engine.generation import FinishReason
from ngramspec.engine.policy import DraftPolicy
from ngramspec.engine.prediction import PredictionSource
from ngramspec.engine.queue import Queue, Ticket
from ngramspec.engine.schedule import Work, choose_slot, draft_room, plan, share, shrink_prompts
from ngramspec.engine.sequences import Sequences
from ngramspec.engine.slot import Slot
from ngramspec.engine.sources import Chain, DraftSource
from ngramspec.engine.target import Target
from ngramspec.engine.verifier import Verifier
from ngramspec.errors import CapacityError, NgramspecError


class Stepper:
    """Runs the slots. Only the engine's thread calls it.

    Args:
        target: The model.
        capacity: Tokens in one decode at most.
        slots: The engine's slots.
        queue: Requests that wait for one.
        chain: Asks the draft sources.
        policy: How long drafts may be.
        stats: Counters.
    """

    def __init__(
        self,
        target: Target,
        capacity: int,
        slots: Sequence[Slot],
        queue: Queue,
        chain: Chain,
        policy: DraftPolicy,
        stats: EngineStats,
    ) -> None:
        self._target, self._capacity = target, capacity
        self._slots, self._queue = slots, queue
        self._chain, self._policy, self._stats = chain, policy, stats
        self._batch = Batch(capacity)
        self._rows = Rows(target.vocab_size)
        self.sequences = Sequences(target, slots)
        self._emission = Emission(self._rows, stats, self._release)
        parts = (chain, policy, self.sequences, self._emission, stats)
        self._verifier = Verifier(self._rows, capacity + 1, *parts)
        self._uses = 0
        self._crowded = False  # the last decode found no room for its drafts: one without them

    def step(self) -> bool:
        """Run one decode for all slots that have work; False when there was none."""
        self._schedule()
        running = [slot for slot in self._slots if slot.generation is not None]
        work = plan(running, self._capacity)
        if not work:
            return False
        self._propose(work)
        if self._decode(work):
            self._verify(work)
        return True

    def end_all(self, reason: FinishReason, error: Exception | None) -> None:
        """End all requests, the waiting ones too."""
        for ticket in self._queue.take_all():
            self._emission.end(ticket.generation, ticket.on_chunk, reason, error)
        for slot in self._slots:
            self._end(slot, reason, error)

    def empty_all(self) -> None:
        """Empty the target's cache."""
        for slot in self._slots:
            self.sequences.drop(slot)

    def _schedule(self) -> None:
        """End cancelled and overdue requests, give free slots to waiting ones."""
        now = time.perf_counter()
        for slot in self._slots:
            made = slot.generation
            if made is None:
                continue
            limit = made.request.timeout
            if made.cancelled:
                self._end(slot, "cancelled")
            elif limit is not None and now - made.timings.started > limit:
                self._end(slot, "length")
        if not len(self._queue):
            return
        for ticket in self._queue.take_cancelled():
            self._emission.end(ticket.generation, ticket.on_chunk, "cancelled")
        while idle := [slot for slot in self._slots if slot.generation is None]:
            taken = self._queue.take(idle)
            if taken is None:
                return
            self._start(*taken)

    def _start(self, ticket: Ticket, idle: Sequence[Slot]) -> None:
        """Give a slot to a request and keep what the cache holds of its prompt."""
        made = ticket.generation
        request = made.request
        slot, kept = choose_slot(idle, request)
        try:
            kept = self.sequences.begin(slot, request, kept)
        except Exception as error:  # no queue and no slot has it now
            self._emission.end(made, ticket.on_chunk, "error", error)
            raise
        self._uses += 1
        slot.used = self._uses
        slot.generation, slot.sampler, slot.sources = made, ticket.sampler, ticket.sources
        slot.on_chunk = ticket.on_chunk
        slot.clear_draft()
        for source in ticket.sources:
            if isinstance(source, PredictionSource):
                source.predict(slot.id, request.prediction_ids)
        made.slot = slot.id
        made.timings.started, made.timings.num_cached = time.perf_counter(), kept
        self._stats.num_cached_tokens += kept
        self._stats.queue_time.observe(made.timings.started - made.timings.submitted)
        self._policy.begin(slot.id)

    def _propose(self, work: list[Work]) -> None:
        """Collect drafts for the decoding slots and shrink them, fairly, to the room there is."""
        ready = [w.slot for w in work if w.output and w.slot.decoding]
        asked = [slot for slot in ready if slot.sources and self.sequences.may_draft(slot)]
        if self._crowded or not asked:
            self._crowded = False
            return
        started = time.perf_counter()
        self._chain.propose(asked, self._longest)
        drafted = [slot for slot in asked if slot.draft.size]
        if drafted:
            sizes = [slot.draft.size for slot in drafted]
            given = share(sizes, draft_room(work, self._capacity))
            for slot, size in zip(drafted, given, strict=True):
                slot.draft = slot.draft[:size]
            shrink_prompts(work, self._capacity)
        self._stats.draft_seconds += time.perf_counter() - started

    def _longest(self, slot: Slot, source: DraftSource) -> int:
        """Return the longest draft that the slot may get from a source."""
        made = slot.generation
        assert made is not None
        request = made.request
        longest = min(
            self._policy.limit(slot.id, source.name),
            slot.tokens.size - slot.length - 1,
            self._capacity - slot.num_pending,
        )
        for limit in (request.speculation.max_draft, self.sequences.max_draft):
            longest = longest if limit is None else min(longest, limit)
        if request.max_tokens >= 0:
            longest = min(longest, request.max_tokens - made.num_tokens - 1)
        return longest

    def _decode(self, work: list[Work]) -> bool:
        """Compute the batch; on failure end what cannot go on and return False."""
        batch = self._batch
        batch.clear()
        for item in work:
            slot = item.slot
            drafted = slot.draft.size > 0
            if drafted:
                self.sequences.before_draft(slot)
            tokens, draft = slot.pending(item.count), slot.draft if drafted else None
            slot.first_row = batch.add(slot.id, slot.num_past, tokens, draft, item.output)
        started = time.perf_counter()
        try:
            self._target.decode(batch, self._rows)
        except NgramspecError as error:
            self._give_up(work, error)
            return False
        for item in work:
            item.slot.num_before = item.slot.num_past
            item.slot.num_past += item.count + item.slot.draft.size
        self._count_decode(work, len(batch), time.perf_counter() - started)
        return True

    def _give_up(self, work: Sequence[Work], error: NgramspecError) -> None:
        """Make room in the cache, or end the newest request; end all when the target failed."""
        full = isinstance(error, CapacityError)
        drafted = any(item.slot.draft.size for item in work)
        for item in work:
            item.slot.clear_draft()
        if full and (drafted or self.sequences.empty_idle()):
            self._crowded = drafted
            return
        newest = max((item.slot for item in work), key=lambda slot: slot.used)
        for slot in [newest] if full else [item.slot for item in work]:
            self._end(slot, "error", error)
            self.sequences.drop(slot)
        self._stats.num_preempted += full

    def _count_decode(self, work: Sequence[Work], tokens: int, seconds: float) -> None:
        stats = self._stats
        stats.num_steps += 1
        stats.num_batch_tokens += tokens
        stats.num_busy_slots += len(work)
        stats.batch_tokens.observe(tokens)
        prompts = sum(item.count for item in work if not item.slot.decoding)
        if prompts:
            stats.prompt_seconds += seconds
            stats.num_prompt_tokens += prompts
        else:
            stats.decode_seconds += seconds
            self._policy.observe(tokens, seconds)

    def _verify(self, work: Sequence[Work]) -> None:
        """Choose and emit tokens for every slot whose last pending token was decoded."""
        started = time.perf_counter()
        for item in work:
            slot = item.slot
            if slot.first_row >= 0:
                self._verifier.step(slot)
                slot.clear_draft()
        self._stats.verify_seconds += time.perf_counter() - started

    def _end(self, slot: Slot, reason: FinishReason, error: Exception | None = None) -> None:
        """End the slot's request, if there is one, without further tokens."""
        made, on_chunk = slot.generation, slot.on_chunk
        if made is not None:
            self._release(slot)
            self._emission.end(made, on_chunk, reason, error)

    def _release(self, slot: Slot) -> None:
        """Free the slot; its tokens stay in the cache for the next request."""
        if slot.decoding:
            self._chain.end(slot)
        slot.generation, slot.on_chunk, slot.sources, slot.decoding = None, None, (), False
