"""Automaton: sets of texts that can be intersected, counted, told apart, and written as GBNF.

A deterministic automaton over ranges of code points. What no simple rule can say goes this way: a
pattern beside a length, two patterns, names that are not other names, multiples between bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ngramspec.text.structured.gbnf import Rules
from ngramspec.text.structured.regular import (
    EMPTY_TEXT,
    IN_JSON,
    WRITABLE,
    Chars,
    Choice,
    Range,
    Regular,
    Repeat,
    Spelling,
    without,
)

MAX_STATES = 2000
MAX_PARTS = 20_000  # of a tree, repetitions written out
MAX_INLINE = 20  # states inside one another in one rule
STEP = 16  # moves that cost as much as a part of a schema
S = TypeVar("S", bound=Hashable)
Move = tuple[int, int, S]  # first and last code point, next state
Spend = Callable[[int], None]


class TooLargeError(Exception):
    """The automaton has more states than MAX_STATES, or its tree more than MAX_PARTS."""


@dataclass(frozen=True)
class Automaton:
    """Texts of one or more languages.

    moves: Per state, where its characters lead; ranges do not overlap. The first state is 0.
    ends: Per state, a mask of the languages of the texts that end there: bit i for number i.
    """

    moves: list[list[Move[int]]]
    ends: list[int]

    def mask(self, text: str) -> int:
        """Return the languages that hold a text, as bits. Cost: linear in the text."""
        state = 0
        for code in map(ord, text):
            states = (to for low, high, to in self.moves[state] if low <= code <= high)
            state = next(states, -1)
            if state < 0:
                return 0
        return self.ends[state]

    def only(self, accepts: Callable[[int], bool], spend: Spend) -> Automaton:
        """Return the texts whose languages, as bits, are wanted."""
        return explored(0, lambda s: self.moves[s], lambda s: int(accepts(self.ends[s])), spend)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is no text at all."""
        return not any(self.ends)


