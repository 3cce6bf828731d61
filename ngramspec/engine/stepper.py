"""Stepper: one step of the engine: schedule, propose, decode, verify, accept, emit.

Room: which requests fit beside each other in a cache that all slots share. SlotTasks: work on idle
slots, done by the engine's thread between decodes.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, PromptLogprobs, Rows
from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.plan import Plan, Proposer, tokens_left
from ngramspec._native.engine.slot import Slot
from ngramspec._native.engine.verifier import Dice, Verifier
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.engine.emission import Emission
from ngramspec.engine.generation import FinishReason, Generation
from ngramspec.engine.queue import OnChunk, Queue, Ticket
from ngramspec.engine.request import Adapters
from ngramspec.engine.sequences import MOST_AGAIN, Sequences, choose_slot
from ngramspec.engine.speculator import Speculator
from ngramspec.engine.target import Target
from ngramspec.errors import CapacityError, NgramspecError, StateError

log = logging.getLogger(__name__)
# Rows of logits that a slot may have in a pass for the log-probabilities of its prompt. Its drafts
# may need as many, so this takes no more memory.
PROMPT_ROWS = DEFAULT_MAX_DRAFT + 1
# Tokens of an answer that are counted before they are written. Preempting a request costs little,
# and cells that stand empty cost passes, so what comes after these is not foreseen.
FORESEEN = 64
USUAL_ANSWER = 64.0  # tokens, before any request has ended
ANSWER_WEIGHT = 0.125  # of the newest answer in the mean
T = TypeVar("T")
# Slot, work, cells of the cache that it takes, where its result goes.
Task = tuple[int, Callable[[Slot], Any], int, "Future[Any]"]


class Stepper:
    """Runs the slots. Only the engine's thread calls it.

    A failure of one request ends that request only; a failed decode ends all in its batch.

    The work of every step for every slot is native: Plan, Proposer and Verifier. This class does
    the rest: requests come and go, drafts are rejected, text is streamed.

    Args:
        target: The model.
        capacity: Most tokens in one decode.
        slots: The engine's slots.
        queue: Requests that wait for one.
        valid: uint8 per token of the vocabulary: 1 where a draft may hold it.
        policy: How long drafts may be.
        stats: Counters.
        min_draft: Shorter drafts are not sent, unless the request says otherwise.
        shifts: Whether full contexts shift.
        max_branches: Most branches of a draft.
        exact: Whether rounding must not change.
    """

    def __init__(
        self,
        target: Target,
        capacity: int,
        slots: Sequence[Slot],
        queue: Queue,
        valid: npt.NDArray[np.uint8],
        policy: AutoPolicy,
        stats: EngineStats,
        min_draft: int = 0,
        shifts: bool = False,
        max_branches: int = 1,
        exact: bool = False,
        dice: Dice | None = None,
    ) -> None:
        self._target, self._min_draft = target, min_draft
        self._slots, self._queue = slots, queue
        self._policy, self._stats = policy, stats
        self._batch = Batch(capacity)
        self._rows = Rows(target.vocab_size)
        self.sequences = Sequences(target, slots, stats, shifts, exact)
        self._room = Room(target, slots, self.sequences)
        self._emission = Emission(self._rows, stats, self._release)
        most_behind = MOST_AGAIN if self.sequences.checkpoints else -1
        self.speculator = Speculator(valid, policy, by_dice=dice is not None)
        self._plan = Plan(
            slots, capacity, target.max_outputs, self.speculator.shorten, prompt_rows=PROMPT_ROWS
        )
        self._proposer = Proposer(
            self._plan,
            policy,
            valid,
            stats,
            self.speculator.arbiter,
            self.speculator.free_of,
            most_behind,
            max_branches,
        )
        self._proposer.usual = self._room.usual
        self._verifier = Verifier(self._plan, self._rows, policy, stats, valid, dice)
        self._uses = 0
        self._adapters: Adapters = ()  # that the target computes with
        self._crowded = False  # the last decode had no room for its drafts: the next goes without
        self._full: list[Slot] = []  # whose context is full: shifted before the next decode
        self.waits_for = ""  # room in the cache that the next request needs, "" = none waits for it
        self.tasks = SlotTasks()
        self.starting: Generation | None = None  # neither in the queue nor on a slot
        self.request_ids = [""] * len(slots)  # of the running or the last request of each
        self._look = False  # a request may have been cancelled, or cells of the cache be free

    def step(self) -> bool:
        """Run one decode for all slots that have work; False when there was none."""
        queue, plan = self._queue, self._plan
        waiting = len(queue) > 0 and not self.waits_for
        if self._look or len(self.tasks) or queue.cancelled or plan.needs_schedule(waiting):
            self._schedule()
        if self._full:
            self._shift()
        if not plan.make():
            return False
        self._propose()
        if self._decode():
            for slot in self._verifier.verify():
                generation, on_chunk = slot.generation, slot.on_chunk
                try:
                    self._finish(slot)
                except Exception as error:
                    self._fail(slot, generation, on_chunk, error)
        return True

    def end_all(self, reason: FinishReason, error: Exception | None) -> None:
        """End all requests, the waiting ones too."""
        for ticket in self._queue.take_all():
            self._emission.end(ticket.generation, ticket.on_chunk, reason, error)
        for slot in self._slots:
            self._end(slot, reason, error)
        self.tasks.fail(error or StateError("the engine is closed"))

    def empty_all(self) -> None:
        for slot in self._slots:
            self.sequences.drop(slot)

    def touch(self, slot: Slot) -> None:
        self._uses += 1
        slot.used = self._uses

    def _schedule(self) -> None:
        """End cancelled and overdue requests, give free slots to work on them, then to requests."""
        if self._look:
            self._look, self.waits_for = False, ""
        now = time.perf_counter()
        for slot in self._slots:
            generation = slot.generation
            if generation is None:
                continue
            if generation.cancelled:
                self._end(slot, "cancelled")
            elif slot.deadline and now > slot.deadline:
                self._end(slot, "length")
        for ticket in self._queue.take_cancelled():
            self._emission.end(ticket.generation, ticket.on_chunk, "cancelled")
            self.waits_for = ""  # it may have been the one that needed it
        if self.tasks.run(self._slots, self._room.free):
            while not self.waits_for and self._go_on():
                pass

    def _go_on(self) -> bool:
        """Give room to the oldest preempted request, else to a new one; False if none gets it."""
        preempted = [slot for slot in self._slots if slot.preempted]
        return self._resume(min(preempted, key=_age)) if preempted else self._start()

    def _resume(self, slot: Slot) -> bool:
        generation, on_chunk = slot.generation, slot.on_chunk
        if not self._has_room(generation, slot.length, slot.length):
            return False
        try:
            self.sequences.resume(slot)
        except Exception as error:
            self._fail(slot, generation, on_chunk, error)
        else:
            log.info("request %s goes on in slot %d", generation.request.id, slot.id)
        return True

    def _start(self) -> bool:
        """Give an idle slot to the next request if there is room; False if none gets it.

        A request for which that fails is ended.
        """
        idle = [slot for slot in self._slots if slot.generation is None]
        running = [slot for slot in self._slots if slot.generation is not None]
        adapters = running[0].generation.request.adapters if running else None
        tenants = [slot.generation.tenant for slot in running]
        following = self._queue.next(idle, tenants, adapters) if idle else None
        if following is None:
            return False
        ticket, slots = following
        self.starting, request = ticket.generation, ticket.generation.request
        neighbours = [slot.id for slot in running] if self._target.contiguous else ()
        slot = slots[0]  # is emptied where none can be chosen
        try:
            slot, held = choose_slot(slots, request, neighbours)
            cells = self.sequences.new_cells(slot, request, held)
            if self._has_room(ticket.generation, int(request.prompt_ids.size), cells):
                self._queue.take(ticket)
                self._begin(ticket, slot, held)
        except Exception as error:
            self._queue.take(ticket)
            self._fail(slot, ticket.generation, ticket.on_chunk, error)
        self.starting = None
        return not self.waits_for

    def _has_room(self, generation: Generation, length: int, cells: int) -> bool:
        """Return whether a request fits in the cache beside those that run.

        Where it does not, nothing starts before cells are free: nobody overtakes for ever.

        Args:
            generation: The request's.
            length: Tokens of its text.
            cells: Of these, those for which no other running request has a cell.
        """
        cells += self._room.growth(generation, length)
        free = self._room.free()
        if cells > free:
            name = generation.request.id
            self.waits_for = f"request {name} needs {cells} cells of the cache, {free} are free"
        return cells <= free

    def _preempt(self, slot: Slot, error: CapacityError) -> None:
        """Let a running request wait: its cells go to older ones, and it keeps all else."""
        generation = slot.generation
        log.info(
            "request %s in slot %d waits with %d tokens: %s",
            *(generation.request.id, slot.id, slot.num_past, error),
        )
        self.waits_for = f"request {generation.request.id} waits until an older one has ended"
        try:
            self.sequences.preempt(slot)
        except Exception as failure:
            self._fail(slot, generation, slot.on_chunk, failure)

    def _begin(self, ticket: Ticket, slot: Slot, held: int) -> None:
        """Start a request on a slot, which keeps what the cache holds of its prompt."""
        generation = ticket.generation
        request, speculation = generation.request, generation.request.speculation
        if request.adapters != self._adapters:  # nothing else runs
            self._target.adapt(request.adapters)
            self._adapters = request.adapters
        held = self.sequences.begin(slot, request, held)
        self.touch(slot)
        timings, now = generation.timings, time.perf_counter()
        deadline = 0.0 if request.timeout is None else now + request.timeout
        longest = self.sequences.longest_draft(speculation.max_draft)
        shortest = self._min_draft if speculation.min_draft is None else speculation.min_draft
        if request.prompt_logprobs is not None:
            top = min(request.prompt_logprobs, self._target.vocab_size)
            generation.prompt_likelihoods = PromptLogprobs(int(request.prompt_ids.size) - 1, top)
        slot.start(
            *(generation, ticket.sampler, ticket.sources, ticket.on_chunk, longest, deadline),
            shortest,
            ticket.shadows,
        )
        self.speculator.start(slot)
        self.request_ids[slot.id] = request.id
        timings.started, timings.num_cached = now, held
        # An earlier cancel set the queue's flag, which makes the next step schedule as well.
        generation.slot, generation.on_cancel = slot.id, self._look_again
        self._stats.num_cached_tokens += held
        self._stats.queue_time.observe(now - timings.submitted)
        self._emission.progress(slot)

    def _fail(
        self, slot: Slot, generation: Generation, on_chunk: OnChunk | None, error: Exception
    ) -> None:
        log.warning("request %s failed: %r", generation.request.id, error, exc_info=error)
        if slot.generation is not None:
            self._release(slot)
        if generation.finish_reason is None:
            self._emission.end(generation, on_chunk, "error", error)
        self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        """Empty a sequence; where the target fails, its next request tries again."""
        try:
            self.sequences.drop(slot)
        except Exception as error:
            log.warning("sequence %d could not be emptied: %r", slot.id, error)

    def _look_again(self) -> None:
        self._look = True

    def _shift(self) -> None:
        full, self._full = self._full, []
        for slot in full:
            generation = slot.generation
            if generation is None or slot.length < slot.size:  # its request was cancelled
                continue
            try:
                self.speculator.catch_up(slot)
                first, count = self.sequences.shift(slot, generation.request)
                self.speculator.shift(slot, first, count)
            except Exception as error:
                self._fail(slot, generation, slot.on_chunk, error)
                continue
            self._look_again()
            log.debug("slot %d: discarded %d tokens from %d on", slot.id, count, first)
            generation.timings.num_discarded += count
            self._stats.num_context_shifts += 1
            self._stats.longest = max(self._stats.longest, slot.size)

    def _propose(self) -> None:
        if self._crowded:
            self._crowded = False
            return
        others = self._proposer.propose()
        if others or self._proposer.asking is not None:
            started = time.perf_counter()
            self.speculator.propose(others, self._proposer)
            self._stats.draft_seconds += time.perf_counter() - started

    def _decode(self) -> bool:
        """Compute the batch; on failure end what cannot go on and return False."""
        plan, batch, stats = self._plan, self._batch, self._stats
        plan.fill(batch)
        if self.sequences.checkpoints and not self._save_drafted():
            return False
        started = time.perf_counter()
        try:
            self._target.decode(batch, self._rows)
        except Exception as error:
            if not isinstance(error, NgramspecError):
                log.exception("a pass failed")
            self._give_up(error)
            return False
        seconds, aside = time.perf_counter() - started, self._target.aside
        if self.sequences.unsettled:
            self.sequences.unsettled.clear()
        if not plan.advance(stats, seconds):
            self._policy.observe(len(batch), seconds - aside)
            if aside:
                self._policy.spend(aside)
            return True
        for slot in plan.members:
            if not slot.decoding:
                self._emission.progress(slot)
                if self.waits_for and slot.num_past == slot.length:
                    self._look_again()  # a prompt that begins alike needs fewer cells now
        return True

    def _save_drafted(self) -> bool:
        """Save the sequences that have a draft; False, without drafts, when one failed."""
        for slot in self._plan.members:
            try:
                self.sequences.save_drafted(slot)
            except Exception as error:
                self._plan.forget_drafts()
                self._fail(slot, slot.generation, slot.on_chunk, error)
                return False
        return True

    def _give_up(self, error: Exception) -> None:
        """Make room in a full cache at the cost of drafts, idle slots, the newest; else end all."""
        self._crowded = isinstance(error, CapacityError) and self._plan.num_draft_tokens > 0
        self._plan.forget_drafts()
        if isinstance(error, CapacityError):
            if self._crowded or self.sequences.empty_idle():
                return
            running = [s for s in self._slots if s.generation is not None and not s.preempted]
            if len(running) > 1:
                self._preempt(max(running, key=_age), error)
                return
        for slot in self._plan.members:
            self._end(slot, "error", error)
            self._drop(slot)

    def _finish(self, slot: Slot) -> None:
        """Do the part of a verified slot's step that is not native."""
        if slot.begun:
            self.speculator.begin(slot)
        if slot.num_accepted < slot.num_drafted:
            started = time.perf_counter()
            self.sequences.reject(slot)
            if slot.num_branches > 1:
                seconds = time.perf_counter() - started
                self._policy.observe_branches(slot.num_branches, seconds)
        if not slot.taught or slot.untold:
            self.speculator.commit(slot)
        self._emission.emit(slot)
        slot.forget_draft()
        if slot.generation is not None and slot.length >= slot.size:
            self._full.append(slot)

    def _end(self, slot: Slot, reason: FinishReason, error: Exception | None = None) -> None:
        """End the slot's request, if there is one, without further tokens."""
        generation, on_chunk = slot.generation, slot.on_chunk
        if generation is not None:
            self._release(slot)
            self._emission.end(generation, on_chunk, reason, error)

    def _release(self, slot: Slot) -> None:
        """Free the slot; its tokens stay in the cache for the next request."""
        if slot.decoding:
            self.speculator.end(slot)
        self._stats.longest = max(self._stats.longest, slot.length)
        self._room.learn(slot.generation)
        self._proposer.usual = self._room.usual
        self.sequences.preempted.drop(slot)
        slot.release()
        self._look_again()


