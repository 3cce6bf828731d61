"""DraftModel: drafts from a second, smaller model, for slots where no n-gram source has one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from ngramspec._native.engine.decode import Sampler
from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.engine.sources.second_model import SecondModel, SlotDraft, count_right
from ngramspec.engine.target import Target
from ngramspec.errors import InputError

# llama.cpp's defaults as long as its options were --draft-max, --draft-min and --draft-p-min.
N_MAX, N_MIN, P_MIN = 16, 0, 0.75
# A first decode over more tokens reads text, so its time says nothing about drafting.
FEW = 8
# Most tokens that a call reads, for all slots together: the other requests wait for it.
PIECE = 256
# How much larger one vocabulary of a family may be, and the first token that is compared.
MOST_MORE_TOKENS, FIRST_COMPARED = 128, 5


@dataclass(slots=True)
class _Sequence(SlotDraft):
    """A slot's text in the draft model, and its draft.

    tokens: Prompt and emitted tokens, `length` of them, and those that another source has drafted.
    ahead: How many another source has drafted, before the model's own draft.
    num_past: Of all these in the model's cache; drafted tokens may follow there.
    foreign: Some of them are not in the model's vocabulary, so it cannot read them.
    torn: The model's context could not take all of the text, so what comes later has a gap before.
    saved, num_saved: The state after the first tokens of the text, where tokens cannot be taken
        back; 0 = none.
    """

    tokens: TokenIds = field(kw_only=True)
    length: int = 0
    ahead: int = 0
    num_past: int = 0
    num_saved: int = 0
    saved: Any = None
    foreign: bool = False
    torn: bool = False
    namespace: str = ""

    def drop(self) -> None:
        """Forget the draft, and what another source has drafted before it."""
        self.draft, self.claims = [], []
        self.ahead = self.sent = 0


class DraftModel(SecondModel):
    """A draft source that runs a model of the same vocabulary, for all slots at once.

    Args:
        target: The draft model, with one sequence for each slot of the engine; closed by its owner.
        n_max: Longest draft, >= 1.
        n_min: Shorter drafts are dropped, 0..n_max.
        p_min: A draft ends before a token that is less probable, 0..1.
        label: What users call it.
        path: Its file.
        nbytes: Of its weights and its context, for monitoring.

    Raises:
        InputError: A value is out of its bounds, or the model cannot take tokens back.

    Source: llama.cpp common/speculative, draft-simple.
    """

    name = "draft-simple"
    extends = True

    def __init__(
        self,
        target: Target,
        n_max: int = N_MAX,
        n_min: int = N_MIN,
        p_min: float = P_MIN,
        *,
        label: str = "",
        path: str = "",
        nbytes: int = 0,
    ) -> None:
        label = label or os.path.basename(path) or self.name
        super().__init__(
            target, n_max, n_min, p_min, n_max, label, path, nbytes, needs="a draft model needs"
        )
        self._most_back = None if target.can_save else target.max_rollback  # None = any distance
        if self._most_back is not None and self._most_back < n_max:
            raise InputError("the draft model cannot take tokens back: it is recurrent")
        self._target = target
        self.max_draft = n_max
        sizes = [target.context_size] * target.num_sequences
        self._drafts = self._sequences = [
            _Sequence(p_min, tokens=np.zeros(size, dtype=np.int32)) for size in sizes
        ]

    def start(self, slot: int, request: Request, sampler: Sampler) -> None:
        """Take the request's namespace, p_min and sampler; text of another namespace is dropped."""
        super().start(slot, request, sampler)
        seq, namespace = self._sequences[slot], request.speculation.namespace
        if seq.namespace != namespace:
            self._cut(slot, 0)
            seq.namespace = namespace

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request; the model reads the prompt at the first proposal."""
        seq = self._sequences[slot]
        size = min(int(token_ids.size), seq.tokens.size)
        before = seq.tokens[: min(seq.num_past, seq.length)]  # drafted tokens may follow
        same = count_right(before, token_ids[:size])
        seq.tokens[:size] = token_ids[:size]
        seq.length, seq.torn = size, size < token_ids.size
        seq.foreign = bool((token_ids >= self._target.vocab_size).any())
        seq.drop()
        self._cut(slot, min(same, size - 1))
        self._counts.begins += 1

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> list[TokenIds]:
        """Draft for all slots, one decode per drafted position."""
        return self.extend(slots, [NO_TOKENS] * len(slots), limits)

    def extend(
        self, slots: Sequence[int], before: Sequence[TokenIds], limits: Sequence[int]
    ) -> list[TokenIds]:
        """Draft after tokens that another source has drafted, for all slots at once."""
        started = perf_counter_ns()
        self._counts.calls += 1
        most = {slot: min(limit, self._n_max) for slot, limit in zip(slots, limits, strict=True)}
        for slot, tokens in zip(slots, before, strict=True):
            self._follow(slot, tokens)
            self._choice.forget(slot)
        going = [slot for slot in slots if self._has_room(slot)]
        lengths = {slot: self._length_for(slot, most[slot]) for slot in going}
        num_read = self._read(going)
        few = self._few(going)
        going = [slot for slot in going if self._num_behind(slot) <= few]
        self._save(going)
        tokens_before = dict(zip(slots, before, strict=True))
        for slot in going:
            self._choice.begin(slot, tokens_before[slot])
        unread = max((self._unread(slot) for slot in going), default=0)
        read = perf_counter_ns()
        rows = self._decode_ends(going)
        first, calls = perf_counter_ns(), 0
        while going:
            going = [slot for slot in going if self._extend(slot, rows[slot], lengths[slot])]
            calls += bool(going)
            rows = self._decode_drafts(going)
        drafts = [self._finished(slot, most[slot]) for slot in slots]
        ended = perf_counter_ns()
        self._counts.ns += ended - started
        if num_read > FEW:
            self._times.read.note(1e-9 * (read - started), num_read)
        if unread:
            since = read if num_read > FEW else started
            self._times.first.note(1e-9 * (first - since))
        self._times.each.note(1e-9 * (ended - first), calls)
        return drafts

    def backlog(self, slot: int) -> float:
        """Return the seconds that it takes to read what was not read of a text, 0.0 if little."""
        return self._backlog(self._unread(slot)) if self._has_room(slot) else 0.0

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens; what the cache holds of them stays there."""
        seq = self._sequences[slot]
        seq.foreign = seq.foreign or bool((token_ids >= self._target.vocab_size).any())
        right = count_right(self._guessed(seq, seq.length), token_ids)
        self._counts.judged(seq.sent, min(num_accepted, right - seq.ahead))
        self._choice.judge(slot, right - seq.ahead, token_ids[seq.ahead :])
        self._rewrite(slot, seq.length, token_ids)

    def shift(self, slot: int, first: int, count: int) -> None:
        """Discard what the target's context has discarded; what cannot be shifted is read again."""
        seq = self._sequences[slot]
        end = first + count
        if seq.torn or seq.length < end:  # a smaller context, which was full: it does not draft
            return
        num_past = seq.num_past - count if seq.num_past > end else min(seq.num_past, first)
        if seq.num_past > end and (
            self._target.no_shift or not self._target.shift(slot, first, count)
        ):
            num_past = first
        seq.tokens[first : seq.length - count] = seq.tokens[end : seq.length]
        seq.length -= count
        seq.drop()
        self._choice.forget(slot)
        self._cut(slot, num_past)
        seq.num_past = min(seq.num_past, num_past)

    def _backlog(self, unread: int) -> float:
        """Return the seconds that `unread` tokens take to read, 0.0 if they are few."""
        return unread * self._times.read.seconds if unread > FEW else 0.0

    def _follow(self, slot: int, before: TokenIds) -> None:
        """Make the slot's text end with tokens that another source has drafted."""
        seq = self._sequences[slot]
        seq.drop()
        if seq.num_past >= seq.length:  # the last draft was neither accepted nor rejected
            self._cut(slot, seq.length - 1)
        seq.ahead = int(before.size)
        room = seq.tokens[seq.length : seq.length + seq.ahead]
        room[:] = before[: room.size]  # where not all fit, it does not draft

    def _rewrite(self, slot: int, first: int, token_ids: TokenIds) -> None:
        """Make these the tokens of the slot's text from index `first` on.

        What the cache holds of them stays there, be it of the text or of the last draft.
        """
        seq = self._sequences[slot]
        num_past = min(seq.num_past, first + count_right(self._guessed(seq, first), token_ids))
        room = max(min(int(token_ids.size), seq.tokens.size - first), 0)
        seq.torn = room < token_ids.size or (seq.torn and first >= seq.length)
        seq.tokens[first : first + room] = token_ids[:room]
        seq.length = min(first, seq.tokens.size) + room
        seq.drop()
        self._cut(slot, max(min(num_past, seq.length - 1), 0))

    def _num_ends(self, slot: int) -> int:
        """Return how many of the last tokens are decoded together, before the draft."""
        return 1

    def _length_for(self, slot: int, most: int) -> int:
        """Return how many tokens to draft for `most` of the target's."""
        return most

    def _has_room(self, slot: int) -> bool:
        seq = self._sequences[slot]
        foreign = seq.foreign or bool(
            (seq.tokens[seq.length : seq.length + seq.ahead] >= self._target.vocab_size).any()
        )
        return (
            not foreign and not seq.torn and seq.length + seq.ahead + self._n_max <= seq.tokens.size
        )

    def _unread(self, slot: int) -> int:
        """Return how many tokens the model has to read before it drafts."""
        seq = self._sequences[slot]
        return seq.length + seq.ahead - seq.num_past

    @staticmethod
    def _guessed(seq: _Sequence, first: int) -> TokenIds:
        """Return the text from an index on, and what was drafted after it."""
        text = seq.tokens[first : seq.length + seq.ahead]
        return np.concatenate([text, np.array(seq.draft, dtype=np.int32)])

    def _cut(self, slot: int, length: int) -> None:
        """Make the cache hold the first `length` tokens at most."""
        seq = self._sequences[slot]
        if seq.num_saved > length:
            seq.saved, seq.num_saved = None, 0
        if length < seq.num_past and not self._target.truncate(slot, length):
            length = seq.num_saved
            if not (length and self._target.restore(slot, seq.saved, length)):
                self._target.truncate(slot, 0)
                seq.saved, seq.num_saved = None, 0
                length = 0
        seq.num_past = min(seq.num_past, length)

    def _read(self, slots: Sequence[int]) -> int:
        """Decode a piece of what the model has not seen of the texts; return how many tokens.

        The last few tokens are left to the decode that gives the first logits.
        """
        few, total = self._few(slots), 0
        while total < PIECE:
            parts: dict[int, int] = {}
            room = min(PIECE - total, self._target.max_batch)
            self._batch.clear()
            for slot in slots:
                seq, behind = self._sequences[slot], self._num_behind(slot)
                part = min(behind, room - len(self._batch))
                if behind > few and part:
                    tokens = seq.tokens[seq.num_past :][:part]
                    self._batch.add(slot, seq.num_past, tokens, None, False)
                    parts[slot] = part
            if not parts:
                break
            self._target.decode(self._batch, self._rows)
            for slot, part in parts.items():
                self._sequences[slot].num_past += part
            total += sum(parts.values())
        return total

    def _few(self, slots: Sequence[int]) -> int:
        """Return how many unread tokens of each slot are decoded with the ends of texts."""
        ends = max((self._num_ends(slot) for slot in slots), default=1)
        return max(min(FEW, self._target.max_batch // max(len(slots), 1) - ends), 0)

    def _num_behind(self, slot: int) -> int:
        """Return how many tokens the model has to read before the end that gives logits."""
        seq = self._sequences[slot]
        if self._target.can_save:  # the state is saved at the end of the text
            return seq.length - (seq.ahead == 0) - seq.num_past
        return self._unread(slot) - self._num_ends(slot)

    def _save(self, slots: Sequence[int]) -> None:
        """Save the states of texts, but for their last tokens, if drafts cannot be taken back."""
        if not self._target.can_save:
            return
        for slot in slots:
            seq = self._sequences[slot]
            end = seq.length - (seq.ahead == 0)  # the last token of all gives the first logits
            if end > seq.num_saved and end >= seq.num_past:
                self._read_to(slot, end)
                seq.saved, seq.num_saved = self._target.save(slot), end
            self._read_to(slot, seq.length + seq.ahead - self._num_ends(slot))

    def _read_to(self, slot: int, end: int) -> None:
        """Decode what the model has not seen of a slot's text before an index."""
        seq = self._sequences[slot]
        while seq.num_past < end:  # a prompt, or a text that others drafted for
            part = min(end - seq.num_past, self._target.max_batch)
            self._batch.clear()
            self._batch.add(slot, seq.num_past, seq.tokens[seq.num_past :][:part], None, False)
            self._target.decode(self._batch, self._rows)
            seq.num_past += part

    def _decode_ends(self, slots: Sequence[int]) -> dict[int, int]:
        """Decode the last tokens; return their rows of logits."""
        rows: dict[int, int] = {}
        self._batch.clear()
        for slot in slots:
            seq = self._sequences[slot]
            end = seq.length + seq.ahead
            rows[slot] = self._batch.add(slot, seq.num_past, seq.tokens[seq.num_past : end])
        if slots:
            self._target.decode(self._batch, self._rows)
        for slot in slots:
            seq = self._sequences[slot]
            seq.num_past = seq.length + seq.ahead
        return rows

    def _decode_drafts(self, slots: Sequence[int]) -> dict[int, int]:
        """Decode the newest drafted token of each slot; return the rows that follow."""
        if not slots:
            return {}
        self._batch.clear()
        rows = {}
        for slot in slots:
            seq = self._sequences[slot]
            newest = np.array(seq.draft[-1:], dtype=np.int32)
            rows[slot] = self._batch.add(slot, seq.num_past, newest)
        self._target.decode(self._batch, self._rows)
        for slot in slots:
            self._sequences[slot].num_past += 1
        return rows


class Spelled(Protocol):
    """Something with a vocabulary."""

    vocab_size: int

    def piece(self, token_id: int, special: bool) -> bytes:
        """Return the text of a token in UTF-8, possibly a part of a character."""


def vocabulary_difference(target: Spelled, draft: Spelled, label: str = "draft model") -> str:
    """Return how the tokens of two models differ, "" if they are the same, as llama.cpp sees it.

    label: What the second model is called.

    Models of a family may have a few tokens more or less at the end, which fill the vocabulary up,
    and other names for the first few, which are special.

    Cost: compares the text of all tokens.

    Source: llama.cpp common/speculative.
    """
    if abs(target.vocab_size - draft.vocab_size) > MOST_MORE_TOKENS:
        return f"the {label} has {draft.vocab_size} tokens, the target {target.vocab_size}"
    for token in range(FIRST_COMPARED, min(target.vocab_size, draft.vocab_size)):
        if target.piece(token, True) != draft.piece(token, True):
            own, other = target.piece(token, True), draft.piece(token, True)
            return f"the {label}'s token {token} is {other!r:.40}, the target's {own!r:.40}"
    return ""