def explored(
    start: S,
    moves_of: Callable[[S], Sequence[Move[S]]],
    ends_of: Callable[[S], int],
    spend: Spend,
) -> Automaton:
    """Return the automaton of some states, given by what they lead to.

    States from which no text ends are left out, and states with equal futures are joined where
    that is seen in one pass from the ends.

    Args:
        start: The first state.
        moves_of: Returns the moves of a state.
        ends_of: Returns the languages of the texts that end in a state.
        spend: Called with what the work costs, in parts of schemas.

    Raises:
        TooLargeError: There are more than MAX_STATES.
        GrammarError: Nothing is left to spend.
    """
    numbers: dict[S, int] = {start: 0}
    moves: list[list[Move[int]]] = []
    todo = [start]
    for state in todo:  # grows on the way
        own = []
        for low, high, following in moves_of(state):
            if following not in numbers:
                if len(numbers) >= MAX_STATES:
                    raise TooLargeError
                numbers[following] = len(numbers)
                todo.append(following)
            own.append((low, high, numbers[following]))
        spend(1 + len(own) // STEP)
        moves.append(own)
    return _joined(*_trimmed(moves, [ends_of(state) for state in todo]))


def _trimmed(
    moves: list[list[Move[int]]], ends: list[int]
) -> tuple[list[list[Move[int]]], list[int]]:
    """Leave out moves to states from which no text ends."""
    before: list[list[int]] = [[] for _ in moves]
    for state, own in enumerate(moves):
        for _, _, following in own:
            before[following].append(state)
    useful = {state for state, end in enumerate(ends) if end}
    todo = list(useful)
    while todo:
        more = set(before[todo.pop()]) - useful
        useful |= more
        todo += more
    return [[move for move in own if move[2] in useful] for own in moves], ends


def _joined(moves: list[list[Move[int]]], ends: list[int]) -> Automaton:
    """Join states with the same moves and ends, last ones first, and number them anew."""
    same: dict[int, int] = {}  # state -> the one that stands for it
    firsts: dict[Hashable, int] = {}
    for state in _last_first(moves):
        own = _united(
            (low, high, -1 if to == state else same.get(to, to)) for low, high, to in moves[state]
        )
        same[state] = firsts.setdefault((tuple(own), ends[state]), state)
        moves[state] = own
    numbers = {same[0]: 0}
    order = [same[0]]
    joined = []
    for state in order:  # grows on the way
        own = []
        for low, high, to in moves[state]:
            following = state if to < 0 else same[to]
            if following not in numbers:
                numbers[following] = len(numbers)
                order.append(following)
            own.append((low, high, numbers[following]))
        joined.append(_united(own))
    return Automaton(joined, [ends[state] for state in order])


def _last_first(moves: Sequence[Sequence[Move[int]]]) -> Iterator[int]:
    """Yield the states, each after those that it leads to where they do not lead back."""
    seen = {0}
    todo = [(0, iter(moves[0]))]
    while todo:
        state, rest = todo[-1]
        following = next((to for _, _, to in rest if to not in seen), None)
        if following is None:
            todo.pop()
            yield state
        else:
            seen.add(following)
            todo.append((following, iter(moves[following])))


def _united(moves: Iterable[Move[int]]) -> list[Move[int]]:
    """Return moves in order, neighbours with the same end as one."""
    united: list[Move[int]] = []
    for low, high, to in sorted(moves):
        if united and united[-1][2] == to and united[-1][1] + 1 == low:
            united[-1] = united[-1][0], high, to
        else:
            united.append((low, high, to))
    return united


def product(automata: Sequence[Automaton], spend: Spend, together: bool) -> Automaton:
    """Return one automaton for the first language of each; number i is automaton i.

    Args:
        automata: The automata.
        spend: As for `explored`.
        together: Keep only the texts that are in all of them.

    Raises:
        TooLargeError: It would have too many states.
    """
    every = (1 << len(automata)) - 1

    def moves_of(state: tuple[int, ...]) -> list[Move[tuple[int, ...]]]:
        cuts = [
            [(low, high, to) for low, high, to in automaton.moves[at]] if at >= 0 else []
            for automaton, at in zip(automata, state, strict=True)
        ]
        joint = []
        for low, high, hit in swept([[*moves] for moves in cuts]):
            if not together or all(to >= 0 for to in hit):
                joint.append((low, high, hit))
        spend((sum(map(len, cuts)) + len(joint) * len(cuts)) // STEP)
        return joint

    def ends_of(state: tuple[int, ...]) -> int:
        both = zip(automata, state, strict=True)
        mask = sum((at >= 0 and a.ends[at] & 1) << i for i, (a, at) in enumerate(both))
        return mask if not together else int(mask == every)

    return explored((0,) * len(automata), moves_of, ends_of, spend)


def swept(moves: Sequence[Sequence[Move[int]]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the writable characters in ranges, with what each of the lists says; -1 for nothing."""
    cuts = {edge for low, high in WRITABLE for edge in (low, high + 1)}
    cuts |= {edge for own in moves for low, high, _ in own for edge in (low, high + 1)}
    ordered = sorted(cuts)
    places = [0] * len(moves)
    parts = [sorted(own) for own in (*moves, [(low, high, 0) for low, high in WRITABLE])]
    places.append(0)
    for low, after in itertools.pairwise(ordered):
        hit = []
        for number, own in enumerate(parts):
            while places[number] < len(own) and own[places[number]][1] < low:
                places[number] += 1
            at = places[number]
            hit.append(own[at][2] if at < len(own) and own[at][0] <= low else -1)
        if hit.pop() == 0:
            yield low, after - 1, tuple(hit)


def of_lengths(low: int, high: int | None, spend: Spend) -> Automaton:
    """Return the texts of `low` to `high` characters; None = any number."""

    def moves_of(count: int) -> list[Move[int]]:
        if count == high:
            return []
        following = count + 1 if high is not None or count < low else count
        return [(first, last, following) for first, last in WRITABLE]

    return explored(0, moves_of, lambda count: int(count >= low), spend)


def lacking(mark: str, spend: Spend) -> Automaton:
    """Return the texts in which a mark is not.

    Raises:
        TooLargeError: The mark is too long.

    Source: Knuth, Morris and Pratt's automaton. State i ends with the mark's first i characters.
    """
    chars = sorted(set(map(ord, mark)))
    if len(mark) * len(chars) > 10 * MAX_PARTS:
        raise TooLargeError
    others = [(low, high, 0) for low, high in without(WRITABLE, [(code, code) for code in chars])]
    table: list[dict[int, int]] = []
    behind = dict.fromkeys(chars, 0)  # where the text leads without its first character
    for size, code in enumerate(map(ord, mark)):
        table.append({**behind, code: size + 1})
        behind = table[behind[code]]

    def moves_of(size: int) -> list[Move[int]]:
        goes_on = [(code, code, to) for code, to in table[size].items() if to < len(mark)]
        return [*goes_on, *others]

    return explored(0, moves_of, lambda size: 1, spend)


def of_words(words: Iterable[str], spend: Spend) -> Automaton:
    """Return some texts. Raises: TooLargeError."""
    tree: list[dict[str, int]] = [{}]
    ends = set()
    for word in words:
        node = 0
        for char in word:
            if char not in tree[node]:
                if len(tree) >= MAX_STATES:
                    raise TooLargeError
                tree[node][char] = len(tree)
                tree.append({})
            node = tree[node][char]
        ends.add(node)

    def moves_of(node: int) -> list[Move[int]]:
        return [(ord(char), ord(char), following) for char, following in tree[node].items()]

    return explored(0, moves_of, lambda node: int(node in ends), spend)


def of_tree(tree: Regular, spend: Spend) -> Automaton:
    """Return the texts of a tree.

    Raises:
        TooLargeError: It would have too many states, or the tree has too many parts.

    Source: Thompson's construction and the construction of subsets.
    """
    graph = _Graph(spend)
    last = graph.add(tree, 0)
    work = 0

    def closed(states: Iterable[int]) -> frozenset[int]:
        nonlocal work
        seen = set(states)
        todo = list(seen)
        while todo:
            more = set(graph.free[todo.pop()]) - seen
            seen |= more
            todo += more
        work += len(seen)
        if work > 10 * MAX_PARTS:
            raise TooLargeError
        spend(len(seen) // STEP)
        return frozenset(state for state in seen if graph.read[state] or state == last)

    def moves_of(states: frozenset[int]) -> list[Move[frozenset[int]]]:
        nonlocal work
        lists = [graph.read[state] for state in sorted(states) if graph.read[state]]
        closures: dict[tuple[int, ...], frozenset[int]] = {}
        moves = []
        for low, high, hit in swept(lists):
            work += len(hit)
            if work > 10 * MAX_PARTS:
                raise TooLargeError
            key = tuple(to for to in hit if to >= 0)
            if key:
                closures[key] = following = closures.get(key) or closed(key)
                moves.append((low, high, following))
        spend(len(lists) * len(moves) // STEP)
        return moves

    return explored(closed([0]), moves_of, lambda states: int(last in states), spend)


class _Graph:
    """A tree as a graph: per state the characters it reads, and states that follow for free."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend
        self.read: list[list[Move[int]]] = [[]]
        self.free: list[list[int]] = [[]]

    def add(self, tree: Regular, start: int) -> int:
        """Add a tree after a state and return its last state."""
        if isinstance(tree, Chars):
            end = self._state()
            middle = self._state()
            self.free[start].append(middle)
            self.read[middle] = [(low, high, end) for low, high in tree.ranges]
            return end
        if isinstance(tree, Choice):
            end = self._state()
            for part in tree.parts:
                first = self._state()
                self.free[start].append(first)
                self.free[self.add(part, first)].append(end)
            return end
        if isinstance(tree, Repeat):
            return self._repeat(tree, start)
        for part in tree.parts:
            start = self.add(part, start)
        return start

    def _repeat(self, tree: Repeat, start: int) -> int:
        start = self._times(tree.part, start, tree.low, [])
        end = self._state()
        self.free[start].append(end)
        if tree.high is None:
            again = self._state()
            self.free[start].append(again)
            last = self.add(tree.part, again)
            self.free[last] += [again, end]
        else:
            self._times(tree.part, start, tree.high - tree.low, [end])
        return end

    def _times(self, part: Regular, start: int, times: int, ends: Sequence[int]) -> int:
        """Add a tree several times and return its last state; each may lead to some ends."""
        for _ in range(times):
            before, start = start, self.add(part, start)
            if start == before:  # only the empty text: once more is no other text
                break
            self.free[start] += ends
        return start

    def _state(self) -> int:
        if len(self.read) >= MAX_PARTS:
            raise TooLargeError
        if len(self.read) % STEP == 0:
            self._spend(4)
        self.read.append([])
        self.free.append([])
        return len(self.read) - 1


def gbnf(automaton: Automaton, rules: Rules, name: str, spelling: Spelling = IN_JSON) -> str:
    """Return GBNF for the texts of an automaton that is not empty.

    States that only one other leads to are written inside of that one's rule.

    Raises:
        GrammarError: The grammar becomes too large.
    """
    return _Writer(automaton, rules, name, spelling).whole()


class _Writer:
    def __init__(self, automaton: Automaton, rules: Rules, name: str, spelling: Spelling) -> None:
        self._automaton = automaton
        self._spelling = spelling
        self._rules = rules
        self._name = name
        self._names: dict[int, str] = {}
        self._todo: list[int] = []
        self._groups = [_groups(moves) for moves in automaton.moves]
        self._uses = [0] * len(automaton.moves)
        for groups in self._groups:
            for following in groups:
                self._uses[following] += 1
        self._uses[0] += 1

    def whole(self) -> str:
        text = self._text(0, 0) if self._uses[0] == 1 else self._rule(0)
        while self._todo:
            state = self._todo.pop()
            self._rules.set(self._names[state], self._text(state, 0))
        return text

    def _rule(self, state: int) -> str:
        if state not in self._names:
            self._names[state] = self._rules.reserve(self._name)
            self._todo.append(state)
        return self._names[state]

    def _text(self, state: int, depth: int) -> str:
        """Return GBNF for what can follow a state."""
        parts = []
        for following, ranges in self._groups[state].items():
            rest = self._rest(following, depth + 1)
            char = self._rules.shared(self._spelling.chars(ranges))
            parts.append(f"{char} {rest}" if rest else char)
        if self._automaton.ends[state]:
            parts.append(EMPTY_TEXT)
        if not parts[1:]:
            return "" if parts[0] == EMPTY_TEXT else parts[0]
        return f"({' | '.join(parts)})"

    def _rest(self, state: int, depth: int) -> str:
        if not self._groups[state]:
            return ""
        if self._uses[state] > 1 or depth >= MAX_INLINE:
            return self._rule(state)
        return self._text(state, depth)


def _groups(moves: Sequence[Move[int]]) -> dict[int, list[Range]]:
    """Return the ranges that lead to each state."""
    groups: dict[int, list[Range]] = {}
    for low, high, to in moves:
        groups.setdefault(to, []).append((low, high))
    return groups