def _age(slot: Slot) -> int:
    """Return a number that is larger for a request that has got its slot later."""
    return slot.used


class Room:
    """Counts the cells that requests need now and are likely to need soon.

    Args:
        target: The model.
        slots: All slots of the engine.
        sequences: What the cache holds for them.
    """

    def __init__(self, target: Target, slots: Sequence[Slot], sequences: Sequences) -> None:
        self._cells = target.cells
        self._slots, self._sequences = slots, sequences
        self.usual = USUAL_ANSWER  # tokens

    def learn(self, generation: Generation) -> None:
        """Learn from a request that has ended how long answers are."""
        self.usual += ANSWER_WEIGHT * (generation.num_tokens - self.usual)

    def free(self) -> int:
        """Return how many cells running requests leave to others, which idle slots may hold.

        Without a running request any number: whatever a slot can hold, the cache can.

        Cost: O(slots).
        """
        running = [s for s in self._slots if s.generation is not None and not s.preempted]
        if self._cells is None or not running:
            return sys.maxsize
        texts = sum(slot.length + self.growth(slot.generation, slot.length) for slot in running)
        return self._cells - texts + self._sequences.num_shared(running)

    def growth(self, generation: Generation, length: int) -> int:
        """Return how many tokens a request is likely to add to its text soon.

        Args:
            generation: The request's.
            length: Tokens of prompt and answer so far.
        """
        most = generation.request.max_tokens
        room = self._slots[0].size - length
        most = most if most >= 0 else sys.maxsize
        return min(tokens_left(room, generation.num_tokens, most, self.usual), FORESEEN)


