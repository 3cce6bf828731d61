"""Speculator: asks the sources of all slots, values their drafts, and chooses what is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ngramspec._native.core.arguments import leading_flagged
from ngramspec._native.engine.plan import Proposer
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.arbiter import Arbiter, Asked, FreeDraft, Terms
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS
from ngramspec.engine.sources.second_model import Duration, count_right
from ngramspec.engine.sources.source import Claims, DraftSource, Pays
from ngramspec.errors import InputError

log = logging.getLogger(__name__)

# Tokens drafted, and right ones, that a source without claims is assumed to start with.
KNOWN, RIGHT = 2.0, 1.5
MEMORY = 64.0  # weight of the past tokens of such a source, at most
FIRST_PRICE = 0.5  # of a token of a source whose calls were not timed yet, in passes over one
NO_CLAIMS: Claims = np.empty(0, dtype=np.float32)
NO_DRAFT = FreeDraft("", NO_CLAIMS, NO_TOKENS)
NO_CREDITS: Mapping[DraftSource, int] = {}


class Offer(NamedTuple):
    """A draft, and how likely each token is right if those before it are.

    claims: Perhaps of more tokens than the draft has.
    before: Tokens of another source's draft that come first.
    beside: It was asked for as a branch beside a free draft.
    """

    source: DraftSource
    draft: TokenIds
    claims: Claims
    before: TokenIds = NO_TOKENS
    beside: bool = False


class Wish(NamedTuple):
    """What is asked of a source, after which tokens of the slot's free draft."""

    asked: Asked
    free: FreeDraft
    before: TokenIds


