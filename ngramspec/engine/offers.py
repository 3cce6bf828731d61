"""Offers: the drafts of a slot's sources; an AutoPolicy chooses which are sent, and how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ngramspec._native.engine.proposer import Proposer
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.arbiter import Arbiter, Asked
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS
from ngramspec.engine.room import Room
from ngramspec.engine.sources.draft_counts import Duration
from ngramspec.engine.sources.draft_model import count_right
from ngramspec.engine.sources.source import Chain, Claims, DraftSource
from ngramspec.errors import InputError

# Tokens drafted, and right ones, that a source without claims is assumed to start with.
KNOWN, RIGHT = 2.0, 1.5
MOST_DRAFTED = 1024  # tokens that a source is asked for, as in arbiter.pyx
MEMORY = 64.0  # weight of the past tokens of such a source, at most
# What a source's price is multiplied by in each step without a call: it may have been a stall.
FADE = 0.998
FIRST_PRICE = 0.5  # of a token of a source whose calls were not timed yet, in passes over one
NO_CLAIMS: Claims = np.empty(0, dtype=np.float32)


class Offer(NamedTuple):
    """A draft, and how likely each token is right if those before it are.

    claims: Perhaps of more tokens than the draft has.
    name: Under which the policy corrects the claims, "" = not at all.
    before: Tokens of another source's draft that come first.
    parents: Of each token that is claimed the index of the one before it; None = it is a chain.
    beside: It was asked for as a branch beside a free draft.
    """

    source: DraftSource
    draft: TokenIds
    claims: Claims
    name: str
    before: TokenIds = NO_TOKENS
    parents: TokenIds | None = None
    beside: bool = False


class Wish(NamedTuple):
    """What is asked of a source, after which tokens of the slot's free draft, if it has one."""

    asked: Asked
    free: Offer | None
    before: TokenIds


NO_WISH = Wish(Asked(0, 0, False), None, NO_TOKENS)


class Price:
    """What the drafts of a source take, from its own `price()` or from the time of its calls.

    It fades while the source is not asked, so that one that was slow once is asked again.
    """

    def __init__(self) -> None:
        self.per_token = Duration()
        self.sharing = 1  # slots of its last call
        self.faded = 1.0

    def of(self, source: DraftSource, policy: AutoPolicy) -> tuple[float, float]:
        """Return what a draft takes, and each of its tokens, in the unit of the policy's costs."""
        stated = source.price() if policy.timed else None
        if stated is not None:
            start, per_token = stated
            return float(start) * self.faded, float(per_token) * self.faded
        if policy.timed and self.per_token.seconds:
            return 0.0, self.per_token.seconds * self.faded
        return 0.0, FIRST_PRICE * policy.cost(1)  # perhaps not in seconds yet

    def time(self, seconds: float, longest: int, slots: int) -> None:
        """Note a call that drafted up to `longest` tokens for some slots."""
        self.sharing, self.faded = slots, 1.0
        self.per_token.note(seconds / max(longest, 1))

    def fade(self) -> None:
        """Note a step without a call."""
        self.faded *= FADE