class SlotTasks:
    """Work that waits until its slot is idle and the cache has room. It comes before requests.

    Thread-safety: `put`, `fail` and len from any thread, `run` from the engine's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._waiting: list[Task] = []
        self._running: list[Task] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, slot: int, work: Callable[[Slot], T], cells: int = 0) -> Future[T]:
        """Queue work(slot); cancelling the future drops it if it has not begun."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((slot, work, cells, future))
        return future

    def run(self, slots: Sequence[Slot], free: Callable[[], int]) -> bool:
        """Do all work whose slot is idle; its errors go to the futures.

        free: Returns how many cells of the cache are free for it.

        Returns:
            bool: False where some has an idle slot but no cells: nobody else should take them.
        """
        with self._lock:
            idle = [task for task in self._waiting if slots[task[0]].generation is None]
            ready = [
                task for task in idle if task[3].cancelled() or not task[2] or task[2] <= free()
            ]
            self._waiting = [task for task in self._waiting if task not in ready]
            self._running = ready
        for task in ready:
            slot, work, _, future = task
            with self._lock:  # what `fail` has ended is no longer there
                begun = task in self._running and future.set_running_or_notify_cancel()
            if begun:
                with suppress(InvalidStateError):  # `fail` has ended it meanwhile
                    _run_task(future, partial(work, slots[slot]))
        with self._lock:
            self._running = []
        return len(ready) == len(idle)

    def fail(self, error: Exception) -> None:
        """End all work with an error, also what another thread is at: it may never end."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            running, self._running = self._running, []
        for *_, future in running:
            with suppress(InvalidStateError):  # it has just ended
                future.set_exception(error)
        for *_, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)


def _run_task(future: Future[Any], work: Callable[[], Any]) -> None:
    """Do a piece of work; its result or error goes to the future."""
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
