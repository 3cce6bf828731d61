"""Request: one request of a SuffixDecodingCache, on a slot of our drafter."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from ngramspec._suffix import SuffixSource
from ngramspec.compat.arctic_draft import DraftLimits, Ids, SuffixDecodingDraft
from ngramspec.drafters.seats import Seat

COMPARED = 32  # tokens that a match is compared over; one of as many may be longer


class Request:
    """A slot, the end of its text, and the draft that the target may be verifying.

    Args:
        seat: Where the request was begun.
        source: The source of the seat's drafter.
        depth: Tokens of a context that are looked at, >= 1.
        prompt: What it was begun with.
    """

    __slots__ = ("_depth", "_pending", "_source", "_tail", "seat")

    def __init__(self, seat: Seat, source: SuffixSource, depth: int, prompt: Ids) -> None:
        self.seat = seat
        self._pending: SuffixDecodingDraft | None = None
        self._source = source
        self._depth = depth
        self._tail = prompt[-depth:].tobytes()  # compared with contexts, so bytes

    def ends_with(self, context: Ids) -> bool:
        """Tell whether a context of at most `depth` tokens is the end of the request's text."""
        return self._tail.endswith(context.tobytes())

    def extend(self, tokens: Ids) -> None:
        """Append what the target emitted.

        Raises:
            InputError: A token is negative. Nothing is changed then.
        """
        drafter, slot = self.seat
        right = _right(self._pending, tokens) if self._pending else 0
        drafter.accept(slot, tokens, right)
        self._pending = None
        self._tail = (self._tail + tokens.tobytes())[-4 * self._depth :]

    def draft(self, context_len: int, limits: DraftLimits) -> SuffixDecodingDraft:
        """Draft what follows the text, within limits.

        Args:
            context_len: Tokens of the context given, >= 1; a match is shorter.
            limits: As asked for.
        """
        ids, parents, probs = self._propose(limits)
        if not ids:
            self._pending = None
            return SuffixDecodingDraft()
        drafter, slot = self.seat
        matched = self._source.match_length(slot, ids[0])
        most = limits.most(self._depth if matched == COMPARED else matched)
        length = min(len(ids), most)
        for i in range(length):
            if probs[i] < limits.min_probability:
                length = i
                break
        if length < len(ids):
            drafter.shorten(slot, length)
            del ids[length:], parents[length:], probs[length:]
        draft = SuffixDecodingDraft(ids, parents, probs, sum(probs), min(matched, context_len - 1))
        self._pending = SuffixDecodingDraft(ids.copy(), parents.copy())
        return draft

    def _propose(self, limits: DraftLimits) -> tuple[list[int], list[int], list[float]]:
        """Return tokens, parents, and how likely each token and all before it are right."""
        drafter, slot = self.seat
        self._source.floor = min(max(0.0, limits.min_probability), 1.0)
        if limits.width == 1:
            ids: list[int] = drafter.propose(slot, limits.max_tokens).tolist()
            if not ids:
                return ids, [], []
            claims = drafter.confidence(slot).tolist()
            return ids, list(range(-1, len(ids) - 1)), list(accumulate(claims, mul))
        tokens, above, likely = drafter.propose_tree(slot, limits.max_tokens, limits.width)
        parents: list[int] = above.tolist()
        return tokens.tolist(), parents, _along(parents, likely.tolist())


def _right(draft: SuffixDecodingDraft, tokens: Ids) -> int:
    """Return how many of the new tokens, but the last, are a path of a draft."""
    ids, parents = draft.token_ids, draft.parents
    at, right = -1, 0
    for token in tokens[:-1].tolist():
        at = next((i for i in range(at + 1, len(ids)) if parents[i] == at and ids[i] == token), -1)
        if at < 0:
            break
        right += 1
    return right


def _along(parents: list[int], claims: list[float]) -> list[float]:
    """Return the product of the claims along each path."""
    found: list[float] = []
    for parent, claim in zip(parents, claims, strict=True):
        found.append(claim * found[parent] if parent >= 0 else claim)
    return found