class Offers:
    """Asks the sources that are not native on behalf of an AutoPolicy.

    All free sources of a slot are asked. The draft that is worth most is sent as far as it pays,
    and is credited to the first source with the same tokens. Then an Arbiter decides for each
    source with `own_passes`, such as a draft model, whether what it may add is worth its time:
    instead of the free draft, beside it as a branch, or after it. Tokens that both have count as
    the free source's. The policy learns from every draft, sent or not.

    Args:
        chain: Cleans drafts and shuts out sources that fail.
        policy: Chooses the drafts and their lengths.
        room: Foresees how long answers are.
    """

    def __init__(self, chain: Chain, policy: AutoPolicy, room: Room) -> None:
        self._chain, self._policy, self._room = chain, policy, room
        self._arbiter = Arbiter(policy)
        self._prices: dict[str, Price] = {}
        self._made: dict[int, list[Offer]] = {}  # by slot, of this step
        self._record: dict[str, tuple[float, float]] = {}  # by source: tokens known, right ones
        self._streaks: dict[int, int] = {}  # by slot: newest tokens in a row that drafts had right

    def begin(self, slot: int) -> None:
        """Forget what was learnt about the slot's last request."""
        self._arbiter.begin(slot)
        self._made.pop(slot, None)
        self._streaks.pop(slot, None)

    def propose(self, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Set draft and draft_source of every slot for which a draft pays.

        Args:
            slots: Those whose free sources are not all native.
            proposer: Has the slots that have a native draft, and sources that take time.
        """
        everyone = [*slots, *proposer.priced]
        for slot in everyone:
            self._made[slot.id] = []
        if slots:
            self._choose(self._ask_free(slots, proposer), proposer)
        for source in _priced(everyone):
            self._ask_priced(source, everyone, proposer)

    def learn(self, slot: Slot, credits: Mapping[DraftSource, int]) -> Mapping[DraftSource, int]:
        """Learn what came of all drafts of the slot; return how many right tokens each source gets.

        credits: What the source of the slot's draft would get, if it were its alone.
        """
        emitted, had_right = slot.emitted, False
        for offer in self._made.pop(slot.id, ()):
            right, known = _judged(offer, emitted)
            had_right = had_right or right == known > 0
            self._policy.learn(slot.id, offer.source.name, offer.claims, right, known)
            self._remember(offer.source.name, right, min(known, right + 1))
            if offer.source.own_passes:
                apart = offer.beside and slot.num_own > slot.num_own_right == 0
                self._arbiter.learn(slot.id, offer.source.name, right, known, apart)
        streak = self._streaks.get(slot.id, 0)
        self._streaks[slot.id] = streak + int(emitted.size) if had_right else 0
        if slot.added_source is None:
            return credits
        total, own = sum(credits.values()), slot.num_own_right
        return {slot.draft_source: own, slot.added_source: total - own}

    def _remember(self, source: str, right: int, known: int) -> None:
        """Count a source's right tokens, to estimate its next draft if it gives no confidence."""
        before = self._record.get(source, (KNOWN, RIGHT))
        kept = min(1.0, MEMORY / (before[0] + known))
        self._record[source] = kept * (before[0] + known), kept * (before[1] + right)

    def _ask_free(
        self, slots: Sequence[Slot], proposer: Proposer
    ) -> list[tuple[Slot, list[Offer]]]:
        """Return the slots for which a free source has a draft, with all drafts."""
        groups: dict[DraftSource, list[Slot]] = {}
        for slot in slots:
            for source in slot.sources:
                if not source.own_passes:
                    groups.setdefault(source, []).append(slot)
        found: dict[Slot, list[Offer]] = {}
        for source, members in groups.items():
            limits = [proposer.limit(slot, source.name) for slot in members]
            for slot, draft in self._chain.ask(source, members, limits):
                claims = self._claims(slot, source, draft)
                if claims is not None:
                    found.setdefault(slot, []).append(Offer(source, draft, claims, source.name))
        for slot, made in found.items():
            self._made[slot.id] += made
        return list(found.items())

    def _ask_priced(self, source: DraftSource, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Ask a source for the slots where that pays, and take what it drafts."""
        members = [slot for slot in slots if source in slot.sources]
        price = self._prices.setdefault(source.name, Price())
        try:
            self._arbiter.price(source.name, *price.of(source, self._policy))
        except Exception as error:
            for slot in members:
                self._chain.shut_out(slot, source, error)
            return
        wanted: dict[Slot, Wish] = {}
        for slot in members:
            try:
                wish = self._wanted(slot, source, proposer, price)
            except Exception as error:
                self._chain.shut_out(slot, source, error)
                continue
            if wish.asked.tokens:
                wanted[slot] = wish
        if not wanted:
            price.fade()
            return
        before = {slot: wish.before for slot, wish in wanted.items() if wish.before.size}
        limits = [wish.asked.tokens for wish in wanted.values()]
        started = perf_counter()
        drafts = dict(self._chain.ask(source, [*wanted], limits, before))
        longest = max((draft.size for draft in drafts.values()), default=0)
        seconds = perf_counter() - started
        price.time(seconds, longest, len(wanted))
        if self._policy.timed:
            self._policy.spend(seconds)
        for slot, wish in wanted.items():
            draft = drafts.get(slot)
            if draft is None:  # paid for nothing, unless it is still reading the text
                reading = source in slot.sources and source.backlog(slot.id) > 0.0
                self._arbiter.learn(slot.id, source.name, 0, 0 if reading else 1)
                continue
            try:
                self._take(slot, source, draft, wish, proposer)
            except Exception as error:
                self._chain.shut_out(slot, source, error)

    def _wanted(self, slot: Slot, source: DraftSource, proposer: Proposer, price: Price) -> Wish:
        """Return what to ask of a source for a slot."""
        if slot.added_source is not None:  # two sources have drafted already
            return NO_WISH
        free = self._free_of(slot)
        sent = slot.draft.size
        room = proposer.limit(slot, source.name)
        longest = min(source.max_draft, MOST_DRAFTED)
        asked = self._arbiter.ask(
            slot.id,
            source.name,
            longest,
            room,
            "" if free is None else free.name,
            NO_CLAIMS if free is None else free.claims,
            sent,
            proposer.batch_tokens() - sent,
            proposer.decoding,
            price.sharing,
            source.extends,
            price.faded * source.backlog(slot.id) if self._policy.timed else 0.0,
            None if free is None else free.parents,
            proposer.width or 1,
            source.stops,
            slot.min_draft,
            max(self._room.left(slot.generation, slot.length), 1),
        )
        if asked.tokens and source.stops:
            source.bound(slot.id, partial(self._arbiter.pays, slot.id, source.name))
        before = NO_TOKENS
        if asked.after and free is not None:
            path: Any = slice(asked.after)
            if free.parents is not None:
                path = self._arbiter.path(free.name, free.claims, free.parents, sent)
            before = free.draft[path]
        return Wish(asked, free if sent else None, before)

    def _free_of(self, slot: Slot) -> Offer | None:
        """Return the offer that the slot's draft is from, or could be from."""
        owner = slot.native_source
        if owner is not None and slot.draft_source in (None, owner):
            native = owner.native
            claims, parents = native.offered(slot.id), native.offered_parents(slot.id)
            name = native.offered_by(slot.id)
            return Offer(owner, slot.draft, claims, name, parents=parents)
        owner = slot.draft_source
        made = next((one for one in self._made[slot.id] if one.source is owner), None)
        return made if made is None else made._replace(draft=slot.draft)

    def _take(
        self, slot: Slot, source: DraftSource, draft: TokenIds, wish: Wish, proposer: Proposer
    ) -> None:
        """Let a draft that was paid for be judged, and send of it what pays."""
        claims = self._claims(slot, source, draft)
        if claims is None:
            return
        asked, free = wish.asked, wish.free
        offer = Offer(source, draft, claims, source.name, wish.before, beside=asked.beside)
        self._made[slot.id].append(offer)
        if asked.trial:  # what is emitted tells as much as sending it would
            self._chain.send(slot, source, 0)
            return
        if free is not None:
            self._mix(slot, free, offer, proposer)
            return
        base, room = proposer.batch_tokens(), proposer.limit(slot, source.name)
        length = self._policy.choose(slot.id, source.name, claims, room, base, proposer.decoding)
        if length < slot.min_draft:
            length = 0
        self._chain.send(slot, source, length)
        if length:
            slot.draft, slot.draft_source = draft[:length], source

    def _mix(self, slot: Slot, free: Offer, offer: Offer, proposer: Proposer) -> None:
        """Send what pays of the free draft and of one that was paid for."""
        mixed = self._arbiter.mix(
            offer.source.name,
            offer.claims,
            offer.draft,
            offer.before.size > 0,
            free.name,
            free.claims,
            free.parents,
            free.draft,
            proposer.limit(slot, offer.source.name),
            proposer.batch_tokens() - free.draft.size,
            proposer.decoding,
            proposer.width or 1,
        )
        added = mixed.tokens.size - mixed.kept
        if not added or mixed.tokens.size < slot.min_draft:
            self._chain.send(slot, offer.source, 0)
            return
        self._chain.send(slot, free.source, mixed.kept)
        self._chain.send(slot, offer.source, added)
        slot.send(mixed.tokens, mixed.parents, mixed.kept)
        slot.draft_source = free.source if mixed.kept else offer.source
        if mixed.kept:
            slot.added_source = offer.source

    def _claims(self, slot: Slot, source: DraftSource, draft: TokenIds) -> Claims | None:
        """Return a source's confidence in its draft; if it is invalid, shut the source out."""
        try:
            confidence = source.confidence(slot.id)
            if confidence is None:
                known, right = self._record.get(source.name, (KNOWN, RIGHT))
                return np.full(draft.size, right / known, dtype=np.float32)
            claims = np.ascontiguousarray(confidence, dtype=np.float32)[: draft.size]
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
        streaks = [self._streaks.get(slot.id, 0) for slot, _ in offers]
        for (_, made), streak in zip(offers, streaks, strict=True):
            of_slot = [(offer.source.name, offer.claims, offer.draft.size) for offer in made]
            one = len(made) == 1
            index = 0 if one else self._policy.best(of_slot, batch_tokens, decoding, streak)
            best.append(made[index])
            chains.append(of_slot[index])
        lengths = self._policy.choose_many(
            chains, proposer.capacity, batch_tokens, decoding, streaks
        )
        for (slot, made), chosen, wanted in zip(offers, best, lengths, strict=True):
            length = wanted if wanted >= slot.min_draft else 0
            owner = _first_with(made, chosen.draft[:length])
            for offer in made:
                self._chain.send(slot, offer.source, length if offer is owner else 0)
            if length and owner.source in slot.sources:
                slot.draft, slot.draft_source = owner.draft[:length], owner.source


def _judged(offer: Offer, emitted: TokenIds) -> tuple[int, int]:
    """Return how many tokens of an offer are right, and of how many that is known."""
    first = offer.before.size
    if emitted.size <= first or not np.array_equal(emitted[:first], offer.before):
        return 0, 0
    here = emitted[first:]
    return count_right(offer.draft, here), min(offer.draft.size, here.size)


def _first_with(offers: Sequence[Offer], tokens: TokenIds) -> Offer:
    """Return the first offer that begins with the tokens; one does."""
    return next(o for o in offers if np.array_equal(o.draft[: tokens.size], tokens))


def _priced(slots: Sequence[Slot]) -> list[DraftSource]:
    """Return the sources of the slots that take time, each once."""
    found = dict.fromkeys(source for slot in slots for source in slot.sources)
    return [source for source in found if source.own_passes]
