"""Offers: the drafts of a slot's sources; an AutoPolicy chooses one and its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.gate import Gate
from ngramspec._native.engine.proposer import Proposer
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.engine.request import TokenIds
from ngramspec.engine.sources import Chain, DraftSource
from ngramspec.errors import InputError

# Tokens drafted, and right ones, that a source without claims is assumed to start with.
KNOWN, RIGHT = 2.0, 1.5
MEMORY = 64.0  # weight of the past tokens of such a source, at most


class Offer(NamedTuple):
    """A draft, and how likely each token is right if those before it are."""

    source: DraftSource
    draft: TokenIds
    claims: npt.NDArray[np.float32]


class Offers:
    """Asks the sources that are not native on behalf of an AutoPolicy.

    All sources of a slot are asked. The draft that is worth most is sent as far as it pays, and is
    credited to the first source with the same tokens. The policy learns from every draft, sent or
    not. Sources with `own_passes`, such as a draft model, are slow: they are asked only where no
    other draft is sent, and a Gate pauses them.

    Args:
        chain: Cleans drafts and shuts out sources that fail.
        policy: Chooses the drafts and their lengths.
        capacity: Most tokens in one decode, >= 1.
    """

    def __init__(self, chain: Chain, policy: AutoPolicy, capacity: int) -> None:
        self._chain, self._policy, self._capacity = chain, policy, capacity
        self._gate = Gate(capacity)
        self._made: dict[int, list[Offer]] = {}  # by slot, of this step
        self._record: dict[str, tuple[float, float]] = {}  # by source: tokens known, right ones

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot's last request."""
        self._gate.begin(slot)
        self._made.pop(slot, None)

    def propose(self, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Set draft and draft_source of every slot for which a draft pays."""
        for slot in slots:
            self._made[slot.id] = []
        for own_passes in (False, True):
            asked = [slot for slot in slots if not slot.draft.size]
            offers = self._ask(asked, proposer, own_passes)
            for slot, made in offers:
                self._made[slot.id] += made
            self._choose(offers, proposer)

    def learn(self, slot: Slot) -> None:
        """Learn what came of all drafts of the slot."""
        emitted = slot.emitted
        for source, draft, claims in self._made.pop(slot.id, ()):
            known = min(draft.size, emitted.size)
            differs = draft[:known] != emitted[:known]
            right = int(differs.argmax()) if differs.any() else known
            self._policy.learn(slot.id, source.name, claims, right, known)
            self._remember(source.name, right, min(known, right + 1))
            if _has_own_passes(source) and known:
                self._gate.record(slot.id, source.name, known, right)

    def _remember(self, source: str, right: int, known: int) -> None:
        """Count a source's right tokens, to estimate its next draft if it gives no confidence."""
        before = self._record.get(source, (KNOWN, RIGHT))
        kept = min(1.0, MEMORY / (before[0] + known))
        self._record[source] = kept * (before[0] + known), kept * (before[1] + right)

    def _ask(
        self, slots: Sequence[Slot], proposer: Proposer, own_passes: bool
    ) -> list[tuple[Slot, list[Offer]]]:
        """Return the slots for which a source has a draft, with all drafts."""
        groups: dict[DraftSource, list[Slot]] = {}
        for slot in slots:
            for source in slot.sources:
                if _has_own_passes(source) == own_passes:
                    groups.setdefault(source, []).append(slot)
        found: dict[Slot, list[Offer]] = {}
        for source, members in groups.items():
            limits = [self._limit(slot, source, proposer) for slot in members]
            for slot, draft in self._chain.ask(source, members, limits):
                claims = self._claims(slot, source, draft)
                if claims is not None:
                    found.setdefault(slot, []).append(Offer(source, draft, claims))
        return list(found.items())

    def _limit(self, slot: Slot, source: DraftSource, proposer: Proposer) -> int:
        limit = proposer.limit(slot, source.name)
        if limit > 0 and _has_own_passes(source):
            limit = min(limit, self._gate.limit(slot.id, source.name))
        return limit

    def _claims(
        self, slot: Slot, source: DraftSource, draft: TokenIds
    ) -> npt.NDArray[np.float32] | None:
        """Return a source's confidence in its draft; if it is invalid, shut the source out."""
        confidence = getattr(source, "confidence", None)
        if confidence is None:
            known, right = self._record.get(source.name, (KNOWN, RIGHT))
            return np.full(draft.size, right / known, dtype=np.float32)
        try:
            claims = np.ascontiguousarray(confidence(slot.id), dtype=np.float32)[: draft.size]
            if claims.shape != draft.shape or not ((claims >= 0) & (claims <= 1)).all():
                raise InputError(f"a draft of {draft.size} tokens needs {draft.size} probabilities")
        except Exception as error:
            self._chain.shut_out(slot, source, error)
            return None
        return claims

    def _choose(self, offers: Sequence[tuple[Slot, Sequence[Offer]]], proposer: Proposer) -> None:
        """Share the pass among the slots that have offers; each draft fits its slot already."""
        if not offers:
            return
        batch_tokens, decoding = proposer.batch_tokens(), proposer.decoding
        best, chains = [], []
        for _, made in offers:
            of_slot = [(offer.source.name, offer.claims, offer.draft.size) for offer in made]
            index = self._policy.best(of_slot, batch_tokens, decoding) if len(made) > 1 else 0
            best.append(made[index])
            chains.append(of_slot[index])
        lengths = self._policy.choose_many(chains, self._capacity, batch_tokens, decoding)
        for (slot, made), chosen, wanted in zip(offers, best, lengths, strict=True):
            length = wanted if wanted >= slot.min_draft else 0
            owner = _first_with(made, chosen.draft[:length])
            for offer in made:
                self._shorten(slot, offer.source, length if offer is owner else 0)
            if length and owner.source in slot.sources:
                slot.draft, slot.draft_source = owner.draft[:length], owner.source

    def _shorten(self, slot: Slot, source: DraftSource, length: int) -> None:
        """Tell a source that counts its drafts how much of the last one is sent."""
        try:
            getattr(source, "shorten", _ignore)(slot.id, length)
        except Exception as error:
            self._chain.shut_out(slot, source, error)


def _first_with(offers: Sequence[Offer], tokens: TokenIds) -> Offer:
    """Return the first offer that begins with the tokens; one does."""
    return next(o for o in offers if np.array_equal(o.draft[: tokens.size], tokens))


def _has_own_passes(source: DraftSource) -> bool:
    return bool(getattr(source, "own_passes", False))


def _ignore(slot: int, length: int) -> None:
    """Do nothing."""
