"""NgramDraft: the `draft_model=` of llama-cpp-python, on top of the native drafters.

The host calls the object once per verification round with all token ids so far. Everything else is
inferred: `Drafter.follow` compares the ids with the slot's history, so a continuation is learned
with its accepted draft tokens, and anything else (new request, edited prompt, cut context) begins
the request again at the cost of the changed suffix.

What it must not propose, the host does not say: batch size, vocabulary, end tokens, whether the
model can take tokens back. A wrong guess ends the process or changes the text. So it proposes to
those Llamas only that it knows (see `streams`). Drafters that learn from logits are shown those of
the last pass (see Observer).
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.arrays import TokenIds
from ngramspec.drafting.config import MAX_CHOSEN, check_int
from ngramspec.drafting.names import DEFAULT_POLICY, DEFAULT_SPEC
from ngramspec.errors import InputError, NgramspecError, StateError
from ngramspec.hosts.llama_cpp.streams import Host, Stream, StreamTable, stated_fingerprints

if TYPE_CHECKING:
    from llama_cpp.llama_speculative import LlamaDraftModel
else:
    LlamaDraftModel = object  # importing us must not import llama_cpp

log = logging.getLogger(__name__)

# With the token before it, one less than 64, where CPU flash attention changes kernels.
MAX_DRAFT = 62
EMPTY = np.empty(0, dtype=np.intc)
UNKNOWN = (
    "NgramDraft proposes nothing: these token ids are in the buffer of no llama_cpp.Llama, and for "
    "any other caller no draft is known to be safe. Use ngramspec.attach(llama)"
)
BOUND = (
    "drafts through draft_model=: llama-cpp-python computes the logits of the whole prompt, and "
    "raises ValueError on a text of more than %d tokens. ngramspec.attach() and ngramspec.Llama "
    "have no such limits"
)
LATE = (
    "NgramDraft proposes nothing: llama-cpp-python makes no logits for drafts in a Llama whose "
    "constructor did not get the draft_model. Use ngramspec.attach() or ngramspec.Llama"
)
MOST_ROWS = 16  # of a pass, as the engine shows

Logits = npt.NDArray[np.float32]


@dataclass
class DraftCounters:
    """What one NgramDraft did: calls, non-empty drafts, tokens, failures, time.

    drafted counts tokens handed to the host, accepted those of them that it committed.
    failures counts calls answered with an empty draft because something was wrong with the input.
    """

    calls: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    failures: int = 0
    seconds: float = 0.0

    def count(self, drafted: int) -> None:
        """Count one call and its draft of `drafted` tokens."""
        self.calls += 1
        self.drafts += drafted > 0
        self.drafted += int(drafted)


class RoundClock:
    """Measures the time from one call of the host to the next: decode, sampling and overhead.

    Args:
        policy: Learns the times; None = they are not used.
    """

    def __init__(self, policy: AutoPolicy | None) -> None:
        self._policy = policy
        self._stream: Stream | None = None
        self._num_tokens = 0
        self._started = self._stopped = 0.0

    def start(self, stream: Stream, length: int, drafted: int) -> None:
        """Begin a round: the host has a text of `length` tokens and decodes the draft."""
        self._stream, self._length, self._num_tokens = stream, length, 1 + drafted
        self._started = time.perf_counter()

    def stop(self) -> None:
        """End the round: the host calls again."""
        self._stopped = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave out time of the round that was spent outside the host."""
        self._started += seconds

    def learn(self, stream: Stream, length: int) -> None:
        """Let the policy learn the round, if this call continues the last one."""
        if self._policy is not None and self._stream is stream:
            emitted = length - self._length
            if 0 < emitted <= self._num_tokens:
                self._policy.observe(self._num_tokens, self._stopped - self._started)
        self._stream = None


