"""MtpHeads: drafts from heads that were trained with the target, for tokens after the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS
from ngramspec.engine.sources.second_model import DraftingModel, SecondModel, SlotDraft, count_right
from ngramspec.errors import CapacityError

# Heads know one token ahead best, and each further one less: llama.cpp drafts 3.
N_MAX, N_MIN, P_MIN = 3, 0, 0.0
LABEL = "MTP heads"
# Tokens that are read together with the first drafted one: all of them get logits then, which
# costs less than a pass of their own while they are few.
FEW = 8
# Tokens of a text that are kept with their states before they are read. More, as those of prompts,
# are read while the target has their states: those of a prompt take as much memory as a model.
MOST_UNREAD = 32
States = npt.NDArray[np.float32]


class Heads(DraftingModel, Protocol):
    """Heads of a target with a key-value cache of their own, for several sequences.

    A token goes in together with the target's state after the token before it. Used by the thread
    that runs the target.
    """

    num_heads: int  # above 1: each drafts one token, after those of the heads before it
    state_width: int  # numbers of a state
    context_size: int  # positions that each sequence may have

    def decode(self, batch: Batch, states: States, rows: Rows, head: int) -> States:
        """Compute a batch with one head; return the states of its outputs, valid until the next.

        Raises:
            BackendError: It failed.
            CapacityError: The cache has no room.
        """

    def truncate(self, sequence: int, length: int) -> None:
        """Remove what is at position `length` and after it."""

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Make an empty sequence hold the first `length` entries of another; False = it cannot."""

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Remove `count` entries from `first` on; the others move down. False = it cannot."""

    def listen(self, follower: MtpHeads | None) -> None:
        """Have the target tell a follower of its decodes and changes from now on; None = nobody."""


@dataclass(slots=True)
class _Verified:
    """A sequence's part of the target's last decode: its tokens, not all of which may stay.

    first: Position of the first one.
    states: After each of them, a copy.
    branches: A bit for each branch of a tree that the token belongs to; None = there is no tree.
    branch: The one that was right.
    count: How many of its tokens stay.
    """

    first: int
    tokens: TokenIds
    states: States
    branches: npt.NDArray[np.uint32] | None
    count: int
    branch: int = 0


@dataclass(slots=True)
class SlotText(SlotDraft):
    """A slot's text as the heads see it, and its draft.

    The entry at position p is made of token p and the state after token p - 1, so the heads can
    read one token more than the target: the newest.

    total: Tokens of the request, the newest included, which may be more than the target holds.
    length: Tokens that the target holds for good.
    state: After the last of them, shape (1, width); zeros where it is not known.
    newest: The token that comes next, -1 = not known.
    read: Entries that the heads have read, of right tokens; length + 1 at most.
    ahead: The token at position `length` that they have read, if read is length + 1.
    held: Entries in their cache; drafted ones may follow those that are right.
    unread: Tokens and the states before them, for positions from `read` to `length` - 1.
    """

    state: States = field(kw_only=True)
    total: int = 0
    length: int = 0
    newest: int = -1
    read: int = 0
    ahead: int = -1
    held: int = 0
    unread: list[tuple[TokenIds, States]] = field(default_factory=list)
    verified: _Verified | None = None

    @property
    def num_unread(self) -> int:
        return self.length - self.read if self.unread else 0


class MtpHeads(SecondModel):
    """A draft source that runs the target's own MTP heads, for all slots at once.

    It follows what the target's cache holds: the target tells of each decode (`decoded`), and of
    each change (`truncated`, `adopted`, `copied`, `shifted`). Tokens are read when they are
    verified, together with the next draft while they are few; of a prompt what the target has just
    read of it, so that others wait no longer than for the target.

    Args:
        heads: With one sequence for each slot of the engine; closed by their owner.
        n_max: Longest draft, >= 1; at most one token for each head if there are several.
        n_min: Shorter drafts are dropped, 0..n_max.
        p_min: A draft ends before a token that is less probable, 0..1.
        label: What users call them.
        path: Their file, if they have one of their own.
        nbytes: Of their context, and of their weights in such a file, for monitoring.

    Raises:
        InputError: A value is out of its bounds.

    Source: llama.cpp common/speculative, draft-mtp; the heads are DeepSeek-V3's multi-token
        prediction (arXiv 2412.19437).
    """

    name = "draft-mtp"

    def __init__(
        self,
        heads: Heads,
        n_max: int = N_MAX,
        n_min: int = N_MIN,
        p_min: float = P_MIN,
        *,
        label: str = LABEL,
        path: str = "",
        nbytes: int = 0,
    ) -> None:
        most = heads.num_heads if heads.num_heads > 1 else n_max
        super().__init__(
            heads, n_max, n_min, p_min, most, label, path, nbytes, needs="MTP heads need"
        )
        self._heads = heads
        width = heads.state_width
        self._states = np.zeros((heads.max_batch, width), dtype=np.float32)
        self._drafts = self._texts = [
            SlotText(p_min, state=np.zeros((1, width), dtype=np.float32))
            for _ in range(heads.num_sequences)
        ]
        self._failure: Exception | None = None
        self.follow(True)

    def follow(self, active: bool) -> None:
        """Follow the target, or rest: then no decode costs more, and nothing is drafted."""
        self.max_draft = self._n_max if active else 0
        if active:
            for slot in range(len(self._texts)):
                self._forget(slot, 0)
        self._heads.listen(self if active else None)

    # What the target tells.

    def decoded(self, batch: Batch, states: States) -> None:
        """Take the tokens of a decode and the target's states after them.

        Args:
            batch: Of the target.
            states: float32, shape (n, state_width), one row per token. What is kept is copied.

        A failure is kept for the next proposal: it must not end the target's requests.
        """
        tokens = batch.tokens_of()
        branches: npt.NDArray[np.uint32] | None = None
        for slot, first, start, end, sure, is_tree in batch.parts():
            text = self._texts[slot]
            self._settle(text)
            try:
                if first != text.length:
                    self._begin_at(slot, first)
                if (sure or text.unread) and text.num_unread + sure > MOST_UNREAD:
                    if sure:
                        self._take(text, tokens[start : start + sure], states[start : start + sure])
                        text.state = text.state.copy()  # the target's memory
                    self._read([slot])
                    start, first = start + sure, first + sure
            except Exception as error:
                self._failure = error
                start, first = start + sure, first + sure
                self._forget(slot, first)
                if sure:
                    text.state = states[start - 1 : start].copy()
            if is_tree and branches is None:
                branches = batch.branches_of()
            text.verified = _Verified(
                first,
                tokens[start:end],
                states[start:end].copy(),
                branches[start:end] if is_tree and branches is not None else None,
                end - start,
            )

    def truncated(self, slot: int, length: int) -> None:
        """Follow the target, which has removed a sequence's tokens from `length` on."""
        text = self._texts[slot]
        verified = text.verified
        if verified is not None and length > verified.first:
            verified.count = min(verified.count, length - verified.first)
            return
        text.verified = None
        self._cut(text, length)
        if not length:  # room for others
            self._forget(slot, 0)

    def adopted(self, slot: int, branch: int) -> None:
        """Follow the target, whose sequence holds what a branch of its last tree holds."""
        verified = self._texts[slot].verified
        if verified is not None:
            verified.branch = branch

    def copied(self, source: int, slot: int, length: int) -> None:
        """Follow the target, which has copied the first tokens of a sequence to an empty one."""
        own, other = self._texts[slot], self._texts[source]
        self._settle(other)
        self._forget(slot, length)
        read = min(other.read, other.length, length)
        if read and not self._heads.copy(source, slot, read):
            return
        own.length, own.read, own.held = min(length, other.length), read, read
        own.ahead, own.state = other.ahead, other.state.copy()
        own.unread = list(other.unread)
        if length < other.length:
            own.length = other.length
            self._cut(own, length)

    def shifted(self, slot: int, first: int, count: int) -> None:
        """Follow the target, which has discarded tokens; those after them have moved down."""
        text = self._texts[slot]
        self._settle(text)
        self._drop_drafted(slot)
        end = first + count
        if text.read < end or not self._heads.shift(slot, first, count):
            self._forget(slot, max(text.length - count, 0))
            return
        text.length -= count
        text.read -= count
        text.held -= count

    # What the engine asks.

    def shift(self, slot: int, first: int, count: int) -> None:
        """Count the tokens that the context has discarded; the target has told which they are."""
        self._texts[slot].total -= count
        self._choice.forget(slot)

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request: the target has read its prompt."""
        text = self._texts[slot]
        text.newest, text.total = -1, int(token_ids.size)
        self._counts.begins += 1

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> list[TokenIds]:
        """Draft for all slots, one decode per drafted position.

        Raises:
            BackendError, CapacityError: A decode failed, of these slots or in `decoded`.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        started = perf_counter_ns()
        self._counts.calls += 1
        most = {slot: min(limit, self._n_max) for slot, limit in zip(slots, limits, strict=True)}
        for slot in slots:
            text = self._texts[slot]
            text.drop()
            self._choice.forget(slot)
            self._settle(text)
        going = [slot for slot in slots if self._can_draft(slot)]
        for slot in going:
            self._choice.begin(slot, NO_TOKENS)
        try:
            self._draft(going, most)
        except Exception:  # what the heads hold is not certain
            for slot in going:
                text = self._texts[slot]
                state = text.state
                self._forget(slot, text.length)
                text.state = state
            raise
        drafts = [self._finished(slot, most[slot]) for slot in slots]
        self._counts.ns += perf_counter_ns() - started
        return drafts

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take the emitted tokens; the target has told what its cache holds of them."""
        text = self._texts[slot]
        right = count_right(np.array(text.draft, dtype=np.int32), token_ids)
        self._counts.judged(text.sent, min(num_accepted, right))
        self._choice.judge(slot, right, token_ids)
        if token_ids.size:
            text.newest = int(token_ids[-1])
            text.total += int(token_ids.size)
        text.drop()

    def end(self, slot: int) -> None:
        """End the request; its text stays for a next turn."""
        super().end(slot)
        self._texts[slot].newest = -1

    # Texts.

    def _settle(self, text: SlotText) -> None:
        """Add to the text what has stayed of the last decode."""
        verified, text.verified = text.verified, None
        if verified is None:
            return
        tokens, states, count = verified.tokens, verified.states, verified.count
        if verified.branches is not None:
            rows = np.flatnonzero(verified.branches >> verified.branch & 1)[:count]
            tokens, states = tokens[rows], states[rows]
        elif count < tokens.size:
            tokens, states = tokens[:count], states[:count]
        if tokens.size:
            self._take(text, tokens, states)

    def _take(self, text: SlotText, tokens: TokenIds, states: States) -> None:
        """Add tokens that have stayed, and the target's states after them, without a copy."""
        size = tokens.size
        ahead = text.read == text.length + 1  # the heads have read the first one
        if not ahead or text.ahead != tokens[0]:
            text.read -= ahead
            text.unread.append((tokens[:1] if size > 1 else tokens, text.state))
        if size > 1:
            text.unread.append((tokens[1:], states[:-1]))
        text.length += size
        text.state = states[-1:] if size > 1 else states

    def _begin_at(self, slot: int, first: int) -> None:
        """Make the text end at position `first`, where the next decode goes on."""
        text = self._texts[slot]
        if first < text.length:
            self._cut(text, first)
        elif first > text.length:  # what is before it did not come from a decode
            self._forget(slot, first)

    def _cut(self, text: SlotText, length: int) -> None:
        """Shorten the text; the state at its new end is known if a later token is not read yet."""
        if length >= text.length:
            return
        state = None
        position = text.length - text.num_unread  # of the first unread token
        unread = []
        for tokens, before in text.unread:
            count = min(max(length - position, 0), int(tokens.size))
            if count:
                unread.append((tokens[:count], before[:count]))
            if count < tokens.size and position + count == length:
                state = before[count : count + 1].copy()
            position += int(tokens.size)
        text.unread = unread
        text.length = length
        text.read = min(text.read, length)
        text.state = np.zeros_like(text.state) if state is None else state

    def _forget(self, slot: int, length: int) -> None:
        """Start anew at a position: nothing is known of what is before it."""
        text = self._texts[slot]
        text.verified = None
        text.unread = []
        self._heads.truncate(slot, 0)
        text.held = 0
        text.length = text.read = length
        text.state = np.zeros_like(text.state)

    def _can_draft(self, slot: int) -> bool:
        text = self._texts[slot]
        return (
            # A state that was brought back is of a text that lacks accepted tokens.
            text.length == text.total - 1
            and 0 <= text.newest < self._heads.vocab_size
            and text.length + self._n_max < self._heads.context_size
        )

    def _drop_drafted(self, slot: int) -> None:
        """Remove the entries that are not of the text."""
        text = self._texts[slot]
        if text.held > text.read:
            self._heads.truncate(slot, text.read)
            text.held = text.read

    # Decodes.

    def _read(self, slots: Sequence[int]) -> None:
        """Read the unread tokens of texts, by every head."""
        for slot in slots:
            text = self._texts[slot]
            self._drop_drafted(slot)
            while text.unread:
                self._read_part(slot)

    def _read_part(self, slot: int) -> None:
        """Read as many unread tokens of a text as a decode takes."""
        text, room = self._texts[slot], self._heads.max_batch
        self._batch.clear()
        while text.unread and room:
            tokens, before = text.unread.pop(0)
            self._add(slot, text.read + len(self._batch), tokens[:room], before[:room], False)
            if tokens.size > room:
                text.unread.insert(0, (tokens[room:], before[room:]))
            room = self._heads.max_batch - len(self._batch)
        for head in range(self._heads.num_heads):
            self._heads.truncate(slot, text.read)
            self._heads.decode(self._batch, self._states, self._rows, head)
        text.read += len(self._batch)
        text.held = text.read

    def _add(
        self, slot: int, position: int, tokens: TokenIds, before: States, output: bool
    ) -> None:
        """Add tokens and the states before them to the batch, all with output or none."""
        for i in range(tokens.size if output else 1):
            one = slice(i, i + 1) if output else slice(None)
            start = len(self._batch)
            self._batch.add(slot, position + i, tokens[one], None, output)
            self._states[start : len(self._batch)] = before[one]

    def _draft(self, slots: Sequence[int], most: dict[int, int]) -> None:
        """Draft for slots, each up to its most tokens."""
        if self._heads.num_heads > 1:
            self._draft_by_heads(slots, most)
        else:
            self._draft_by_one(slots, most)

    def _draft_by_one(self, slots: Sequence[int], most: dict[int, int]) -> None:
        """Draft with a single head, which goes on with its own states."""
        started = perf_counter_ns()
        few = min(FEW, self._heads.max_batch // max(len(slots), 1) - 1)
        behind = [slot for slot in slots if self._texts[slot].num_unread > few]
        num_read = sum(self._texts[slot].num_unread for slot in behind)
        self._read(behind)
        read = perf_counter_ns()
        self._add_newest(slots)
        if not (rows := self._last_rows()):
            return
        states = self._heads.decode(self._batch, self._states, self._rows, 0)
        first, calls = perf_counter_ns(), 0
        while going := [slot for slot, row in rows.items() if self._extend(slot, row, most[slot])]:
            after = {slot: states[rows[slot]].copy() for slot in going}
            self._batch.clear()
            for slot in going:
                text = self._texts[slot]
                token = np.array(text.draft[-1:], dtype=np.int32)
                self._add(slot, text.held, token, after[slot][None], True)
                text.held += 1
            rows = self._last_rows()
            states = self._heads.decode(self._batch, self._states, self._rows, 0)
            calls += 1
        self._times.each.note(1e-9 * (perf_counter_ns() - first), calls)
        self._times.first.note(1e-9 * (first - read))
        self._times.read.note(1e-9 * (read - started), num_read)

    def _add_newest(self, slots: Sequence[int]) -> None:
        """Begin a batch with what is unread of each slot's text, its newest token last."""
        self._batch.clear()
        for slot in slots:
            text = self._texts[slot]
            text.read = min(text.read, text.length)
            self._drop_drafted(slot)
            for tokens, before in text.unread:
                self._add(slot, text.read, tokens, before, True)
                text.read += int(tokens.size)
            text.unread = []
            newest = np.array([text.newest], dtype=np.int32)
            self._add(slot, text.read, newest, text.state, True)
            text.ahead = text.newest
            text.read += 1
            text.held = text.read

    def _draft_by_heads(self, slots: Sequence[int], most: dict[int, int]) -> None:
        """Draft with a head for each token: each reads the draft so far into a cache of its own."""
        started = perf_counter_ns()
        num_read = sum(self._texts[slot].num_unread for slot in slots)
        self._read(slots)
        read = perf_counter_ns()
        chains = {slot: [self._texts[slot].state[0]] for slot in slots}
        drafting, first = list(slots), read
        for head in range(self._n_max):
            if not drafting:
                break
            self._batch.clear()
            for slot in drafting:
                text = self._texts[slot]
                self._heads.truncate(slot, text.length)  # the head before has written there
                tokens = np.array([text.newest, *text.draft], dtype=np.int32)
                start = len(self._batch)
                self._batch.add(slot, text.length, tokens)
                self._states[start : len(self._batch)] = np.stack(chains[slot])
                text.held = text.length + int(tokens.size)
            states = self._heads.decode(self._batch, self._states, self._rows, head)
            if head == 0:
                first = perf_counter_ns()
            rows = self._last_rows()
            for slot in drafting:
                chains[slot].append(states[rows[slot]].copy())
            drafting = [slot for slot in drafting if self._extend(slot, rows[slot], most[slot])]
        longest = max((len(self._texts[slot].draft) for slot in slots), default=0)
        self._times.each.note(1e-9 * (perf_counter_ns() - first), max(longest - 1, 0))
        self._times.first.note(1e-9 * (first - read), bool(slots))
        self._times.read.note(1e-9 * (read - started), num_read)

    def _last_rows(self) -> dict[int, int]:
        """Return the row of each slot's last output in the batch."""
        _, _, sequences, outputs = self._batch.arrays()
        return {int(slot): row for row, slot in enumerate(sequences[outputs])}


class Assistant(MtpHeads):
    """A draft source that runs an assistant of the target, for all slots at once.

    An assistant reads no text: it looks at what the target's cache holds. A draft begins with the
    newest token and the target's state after the token before it, and goes on with the assistant's
    own states. All its tokens are computed at the position of the newest one, as the cache has no
    entries for them.

    Args and errors are those of MtpHeads.

    Source: llama.cpp common/speculative, draft-mtp with a shared cache.
    """

    def copied(self, source: int, slot: int, length: int) -> None:
        """Follow the target, which has copied the first tokens of a sequence to an empty one."""
        self._forget(slot, length)  # its next token comes of a decode, which tells the state

    def shifted(self, slot: int, first: int, count: int) -> None:
        """Follow the target, which has discarded tokens; those after them have moved down."""
        text = self._texts[slot]
        self._settle(text)
        if first + count > text.length:
            self._forget(slot, max(text.length - count, 0))
            return
        text.length -= count

    def _take(self, text: SlotText, tokens: TokenIds, states: States) -> None:
        text.length += int(tokens.size)
        text.state = states[-1:]

    def _draft(self, slots: Sequence[int], most: dict[int, int]) -> None:
        started, calls = perf_counter_ns(), 0
        states = {slot: self._texts[slot].state[0] for slot in slots}
        drafting, first = list(slots), started
        while drafting:
            self._batch.clear()
            for row, slot in enumerate(drafting):
                text = self._texts[slot]
                token = text.draft[-1] if text.draft else text.newest
                self._batch.add(slot, text.length, np.array([token], dtype=np.int32), None, True)
                self._states[row] = states[slot]
            try:
                after = self._heads.decode(self._batch, self._states, self._rows, 0)
            except CapacityError:
                break  # the target's own next token has no room either: the engine makes some
            states = {slot: after[row].copy() for row, slot in enumerate(drafting)}
            drafting = [
                slot for row, slot in enumerate(drafting) if self._extend(slot, row, most[slot])
            ]
            calls += 1
            if calls == 1:
                first = perf_counter_ns()
        self._times.each.note(1e-9 * (perf_counter_ns() - first), max(calls - 1, 0))
        self._times.first.note(1e-9 * (first - started), min(calls, 1))
