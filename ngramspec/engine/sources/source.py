"""DraftSource: the base of sources; Chain: a slot's first source with a draft wins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec._native.core.flags import leading_flagged
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.engine.slot import Slot
from ngramspec.arrays import TokenIds
from ngramspec.drafters.config import MAX_LENGTH
from ngramspec.drafters.slot_pool import KEPT
from ngramspec.engine.drafting import DraftModelInfo
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.errors import InputError, StateError
from ngramspec.stats import SourceStats

log = logging.getLogger(__name__)

Claims: TypeAlias = npt.NDArray[np.float32]
Pays: TypeAlias = Callable[[list[float]], bool]
MUCH_LONGER = 8  # times as long as a new prompt: the memory of such a text is freed


class DraftSource:
    """Proposes drafts for many slots: the base of what an engine asks. Its thread makes all calls.

    A source of your own derives from it and overrides begin, draft (or propose), accept and end;
    the rest has defaults. One that raises is switched off for the slot's request.

    name: In the policy and in statistics.
    native: The native drafter behind it, which the engine asks without Python where it can.
    own_passes: Drafting takes time, such as passes of a model: it is asked only where its tokens
        are expected to be worth it.
    max_draft: Its longest draft, in tokens.
    extends: It has `extend`.
    stops: It ends its drafts as `bound` says.
    info: Of a draft model, for monitoring.
    """

    name: str = "own"
    native: Drafter | None = None
    own_passes = False
    max_draft: int = MAX_LENGTH
    extends = stops = False
    info: DraftModelInfo | None = None

    @property
    def nbytes(self) -> int:
        """Return its memory, for monitoring."""
        return 0

    def start(self, slot: int, request: Request) -> None:
        """Hear of a request that gets the slot, before its prompt is read."""

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request whose prompt is token_ids (int32, not kept); the target has read it."""

    def draft(self, slot: int, limit: int) -> TokenIds:
        """Return a draft of at most `limit` tokens, empty for none."""
        return NO_TOKENS

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> list[TokenIds]:
        """Return one draft per slot, of at most limits[i] tokens: by default, `draft` of each."""
        return [self.draft(slot, limit) for slot, limit in zip(slots, limits, strict=True)]

    def extend(
        self, slots: Sequence[int], before: Sequence[TokenIds], limits: Sequence[int]
    ) -> list[TokenIds]:
        """Return drafts after before[i], which another source has drafted; needs `extends`."""
        raise NotImplementedError

    def confidence(self, slot: int) -> Claims | None:
        """Return for each token of the last draft how likely it is right if those before it are.

        float32; None = they count as equally likely, by how often its tokens were right.
        """
        return None

    def bound(self, slot: int, pays: Pays) -> None:
        """End the next draft where pays(claims so far) is false: no more is worth its time."""

    def price(self) -> tuple[float, float] | None:
        """Return the seconds that the drafts of a call take, and each token; None = time them."""
        return None

    def backlog(self, slot: int) -> float:
        """Return the seconds that it takes to read what was not read of the slot's text."""
        return 0.0

    def shorten(self, slot: int, length: int) -> None:
        """Hear that only the first `length` tokens of the last draft are sent."""

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens, of which the first num_accepted are the source's last draft."""

    def shift(self, slot: int, first: int, count: int) -> None:
        """Hear that the context has discarded `count` tokens from `first` on."""

    def end(self, slot: int) -> None:
        """End the slot's request."""

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name."""
        return {}


class NativeSource(DraftSource):
    """A native Drafter as a source.

    Args:
        drafter: Made for the engine's slots.
        name: Its name in the policy.
    """

    native: Drafter

    def __init__(self, drafter: Drafter, name: str = "ngram") -> None:
        self.native, self.name, self.max_draft = drafter, name, drafter.max_draft
        self.draft, self.confidence = drafter.propose, drafter.confidence  # type: ignore[method-assign]
        self.accept, self.shorten = drafter.accept, drafter.shorten  # type: ignore[method-assign]
        self.end, self.stats = drafter.end, drafter.stats  # type: ignore[method-assign]
        self._longest: dict[int, int] = {}  # text by slot since its memory was freed

    @property
    def nbytes(self) -> int:
        """Return the memory of histories and sources, without what they share."""
        return self.native.nbytes

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request; each would clear the memory of a much longer text, so that is freed."""
        longest = max(self._longest.get(slot, 0), self.native.length(slot))
        self._longest[slot] = longest
        if longest > max(KEPT, MUCH_LONGER * len(token_ids)):
            self.forget(slot)
        self.native.begin(slot, token_ids)

    def forget(self, slot: int) -> None:
        """Drop the text of an idle slot, and free its memory."""
        with suppress(StateError):  # a source that was shut out may not have ended its request
            self.native.end(slot)
        self.native.forget(slot)
        self._longest.pop(slot, None)