class NgramDraft(LlamaDraftModel):
    """Propose drafts to llama-cpp-python from n-grams of the text itself.

    Args:
        spec: Drafter names as for create_drafter, comma-separated.
        max_draft: Longest draft, in tokens, >= 1; cut to n_batch - 1 of the host on every call.
            The default keeps the batch below 64 tokens: from there llama.cpp's CPU flash attention
            computes by another kernel, with other rounding (docs/explanation/exactness.md).
        slots: Token sequences followed at the same time; the least recently used is replaced.
        policy: "auto": drafts are as long as their tokens pay, by the measured cost of rounds;
            "fixed": as long as the drafters make them; or an AutoPolicy of your own.
        drafter: A ready Drafter to use instead of `spec` and `policy`; its slots are used and must
            not be shared.
        pool: SuffixPool for suffix, SuccessorPool for recycle, or HashPool or pool file for
            ngram-mod; shared with other drafters, threads and, as a file, processes. Kept, not
            copied.
        params: Drafter parameters as for create_drafter. A `static`, `dynamic` or `pool` file of
            another tokenizer than the host's gives no drafts and one warning; attach() refuses it.

    Raises:
        FormatError, VocabMismatchError, OSError: As create_drafter, for statistics files.
        InputError: An argument is out of range, unknown or contradicts another.

    Give it to attach() or ngramspec.Llama. Any Llama may have it as its draft_model, and gets the
    drafts that this interface allows: none for a Llama whose constructor did not get it, beyond the
    rows of `scores` (n_batch, or n_ctx with logits_all=True), beside a logits processor or for a
    recurrent model; custom stopping criteria may see unverified tokens, and the last draft of an
    answer is learnt with the next one. The host then computes logits at every position of a prompt,
    and raises ValueError on a text of more tokens than `scores` has rows, whatever is drafted. A
    warning at the first call says so.

    Threads: safe; one lock around each call. Cost of a call: O(tokens) to compare, by memcmp.
    Pickling: spec, parameters and limits; histories, counters and a shared pool stay behind, so
    the copy starts fresh, with a pool of its own. Not possible with `drafter` or an AutoPolicy.
    """

    def __init__(
        self,
        spec: Any = DEFAULT_SPEC,
        *,
        max_draft: int = MAX_DRAFT,
        slots: int = 4,
        policy: Any = DEFAULT_POLICY,
        drafter: Any = None,
        pool: Any = None,
        **params: Any,
    ) -> None:
        for name, value in {"max_draft": max_draft, "slots": slots}.items():
            check_int(name, value, 1, 2**31 - 1)
        self._config: dict[str, Any] = {"spec": spec, "max_draft": max_draft, "slots": slots}
        self._config.update(policy=policy, **params)
        self._from_drafter = drafter is not None
        chosen = _make_policy(policy, max_draft)
        self.drafter: Any = _make_drafter(drafter, spec, slots, pool, params, chosen)
        self.clock = RoundClock(self.drafter.policy)
        self._observer = Observer(self.drafter)
        self.max_draft = max_draft
        self.counters = DraftCounters()
        self._warned = False
        self._lock = threading.RLock()
        stated = {} if self._from_drafter else stated_fingerprints({"pool": pool, **params})
        self._streams = StreamTable(self.drafter.slots, stated)

    def bind(self, llama: Any) -> Host:
        """Learn batch size, vocabulary and end tokens of `llama`; keeps no reference to it.

        The first call for a Llama does it, too.

        Args:
            llama: A llama_cpp.Llama, whose draft_model this object is or will be.

        Returns:
            The facts learned, owned by this object.

        Raises:
            InputError, StateError, BackendError: Not a Llama, closed, or of another release.
        """
        with self._lock:
            return self._streams.bind(llama)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """Propose what may follow `input_ids`; the call that llama-cpp-python makes.

        Args:
            input_ids: All token ids so far, oldest first, int32, shape (n,): the array that the
                host passes, not a copy of it. Not kept.
            kwargs: Ignored; the host passes none.

        Returns:
            np.intc, shape (k,), 0 <= k <= min(max_draft, n_batch - 1). A new array; no token in it
            ends the generation, and all are below n_vocab. Empty where no Llama owns the ids.

        Cost: O(n) memory compare plus O(new tokens + k); the first call for a Llama also looks at
        all objects of the process, some 10 ms. Threads: safe.
        """
        with self._lock:
            self.clock.stop()
            started = time.perf_counter_ns()
            draft = EMPTY
            ids = np.ascontiguousarray(input_ids, dtype=np.intc)
            try:
                host = self._streams.host_of(ids)
                if not self._warned:
                    self._warn(host)
                if host is not None and not host.refusal:
                    draft = self._next_draft(host, ids)
            except NgramspecError as error:
                self._failed(error)
            self.counters.count(draft.size)
            self.counters.seconds += (time.perf_counter_ns() - started) * 1e-9
            return draft.copy()

    def finish(self, llama: Any, ids: TokenIds) -> None:
        """Learn the end of an answer, for which the host asks no more drafts.

        Args:
            llama: The Llama that wrote it.
            ids: Prompt and answer, oldest first.

        Cost: as a call. Threads: safe.
        """
        with self._lock:
            self.clock.stop()
            host = self._streams.bind(llama)
            if host.refusal:
                return
            try:
                self._take_in(self._streams.stream_of(host), ids, ended=True)
            except NgramspecError as error:
                self._failed(error)

    def stats(self) -> Any:
        """Return the drafter's figures per source, as Drafter.stats does."""
        return self.drafter.stats()

    def __getstate__(self) -> dict[str, Any]:
        if self._from_drafter or not isinstance(self._config["policy"], str):
            origin = "a Drafter" if self._from_drafter else "an AutoPolicy"
            raise StateError(f"made from {origin}, so it cannot be pickled: give its name instead")
        return dict(self._config)

    def __setstate__(self, state: dict[str, Any]) -> None:
        settings = dict(state)
        self.__init__(settings.pop("spec"), **settings)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"NgramDraft({','.join(self.drafter.sources)!r}, max_draft={self.max_draft})"

    def _failed(self, error: NgramspecError) -> None:
        self.counters.failures += 1
        if self.counters.failures == 1:
            log.warning("no draft: %s (later failures are only counted)", error)

    def _warn(self, host: Host | None) -> None:
        """Say once, while the text is short, what a draft_model cannot do."""
        if host is None:
            log.warning(UNKNOWN)
        elif host.attachment() is not None or host.refusal:
            return
        elif host.num_rows():
            log.warning(BOUND, host.num_rows())
        else:
            log.warning(LATE)
        self._warned = True

    def _next_draft(self, host: Host, ids: TokenIds) -> TokenIds:
        stream = self._streams.stream_of(host)
        host.arm(EMPTY, ids.size)  # whatever happens below
        limit = min(self.max_draft, host.room(ids.size))
        self._take_in(stream, ids)
        draft = EMPTY
        if limit > 0:
            draft = self.drafter.propose(stream.slot, limit)
            draft = draft[: host.usable_len(draft)]
            self.drafter.shorten(stream.slot, draft.size)
        stream.draft = draft
        self.clock.start(stream, ids.size, draft.size)
        host.arm(draft, ids.size)
        return draft

    def _take_in(self, stream: Stream, ids: TokenIds, ended: bool = False) -> None:
        """Learn the text and the pass that made its newest tokens."""
        observed = self._observer.observe_draft(stream, ids)
        if self._learn(stream, ids, ended) >= 0:
            self.clock.learn(stream, int(ids.size))
        if not observed:
            self._observer.observe_text(stream, ids)

    def _learn(self, stream: Stream, ids: TokenIds, ended: bool) -> int:
        """Make the slot's history equal `ids`; return accepted tokens, -1 for another text."""
        new = ids[stream.length :]
        right = stream.draft[: new.size]
        if ended and new.size and stream.matches(ids) and np.array_equal(new, right):
            # It ended inside the draft; follow() takes the newest token for the target's own.
            accepted = int(new.size)
            self.drafter.accept(stream.slot, new, accepted)
        else:
            accepted = int(self.drafter.follow(stream.slot, ids, stream.host.n_vocab))
        if accepted > 0:
            self.counters.accepted += min(accepted, int(stream.draft.size))
        stream.saw(ids)
        stream.draft = EMPTY
        return accepted


