"""Engine: continuous batching over slots, with drafts verified in the batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.engine.decode import Sampler
from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.reasoning import ReasoningSampler
from ngramspec._native.engine.shadow import Shadow, ShadowRun
from ngramspec._native.engine.slot import Slot
from ngramspec._native.engine.trace import DecisionTrace
from ngramspec._native.engine.transcript import Pieces, Transcript
from ngramspec._native.engine.verifier import Dice
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.drafting.names import (
    DEFAULT_MAX_DRAFT,
    DEFAULT_ORDER,
    DEFAULT_SPEC,
    DRAFTER_NAMES,
    WITH_TREES,
)
from ngramspec.engine.generation import Generation
from ngramspec.engine.info import (
    Drafting,
    DraftModelInfo,
    SlotInfo,
    seconds_saved,
    slot_info,
    unpaid,
)
from ngramspec.engine.policy import AUTO, OFF, make_policy, most_branches
from ngramspec.engine.queue import Gathering, OnChunk, Queue, Ticket
from ngramspec.engine.request import Request, Speculation
from ngramspec.engine.sampling import is_int
from ngramspec.engine.saving import Saving
from ngramspec.engine.sequences import SPARE
from ngramspec.engine.sources.drafters import KEPT_BYTES, Drafters, add_stats
from ngramspec.engine.sources.source import DraftSource, NativeSource, PredictionSource
from ngramspec.engine.stepper import Stepper
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError, CapacityError, InputError, QuotaError, StateError
from ngramspec.files.slot_file import SavedSlot
from ngramspec.stats import SourceStats

T = TypeVar("T")
LEAST_SHIFTED = 2 * SPARE  # tokens of a context that shifts
ALONE = (
    "\0alone"  # ends the namespaces of drafters that are judged alone; no namespace of a key does
)
OWN_PARAMETERS = " (own parameters)"  # ends the name of what requests with such are judged by


class Engine:
    """Runs requests on the slots of a target model; drafts make it faster, never different.

    Every emitted token is chosen by the request's sampler from the target's own logits. Drafts only
    decide how many of them one decode yields.

    Args:
        target: The model. Closed by its owner, after the engine.
        drafter: Names of n-gram drafters, such as "suffix", a native Drafter, a DraftSource of your
            own, or None.
        slots: Requests that run at the same time, 1..target.num_sequences.
        params: Parameters by drafter name, as for create_drafter.
        draft_model: A source that is asked where it is worth its time, such as DraftModel.
        policy: How long drafts may be: "auto", "gate", "fixed" or "shadow", see make_policy; or an
            AutoPolicy. None = "auto".
        max_queue: Requests that may wait for a slot.
        exact: Refuse to run unless the target computes the same bits in any batch, and keep
            batches within the size up to which it does.
        kept_bytes: Memory for drafters with other settings or namespaces than the default, >= 0;
            see Drafters.
        order: Which of the named drafters is asked first, as for create_drafter.
        min_draft: Shorter drafts are not sent, >= 0; a request may want another length.
        context_shift: A full context discards a part of its tokens and goes on, see
            Request.num_keep; otherwise it ends the answer.
        tree: Most branches of a draft; "auto" = 4, if the target can hold them and the policy is
            "auto", which sends those that pay; "off" = 1. Your own drafter, a prediction and a
            draft model draft only one.
        dice: For benchmarks: decides which drafted tokens are right, whatever the target says, so
            the text means nothing; drafts have no branches.

    Raises:
        InputError: A value is out of its bounds.
        BackendError: exact or context_shift, and the target has no such setting.

    beats: Grows while the thread that runs the engine lives; see EngineThread.
    failure: Why that thread stopped running it, None if it has not.
    context_shift: As given.

    Thread-safety: submit, check, save_slot, restore_slot, erase_slot, announce, wake, refuse,
    abandon, stats and slots from any thread, and Generation.cancel; step, wait_for_work, generate,
    fail and close from the one thread that runs the engine.
    """

    def __init__(
        self,
        target: Target,
        drafter: str | Iterable[str] | Any | None = DEFAULT_SPEC,
        *,
        slots: int = 1,
        params: Mapping[str, Mapping[str, Any]] | None = None,
        draft_model: DraftSource | None = None,
        policy: str | AutoPolicy | None = None,
        max_queue: int = 1024,
        exact: bool = False,
        kept_bytes: int = KEPT_BYTES,
        order: str = DEFAULT_ORDER,
        min_draft: int = 0,
        context_shift: bool = False,
        tree: int | str = AUTO,
        dice: Dice | None = None,
    ) -> None:
        _check(target, slots, max_queue, exact)
        if min_draft < 0:
            raise InputError(f"min_draft must be >= 0, got {min_draft}")
        if context_shift:
            _check_shift(target)
        self._target = target
        self.context_shift = context_shift
        self._capacity = _capacity(target, exact)
        self._max_queue = max_queue
        size = target.context_size
        self._slots = [Slot(i, size, self._capacity, context_shift) for i in range(slots)]
        self._queue = Queue()
        named = drafter is None or isinstance(drafter, (str, list, tuple))
        self.drafters = Drafters(drafter if named else None, slots, params, kept_bytes, order)
        self._own = None if named else _own_source(drafter)
        self._prediction = PredictionSource(slots)
        self._draft_model = draft_model
        self._shadows: dict[str, Shadow] = {}
        self._stats = EngineStats()
        ends = frozenset(t for t in range(target.vocab_size) if target.is_end(t))
        if not isinstance(policy, AutoPolicy):
            name = "auto" if policy is None else policy
            policy = make_policy(name, DEFAULT_MAX_DRAFT, max_rollback=target.max_rollback)
        self._policy = policy
        tree = tree if dice is None else OFF
        self._branches, self._unbranched = most_branches(tree, target, policy)
        # Before it learns: a few passes on a busy machine tell little.
        self._costs = policy.costs() if policy.weighs else None
        self._ends, self._pieces = ends, dict[bool, Pieces]()
        self._pieces_of(False)
        self._stepper = Stepper(
            target,
            self._capacity,
            self._slots,
            self._queue,
            _draftable(target.vocab_size, ends),
            self._policy,
            self._stats,
            min_draft,
            context_shift,
            self._branches,
            exact,
            dice,
        )
        stepper = self._stepper
        self._saving = Saving(target, stepper.sequences, self.drafters, stepper.touch)
        self._stepper.empty_all()  # what an earlier engine left in the target
        if target.num_adapters:
            target.adapt(())
        self.beats = 0
        self.failure: BaseException | None = None
        self._closed = False
        self._submitting = threading.Lock()
        self._wake = threading.Event()
        self._gathering = Gathering()

    def submit(
        self, request: Request, on_chunk: OnChunk | None = None, tenant: str = ""
    ) -> Generation:
        """Queue a request.

        Args:
            request: What to continue.
            on_chunk: Called by the engine's thread after each step that emitted something for it,
                and at the end. Must be quick and must not raise.
            tenant: The client, "" if there is only one. Each gets a share of slots, queue and
                memory; none may have more waiting requests than it leaves places free.

        Returns:
            Generation: Of the request, to wait for or to cancel; the engine goes on writing it.

        Raises:
            InputError: The prompt does not fit, or grammar, tokens or drafters are not valid.
            CapacityError: The queue is full.
            QuotaError: The tenant has used up its share of the queue or of drafters.
            StateError: The engine is closed or has failed.

        Cost: a sampler, which reads the prompt for its penalties; a grammar is parsed here. Nothing
        is decoded.
        """
        self._check_open(tenant)
        self.check(request)
        seed = request.sampling.seed
        seed = random.getrandbits(32) if seed is None else seed
        sampler = self._sampler_of(request, seed)
        sampler.accept_prompt(request.prompt_ids)
        stops = [text.encode() for text in request.stop]
        pieces, most = self._pieces_of(request.special), request.max_tokens
        transcript = Transcript(pieces, stops, most, request.min_indent)
        generation = Generation(request, seed, transcript, tenant)
        sources, shadows, held = self._sources_of(request, tenant)

        def release() -> None:
            for key in held:
                self.drafters.release(key)

        generation.on_finish = release
        try:
            with self._submitting:  # a request put after close would never end
                self._check_open(tenant)
                generation.number = self._stats.num_requests
                self._stats.num_requests += 1
                self._queue.put(Ticket(generation, sampler, sources, on_chunk, shadows))
        except BaseException:
            generation.on_finish()
            raise
        self.wake()
        return generation

    def check(self, request: Request) -> None:
        """Check that the prompt of a request, its adapters and its slot fit, as submit does.

        Raises:
            InputError: One does not.
        """
        ids, vocab_size = request.prompt_ids, self._target.vocab_size
        if ids.size >= self.context_size:
            raise InputError(
                f"the prompt has {ids.size} tokens, the context of a slot {self.context_size}: "
                "shorten it, or set more context (context_size; -c of a command)"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
            raise InputError(f"token ids of the prompt must be in 0..{vocab_size - 1}")
        for number, _ in request.adapters:
            if number >= (count := self._target.num_adapters):
                raise InputError(f"there is no adapter {number}; {count} are loaded")
        if not -1 <= request.slot < len(self._slots):
            raise InputError(f"slot must be in -1..{len(self._slots) - 1}, got {request.slot}")

    def step(self) -> bool:
        """Run one decode for all slots that have work; False when there was none."""
        return self._stepper.step()

    def save_slot(self, slot: int, owner: str = "") -> Future[SavedSlot]:
        """Return a copy of what a slot holds, taken between two decodes once it is idle.

        Args:
            slot: 0..num_slots - 1.
            owner: How namespaces begin whose text may be saved, "" = any; else nothing is saved.

        Raises:
            InputError: No such slot.
            StateError: The engine is closed or has failed.

        The future raises StateError if the engine is closed before, and BackendError if the target
        cannot save.
        """
        return self._on_slot(slot, lambda one: self._saving.take(one, owner))

    def restore_slot(
        self, slot: int, saved: SavedSlot, owner: str = "", tenant: str = ""
    ) -> Future[int]:
        """Make a slot hold what was saved, once it is idle and the cache has room.

        The future's result is how many tokens that is.

        Args:
            slot: 0..num_slots - 1.
            saved: From save_slot, of this model in these settings.
            owner: As for save_slot; what another one saved is refused.
            tenant: As for submit.

        Raises:
            As save_slot.

        The future raises InputError if it cannot be used here, then nothing has changed, and
        CapacityError if the cache has no room, then the slot is empty.
        """
        return self._on_slot(
            slot,
            lambda idle: self._saving.put_back(idle, saved, owner, tenant),
            min(int(saved.tokens.size), self.context_size),
        )

    def erase_slot(self, slot: int, owner: str = "") -> Future[int]:
        """Empty a slot once it is idle; return how many tokens its cache held.

        Arguments and errors as save_slot.
        """
        return self._on_slot(slot, lambda one: self._saving.erase(one, owner))

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Run requests to their end in the calling thread, one per slot at a time.

        Not beside an EngineThread, whose steps these would be: use submit there.

        Raises:
            As submit; the requests before it are cancelled then.
        """
        generations: list[Generation] = []
        try:
            for request in requests:
                while self._full and self.step():
                    pass
                generations.append(self.submit(request))
        except Exception:
            for generation in generations:
                generation.cancel()
            raise
        while self.step():
            pass
        return generations

    def announce(self) -> Callable[[], None]:
        """Announce a request; call the returned function once it is submitted or given up.

        An idle engine waits briefly for announced requests, so that those that come together start
        together: their prompts share a batch, and so do more of their drafts.
        """
        return self._gathering.announce()

    def wait_for_work(self, timeout: float) -> None:
        """Return when something was submitted, after `wake`, or after `timeout` seconds."""
        if not len(self._queue):
            self._wake.wait(timeout)
        self._wake.clear()
        if len(self._queue):
            self._gathering.wait()

    def wake(self) -> None:
        """Let `wait_for_work` return, now or when it is next called."""
        self._wake.set()

    def refuse(self) -> None:
        """Accept no more requests; submitted ones go on."""
        with self._submitting:
            self._closed = True

    def close(self) -> None:
        """Refuse new requests and cancel the others. Not while another thread runs a step."""
        self.refuse()
        self._stepper.end_all("cancelled", None)

    def fail(self, error: Exception) -> None:
        """End all requests with an error and empty the cache; new ones are still accepted."""
        self._stepper.end_all("error", error)
        self._stepper.empty_all()

    def abandon(self, failure: BaseException) -> None:
        """Accept no more requests and mark all open ones as failed, without a step or a callback.

        For a thread that cannot end them properly: it is exiting, or hangs in a step. What they
        emitted stays; slots and target are not touched.
        """
        self.failure = self.failure or failure
        self.refuse()
        error = BackendError(f"the engine has failed: {type(failure).__name__}: {failure}")
        waiting = [ticket.generation for ticket in self._queue.take_all()]
        running = [slot.generation for slot in self._slots] + [self._stepper.starting]
        finished = self._stats.finished
        for generation in (*waiting, *running):
            if generation is not None and generation.finish_reason is None:
                finished["error"] = finished.get("error", 0) + 1
                generation.finish("error", error)
        self._stepper.tasks.fail(error)

    def slots(self) -> tuple[SlotInfo, ...]:
        """Return the current state of every slot."""
        waits_for = self._stepper.waits_for
        ids = self._stepper.request_ids
        return tuple(slot_info(*pair, waits_for) for pair in zip(self._slots, ids, strict=True))

    def stats(self) -> EngineStats:
        """Return the counters: the engine's own object, which goes on changing."""
        self._stats.num_rollback_failures = self._stepper.sequences.num_failures
        return self._stats

    def source_stats(self) -> dict[str, SourceStats]:
        """Return counts by draft source."""
        total = self.drafters.stats()
        for source in (self._own, self._prediction, self._draft_model):
            if source is not None:
                add_stats(total, source.stats())
        return total

    def trace_to(self, trace: DecisionTrace) -> None:
        """Have the decisions on all drafts traced, of requests that begin from now on.

        What draft models, MTP heads, predictions and sources in Python offer is not traced.
        """
        for slot in self._slots:
            slot.trace = trace

    def shadows(self) -> tuple[Shadow, ...]:
        """Return what drafters that are only judged would have brought, by how fast they are."""
        shadows = tuple(self._shadows.values())
        return tuple(sorted(shadows, key=lambda shadow: -shadow.speedup))

    def seconds_saved(self) -> dict[str, float]:
        """Return an estimate of the seconds that each draft source has saved, with minus if lost.

        Empty unless the policy knows what passes cost in seconds.
        """
        if not (self._policy.weighs and self._policy.timed):
            return {}
        return seconds_saved(self._stats, self.source_stats())

    @property
    def draft_model(self) -> DraftModelInfo | None:
        """Return what is known of the draft model, None if there is none."""
        source = self._draft_model
        if source is None:
            return None
        unknown = DraftModelInfo(
            name=source.name, path="", nbytes=0, n_max=DEFAULT_MAX_DRAFT, n_min=0, p_min=0.0
        )
        return source.info or unknown

    def drafting(self) -> Drafting:
        """Return what drafts for requests that ask for nothing else, in which memory, or why not.

        Cost: O(drafters) and a look at the policy's costs; for monitoring.
        """
        drafters, own, small = self.drafters.shared_bytes(), self._own, self.draft_model
        if own is not None:
            drafters[own.name] = own.nbytes
        longest, notes = self._longest_draft(self._longest_of_sources)
        if not drafters and small is None:
            notes = ["no drafter and no draft model is named"]
        notes += () if small is None else small.notes
        return Drafting(
            drafters=drafters,
            slot_bytes=self.drafters.slot_bytes(),
            draft_model=small,
            policy=self._policy.name,
            longest=longest,
            branches=self._branches if self._has_trees else 1,
            branch_bytes=self._target.branch_bytes,
            types=(*DRAFTER_NAMES, *self._second) if self._longest_draft(1)[0] else (),
            rollback=self._stepper.sequences.rollback,
            state_bytes=self._target.state_bytes,
            shadows=self.shadows(),
            notes=tuple(notes),
        )

    @property
    def longest_draft(self) -> int:
        """Return the longest draft sent for requests that ask for nothing else; 0 = none is."""
        return 0 if self._policy.shadow else self._longest_draft(self._longest_of_sources)[0]

    @property
    def _longest_of_sources(self) -> int:
        own, small = self._own, self.draft_model
        longest = self.drafters.max_draft if own is None else own.max_draft
        return max(longest, 0 if small is None else small.n_max)

    def types_of(self, speculation: Speculation) -> tuple[str, ...]:
        """Return the names of what drafts for a request with these settings.

        Raises:
            InputError: They name a drafter that is unknown, or a draft model that is not there.
        """
        if not (speculation.enabled and self._stepper.sequences.can_reject):
            return ()
        types = self.drafters.types if self._own is None else (self._own.name,)
        names = speculation.drafters(types)
        if speculation.types is None:
            return (*names, *self._second)
        for name in names:
            if name not in DRAFTER_NAMES and name not in self._second:
                raise InputError(f"types names {name}, but there is no such draft model")
        return names

    @property
    def _second(self) -> tuple[str, ...]:
        """Return the draft model's name for requests, or none."""
        return () if self._draft_model is None else (self._draft_model.name,)

    def _longest_draft(self, longest: int) -> tuple[int, list[str]]:
        """Return the longest draft that is ever sent of those that sources have, and notes."""
        notes, sequences = list[str](), self._stepper.sequences
        if not sequences.can_reject:
            return 0, ["the model cannot take tokens back"]
        if self._capacity == 1:
            return 0, ["a batch holds a single token"]
        longest = min(longest, self._policy.max_draft)
        room = min(self._capacity, self._target.max_outputs or self._capacity)
        most = min(longest, room - 1, sequences.longest_draft(None) or longest)
        if most < longest and most == room - 1:
            notes.append(f"a batch holds {room} tokens")
        elif most < longest:
            notes.append(
                f"longer drafts would need memory for more than {most} states of each slot"
            )
        if self._unbranched and self._has_trees:
            notes.append(f"drafts have no branches: {self._unbranched}")
        if self._costs is not None and (why := unpaid(self._costs, most)):
            notes.append(why)
        return most, notes

    @property
    def _has_trees(self) -> bool:
        """Return whether a drafter that runs by default drafts trees."""
        return self._own is None and any(name in WITH_TREES for name in self.drafters.types)

    def source_failures(self) -> dict[str, int]:
        """Return how often each source raised."""
        return dict(self._stepper.speculator.failures)

    def stats_lines(self, *, verbose: bool = False) -> list[str]:
        """Return a line for every source that was asked; verbose: llama-server's own."""
        asked = (stats for stats in self.source_stats().values() if stats.propose_calls)
        return [stats.line() if verbose else str(stats) for stats in asked]

    @property
    def context_size(self) -> int:
        """Return the most tokens of prompt and answer in a slot."""
        return self._target.context_size

    @property
    def batch_capacity(self) -> int:
        """Return the most tokens in one decode."""
        return self._capacity

    @property
    def num_slots(self) -> int:
        """Return the number of slots."""
        return len(self._slots)

    @property
    def queue_length(self) -> int:
        """Return how many requests wait for a slot."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Return whether a request runs or waits."""
        return self._stats.num_requests > sum(self._stats.finished.values())

    @property
    def _num_idle(self) -> int:
        """Return the number of idle slots, which take waiting requests at once."""
        return sum(slot.generation is None for slot in self._slots)

    @property
    def _full(self) -> bool:
        """Return whether the queue is full."""
        return len(self._queue) >= self._max_queue + self._num_idle

    def _check_open(self, tenant: str) -> None:
        """Raise unless a request may be put into the queue."""
        if self.failure is not None:
            raise StateError("the engine has failed and takes no more requests")
        if self._closed:
            raise StateError("the engine is closed")
        if self._full:
            raise CapacityError(f"{len(self._queue)} requests are waiting already")
        if tenant:
            idle, waiting = self._num_idle, len(self._queue)
            own = self._queue.num_waiting(tenant) - idle
            if own > 0 and own >= self._max_queue - max(0, waiting - idle):
                raise QuotaError(
                    f"{own} requests of this client are waiting already: "
                    "the remaining places are for other clients"
                )

    def _on_slot(self, slot: int, work: Callable[[Slot], T], cells: int = 0) -> Future[T]:
        if not (is_int(slot) and 0 <= slot < len(self._slots)):
            raise InputError(f"slot must be in 0..{len(self._slots) - 1}, got {slot!r}")
        with self._submitting:
            if self.failure is not None or self._closed:
                raise StateError("the engine is closed, or has failed")
            future = self._stepper.tasks.put(slot, work, cells)
        self.wake()
        return future

    def _sampler_of(self, request: Request, seed: int) -> Sampler:
        """Return a fresh sampler for a request."""
        sampler = self._target.sampler(request.sampling, seed)
        budget = request.reasoning_budget
        if budget is None:
            return sampler
        marks = (budget.open, *budget.closes)
        opening, *closes = (mark.encode("utf-8", "replace") for mark in marks)
        return ReasoningSampler(
            sampler,
            self._pieces_of(True),
            opening,
            closes,
            budget.tokens,
            budget.end_ids,
            budget.begun,
        )

    def _pieces_of(self, special: bool) -> Pieces:
        """Return the texts of all tokens; those with special tokens are made on first use."""
        pieces = self._pieces.get(special)
        if pieces is None:
            texts = [self._target.piece(t, special) for t in range(self._target.vocab_size)]
            pieces = self._pieces[special] = Pieces(texts, self._ends)
        return pieces

    def _sources_of(
        self, request: Request, tenant: str
    ) -> tuple[tuple[DraftSource, ...], tuple[ShadowRun, ...], list[Any]]:
        """Return the sources of a request in their order of priority, and what to release.

        With drafters that are only judged, beside one another, there are no sources.
        """
        if not (request.speculation.enabled and self._stepper.sequences.can_reject):
            return (), (), []
        ngram, speculation, keys = self._own, request.speculation, list[Any]()
        if ngram is not None and (speculation.types is not None or speculation.params):
            raise InputError("an engine with a drafter of its own takes no types and params")
        small, names = self._draft_model, self.types_of(speculation)
        if small is not None and small.name not in names:
            small = None
        if ngram is None:
            ngram, held = self.drafters.hold(speculation, tenant)
            keys.append(held)
        if speculation.shadow or self._policy.shadow:
            try:
                return (), tuple(self._shadows_of(ngram, speculation, tenant, keys)), keys
            except BaseException:
                for key in keys:
                    self.drafters.release(key)
                raise
        prediction = self._prediction if request.prediction_ids.size else None
        sources = (prediction, ngram, small)
        return tuple(source for source in sources if source is not None), (), keys

    def _shadows_of(
        self, ngram: DraftSource | None, speculation: Speculation, tenant: str, keys: list[Any]
    ) -> Iterator[ShadowRun]:
        """Yield what judges the drafters of a request, and of the default also each alone.

        Args:
            ngram: All of them.
            speculation: Of the request.
            tenant: Whose chains these are.
            keys: Receives what to release.
        """
        if not isinstance(ngram, NativeSource):
            return
        names = ngram.native.sources
        yield self._shadow(ngram, OWN_PARAMETERS if any(speculation.params.values()) else "")
        if len(names) == 1 or self._own is not None or speculation.types or speculation.params:
            return
        # In pools of their own: each knows as much of the text as its own passes would have shown.
        namespace = f"{speculation.namespace}{ALONE}"
        for name in names:
            own = Speculation(types=(name,), namespace=namespace)
            try:
                alone, key = self.drafters.hold(own, tenant)
            except QuotaError:  # the request itself needs none of this
                return
            keys.append(key)
            if alone is not None:
                yield self._shadow(alone)

    def _shadow(self, source: NativeSource, kind: str = "") -> ShadowRun:
        name = ",".join(source.native.sources) + kind
        shadow = self._shadows.setdefault(name, Shadow(name, self._policy))
        return ShadowRun(shadow, source)


