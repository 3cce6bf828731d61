"""NgramDraft: the `draft_model=` of llama-cpp-python, on top of the native drafters.

The host calls the object once per verification round with all token ids so far. Everything else is
inferred: `Drafter.follow` compares the ids with the slot's history, so a continuation is learned
with its accepted draft tokens, and anything else (new request, edited prompt, cut context) begins
the request again at the cost of the changed suffix.

How it learns what it must not propose: the first call for a buffer finds the Llama that owns it
(see `host`), which gives batch size, vocabulary and end tokens, without any change in the app.
`bind`, `attach` and the constructor's arguments give the same facts explicitly. Drafters that learn
from logits are shown those of the last pass (see `observer`).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.adapters.llama_cpp.attachment import Attachment, check_llama
from ngramspec.adapters.llama_cpp.counters import DraftCounters
from ngramspec.adapters.llama_cpp.guard import guard_new_hosts
from ngramspec.adapters.llama_cpp.host import Host
from ngramspec.adapters.llama_cpp.observer import Observer
from ngramspec.adapters.llama_cpp.rounds import RoundClock
from ngramspec.adapters.llama_cpp.statistics import stated_fingerprints
from ngramspec.adapters.llama_cpp.streams import Stream, StreamTable
from ngramspec.arrays import TokenIds
from ngramspec.drafters.config import MAX_CHOSEN
from ngramspec.errors import InputError, NgramspecError, StateError

if TYPE_CHECKING:
    from llama_cpp.llama_speculative import LlamaDraftModel
else:
    LlamaDraftModel = object  # importing us must not import llama_cpp

log = logging.getLogger(__name__)

# With the token before it, one less than 64, where CPU flash attention changes kernels.
MAX_DRAFT = 62
# Smallest n_batch in practical use is 64; a draft and the token before it must fit in one batch,
# and llama.cpp ends the whole process when they do not.
UNKNOWN_HOST_BATCH = 64
MAX_TOKENS = 2**31 - 1
DEFAULT_SPEC = "suffix"
EMPTY = np.empty(0, dtype=np.intc)


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
        n_batch, n_vocab: Facts of a host that cannot be found (calls from outside a Llama), in
            tokens; 0 means unknown: drafts are then at most 63 tokens and ids are not checked.
        eog_ids: Further token ids before which a draft ends.
        heal: Attach to a Llama automatically when it cannot go on otherwise: created without
            logits_all and about to pass n_batch tokens, prompt included (it would raise), or given
            its draft_model only after it was made (it would end the process). For that, this wraps
            `llama_cpp.Llama.__init__`; import llama_cpp first. False: no drafts there instead, and
            the last draft of an answer is neither counted nor learnt.
        params: Drafter parameters as for create_drafter. A `static`, `dynamic` or `pool` file of
            another tokenizer than the host's gives no drafts and one warning; attach() refuses it.

    Raises:
        FormatError, VocabMismatchError, OSError: As create_drafter, for statistics files.
        InputError: An argument is out of range, unknown or contradicts another.

    The host itself limits a plain draft_model: it computes logits at every position of a prompt,
    and custom stopping criteria see unverified tokens. attach() has no such limits.

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
        policy: Any = "auto",
        drafter: Any = None,
        pool: Any = None,
        n_batch: int = 0,
        n_vocab: int = 0,
        eog_ids: Any = (),
        heal: bool = True,
        **params: Any,
    ) -> None:
        sizes = {"max_draft": (max_draft, 1), "slots": (slots, 1)}
        sizes.update({"n_batch": (n_batch, 0), "n_vocab": (n_vocab, 0)})
        for name, (value, least) in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an int >= {least}, got {value!r}")
        self._config: dict[str, Any] = {"spec": spec, "max_draft": max_draft, "slots": slots}
        self._config.update(n_batch=n_batch, n_vocab=n_vocab, heal=bool(heal), policy=policy)
        self._config.update(eog_ids=tuple(sorted({int(token) for token in eog_ids})), **params)
        self._given = drafter is not None
        chosen = _make_policy(policy, max_draft)
        self.drafter: Any = _make_drafter(drafter, spec, slots, pool, params, chosen)
        self.clock = RoundClock(self.drafter.policy)
        self._observer = Observer(self.drafter)
        self.max_draft = max_draft
        self.counters = DraftCounters()
        self._ends = np.array(self._config["eog_ids"], dtype=np.intc)
        self._lock = threading.RLock()
        stated = {} if self._given else stated_fingerprints({"pool": pool, **params})
        self._streams = StreamTable(self.drafter.slots, stated)
        if self._config["heal"]:
            guard_new_hosts(_needs_guard)

    def bind(self, llama: Any) -> Host:
        """Learn batch size, vocabulary and end tokens of `llama`; keeps no reference to it.

        Args:
            llama: A llama_cpp.Llama.

        Returns:
            The facts learned, owned by this object.
        """
        with self._lock:
            return self._streams.bind(llama)

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> TokenIds:
        """Propose what may follow `input_ids`; the call that llama-cpp-python makes.

        Args:
            input_ids: All token ids so far, oldest first, int32, shape (n,). Not kept.
            kwargs: Ignored; the host passes none.

        Returns:
            np.intc, shape (k,), 0 <= k <= min(max_draft, n_batch - 1). A new array; no token in it
            ends the generation, and all are below n_vocab.

        Cost: O(n) memory compare plus O(new tokens + k). Threads: safe.
        """
        with self._lock:
            self.clock.stop()
            started = time.perf_counter_ns()
            draft = EMPTY
            try:
                ids = np.ascontiguousarray(input_ids, dtype=np.intc)
                draft = self._next_draft(self._streams.of_array(ids, input_ids), ids, input_ids)
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
                self._take_in(self._streams.of_host(host), ids, ended=True)
            except NgramspecError as error:
                self._failed(error)

    @property
    def heals(self) -> bool:
        """Return whether it attaches where a Llama cannot go on otherwise."""
        return bool(self._config["heal"])

    def stats(self) -> Any:
        """Return the drafter's figures per source, as Drafter.stats does."""
        return self.drafter.stats()

    def __getstate__(self) -> dict[str, Any]:
        if self._given or not isinstance(self._config["policy"], str):
            made = "a Drafter" if self._given else "an AutoPolicy"
            raise StateError(f"made from {made}, so it cannot be pickled: give its name instead")
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

    def _next_draft(self, stream: Stream, ids: TokenIds, given: Any) -> TokenIds:
        host, draft = stream.host, EMPTY
        if host is not None and host.refusal:
            return EMPTY
        if host is not None and host.attachment is not None:
            host.attachment.arm(EMPTY, ids.size)  # whatever happens below
        limit = self._limit(host, ids, given)
        self._take_in(stream, ids)
        if host is not None and host.attachment is None and host.has_processor():
            limit = 0  # it would be shown draft tokens that are not verified yet
        if limit > 0:
            draft = self._cut(host, self.drafter.propose(stream.slot, limit))
            self.drafter.shorten(stream.slot, draft.size)
        stream.draft = draft
        self.clock.start(stream, int(ids.size), draft.size)
        if host is not None and host.attachment is not None:
            host.attachment.arm(draft, ids.size)
        return draft

    def _limit(self, host: Host | None, ids: TokenIds, given: Any) -> int:
        """Return the longest draft that the host can take now, in tokens."""
        limit = self.max_draft
        if host is not None:
            limit = min(limit, host.n_batch - host.pending(int(ids.size)))
            if host.score_rows() < ids.size + limit and not self._heal(host):
                limit = min(limit, host.score_rows() - int(ids.size))
        else:
            limit = min(limit, (self._config["n_batch"] or UNKNOWN_HOST_BATCH) - 1)
        if isinstance(getattr(given, "base", None), np.ndarray):
            limit = min(limit, given.base.size - int(ids.size))
        return limit

    def make_room(self, llama: Any) -> None:
        """Let a Llama take a text that its matrix of logits has no rows for.

        Attached it needs none. Where it cannot be attached it gets no drafts, and so needs none.
        """
        with self._lock:
            host = self.bind(llama)
            if not self._heal(host):
                host.refusal = host.refusal or "it cannot be attached"
                llama._logits_all = False

    def _heal(self, host: Host) -> bool:
        """Attach to a host whose score matrix is too small; return whether that worked."""
        if not self._config["heal"] or host.heal_failed:
            return False
        try:
            check_llama(host.llama())
            Attachment(host.llama(), self, host)
        except NgramspecError as error:
            log.warning("no room for drafts in this Llama, and attach() fails: %s", error)
            host.heal_failed = True
            return False
        log.info("attached to a Llama that has no room for the scores of this draft")
        return True

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
            n_vocab = stream.host.n_vocab if stream.host is not None else self._config["n_vocab"]
            accepted = int(self.drafter.follow(stream.slot, ids, n_vocab))
        if accepted > 0:
            self.counters.accepted += min(accepted, int(stream.draft.size))
        stream.saw(ids)
        stream.draft = EMPTY
        return accepted

    def _cut(self, host: Host | None, draft: TokenIds) -> TokenIds:
        """Return the part of a draft that the host may see."""
        if not draft.size:
            return EMPTY
        if self._ends.size:
            ends = np.flatnonzero(np.isin(draft, self._ends))
            draft = draft[: ends[0]] if ends.size else draft
        if host is None:
            outside = np.flatnonzero(draft >= (self._config["n_vocab"] or MAX_TOKENS))
            return draft[: outside[0]] if outside.size else draft
        return draft[: host.usable_len(draft)]


def _needs_guard(draft: Any) -> bool:
    return isinstance(draft, NgramDraft) and draft.heals


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
