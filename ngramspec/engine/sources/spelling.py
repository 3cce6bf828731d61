"""Speller: text to tokens and back, from any place in a text; Exchange: strings for others."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from ngramspec.arrays import TokenIds
from ngramspec.errors import InputError

BLANK = b" \t\n\r\x0b\x0c"
GUARD = b"\n"  # in front of a text that does not begin here; tokens seldom go on after one
FAR = 64  # how far a token is looked for that is not where it should be, in bytes
MOST_CONTEXT = 24  # tokens before a draft that are spelled with it


class TokenTexts(Protocol):
    """Tokens and their texts."""

    vocab_size: int

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> TokenIds:
        """Return the token ids of a text.

        Raises:
            BackendError: There is no token for a part of it.
        """

    def piece(self, token_id: int, special: bool) -> bytes:
        """Return the bytes of a token; those of special tokens only with `special`."""


class Speller:
    """Texts in the tokens of one vocabulary.

    Args:
        vocabulary: Its tokens.
        bos: The token that begins a text, -1 = none.
        add_bos: Whether its model's texts begin with it.

    num_bytes: Of text that was tokenised so far.
    """

    def __init__(self, vocabulary: TokenTexts, bos: int = -1, add_bos: bool = False) -> None:
        self._vocabulary = vocabulary
        self.bos = bos
        self.begin = [bos] if add_bos and bos >= 0 else []
        self.num_bytes = 0
        self._adds_space = self.spell(self._tokenize(b"a")) == b" a"

    def prepare(self) -> None:
        """Look at all tokens now, so that `after` never has to.

        Cost: 2 us per token of the vocabulary.
        """
        _ = self._bytes

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; a special one has a text too."""
        return self._vocabulary.piece(token, True)

    def pieces(self) -> dict[bytes, int]:
        """Return a token for each text that one token has, special ones left out."""
        vocabulary = self._vocabulary
        return {vocabulary.piece(token, False): token for token in range(vocabulary.vocab_size)}

    def spell(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.piece, ids))

    def tokenize(self, text: bytes, *, begins: bool) -> tuple[list[int], list[int]]:
        """Return the tokens of a part of a text, and how many bytes of it each one ends after.

        Args:
            text: UTF-8. Special tokens in it are parsed.
            begins: The text begins here, so that its tokens may spell a space in front of it.

        Raises:
            BackendError: There is no token for a part of it.

        Cost: 20 us, and that of tokenising.
        """
        if begins or not self._adds_space:
            ids = self._tokenize(text)
        elif text[:1] == b" ":
            ids = self._tokenize(text[1:])  # which adds it
        else:
            guarded = self._tokenize(GUARD + text)
            size, count = 0, 0
            while count < len(guarded) and size < len(GUARD) + 1:
                size += len(self.piece(guarded[count]))
                count += 1
            ids = guarded[count:] if size == len(GUARD) + 1 else self._tokenize(text)
        return ids, self._ends(ids, text)

    def after(self, context: Sequence[int], text: bytes) -> list[int]:
        """Return tokens that spell a text which goes on after others, [] if none are found.

        They are those of the whole text. Where one of these would begin in the context, what it
        has of the text is spelled alone.

        Args:
            context: The last tokens before it; MOST_CONTEXT are enough.
            text: Ends with a whole character.

        Raises:
            BackendError: There is no token for a part of it.
        """
        head = self._head(context)
        try:
            (head + text).decode()
        except UnicodeDecodeError:
            return self._alone(text)
        ids, ends = self.tokenize(head + text, begins=False)
        index = bisect_right(ends, len(head))
        tokens = ids[index:]
        if (ends[index - 1] if index else 0) < len(head):
            if index == len(ids):
                return []
            tokens = [*self._alone(text[: ends[index] - len(head)]), *tokens[1:]]
        return tokens if self.spell(tokens) == text else self._alone(text)

    def splits(self, context: Sequence[int], text: bytes) -> bool:
        """Return whether a text after others has tokens of its own in the whole text.

        Args:
            context: As for `after`.
            text: May end inside of a character.
        """
        head = self._head(context)
        try:
            _, ends = self.tokenize(head + whole(text)[0], begins=False)
        except UnicodeDecodeError:
            return True
        return not head or len(head) in ends

    def last_word(self, ids: Sequence[int]) -> int:
        """Return how many tokens at the end of a text are of its last word, if it may go on."""
        for count, token in enumerate(reversed(ids)):
            if not self._vocabulary.piece(token, False):  # a special token
                return count
            if self.piece(token)[0] in BLANK:
                return count + 1
        return len(ids)

    def _head(self, context: Sequence[int]) -> bytes:
        """Return the text of the last tokens, from a place on where a word begins."""
        pieces = [self.piece(token) for token in context[-MOST_CONTEXT:]]
        first = len(pieces)
        while first > 0:
            first -= 1
            before = pieces[first - 1] if first else b""
            if pieces[first][:1] == b" " and before and before[-1] not in BLANK:
                break
        while first < len(pieces) and (not pieces[first] or pieces[first][0] & 0xC0 == 0x80):
            first += 1
        return b"".join(pieces[first:])

    def _alone(self, text: bytes) -> list[int]:
        """Return tokens that spell a text, whatever is before it, [] if none are found."""
        size = 0
        while size < len(text) and text[size] & 0xC0 == 0x80:
            size += 1
        rest = text[size:]
        tokens = [self._bytes.get(byte, -1) for byte in text[:size]]
        try:
            rest.decode()
        except UnicodeDecodeError:
            tokens += [self._bytes.get(byte, -1) for byte in rest]
        else:
            tokens += self.tokenize(rest, begins=False)[0] if rest else []
        if -1 in tokens or self.spell(tokens) != text:
            return []
        return tokens

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """Return a token for each byte of more than one token's characters.

        Cost: a look at every token, once.
        """
        pieces = ((token, self.piece(token)) for token in range(self._vocabulary.vocab_size))
        return {piece[0]: token for token, piece in pieces if len(piece) == 1}

    def _tokenize(self, text: bytes) -> list[int]:
        self.num_bytes += len(text)
        ids: list[int] = self._vocabulary.tokenize(
            text.decode(), add_special=False, parse_special=True
        ).tolist()
        return ids

    def _ends(self, ids: Sequence[int], text: bytes) -> list[int]:
        """Return where each token ends in a text that they spell, but for spaces.

        A tokenizer may put a space in front; special tokens may swallow those beside them.
        """
        pieces = [self.piece(token) for token in ids]
        spelled = b"".join(pieces)
        if spelled in (text, b" " + text):
            more = len(spelled) - len(text)
            return [max(size - more, 0) for size in accumulate(map(len, pieces))]
        ends, at = [], 0
        for piece in pieces:
            if not text.startswith(piece, at):
                if piece[:1] == b" " and text.startswith(piece[1:], at):
                    piece = piece[1:]
                else:
                    at = max(at, text.find(piece, at, at + FAR + len(piece)))
            at = min(at + len(piece), len(text))
            ends.append(at)
        if ends:
            ends[-1] = len(text)
        return ends