def _make_policy(policy: Any, max_draft: int) -> AutoPolicy | None:
    if isinstance(policy, AutoPolicy):
        return policy
    if policy not in ("auto", "fixed"):
        raise InputError(f'policy must be "auto", "fixed" or an AutoPolicy, got {policy!r}')
    return AutoPolicy(min(max_draft, MAX_CHOSEN)) if policy == "auto" else None


def _make_drafter(
    drafter: Any, spec: Any, slots: int, pool: Any, params: dict[str, Any], policy: Any
) -> Any:
    if drafter is not None:
        if pool is not None or params:
            raise InputError("give either drafter or its parameters, not both")
        return drafter
    import ngramspec  # here, not above: the package imports this module lazily

    if pool is not None:
        params = {**params, "pool": pool}
    return ngramspec.create_drafter(spec, slots=slots, policy=policy, **params)


class LastBatch:
    """The batch that a Llama decoded last; holds the Llama weakly.

    n_vocab: Logits of a row.
    """

    __slots__ = ("_arrays", "_llama", "n_vocab")

    def __init__(self, llama: Any) -> None:
        self._llama = weakref.ref(llama)
        self.n_vocab = int(llama.n_vocab())
        raw, size = llama._batch.batch, int(llama.n_batch)
        self._arrays: tuple[TokenIds, TokenIds, npt.NDArray[np.int8]] = (
            np.ctypeslib.as_array(raw.token, shape=(size,)),
            np.ctypeslib.as_array(raw.pos, shape=(size,)),
            np.ctypeslib.as_array(raw.logits, shape=(size,)),
        )

    def tokens(self) -> tuple[int, TokenIds]:
        """Return the position of the batch's first token, and its tokens: a view, perhaps empty."""
        token, pos, _ = self._arrays
        size = self._size()
        return (int(pos[0]), token[:size]) if size else (0, token[:0])

    def first_row(self) -> int:
        """Return the first token from which on all of the batch have logits."""
        marks = self._arrays[2][: self._size()]
        without = np.flatnonzero(marks == 0)
        return int(without[-1]) + 1 if without.size else 0

    def rows(self, start: int, stop: int) -> Logits | None:
        """Return the logits after tokens start..stop - 1 of the batch, None where there are none.

        Valid until the Llama decodes again. start < stop.
        """
        import llama_cpp.llama_cpp as lib

        llama = self._llama()
        context = None if llama is None else llama._ctx.ctx
        if context is None:
            return None
        first = lib.llama_get_logits_ith(context, start)
        last = lib.llama_get_logits_ith(context, stop - 1)
        if not first or not last:
            return None
        size, at = (stop - start) * self.n_vocab, ctypes.addressof(first.contents)
        if ctypes.addressof(last.contents) - at != (size - self.n_vocab) * 4:
            return None  # another batch has been decoded, past the Llama
        memory = (ctypes.c_float * size).from_address(at)
        return np.ctypeslib.as_array(memory).reshape(stop - start, self.n_vocab)

    def _size(self) -> int:
        llama = self._llama()
        raw = None if llama is None else llama._batch.batch  # None once it is closed
        return 0 if raw is None else min(int(raw.n_tokens), self._arrays[0].size)


