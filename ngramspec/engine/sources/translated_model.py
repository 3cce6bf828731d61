"""TranslatedDraftModel: a draft model of another vocabulary, which drafts through text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import GreedySampler, Sampler
from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS, Request
from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.engine.sources.second_model import LATEST, count_right, followed
from ngramspec.engine.sources.spelling import MOST_CONTEXT
from ngramspec.engine.sources.translation import Translation, Translator
from ngramspec.engine.target import Target

MOST_TIMES = 8.0  # as many tokens of the draft model are drafted for one of the target, at most
MOST_BYTES = 3  # of a character after its first byte
MOST_ENDS = 3  # tokens of a begun word that are looked at
MOST_AFTER = 2  # tokens of the target that are drafted to see whether the one before is whole
# A model that seldom has longer words than the target is asked for them in one call of so many.
SELDOM, NOW_AND_THEN = 0.05, 8


class _Text:
    """What a slot said, in the target's tokens.

    ids: Prompt and emitted tokens, `length` of them.
    translated: How many of them the translation holds.
    fresh: It holds others after these, or none: it is made anew.
    rough: It lost a part, and perhaps some bytes beside it.
    changed: Tokens of the model's sequence from here on are not those of the translation.
    before: Those that another source has drafted.
    partial: The last bytes of text and `before`, which the model's sequence does not have.
    ends: How many tokens of the sequence may be a part of a word that goes on.
    most, usual: Tokens to draft, and how many of the draft model's that are in this text.
    draft, claims: The last draft and its probabilities.
    """

    __slots__ = (
        "before", "changed", "claims", "draft", "ends", "fresh", "ids", "length", "most",
        "partial", "rough", "translated", "translation", "usual",
    )  # fmt: skip

    def __init__(self, size: int, translation: Translation) -> None:
        self.ids: TokenIds = np.zeros(size, dtype=np.int32)
        self.translation = translation
        self.length = self.translated = self.changed = self.ends = self.most = self.usual = 0
        self.fresh, self.rough = True, False
        self.before: TokenIds = NO_TOKENS
        self.partial = b""
        self.draft: TokenIds = NO_TOKENS
        self.claims: list[float] = []


class TranslatedDraftModel(DraftModel):
    """A draft source that runs a model of another vocabulary.

    Its texts are translations of the slots'; its drafts come back in the target's tokens. Lengths
    of drafts and all counts are in tokens of the target.

    Args:
        target: The draft model, as for DraftModel.
        translator: Between the target's vocabulary and the draft model's.
        text_size: Tokens of the target in a slot, >= 1.
        settings: As for DraftModel.

    Raises:
        InputError: As DraftModel.

    A slot's text is translated when a draft is asked for, so that steps which others draft for cost
    nothing.

    Source: llama.cpp's --spec-replace, which translates the whole text each time.
    """

    def __init__(
        self, target: Target, translator: Translator, text_size: int, *settings: Any, **named: Any
    ) -> None:
        super().__init__(target, *settings, **named)
        self.info = replace(self.info, vocabulary="another")
        self._translator = translator
        slots = range(target.num_sequences)
        self._texts = [_Text(text_size, translator.translation()) for _ in slots]
        self._ratio = 1.0  # tokens of the model for one of the target
        self._most_ends = min(MOST_ENDS, max(target.max_batch // target.num_sequences - 1, 0))
        self._begun_share = 1.0  # of the looks at a begun word, those that found a longer one

    def start(self, slot: int, request: Request, sampler: Sampler) -> None:
        """Take the request's namespace and p_min; text of another namespace is dropped."""
        if self._sequences[slot].namespace != request.speculation.namespace:
            text = self._texts[slot]
            text.translation.clear()
            text.length = text.translated = text.changed = 0
        super().start(slot, request, GreedySampler())  # its tokens are not the sampler's

    def begin(self, slot: int, token_ids: TokenIds) -> None:
        """Start a request; its prompt is translated and read at the first proposal."""
        text = self._texts[slot]
        size = min(int(token_ids.size), text.ids.size)
        same = count_right(text.ids[: text.translated], token_ids[:size])
        text.fresh = text.fresh or text.rough or same < text.translated
        text.ids[:size] = token_ids[:size]
        text.length = size
        text.translated = same
        text.draft, text.claims = NO_TOKENS, []
        self._counts.begins += 1

    def price(self) -> tuple[float, float]:
        start, each = super().price()
        return start, each * self._ratio

    def backlog(self, slot: int) -> float:
        text, seq = self._texts[slot], self._sequences[slot]
        times = self._ratio
        if text.translated and not text.fresh:
            times = len(text.translation) / text.translated
        past = min(seq.num_past, int(text.translated * times))
        return self._backlog(int(text.length * times) - past)

    def confidence(self, slot: int) -> npt.NDArray[np.float32]:
        return np.array(self._texts[slot].claims, dtype=np.float32)

    def accept(self, slot: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Take emitted tokens; they are translated at the next proposal."""
        text, seq = self._texts[slot], self._sequences[slot]
        guessed = np.concatenate([text.before, text.draft])
        right = count_right(guessed, token_ids) - text.before.size
        self._counts.judged(seq.sent, min(num_accepted, right))
        room = min(int(token_ids.size), text.ids.size - text.length)
        text.ids[text.length : text.length + room] = token_ids[:room]
        text.length += room
        self._forget(slot)

    def shift(self, slot: int, first: int, count: int) -> None:
        """Discard the text that the target's context has discarded, in whole tokens of its own."""
        text, end = self._texts[slot], first + count
        if text.length < end:
            return
        self._forget(slot)
        if not text.fresh:
            self._translate(slot, NO_TOKENS)
            spell = self._translator.spell
            sides = spell(text.ids[:first], True), spell(text.ids[end : text.length], False)
            here, lost = text.translation.discard(*sides)
            text.rough = True
            if self._sequences[slot].length != len(text.translation) + lost:
                text.changed = min(text.changed, here)  # a smaller context, which was full
            elif lost:
                super().shift(slot, here, lost)
                text.changed = len(text.translation)
        text.ids[first : text.length - count] = text.ids[end : text.length].copy()
        text.length -= count
        text.translated = max(text.translated - count, 0)

    def end(self, slot: int) -> None:
        self._forget(slot)

    def _forget(self, slot: int) -> None:
        """Forget the last draft; what the cache holds of it is compared with the next text."""
        text = self._texts[slot]
        text.draft, text.claims, text.before = NO_TOKENS, [], NO_TOKENS
        self._sequences[slot].sent = 0

    def _follow(self, slot: int, before: TokenIds) -> None:
        """Make the model's sequence the translation of the text and of what others drafted."""
        self._forget(slot)
        self._translate(slot, before)
        self._texts[slot].before = before.copy()

    def _translate(self, slot: int, before: TokenIds) -> None:
        """Translate what is new, then what others drafted, and give it to the model."""
        text, spell = self._texts[slot], self._translator.spell
        translation, words = text.translation, text.ids[: text.length]
        if text.fresh:
            changed = translation.replace(spell(words, True))
        else:
            changed = translation.append(spell(words[text.translated :], text.translated == 0))
        text.changed = min(text.changed, changed)
        text.rough = text.rough and not text.fresh
        text.fresh, text.translated = False, text.length
        first, text.partial = text.changed, translation.partial
        if before.size:
            changed, tail, text.partial = translation.preview(spell(before, False))
            first = min(first, changed)
            ids = np.concatenate([translation.ids(first)[: changed - first], tail])
        else:
            changed, ids = len(translation), translation.ids(first)
        self._rewrite(slot, first, ids)
        text.changed = changed
        seq = self._sequences[slot]
        text.ends = 0
        looks = self._begun_share > SELDOM or self._counts.calls % NOW_AND_THEN == 0
        if looks and self._target.max_rollback is None:  # it can go back into the text
            last = seq.tokens[max(seq.length - self._most_ends - 1, 0) : seq.length][1:]
            text.ends = self._translator.draft.last_word(last.tolist())
            self._cut(slot, min(seq.num_past, max(seq.length - text.ends - 1, 0)))

    def _num_ends(self, slot: int) -> int:
        return self._texts[slot].ends + 1

    def _decode_ends(self, slots: Sequence[int]) -> dict[int, int]:
        """Decode the last word; return the rows of logits after it, or where it may go on.

        The text may end inside of what is one token to the model. Where it would have said that
        token, and the target would not have, the draft begins with it.
        """
        rows: dict[int, int] = {}
        self._batch.clear()
        for slot in slots:
            seq, ends = self._sequences[slot], self._texts[slot].ends
            cut = seq.length - ends
            tokens = seq.tokens[seq.num_past : cut], seq.tokens[cut : seq.length]
            rows[slot] = self._batch.add(slot, seq.num_past, *tokens)
        if slots:
            self._target.decode(self._batch, self._rows)
        for slot in slots:
            seq, ends = self._sequences[slot], self._texts[slot].ends
            seq.num_past = seq.length
            back = self._begun(slot, rows[slot])
            if ends:
                self._begun_share += LATEST * (bool(back) - self._begun_share)
            rows[slot] += ends - back
            if back:
                self._shorten_by(slot, back)
        return rows

    def _begun(self, slot: int, row: int) -> int:
        """Return how many of the last tokens the model would have said as one that is longer."""
        seq, text = self._sequences[slot], self._texts[slot]
        for back in range(text.ends, 0, -1):
            word = self._translator.draft.spell(seq.tokens[seq.length - back : seq.length].tolist())
            word += text.partial
            token = self._rows.argmax(row + text.ends - back)
            piece = self._translator.draft.piece(token)
            if not piece.startswith(word) or (piece == word and not text.partial):
                continue
            logprob, _ = self._rows.logprobs(row + text.ends - back, token, 0)
            if math.exp(logprob) < seq.p_min:
                continue
            if self._translator.may_end(self._context(slot), piece[len(word) :]):
                return back
        return 0

    def _shorten_by(self, slot: int, back: int) -> None:
        """Take the last tokens from the model's sequence: the draft must begin with their text."""
        seq, text = self._sequences[slot], self._texts[slot]
        begun = seq.tokens[seq.length - back : seq.length].tolist()
        text.partial = self._translator.draft.spell(begun) + text.partial
        seq.length -= back
        text.changed = min(text.changed, seq.length)
        self._cut(slot, seq.length)

    def _context(self, slot: int) -> TokenIds:
        """Return the last tokens of the text and of what others drafted after it."""
        text = self._texts[slot]
        own = text.ids[max(text.length - MOST_CONTEXT, 0) : text.length]
        both: TokenIds = np.concatenate([own, text.before])
        return both[-MOST_CONTEXT:]

    def _length_for(self, slot: int, most: int) -> int:
        """Return how many tokens to draft at most for `most` of the target's."""
        seq, text = self._sequences[slot], self._texts[slot]
        times = seq.length / max(text.length + text.before.size, 1)
        self._ratio = followed(self._ratio, min(max(times, 1 / MOST_TIMES), MOST_TIMES))
        text.most, text.usual = most, math.ceil(most * times)
        longest = min(3 * text.usual, int(most * MOST_TIMES)) + len(text.partial) + MOST_BYTES
        if self._most_back is not None:
            longest = min(longest, self._most_back)
        return max(min(longest, seq.tokens.size - seq.length), 1)

    def _has_room(self, slot: int) -> bool:
        seq = self._sequences[slot]
        return 0 < seq.length <= seq.tokens.size - self._n_max

    def _extend(self, slot: int, row: int, most: int) -> bool:
        """Add the likeliest next token; the draft goes on until it is long enough as text."""
        goes_on = super()._extend(slot, row, most)
        text, draft = self._texts[slot], self._sequences[slot].draft
        if goes_on and text.partial:
            spelled = self._translator.draft.spell(draft[: len(text.partial)])
            if not spelled.startswith(text.partial) and not text.partial.startswith(spelled):
                return False
        if not goes_on or len(draft) < text.usual:
            return goes_on
        tokens = self._drafted_text(slot)[0]
        # What comes next tells whether the last token is whole.
        return len(tokens) < text.most or (
            len(tokens) <= text.most + MOST_AFTER and self._translator.may_grow(tokens, text.most)
        )

    def _drafted_text(self, slot: int) -> tuple[list[int], list[float]]:
        seq, text = self._sequences[slot], self._texts[slot]
        ids, claims = seq.draft, seq.claims
        if ids and self._target.is_end(ids[-1]):  # it may have no counterpart
            ids, claims = ids[:-1], claims[:-1]
        return self._translator.back(self._context(slot), text.partial, ids, claims)

    def _finished(self, slot: int, most: int) -> TokenIds:
        if not self._sequences[slot].draft:
            return NO_TOKENS
        tokens, chances = self._drafted_text(slot)
        tokens, chances = tokens[:most], chances[:most]
        if len(tokens) < max(1, self._n_min):
            return NO_TOKENS
        text = self._texts[slot]
        text.draft, text.claims = np.array(tokens, dtype=np.int32), chances
        self._sequences[slot].sent = len(tokens)
        return text.draft
