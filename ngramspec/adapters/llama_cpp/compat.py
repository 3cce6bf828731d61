"""The methods of two other hosts on the same object: speculative engine and draft provider.

JamePeng's llama-cpp-python drives a `LlamaSpecEngine` (begin, process, draft, accept, clear,
close), the example server of llama-cpp-python a `DraftProvider` (draft, can_draft, process, accept,
truncate, copy_sequence, close). Both hand the complete verified history to every `draft` call, so
acceptance is read from the ids, exactly; `accept` only keeps the count for the last round of a
request, which no later `draft` shows.

Where the two signatures clash, the number of arguments decides, as the hosts call them:

    accept(n_accepted), accept(n_accepted=, seq_id=)                  engine
    accept(seq_id, accepted_draft_tokens)                             provider
    truncate(position), truncate(position=, seq_id=)                  engine
    truncate(seq_id, keep_len)                                        provider
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.adapters.llama_cpp.host import TokenIds
from ngramspec.adapters.llama_cpp.streams import Stream, StreamTable
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp.counters import DraftCounters

EMPTY = np.empty(0, dtype=np.intc)


class HostMethods:
    """Engine and provider methods; mixed into NgramDraft, which owns the state."""

    _lock: threading.RLock
    _streams: StreamTable
    _config: dict[str, Any]
    drafter: Any
    max_draft: int
    counters: DraftCounters
    _learn: Callable[[Stream, TokenIds], int]
    _cut: Callable[[Any, TokenIds], TokenIds]

    def begin(self, prompt_tokens: Any, seq_id: int = 0) -> None:
        """Start a request on a sequence (engine).

        Args:
            prompt_tokens: The prompt, any integer sequence, oldest first. Not kept.
            seq_id: Sequence of the host, >= 0.

        Raises:
            InputError: A token id is negative.

        Cost: the suffix that differs from what the sequence held. Threads: safe.
        """
        with self._lock:
            stream = self._sequence(seq_id)
            self._commit_hint(stream)
            stream.draft = EMPTY
            self.drafter.begin(stream.slot, _as_ids(prompt_tokens))

    def process(self, batch: Any, seq_id: int = 0) -> None:
        """Do nothing: n-gram drafters need no hidden states (engine and provider)."""

    def draft(
        self,
        input_ids: Any,
        *,
        seq_id: int = 0,
        max_tokens: int | None = None,
        n_max: int | None = None,
        n_past: int | None = None,
        id_last: int | None = None,
    ) -> TokenIds:
        """Propose what may follow a sequence (engine and provider).

        Args:
            input_ids: Complete verified history with the newest token, oldest first. Not kept.
            seq_id: Sequence of the host, >= 0.
            max_tokens, n_max: Longest draft the host takes, in tokens; None means max_draft.
            n_past, id_last: From the engine's host. Ignored: both follow from input_ids.

        Returns:
            np.intc, shape (k,), 0 <= k <= the limit and max_draft. A new array.

        Raises:
            InputError: An id is negative or not below n_vocab, or seq_id is negative.

        Cost: O(n) compare plus O(new tokens + k). Threads: safe.
        """
        asked = [limit for limit in (max_tokens, n_max) if limit is not None]
        ids = _as_ids(input_ids)
        with self._lock:
            limit = min([self.max_draft, *asked])
            if self._config["n_batch"]:
                limit = min(limit, self._config["n_batch"] - 1)
            stream = self._sequence(seq_id)
            if ids.size <= self.drafter.length(stream.slot):
                self._commit_hint(stream)
            self._learn(stream, ids)
            draft = self.drafter.propose(stream.slot, limit) if limit > 0 else EMPTY
            stream.draft = self._cut(None, draft)
            self.drafter.shorten(stream.slot, stream.draft.size)
            self.counters.count(stream.draft.size)
            return stream.draft.copy()

    def can_draft(self, input_length: int, /, *, seq_id: int = 0) -> bool:
        """Tell whether a draft is possible for a history of `input_length` tokens (provider)."""
        return input_length >= 2

    def accept(self, *args: int, **kwargs: int) -> None:
        """Note how many tokens of the last draft were accepted; see the module for the two forms.

        Raises:
            InputError: The arguments fit neither form, or the count is negative.

        Cost: O(1). Threads: safe.
        """
        seq_id, count = _two_forms("accept", args, kwargs, ("n_accepted", "accepted_draft_tokens"))
        with self._lock:
            stream = self._streams.find(("seq", seq_id))
            if stream is not None:
                stream.accepted_hint = min(count, int(stream.draft.size))

    def truncate(self, *args: int, **kwargs: int) -> None:
        """Cut a sequence to its first tokens; see the module for the two forms.

        A length beyond the history is no error: hosts count tokens that were not drafted for.

        Raises:
            InputError: The arguments fit neither form, or the length is negative.

        Cost: O(tokens removed). Threads: safe.
        """
        seq_id, length = _two_forms("truncate", args, kwargs, ("position", "keep_len"))
        with self._lock:
            stream = self._streams.find(("seq", seq_id))
            if stream is None or length >= self.drafter.length(stream.slot):
                return  # at most rejected draft tokens go, and those never joined the history
            self._commit_hint(stream)
            stream.draft = EMPTY
            self.drafter.truncate(stream.slot, length)

    def copy_sequence(self, source_seq_id: int, dest_seq_id: int, p0: int, p1: int) -> None:
        """Give one sequence the tokens p0..p1 of another (provider); p1 < 0 means to the end.

        Args:
            source_seq_id, dest_seq_id: Sequences of the host, >= 0.
            p0, p1: Token positions, first inclusive, last exclusive.

        Raises:
            InputError: A sequence id is negative.

        Cost: O(tokens copied). Threads: safe.
        """
        with self._lock:
            source = self._streams.find(("seq", source_seq_id))
            if source is None:
                return
            tokens = self.drafter.history(source.slot)[: p1 if p1 >= 0 else None]
            start = max(0, p0)
            dest = self._sequence(dest_seq_id)
            if start > 0:
                known = self.drafter.history(dest.slot)[:start]
                if known.size < start:
                    return
                tokens = np.concatenate([known, tokens[start:]])
            self.drafter.begin(dest.slot, np.ascontiguousarray(tokens))

    def set_target_processing_enabled(self, enabled: bool) -> None:
        """Do nothing: the target's hidden states are not used (provider)."""

    def checkpoint(self, seq_id: int = 0) -> None:
        """Return None: a rejected draft leaves nothing to restore (engine)."""

    def take_verification_checkpoint(self, seq_id: int = 0) -> None:
        """Return None, as checkpoint (engine)."""

    def restore(self, checkpoint: Any, seq_id: int = 0) -> None:
        """Do nothing: the next draft call shows what is left (engine)."""

    def rollback_verified(self, checkpoint: Any, n_accepted: int, seq_id: int = 0) -> None:
        """Do nothing: the next draft call shows what is left (engine)."""

    def checkpoint_stats(self) -> dict[str, float]:
        """Return no figures: there are no checkpoints (engine)."""
        return {}

    def reset_checkpoint_stats(self) -> None:
        """Do nothing: there are no checkpoints (engine)."""

    def supports_native_target_rollback(self) -> bool:
        """Return False: recurrent targets are not rolled back for this drafter (engine)."""
        return False

    def clear(self) -> None:
        """Forget all sequences, keep pool, caches and counters (engine). Threads: safe."""
        with self._lock:
            for stream in self._streams.all():
                self._commit_hint(stream)
                if self.drafter.length(stream.slot):
                    self.drafter.end(stream.slot)
            self._streams.clear()

    def close(self) -> None:
        """Forget all sequences; may be called again, and the object stays usable."""
        self.clear()

    def _sequence(self, seq_id: int) -> Stream:
        if seq_id < 0:
            raise InputError(f"seq_id must be >= 0, got {seq_id}")
        stream = self._streams.find(("seq", seq_id))
        if stream is None:
            stream = self._streams.by_key(("seq", seq_id))
            self.drafter.begin(stream.slot, EMPTY)
        return self._streams.by_key(("seq", seq_id))

    def _commit_hint(self, stream: Stream) -> None:
        """Let the accepted tokens of the last round join the history before it is left."""
        count, stream.accepted_hint = stream.accepted_hint, 0
        if count > 0:
            self.drafter.accept(stream.slot, stream.draft[:count].copy(), count)
            self.counters.accepted += count


def _as_ids(tokens: Any) -> TokenIds:
    return np.ascontiguousarray(tokens, dtype=np.intc)


def _two_forms(
    name: str, args: tuple[int, ...], kwargs: dict[str, int], counts: tuple[str, str]
) -> tuple[int, int]:
    """Return (seq_id, count) of an engine call (count first) or a provider call (seq_id first)."""
    given = dict(kwargs)
    if len(args) == 2 and not given:
        given = {"seq_id": args[0], counts[1]: args[1]}
    elif len(args) == 1 and counts[1] in given:
        given["seq_id"] = args[0]
    elif len(args) == 1:
        given[counts[0]] = args[0]
    elif args:
        raise InputError(f"{name} takes 1 or 2 arguments, got {len(args)} and {sorted(kwargs)}")
    seq_id = given.pop("seq_id", 0)
    if len(given) != 1 or not set(given) <= set(counts):
        raise InputError(f"{name} needs one of {counts} and seq_id, got {sorted(kwargs)}")
    count = given.popitem()[1]
    if count < 0:
        raise InputError(f"{name} needs a count >= 0, got {count}")
    return seq_id, count
