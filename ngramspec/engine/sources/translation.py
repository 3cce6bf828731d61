"""Translation: a slot's text in the tokens of a model of another vocabulary."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.engine.sources.spelling import BLANK, Exchange, Speller, whole
from ngramspec.errors import BackendError

# Tokens that end so few bytes before the end of a text may change when it goes on. A tokenizer
# looks ahead by a character, but a special token may be begun.
LOOSE = 32
NEAR = 256  # how far back from there the beginning of a word is looked for, in bytes
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes inside of characters
BLANKS = {bytes([byte]) for byte in BLANK}
INSIDE = {bytes([byte]) for byte in CONTINUATION}
PROBE = "Ab  c\n\n\t(d) 1234 x_Y=\u00e9\u00df, e\u0301 \ufb01 \u4f60\u597d \U0001f600!\n  z "


class _Tail(NamedTuple):
    """How a translation ends after a text that was added to it.

    first: Tokens before it stay.
    ids: Its tokens.
    ends: Where they end.
    settled: Text that is final, after what was before.
    loose: Text after it that may begin a string to exchange.
    partial: The bytes of a character that is not whole.
    """

    first: int
    ids: list[int]
    ends: list[int]
    settled: bytes
    loose: bytes
    partial: bytes


class Translation:
    """A text that grows, in the tokens of another model.

    Only its end is tokenised again when it grows: from the beginning of a word on.

    Args:
        speller: Of the other model.
        exchange: Strings that are other ones there.

    Cost: of growing, that of tokenising the new text and at most LOOSE + NEAR bytes before it;
        usually it is some 40.
    """

    def __init__(self, speller: Speller, exchange: Exchange) -> None:
        self._speller, self._exchange = speller, exchange
        self._ids, self._ends = array("i"), array("q")
        self._text = bytearray()  # of the other model, final
        self._loose = self._partial = b""
        self.clear()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def partial(self) -> bytes:
        """Return the bytes at the end of the text that are no whole character: in no token."""
        return self._partial

    @property
    def text(self) -> bytes:
        """Return the text of the other model."""
        return bytes(self._text) + self._exchange.apply(self._loose)

    def ids(self, first: int = 0) -> TokenIds:
        """Return the tokens from an index on, as int32."""
        return np.frombuffer(self._ids[first:], dtype=np.int32)

    def clear(self) -> None:
        begin = self._speller.begin
        self._ids, self._ends = array("i", begin), array("q", [0] * len(begin))
        self._text.clear()
        self._loose = self._partial = b""

    def append(self, data: bytes) -> int:
        """Let the text go on.

        Args:
            data: UTF-8, which may begin or end inside of a character.

        Returns:
            int: The index of the first token that may have changed.

        Raises:
            BackendError: The other model has no token for a part of it; nothing has changed.
        """
        if not data:
            return len(self._ids)
        tail = self._after(data)
        self._take(tail, len(self._text))
        return tail.first

    def preview(self, data: bytes) -> tuple[int, TokenIds, bytes]:
        """Return what `append` would do: the first changed token, those from there on, `partial`.

        Raises:
            BackendError: As append.
        """
        tail = self._after(data)
        return tail.first, np.array(tail.ids, dtype=np.int32), tail.partial

    def replace(self, data: bytes) -> int:
        """Take another text, from its beginning on; return the first token that may have changed.

        Raises:
            BackendError: As append; a part of the last text may be forgotten.

        Cost: a look at the text, and tokenising what differs from the last one.
        """
        if damaged := not self._begins_whole():
            self.clear()
        characters, partial = whole(data)
        size = self._exchange.settled(characters)
        text = self._exchange.apply(characters[:size])
        same = _common(bytes(self._text), text)
        first, base, begins = self._anchor(same)
        loose = characters[size:]
        end = text[base:] + self._exchange.apply(loose)
        ids, ends = self._tokenize(end, base, begins)
        self._take(_Tail(first, ids, ends, text[same:], loose, partial), same)
        return 0 if damaged else first

    def discard(self, before: bytes, after: bytes) -> tuple[int, int]:
        """Lose what is between two parts of the text, and return which tokens these are.

        Tokens that begin there are lost; their neighbours stay as they are, even where the text
        would be spelled otherwise now.

        Args:
            before: The text's beginning, which stays.
            after: Its end, which stays.

        Returns:
            tuple: The first lost token, and how many.

        Cost: a look at both.
        """
        parts = before, after.lstrip(CONTINUATION)
        sizes = [len(self._exchange.apply(whole(data)[0])) for data in parts]
        text = self.text
        here = self._begins_at(text, sizes[0])
        there = max(self._begins_at(text, len(text) - sizes[1]), here)
        begin, end = (self._ends[index - 1] if index else 0 for index in (here, there))
        if end > len(self._text):  # what may begin a string becomes final
            self._text += self._exchange.apply(self._loose)
            self._loose = b""
        del self._text[begin:end]
        moved = np.frombuffer(self._ends[there:], dtype=np.int64) - (end - begin)
        del self._ids[here:there], self._ends[here:]
        self._ends.frombytes(moved.tobytes())
        return here, there - here

    def _begins_at(self, text: bytes, place: int) -> int:
        """Return the first token that begins at a place in the text or after it.

        It begins with a character.
        """
        if place <= 0:
            return 0
        index = min(bisect_left(self._ends, place) + 1, len(self._ends))
        last = len(self._ends)
        while index < last and text[(end := self._ends[index - 1]) : end + 1] in INSIDE:
            index += 1
        return index

    def _after(self, data: bytes) -> _Tail:
        """Return the end of the text with more of it."""
        characters, partial = whole(self._partial + data)
        loose = self._loose + characters
        size = self._exchange.settled(loose)
        settled = self._exchange.apply(loose[:size])
        first, base, begins = self._anchor(len(self._text))
        end = bytes(self._text[base:]) + settled + self._exchange.apply(loose[size:])
        ids, ends = self._tokenize(end, base, begins)
        return _Tail(first, ids, ends, settled, loose[size:], partial)

    def _take(self, tail: _Tail, length: int) -> None:
        """Keep the first `length` bytes of the text and make a tail its end."""
        del self._ids[tail.first :], self._ends[tail.first :]
        self._ids.extend(tail.ids)
        self._ends.extend(tail.ends)
        del self._text[length:]
        self._text += tail.settled
        self._loose, self._partial = tail.loose, tail.partial

    def _tokenize(self, text: bytes, base: int, begins: bool) -> tuple[list[int], list[int]]:
        """Return tokens of the end of the text and where they end."""
        ids, ends = self._speller.tokenize(text, begins=begins) if text else ([], [])
        return ids, [base + end for end in ends]

    def _anchor(self, length: int) -> tuple[int, int, bool]:
        """Return where to tokenise from when the text changes from `length` bytes on.

        Returns:
            tuple: The first token, where it begins, and whether the text begins there.
        """
        text, ends = self._text, self._ends
        high = min(length - LOOSE, ends[-1] if ends else 0)
        low = max(high - NEAR, 1)
        at = high
        while (at := text.rfind(b" ", low, max(at, 0))) > 0:
            index = bisect_right(ends, at)
            if text[at - 1] not in BLANK and index and ends[index - 1] == at:
                return index, at, False
        index = bisect_right(ends, high) if low > 1 else 0
        while index and low > 1:  # no words: any token, if it begins with a character
            at = ends[index - 1]
            if text[at] & 0xC0 != 0x80:
                return index, at, False
            index = bisect_left(ends, at)
        return len(self._speller.begin) if self._begins_whole() else 0, 0, True  # all of it

    def _begins_whole(self) -> bool:
        """Return whether the text has its first token still."""
        begin = self._speller.begin
        return not begin or self._ids[: len(begin)].tolist() == begin


class Translator:
    """Two vocabularies of which texts go from one to the other.

    Args:
        target: Of the model that writes the text.
        draft: Of the model that drafts.
        pairs: Strings of the target's texts, such as chat markers, and what they are in the draft
            model's.

    Raises:
        InputError: A string of the target's is empty.
    """

    def __init__(
        self, target: Speller, draft: Speller, pairs: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.target, self.draft = target, draft
        data = [
            (old.encode("utf-8", "replace"), new.encode("utf-8", "replace")) for old, new in pairs
        ]
        self._there = Exchange(data)
        self._back = Exchange([(new, old) for old, new in data if new])

    def prepare(self) -> None:
        """Look at all tokens now, so that no draft has to.

        Cost: 2 us per token of both vocabularies.
        """
        self.target.prepare()
        _ = self._growing

    def translation(self) -> Translation:
        """Return an empty text."""
        return Translation(self.draft, self._there)

    def spell(self, ids: TokenIds, begins: bool) -> bytes:
        """Return the text of the target's tokens, without the one that begins a text."""
        tokens = ids.tolist()
        if begins and tokens[:1] == [self.target.bos]:
            del tokens[0]
        return self.target.spell(tokens)

    def may_end(self, context: TokenIds, text: bytes) -> bool:
        """Return whether the target's text may have ended where a text of the draft model goes on.

        Args:
            context: The last tokens of the target's text.
            text: What goes on; may end inside of a character.
        """
        return self.target.splits(context.tolist(), self._back.apply(text))

    def may_grow(self, ids: Sequence[int], length: int) -> bool:
        """Return whether the target may have other tokens at the end of a draft once it is longer.

        It may where the target has a longer token that the draft model says in several, and the
        draft has not begun another word. A longer one that both have would have been said.

        Args:
            ids: The target's tokens for a draft.
            length: How many of them are sent, 1..size of ids.
        """
        if ids[length - 1] not in self._growing:
            return False
        return not any(self.target.piece(token)[:1] in BLANKS for token in ids[length:])

    @cached_property
    def _growing(self) -> set[int]:
        """Return the tokens of the target that may grow.

        Cost: a look at every token of both, once.
        """
        theirs, own = self.draft.pieces(), self.target.pieces()
        more = (piece for piece in own if piece not in theirs)
        starts = (piece[:size] for piece in more for size in range(1, len(piece)))
        return {own[start] for start in starts if start in own}

    def back(
        self, context: TokenIds, partial: bytes, ids: Sequence[int], claims: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Return a draft in the target's tokens.

        A token of the draft counts for the token of the target that its first byte is in: that
        one's probability is the product of theirs, and 1.0 if it has none.

        Args:
            context: The last tokens of the text.
            partial: The text's last bytes, if they are in no token of the draft model's: the draft
                must begin with them.
            ids: Its tokens in the draft model.
            claims: Their probabilities, each given those before it.

        Returns:
            tuple: Tokens of the target that spell the draft's whole characters, none if it does not
                go on with `partial`; and their probabilities.

        Raises:
            BackendError: The target has no token for a part of it.
        """
        pieces = [self.draft.piece(token) for token in ids]
        starts, size = [], 0
        for piece in pieces:
            starts.append(size)
            size += len(piece)
        characters, _ = whole(b"".join(pieces))
        text, starts = self._back.apply_to(characters, starts)
        if not text.startswith(partial):
            return [], []
        starts = [start - len(partial) for start in starts]
        text = text[len(partial) :]
        tokens = self.target.after(context.tolist(), text) if text else []
        ends, size = list[int](), 0
        for token in tokens:
            size += len(self.target.piece(token))
            ends.append(size)
        chances = [1.0] * len(tokens)
        for index, (start, claim) in enumerate(zip(starts, claims, strict=True)):
            after = starts[index + 1] if index + 1 < len(starts) else size
            place = bisect_right(ends, max(start, 0))
            if place < len(chances) and after > 0:  # the text is not known yet
                chances[place] *= claim
        return tokens, chances


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts begin with both."""
    size = min(len(one), len(other))
    differs = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(differs.argmax()) if differs.any() else size


def check_texts(speller: Speller, whose: str) -> None:
    """Raise BackendError unless a text is the same after it was tokens.

    whose: Model it is, as the error tells.
    """
    probe = PROBE.encode()
    try:
        spelled = speller.spell(speller.tokenize(probe, begins=True)[0])
    except BackendError as error:
        spelled = str(error).encode()
    if spelled not in (probe, b" " + probe):
        text = spelled.decode("utf-8", "replace")
        raise BackendError(
            f"the {whose} vocabulary changes texts, such as {PROBE!r} to {text!r}: no draft can "
            "go from one model to the other; use a draft model of the target's family"
        )
