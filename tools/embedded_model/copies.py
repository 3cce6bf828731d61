"""Which earlier token each token of an answer is a copy of.

Most of an answer stands in the text before it. The loss on the next token hardly teaches a model to
tell two places apart that say nearly the same. Where to look can be taught by itself, with these
places.

An answer is followed through an earlier text, over what is different. At a name that was replaced
the place is the old name's, since that is where the copy goes on. The tokens of what is new have a
place too if they stand elsewhere in the request.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

SEED = 6  # tokens that begin a copy, where nothing is being followed
NEAR = 16  # tokens that may be left out or put in before the copy goes on
AGREE = 3  # tokens that must be equal there
LONG = 48  # tokens of the longest change
THOUGHT = "</think>"
TABLE = "```csv\n"
FENCE = "```"
QUOTED = re.compile(r"`([^`\n]+)`")
PART_OF_NAME = re.compile(r"\w")

Places = dict[int, list[int]]  # position that predicts a token: the positions to look at
Run = tuple[int, int, int]  # index in an answer, index in a source, number of equal tokens
Change = tuple[int, int, int]  # where it begins and ends in an answer, and what it stands for


@dataclass(frozen=True)
class Found:
    """Where to look for the tokens of a conversation's answers.

    copied: The places that hold the token, or begin the cell that is to be quoted or not. Where
        something is put in, the place is what it replaces, for its first token.
    same: The places that hold the token, without those of what is replaced; in what the request
        says to put in, too.
    put_in: For the first token of what is put in: its place in the request.
    ended: For what begins a cell of JSON: the place where the cell before it ended.
    cell: For the same: the cell's place in the table.
    asked: Where a change begins: the end of what the request says to change. Where the text begins
        like that and is not changed: the conversation's first token.
    back: Where the copy goes on after a change: the end of what the request says to change.
    resumed: For the same: the place in the text that is copied.
    quoted: For every token of what is put in as the request says it: its place there.
    within: For the same: the end of what the request says to change.
    marked: In the request, for what comes after its own text that is to be changed: the end of what
        it says to change. For what comes after the same characters inside a name: the first token.
    """

    copied: Places = field(default_factory=dict)
    same: Places = field(default_factory=dict)
    put_in: Places = field(default_factory=dict)
    ended: Places = field(default_factory=dict)
    cell: Places = field(default_factory=dict)
    asked: Places = field(default_factory=dict)
    back: Places = field(default_factory=dict)
    resumed: Places = field(default_factory=dict)
    quoted: Places = field(default_factory=dict)
    within: Places = field(default_factory=dict)
    marked: Places = field(default_factory=dict)


@dataclass(frozen=True)
class Quoted:
    """What a request says in backquotes.

    end: Position of what comes after it in the conversation.
    """

    ids: list[int]
    end: int

    def begins(self, text: list[int], start: int) -> bool:
        """Return whether a text goes on with it."""
        return text[start : start + len(self.ids)] == self.ids

    def places(self, text: list[int]) -> list[int]:
        """Return where it begins in a text."""
        return [j for j, token in enumerate(text) if token == self.ids[0] and self.begins(text, j)]


@dataclass(frozen=True)
class Piece:
    """One side's turn in a conversation.

    start: Position of its first token in the conversation.
    offsets: First and last character of each token, the last one excluded.
    """

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    start: int
    answer: bool

    def tokens(self, begin: int, end: int) -> list[int]:
        """Return the positions of the tokens that have any of these characters."""
        spans = enumerate(self.offsets, self.start)
        return [at for at, (first, last) in spans if first < end and begin < last]


def find_places(pieces: Iterable[Piece]) -> Found:
    """Find the places for every answer of a conversation."""
    spots = Found()
    earlier: list[Piece] = []
    quoted: list[Quoted] = []
    for piece in pieces:
        if piece.answer and TABLE in earlier[-1].text:
            _add_cells(spots, earlier[-1], piece)
        elif piece.answer:
            for other in earlier:
                _add_copies(spots, other, piece, quoted, request=other is earlier[-1])
            if THOUGHT in piece.text:
                _add_copies(spots, *_halves(piece), [])
        else:
            quoted = _quoted(piece)
            _add_marks(spots, piece, quoted)
        earlier.append(piece)
    return spots


def _halves(piece: Piece) -> tuple[Piece, Piece]:
    """Return a thought and what is said after it."""
    end = piece.tokens(0, piece.text.index(THOUGHT) + len(THOUGHT))[-1] + 1 - piece.start
    return (
        Piece("", piece.ids[:end], piece.offsets[:end], piece.start, True),
        Piece("", piece.ids[end:], piece.offsets[end:], piece.start + end, True),
    )


def _quoted(request: Piece) -> list[Quoted]:
    """Return what a request says in backquotes before its code, if tokens end with it."""
    quoted = []
    for one in QUOTED.finditer(request.text.split(FENCE, 1)[0]):
        where = request.tokens(*one.span(1))
        begin, end = where[0] - request.start, where[-1] + 1 - request.start
        if (request.offsets[begin][0], request.offsets[end - 1][1]) == one.span(1):
            quoted.append(Quoted(request.ids[begin:end], request.start + end))
    return quoted


def _add_marks(spots: Found, request: Piece, quoted: list[Quoted]) -> None:
    """Add where a request has itself what it says in backquotes."""
    for one in quoted:
        for j in one.places(request.ids):
            after = j + len(one.ids)
            if request.start + after <= one.end or after >= len(request.ids):
                continue
            first, last = request.offsets[j][0], request.offsets[after - 1][1]
            inside = any(
                PART_OF_NAME.match(request.text[at - 1]) and PART_OF_NAME.match(request.text[at])
                for at in (first, last)
            )
            spots.marked[request.start + after] = [0 if inside else one.end]


def _add_copies(
    spots: Found, source: Piece, answer: Piece, quoted: list[Quoted], request: bool = False
) -> None:
    """Add where an answer's tokens come from in one earlier text.

    A text that has less than half of the answer is left alone. Of the request a fifth is enough,
    and any share if it says what to change.
    """
    ids = answer.ids
    copied = follow(source.ids, ids)
    equal = [j >= 0 and source.ids[j] == ids[i] for i, j in enumerate(copied)]
    least = 0.5 if not request else 0.2 if not quoted else 0.0
    if sum(equal) < least * len(ids):
        return
    pairs = [(spots.copied, i, j) for i, j in enumerate(copied) if j >= 0]
    pairs += [(spots.same, i, j) for i, j in enumerate(copied) if equal[i]]
    for i, j, more in _put_in(source.ids, ids, equal) if request else ():
        pairs.append((spots.put_in, i, j))
        pairs += [(spots.copied, i + k, j + k) for k in range(1, more) if copied[i + k] < 0]
        pairs += [(spots.same, i + k, j + k) for k in range(more)]
    for places, i, j in pairs:
        _add(places, answer.start + i - 1, source.start + j)
    _add_changes(spots, source, answer, quoted, copied, equal)


def _add_changes(
    spots: Found,
    source: Piece,
    answer: Piece,
    quoted: list[Quoted],
    copied: list[int],
    equal: list[bool],
) -> None:
    """Add what the request says in backquotes: what is to be changed, and into what."""
    spans = [(j, j + len(one.ids), one) for one in quoted for j in one.places(source.ids)]
    ends: dict[int, int] = {}  # by where in the source what is changed begins
    begun: set[int] = set()  # first tokens of these
    before = answer.start - 1  # the position that predicts the answer's first token
    for i, back, j in _changes(copied, equal):
        # It is what is changed, or what has just ended where something is added.
        near = [(max(j - end, -1), begin, one) for begin, end, one in spans if begin <= j < end + 3]
        if not near:
            continue
        _, begin, old = min(near, key=lambda span: span[:2])
        spots.asked[before + i] = spots.back[before + back] = [old.end]
        spots.resumed[before + back] = [source.start + copied[back]]
        ends[begin] = old.end
        begun.add(old.ids[0])
        for start in (i - (j - begin), *range(i, i + 3)):
            new = next(
                (one for one in quoted if one is not old and one.begins(answer.ids, start)), None
            )
            if new is not None and i < start + len(new.ids):  # else it is copied, and ends before
                place = new.end - len(new.ids) - start
                spots.put_in[before + max(i, start)] = [place + max(i, start)]
                for k in range(start, start + len(new.ids)):
                    _add(spots.same, before + k, place + k)
                    spots.quoted[before + k] = [place + k]
                    spots.within[before + k] = [old.end]
                break
    for i, (j, same) in enumerate(zip(copied, equal, strict=True)):
        if same and source.ids[j] in begun:
            spots.asked.setdefault(before + i, [ends.get(j, 0)])


def _changes(copied: list[int], equal: list[bool]) -> Iterator[Change]:
    """Find where a copy is left and where it goes on, both in the answer, and what was next."""
    last, j = -1, -1
    for i, place in enumerate(copied):
        if not equal[i]:
            continue
        more, left_out = i - last - 1, place - j - 1
        if j >= 0 and more + left_out > 0 and more <= LONG and 0 <= left_out <= LONG:
            yield last + 1, i, j + 1
        last, j = i, place


def follow(source: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Return for each token of an answer the index of its counterpart in the source, or -1."""
    followed = [-1] * len(answer)
    seeds = defaultdict(list)
    for j in range(len(source) - AGREE):
        seeds[tuple(source[j : j + AGREE + 1])].append(j)
    i, j = 0, -1
    while i < len(answer):
        if j < 0:
            rest = answer[i:]
            begun = seeds.get(tuple(rest[: AGREE + 1]), ())
            length, j = max(((_equal(source, rest, at), at) for at in begun), default=(0, 0))
            if length < min(SEED, len(rest)):
                i, j = i + 1, -1
                continue
        if j >= len(source):
            j = -1
            continue
        followed[i] = j
        more = left_out = 1
        if answer[i] != source[j]:
            more, left_out = _resume(source, answer, j, i)
        i, j = i + more, j + left_out if left_out >= 0 else -1
    return followed