def _check(target: Target, slots: int, max_queue: int, exact: bool) -> None:
    if not 1 <= slots <= target.num_sequences:
        raise InputError(f"slots must be in 1..{target.num_sequences}, got {slots}")
    if max_queue < 0:
        raise InputError(f"max_queue must be >= 0, got {max_queue}")
    if exact and target.exact_batch < 1:
        raise BackendError(
            "no setting is known in which this target computes the same bits in any batch"
        )
    most = _capacity(target, exact)
    if target.max_outputs:
        most = min(most, target.max_outputs)
    if most < slots:
        raise InputError(f"{slots} slots need batches of {slots} tokens, the target allows {most}")


def _own_source(drafter: Any) -> DraftSource:
    if isinstance(drafter, Drafter):
        return NativeSource(drafter, DraftSource.name)
    if not (isinstance(drafter, DraftSource) and isinstance(drafter.name, str)):
        kind = type(drafter).__name__
        raise InputError(f"drafter must be names, a Drafter or a named DraftSource, got {kind}")
    return drafter


def _check_shift(target: Target) -> None:
    if target.no_shift:
        raise BackendError(f"the context of this model cannot shift: {target.no_shift}")
    if target.context_size < LEAST_SHIFTED:
        size = target.context_size
        raise InputError(f"only contexts of {LEAST_SHIFTED} tokens or more shift, got {size}")


def _capacity(target: Target, exact: bool) -> int:
    """Return how many tokens a decode may hold."""
    return min(target.max_batch, target.exact_batch) if exact else target.max_batch


def _draftable(vocab_size: int, ends: Iterable[int]) -> Any:
    """Return a flag per token: 1 where a draft may hold it."""
    flags = np.ones(vocab_size, dtype=np.uint8)
    flags[list(ends)] = 0
    return flags