class Speculator:
    """Asks the draft sources of all slots, and shuts out those that fail.

    Where the policy does not weigh drafts, a slot's first source with a draft has it sent. Where
    it does, all free sources are asked. The draft that is worth most is sent as far as it pays,
    and is credited to the first source with the same tokens. Then an Arbiter decides for each
    source with `own_passes`, such as a draft model, whether what it may add is worth its time:
    instead of the free draft, beside it as a branch, or after it. Tokens that both have count as
    the free source's. The policy learns from every draft, sent or not.

    Sources that take time are told what was emitted when they are asked, and now and then.

    Args:
        valid: uint8 per token of the vocabulary: 1 where a draft may hold it. Drafts are cut
            before the first other token: end tokens, ids beyond the vocabulary.
        policy: Chooses the drafts and their lengths.
        by_dice: Dice say what is right of drafts that are sent, so others teach nothing.

    Attributes:
        failures: Calls that raised, by source name.
        arbiter: Decides what sources that take time are asked for.
    """

    def __init__(self, valid: Any, policy: AutoPolicy, *, by_dice: bool = False) -> None:
        self._valid, self._policy, self._by_dice = valid, policy, by_dice
        self.failures: dict[str, int] = {}
        self.arbiter = Arbiter(policy)
        # By source: what a token took in its calls, for those that state no price.
        self._durations: dict[str, Duration] = {}
        self._offers: dict[int, list[Offer]] = {}  # by slot, of this step
        self._record: dict[str, tuple[float, float]] = {}  # by source: tokens known, right ones
        self._streaks: dict[int, int] = {}  # by slot: newest tokens in a row that drafts had right

    def start(self, slot: Slot) -> None:
        """Tell all sources of the slot which request it has got; the last one's drafts are gone."""
        self._policy.begin(slot.id)
        self.arbiter.begin(slot.id)
        self._offers.pop(slot.id, None)
        self._streaks.pop(slot.id, None)
        request, sampler = slot.generation.request, slot.sampler
        assert sampler is not None  # from its start to its release
        self._tell(slot, lambda source: source.start(slot.id, request, sampler))

    def begin(self, slot: Slot) -> None:
        prompt = slot.tokens[: slot.num_prompt]
        for source in slot.paid:
            self.arbiter.join(source.name, FIRST_PRICE)
        self._tell(slot, lambda source: source.begin(slot.id, prompt))
        slot.num_told, slot.asked = slot.num_prompt, False
        self._look(slot, slot.num_prompt)

    def shift(self, slot: Slot, first: int, count: int) -> None:
        """Tell the sources that follow the context that it has discarded tokens; see `catch_up`."""
        slot.num_told = slot.length
        self._tell(slot, lambda source: source.shift(slot.id, first, count))

    def end(self, slot: Slot) -> None:
        self.catch_up(slot)
        self._tell(slot, lambda source: source.end(slot.id))
        slot.sources = ()

    def propose(self, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Set draft and draft_source of every slot for which a draft is sent.

        Args:
            slots: Those whose free sources are not all native.
            proposer: Has drafted for the others, and says what is asked of sources that take time.
        """
        for slot in (*slots, *proposer.priced):
            self._offers[slot.id] = []
        asking = proposer.asking
        if slots:
            self._ask_free(slots, proposer)
            if not self._policy.weighs:
                return
            self._choose([slot for slot in slots if self._offers[slot.id]], proposer)
            asking = proposer.ask_next()
        while asking is not None:
            self._ask_priced(*asking, proposer)
            asking = proposer.ask_next()

    def shorten(self, slot: Slot, length: int) -> None:
        """Tell the sources of a slot's draft that only its first `length` tokens are sent."""
        first, second = slot.draft_source, slot.added_source
        own = length if second is None else min(slot.num_own, length)
        if first is not None:
            self._send(slot, first, own)
        if second is not None:
            self._send(slot, second, length - own)

    def commit(self, slot: Slot) -> None:
        """Learn what came of all drafts of the slot, and tell its sources what was emitted."""
        emitted, had_right = slot.emitted, False
        judging = emitted[: slot.num_drafted] if self._by_dice else emitted
        for offer in self._offers.pop(slot.id, ()):
            right, judged = _judged(offer, judging)
            had_right = had_right or right == judged > 0
            self._policy.learn(slot.id, offer.source.name, offer.claims, right, judged)
            self._remember(offer.source.name, right, min(judged, right + 1))
            if offer.source.own_passes:
                apart = offer.beside and slot.num_own > slot.num_own_right == 0
                self.arbiter.learn(slot.id, offer.source.name, right, judged, apart)
        streak = self._streaks.get(slot.id, 0)
        self._streaks[slot.id] = streak + int(emitted.size) if had_right else 0
        credits: dict[DraftSource, int] = {}
        if slot.added_source is not None:
            credits[slot.added_source] = slot.num_credited - slot.num_own_right
            credits[slot.draft_source] = slot.num_own_right
        elif slot.draft_source is not None:
            credits[slot.draft_source] = slot.num_credited
        if not slot.taught:
            free = [source for source in slot.sources if not source.own_passes]
            self.accept(slot, free, emitted, credits)
        if slot.untold:
            self.catch_up(slot, credits)

    def catch_up(self, slot: Slot, credits: Mapping[DraftSource, int] = NO_CREDITS) -> None:
        """Tell sources that take time what was emitted since they were told; see `accept`.

        To be called before the text changes in another way.
        """
        untold = slot.tell()
        if untold.size:
            self.accept(slot, slot.paid, untold, credits)
            self._look(slot, int(untold.size))

    def accept(
        self,
        slot: Slot,
        sources: Sequence[DraftSource],
        token_ids: TokenIds,
        credits: Mapping[DraftSource, int],
    ) -> None:
        """Tell sources of the slot what was emitted, and how many of it their drafts had right."""
        for source in sources:
            self._guarded(slot, source, lambda s: s.accept(slot.id, token_ids, credits.get(s, 0)))

    # Asking.

    def _ask_free(self, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Collect the drafts of free sources; unless the policy weighs, set each slot's first."""
        weighs = self._policy.weighs
        orders = {
            slot: [one for one in slot.sources if not (weighs and one.own_passes)] for slot in slots
        }
        for rank in range(max(map(len, orders.values()), default=0)):
            groups: dict[DraftSource, list[Slot]] = {}
            for slot, sources in orders.items():
                if rank < len(sources) and not slot.draft.size:
                    groups.setdefault(sources[rank], []).append(slot)
            for source, members in groups.items():
                limits = [_most_of(source, slot, proposer) for slot in members]
                for slot, draft in self._ask(source, members, limits):
                    if weighs:
                        self._offer(slot, source, draft)
                    elif draft.size < slot.min_draft:
                        self._send(slot, source, 0)
                    else:
                        slot.draft, slot.draft_source = draft, source

    def _ask_priced(
        self,
        source: DraftSource,
        asked: Sequence[tuple[Slot, Asked | Exception]],
        proposer: Proposer,
    ) -> None:
        """Ask a source for the slots where that pays, and take what it drafts."""
        wishes: dict[Slot, Wish] = {}
        for slot, one in asked:
            if isinstance(one, Exception):
                self._shut_out(slot, source, one)
                continue
            if source.stops:
                source_pays = partial(self.arbiter.pays, slot.id, source.name)
                self._guarded(slot, source, partial(_bound, slot.id, source_pays))
                if source not in slot.sources:
                    continue
            free = self.free_of(slot)
            tokens = NO_TOKENS
            if one.after:
                path: Any = slice(one.after)
                if free.parents is not None:
                    path = self.arbiter.path(free)
                tokens = free.tokens[path]
            wishes[slot] = Wish(one, free, tokens)
        if not wishes:
            return
        before = {slot: wish.before for slot, wish in wishes.items() if wish.before.size}
        limits = [wish.asked.tokens for wish in wishes.values()]
        started = perf_counter()
        drafts = dict(self._ask(source, [*wishes], limits, before))
        longest = max((draft.size for draft in drafts.values()), default=0)
        seconds = perf_counter() - started
        duration = self._durations.setdefault(source.name, Duration())
        duration.note(seconds / max(longest, 1))
        self.arbiter.note_call(source.name, len(wishes))
        if self._policy.timed:
            self._policy.spend(seconds)
        for slot, wish in wishes.items():
            draft = drafts.get(slot)
            try:
                if draft is not None:
                    self._take(slot, source, draft, wish, proposer)
                    continue
                # Paid for nothing, unless it is still reading the text.
                reading = source in slot.sources and source.backlog(slot.id) > 0.0
            except Exception as error:
                self._shut_out(slot, source, error)
                continue
            self.arbiter.learn(slot.id, source.name, 0, 0 if reading else 1)

    def _look(self, slot: Slot, tokens: int) -> None:
        """Note the prices of the sources that take time, after they were told `tokens` tokens."""
        for source in slot.paid:
            self._guarded(slot, source, lambda s: self._note_price(slot, s, tokens))

    def _note_price(self, slot: Slot, source: DraftSource, tokens: int) -> None:
        price, duration = source.price(), self._durations.get(source.name)
        if price is None and duration is not None:
            price = 0.0, duration.seconds
        if price is not None:
            start, per_token = price
            self.arbiter.time(source.name, float(start), float(per_token))
        self.arbiter.owe(slot.id, source.name, float(source.backlog(slot.id)), tokens)

    def _ask(
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
        if source.own_passes:
            for slot in asked:
                self.catch_up(slot)
                slot.asked = True
        try:
            drafts = _drafts(source, asked, limits, before)
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

    def _ask_one(
        self,
        source: DraftSource,
        slot: Slot,
        limit: int,
        before: Mapping[Slot, TokenIds] | None,
    ) -> TokenIds:
        """Ask for one slot, so that a failure affects only that slot."""
        try:
            return _drafts(source, [slot], [limit], before)[0]
        except Exception as error:
            self._shut_out(slot, source, error)
            return NO_TOKENS

    def _count_valid(self, slot: Slot, source: DraftSource, draft: TokenIds, limit: int) -> int:
        """Return how many tokens of a draft are valid; the source does not count the others."""
        try:
            count = min(leading_flagged(draft, self._valid, 1), limit)
        except InputError as error:
            self._shut_out(slot, source, error)
            return 0
        if count < len(draft):
            self._send(slot, source, count)
        return count

    # Valuing.

    def _offer(
        self,
        slot: Slot,
        source: DraftSource,
        draft: TokenIds,
        before: TokenIds = NO_TOKENS,
        beside: bool = False,
    ) -> Offer | None:
        """Note a draft, to be judged; if the source's claims are invalid, shut the source out."""
        try:
            confidence = source.confidence(slot.id)
            if confidence is None:
                judged, right = self._record.get(source.name, (KNOWN, RIGHT))
                confidence = np.full(draft.size, right / judged)
            claims = np.ascontiguousarray(confidence, dtype=np.float32)[: draft.size]
            if claims.shape != draft.shape or not ((claims >= 0) & (claims <= 1)).all():
                raise InputError(f"a draft of {draft.size} tokens needs {draft.size} probabilities")
        except Exception as error:
            self._shut_out(slot, source, error)
            return None
        offer = Offer(source, draft, claims, before, beside)
        self._offers[slot.id].append(offer)
        return offer

    def _remember(self, source: str, right: int, judged: int) -> None:
        """Count a source's right tokens, to estimate its next draft if it gives no confidence."""
        before = self._record.get(source, (KNOWN, RIGHT))
        share = min(1.0, MEMORY / (before[0] + judged))
        self._record[source] = share * (before[0] + judged), share * (before[1] + right)

    def _terms(self, slot: Slot, source: DraftSource, proposer: Proposer) -> Terms:
        """Return what a draft of a source must fit in, beside the slot's draft so far."""
        return Terms(
            room=proposer.limit(slot, source.name),
            batch_tokens=proposer.batch_tokens() - slot.draft.size,
            decoding=proposer.decoding,
            branches=proposer.width or 1,
            shortest=slot.min_draft,
        )

    def free_of(self, slot: Slot) -> FreeDraft:
        """Return the free draft that the slot's draft is from, or could be from."""
        owner = slot.native_source
        if owner is not None and slot.draft_source in (None, owner):
            native = owner.native
            claims, parents = native.offered(slot.id), native.offered_parents(slot.id)
            return FreeDraft(native.offered_by(slot.id), claims, slot.draft, parents)
        for offer in self._offers.get(slot.id, ()):
            if offer.source is slot.draft_source:
                return FreeDraft(offer.source.name, offer.claims, slot.draft)
        return NO_DRAFT

    # Choosing.

    def _choose(self, slots: Sequence[Slot], proposer: Proposer) -> None:
        """Share the pass among the slots that have drafts; each draft fits its slot already."""
        if not slots:
            return
        batch_tokens, decoding = proposer.batch_tokens(), proposer.decoding
        best, chains = [], []
        streaks = [self._streaks.get(slot.id, 0) for slot in slots]
        for slot, streak in zip(slots, streaks, strict=True):
            offers = self._offers[slot.id]
            of_slot = [(offer.source.name, offer.claims, offer.draft.size) for offer in offers]
            one = len(offers) == 1
            index = 0 if one else self._policy.best(of_slot, batch_tokens, decoding, streak)
            best.append(offers[index])
            chains.append(of_slot[index])
        lengths = self._policy.choose_many(
            chains, proposer.capacity, batch_tokens, decoding, streaks
        )
        for slot, chosen, most in zip(slots, best, lengths, strict=True):
            length = most if most >= slot.min_draft else 0
            tokens = chosen.draft[:length]
            offers = self._offers[slot.id]
            owner = next(o for o in offers if np.array_equal(o.draft[:length], tokens))
            for offer in offers:
                self._send(slot, offer.source, length if offer is owner else 0)
            if length and owner.source in slot.sources:
                slot.draft, slot.draft_source = owner.draft[:length], owner.source

    def _take(
        self, slot: Slot, source: DraftSource, draft: TokenIds, wish: Wish, proposer: Proposer
    ) -> None:
        """Let a draft that was paid for be judged, and send of it what pays."""
        offer = self._offer(slot, source, draft, wish.before, wish.asked.beside)
        if offer is None:
            return
        if wish.asked.trial:  # what is emitted tells as much as sending it would
            self._send(slot, source, 0)
            return
        terms = self._terms(slot, source, proposer)
        if wish.free.tokens.size:
            self._mix(slot, wish.free, offer, terms)
            self._add_tail(slot, offer, proposer)
            return
        place = terms.room, terms.batch_tokens, terms.decoding
        length = self._policy.choose(slot.id, source.name, offer.claims, *place)
        if length < slot.min_draft:
            length = 0
        self._send(slot, source, length)
        if length:
            slot.draft, slot.draft_source = draft[:length], source
            self._add_tail(slot, offer, proposer)

    def _mix(self, slot: Slot, free: FreeDraft, offer: Offer, terms: Terms) -> None:
        """Send what pays of the free draft and of one that was paid for."""
        owner, source = slot.draft_source, offer.source
        mixed = self.arbiter.mix(
            source.name, offer.claims, offer.draft, offer.before.size > 0, free, terms
        )
        added = mixed.tokens.size - mixed.num_free
        if not added or mixed.tokens.size < slot.min_draft:
            self._send(slot, source, 0)
            return
        self._send(slot, owner, mixed.num_free)
        self._send(slot, source, added)
        slot.send(mixed.tokens, mixed.parents, mixed.num_free)
        slot.draft_source = owner if mixed.num_free else source
        if mixed.num_free:
            slot.added_source = source

    def _add_tail(self, slot: Slot, offer: Offer, proposer: Proposer) -> None:
        """Let the native drafter go on behind a draft that was paid for, if all is sent."""
        native = slot.native_source
        if native is None or slot.draft_source is not offer.source:
            return
        likely = self._policy.calibrated(offer.source.name, offer.claims).astype(np.float32)
        if slot.draft.size == likely.size:
            self._guarded(slot, native, lambda _: proposer.add_tail(slot, likely))

    # Telling.

    def _send(self, slot: Slot, source: DraftSource, length: int) -> None:
        """Tell a source that counts its drafts how much of the last one is sent."""
        self._guarded(slot, source, lambda s: s.shorten(slot.id, length))

    def _tell(self, slot: Slot, call: Callable[[DraftSource], None]) -> None:
        for source in slot.sources:
            self._guarded(slot, source, call)

    def _guarded(
        self, slot: Slot, source: DraftSource, call: Callable[[DraftSource], None]
    ) -> None:
        try:
            call(source)
        except Exception as error:
            self._shut_out(slot, source, error)

    def _shut_out(self, slot: Slot, source: DraftSource, error: Exception) -> None:
        """Switch the source off for the slot's request; generation goes on without it."""
        if source.name not in self.failures:
            log.warning(
                "draft source %s failed and is off for this request: %r", source.name, error
            )
        self.failures[source.name] = self.failures.get(source.name, 0) + 1
        slot.sources = tuple(other for other in slot.sources if other is not source)
        if slot.draft_source is source:
            slot.draft, slot.draft_source = NO_TOKENS, None


def _bound(slot: int, pays: Pays, source: DraftSource) -> None:
    source.bound(slot, pays)


def _drafts(
    source: DraftSource,
    slots: Sequence[Slot],
    limits: Sequence[int],
    before: Mapping[Slot, TokenIds] | None,
) -> list[TokenIds]:
    ids = [slot.id for slot in slots]
    if not before:
        return source.propose(ids, limits)
    return source.extend(ids, [before.get(slot, NO_TOKENS) for slot in slots], limits)


def _most_of(source: DraftSource, slot: Slot, proposer: Proposer) -> int:
    """Return a source's longest draft for a slot, 0 where that is too short to be sent."""
    most = min(proposer.limit(slot, source.name), source.max_draft)
    return most if most >= slot.min_draft else 0


def _judged(offer: Offer, emitted: TokenIds) -> tuple[int, int]:
    """Return how many tokens of an offer are right, and of how many that is known."""
    first = offer.before.size
    if emitted.size <= first or not np.array_equal(emitted[:first], offer.before):
        return 0, 0
    here = emitted[first:]
    return count_right(offer.draft, here), min(offer.draft.size, here.size)