def _equal(source: Sequence[int], ids: Sequence[int], j: int) -> int:
    """Return how many tokens of the source, from one on, are what is said."""
    length, most = 0, min(len(source) - j, len(ids))
    while length < most and source[j + length] == ids[length]:
        length += 1
    return length


def _resume(source: Sequence[int], answer: Sequence[int], j: int, i: int) -> tuple[int, int]:
    """Return how many tokens to pass over in answer and source, or (1, -1) where a copy ends."""
    for total in range(1, 2 * NEAR + 1):
        for more in range(max(0, total - NEAR), min(total, NEAR) + 1):
            after, at = answer[i + more : i + more + AGREE], j + total - more
            if len(after) == AGREE and after == source[at : at + AGREE]:
                return more, total - more
    return 1, -1


def _put_in(source: list[int], ids: list[int], equal: list[bool]) -> Iterator[Run]:
    """Find what was not copied in order elsewhere in the source."""
    i = 0
    while i < len(ids):
        end = i
        while end < len(ids) and not equal[end]:
            end += 1
        while i < end:
            # With what comes after it, which tells where a single token is from.
            length, j = max((_equal(source, ids[i : end + 1], j), j) for j in range(len(source)))
            if length >= 2:
                yield i, j, min(length, end - i)
            i += max(length, 1)
        i = end + 1