class Chain:
    """Asks the sources of all slots, cleans their drafts, and shuts out sources that fail.

    Args:
        valid: uint8 per token of the vocabulary: 1 where a draft may hold it. Drafts are cut
            before the first other token: end tokens, ids beyond the vocabulary.
    """

    def __init__(self, valid: Any) -> None:
        self.valid = valid
        self.failures: dict[str, int] = {}  # calls that raised, by source name

    def start(self, slot: Slot) -> None:
        """Tell all sources of the slot which request it has got."""
        request = slot.generation.request
        for source in slot.sources:
            self._guarded(slot, source, lambda s: s.start(slot.id, request))

    def begin(self, slot: Slot) -> None:
        """Start the slot's request on all of its sources; its prompt is read."""
        prompt = slot.tokens[: slot.num_prompt]
        for source in slot.sources:
            self._guarded(slot, source, lambda s: s.begin(slot.id, prompt))

    def propose(self, slots: Sequence[Slot], limit: Callable[[Slot, str], int]) -> None:
        """Set draft and draft_source of every slot for which a source has a draft.

        limit: Longest draft of a source for a slot, 0 for none.
        """
        waiting = [slot for slot in slots if slot.sources]
        rank = 0
        while waiting:
            groups: dict[DraftSource, list[Slot]] = {}
            for slot in waiting:
                if rank < len(slot.sources):
                    groups.setdefault(slot.sources[rank], []).append(slot)
            if not groups:
                return
            for source, members in groups.items():
                limits = [most_of(source, slot, limit(slot, source.name)) for slot in members]
                for slot, draft in self.ask(source, members, limits):
                    if draft.size < slot.min_draft:
                        self.send(slot, source, 0)
                    else:
                        slot.draft, slot.draft_source = draft, source
            waiting = [slot for slot in waiting if not slot.draft.size]
            rank += 1

    def send(self, slot: Slot, source: DraftSource, length: int) -> None:
        """Tell a source that counts its drafts how much of the last one is sent."""
        self._guarded(slot, source, lambda s: s.shorten(slot.id, length))

    def shorten(self, slot: Slot, length: int) -> None:
        """Tell the sources of a slot's draft that only its first `length` tokens are sent."""
        first, second = slot.draft_source, slot.added_source
        own = length if second is None else min(slot.num_own, length)
        if first is not None:
            self.send(slot, first, own)
        if second is not None:
            self.send(slot, second, length - own)

    def accept(
        self,
        slot: Slot,
        sources: Sequence[DraftSource],
        token_ids: TokenIds,
        credits: Mapping[DraftSource, int],
    ) -> None:
        """Tell sources of the slot what was emitted, and how many of it their drafts had right."""
        for source in sources:
            try:
                source.accept(slot.id, token_ids, credits.get(source, 0))
            except Exception as error:
                self.shut_out(slot, source, error)

    def shift(self, slot: Slot, first: int, count: int) -> None:
        """Tell the sources that follow the context that it has discarded tokens."""
        for source in slot.sources:
            self._guarded(slot, source, lambda s: s.shift(slot.id, first, count))

    def end(self, slot: Slot) -> None:
        """End the slot's request on all of its sources."""
        for source in slot.sources:
            self._guarded(slot, source, lambda s: s.end(slot.id))
        slot.sources = ()

    def ask(
        self,
        source: DraftSource,
        members: Sequence[Slot],
        limits: Sequence[int],
        before: Mapping[Slot, TokenIds] | None = None,
    ) -> list[tuple[Slot, TokenIds]]:
        """Return the slots for which a source has a draft, with the valid part of each draft.

        limits: Longest draft of each slot; slots with 0 are not asked.
        before: Drafted tokens that come first, for a source with `extend`.
        """
        asked = [slot for slot, most in zip(members, limits, strict=True) if most > 0]
        limits = [most for most in limits if most > 0]
        if not asked:
            return []
        try:
            drafts = self._drafts(source, asked, limits, before)
            if len(drafts) != len(asked):
                raise InputError(f"{len(drafts)} drafts for {len(asked)} slots")
        except Exception:
            drafts = [
                self._ask_one(source, one, most, before)
                for one, most in zip(asked, limits, strict=True)
            ]
        return [
            (slot, np.asarray(draft[:count], dtype=np.int32))
            for slot, draft, most in zip(asked, drafts, limits, strict=True)
            if (count := self._count_valid(slot, source, draft, most))
        ]

    def _drafts(
        self,
        source: DraftSource,
        slots: Sequence[Slot],
        limits: Sequence[int],
        before: Mapping[Slot, TokenIds] | None,
    ) -> list[TokenIds]:
        ids = [slot.id for slot in slots]
        if not before:
            return source.propose(ids, limits)
        first = [before.get(slot, NO_TOKENS) for slot in slots]
        return source.extend(ids, first, limits)

    def _ask_one(
        self,
        source: DraftSource,
        slot: Slot,
        limit: int,
        before: Mapping[Slot, TokenIds] | None,
    ) -> TokenIds:
        """Ask for one slot, so that a failure affects only that slot."""
        try:
            return self._drafts(source, [slot], [limit], before)[0]
        except Exception as error:
            self.shut_out(slot, source, error)
            return NO_TOKENS

    def _count_valid(self, slot: Slot, source: DraftSource, draft: TokenIds, limit: int) -> int:
        """Return how many tokens of a draft are valid; the source does not count the others."""
        try:
            count = min(leading_flagged(draft, self.valid, 1), limit)
        except InputError as error:
            self.shut_out(slot, source, error)
            return 0
        if count < len(draft):
            self.send(slot, source, count)
        return count

    def _guarded(
        self, slot: Slot, source: DraftSource, call: Callable[[DraftSource], None]
    ) -> None:
        try:
            call(source)
        except Exception as error:
            self.shut_out(slot, source, error)

    def shut_out(self, slot: Slot, source: DraftSource, error: Exception) -> None:
        """Switch the source off for the slot's request; generation goes on without it."""
        if source.name not in self.failures:
            log.warning(
                "draft source %s failed and is off for this request: %r", source.name, error
            )
        self.failures[source.name] = self.failures.get(source.name, 0) + 1
        slot.sources = tuple(other for other in slot.sources if other is not source)
        if slot.draft_source is source:
            slot.draft, slot.draft_source = NO_TOKENS, None


def most_of(source: DraftSource, slot: Slot, limit: int) -> int:
    """Return a source's longest draft for a slot, 0 where that is too short to be sent."""
    most = min(limit, source.max_draft)
    return most if most >= slot.min_draft else 0