class Exchange:
    """Strings of a text that stand for others, such as chat markers.

    Of strings that begin at the same place the longest one is exchanged.

    Args:
        pairs: What to look for and what to write instead, in UTF-8; of equal ones the first counts.

    Raises:
        InputError: A string to look for is empty.
    """

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        if any(not old for old, _ in pairs):
            raise InputError("a string that is to be replaced is empty")
        self._new = dict(reversed(pairs))
        self._longest = max(map(len, self._new), default=0)
        longest_first = sorted(self._new, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)")

    def apply(self, text: bytes) -> bytes:
        if not self._new:
            return text
        return self._pattern.sub(lambda match: self._new[match[0]], text)

    def settled(self, text: bytes) -> int:
        """Return how many bytes of a text are exchanged the same way, whatever comes after it."""
        if not self._new:
            return len(text)
        sure = max(len(text) - self._longest + 1, 0)  # a string from here on may be a longer one
        done = 0
        for match in self._pattern.finditer(text):
            if match.start() >= sure:
                return max(done, sure)
            done = match.end()
        return max(done, sure)

    def apply_to(self, text: bytes, places: Sequence[int]) -> tuple[bytes, list[int]]:
        """Exchange strings in a text that may go on.

        Args:
            text: Where its end may be the beginning of a string, it is left out.
            places: Offsets in it, ascending.

        Returns:
            tuple: The new text, and the offsets in it; an offset inside of a string becomes that of
                its first byte.
        """
        text = text[: len(text) - self._begun(text)]
        if not self._new:
            return text, [min(place, len(text)) for place in places]
        exchanged, moved, done = bytearray(), list[int](), 0
        for match in [*self._pattern.finditer(text), None]:
            start, end = match.span() if match else (len(text), len(text) + 1)
            while len(moved) < len(places) and places[len(moved)] < start:
                moved.append(len(exchanged) + places[len(moved)] - done)
            exchanged += text[done:start]
            while len(moved) < len(places) and (match is None or places[len(moved)] < end):
                moved.append(len(exchanged))
            if match:
                exchanged += self._new[match[0]]
            done = end
        return bytes(exchanged), moved

    def _begun(self, text: bytes) -> int:
        """Return the length of the longest end of a text that a string begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(old.startswith(end) and old != end for old in self._new):
                return size
        return 0


def whole(data: bytes) -> tuple[bytes, bytes]:
    """Return the whole characters of a text in UTF-8, and the begun one at its end.

    Bytes that are no UTF-8 become U+FFFD.
    """
    size = len(data)
    while size and len(data) - size < 3 and data[size - 1] & 0xC0 == 0x80:
        size -= 1
    if size and data[size - 1] >= 0xC0:
        size -= 1
        try:
            data[size:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return data[:size].decode("utf-8", "replace").encode(), data[size:]
    return data.decode("utf-8", "replace").encode(), b""