def _add(places: Places, position: int, place: int) -> None:
    listed = places.setdefault(position, [])
    if place not in listed:
        listed.append(place)


def _add_cells(spots: Found, table: Piece, answer: Piece) -> None:
    """Add the places of a table's cells in its JSON, and of the columns' names.

    A name may also be read from any earlier row of the JSON.
    """
    rows = _cells(table.text)
    names: list[list[list[int]]] = [[table.tokens(*cell)] for cell in rows[0]]
    before = names[-1][0][-1]
    at = 0
    for row in rows[1:]:
        for (begin, end), written, header in zip(row, names, rows[0], strict=True):
            name = table.text[slice(*header)]
            at = answer.text.index(f'"{name}": ', at) + 1
            written.append(answer.tokens(at, at + len(name)))
            for places in (spots.copied, spots.same):
                _add_equal(places, written[-1], written[:-1])
            at += len(name) + len('": ')
            at += answer.text[at] == '"'
            positions, cell = answer.tokens(at, at + end - begin), table.tokens(begin, end)
            for places in (spots.copied, spots.same):
                _add_equal(places, positions, [cell])
            _add(spots.copied, positions[0] - 2, cell[0])
            spots.cell.update({positions[0] - 2: [cell[0]], positions[0] - 1: [cell[0]]})
            spots.ended.update({positions[0] - 2: [before], positions[0] - 1: [before]})
            before = positions[-1]


def _add_equal(places: Places, positions: list[int], sources: list[list[int]]) -> None:
    """Add places token by token where a source was cut into as many tokens."""
    for source in sources:
        if len(source) == len(positions):
            for position, place in zip(positions, source, strict=True):
                _add(places, position - 1, place)


def _cells(text: str) -> list[list[tuple[int, int]]]:
    """Return where each cell of the table in a text begins and ends; no cell is quoted."""
    begin = text.index(TABLE) + len(TABLE)
    rows = []
    for line in text[begin : text.rindex("\n```")].split("\n"):
        row = []
        for cell in line.split(","):
            row.append((begin, begin + len(cell)))
            begin += len(cell) + 1
        rows.append(row)
    return rows