class Observer:
    """Shows rows to one drafter; does nothing if its sources learn nothing from logits.

    A draft model is called after each pass, so the pass of the last draft can be seen then: before
    the drafter learns the new text, while the draft is still pending. llama.cpp keeps a batch's
    rows until the next one, in the order of its tokens, as the model made them: samplers, penalties
    and logits processors work on copies. llama-cpp-python writes every batch into the same arrays.
    Together they tell which row follows which token, also of rejected drafts, with no attribute
    replaced and no row copied.
    """

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self._useful = drafter.top > 0
        self._batches: weakref.WeakKeyDictionary[Host, LastBatch] = weakref.WeakKeyDictionary()

    def observe_draft(self, stream: Stream, ids: TokenIds) -> bool:
        """Show the pass that verified the stream's draft, right tokens and wrong ones.

        Call it before the drafter is told of `ids`.

        Returns:
            Whether there was such a pass: a host may have cut the draft, or read another text.

        Cost: about 45 us per row of 150,000. Copies no row.
        """
        batch = self._batch_of(stream.host)
        length, tail = stream.length, stream.tail[-2:]
        if batch is None or not 0 < length < ids.size:
            return False
        first, tokens = batch.tokens()
        at = length - 1 - first  # of the newest token that the draft follows
        if not batch.first_row() <= at < tokens.size or tokens[at] != tail[-1]:
            return False
        shown = tokens[at + 1 :]
        if not np.array_equal(shown, stream.draft[: shown.size]):
            return False
        if not np.array_equal(ids[length - tail.size : length], tail):
            return False
        rows = batch.rows(at, min(tokens.size, at + MOST_ROWS))
        if rows is not None:
            self._drafter.observe_logits(stream.slot, rows)
        return rows is not None

    def observe_text(self, stream: Stream, ids: TokenIds) -> None:
        """Show the newest rows of a pass over `ids` itself, such as a prompt; all rows it has.

        Call it when the drafter was told of `ids`.
        """
        batch = self._batch_of(stream.host)
        if batch is None:
            return
        first, tokens = batch.tokens()
        stop = min(tokens.size, ids.size - 1 - first)  # the newest token is not evaluated yet
        start = max(batch.first_row(), stop - MOST_ROWS)
        if start < stop and np.array_equal(tokens[:stop], ids[first : first + stop]):
            rows = batch.rows(start, stop)
            if rows is not None:
                self._drafter.observe_logits(stream.slot, rows, first + start)

    def _batch_of(self, host: Host) -> LastBatch | None:
        batch = self._batches.get(host)
        if batch is None and self._useful:
            llama = host.llama()
            if llama is not None and llama._batch.batch is not None:
                batch = self._batches[host] = LastBatch(llama)
        return batch
