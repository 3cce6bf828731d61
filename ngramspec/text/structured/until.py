"""The grammars of any text up to a mark, and of any text without marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ngramspec.text.structured.gbnf import (
    MAX_CHARS,
    MAX_RULES,
    Rules,
    class_char,
    literal,
    too_many_chars,
    too_many_rules,
)

BLANK = " \t\n"
FREE = 0  # the state in which no mark has begun
LEAST_CHARS = 8  # of a grammar for a move
Moves = Mapping[str, "int | None"]  # by character: the state that follows, None for no way on


def until(rules: Rules, mark: str) -> str:
    """Add rules for any text that ends with the first mark in it, and return the first's name.

    Args:
        rules: The grammar.
        mark: One character or more.

    Raises:
        GrammarError: The grammar becomes too large.

    Cost: one rule per character of the mark: rule i follows a text that ends with its first i.
    """
    return _text_rules(rules, _moves((mark,)), "until", may_end=False)


def without(rules: Rules, marks: Collection[str], first: Collection[str] = ()) -> str:
    """Add rules for any text in which no mark is, and return the first's name.

    Args:
        rules: The grammar.
        marks: One or more characters each, the first one no whitespace.
        first: Marks that it must not begin with, after whitespace or not. Like any other text it
            may end within one.

    Raises:
        GrammarError: The grammar becomes too large.

    Cost: one rule per character of a mark; what marks begin with counts once.

    Source: Aho and Corasick's automaton.
    """
    return _text_rules(rules, _moves(marks, first), "free", may_end=True)


class _Table:
    """The moves of some states, in the order in which they were added.

    Raises:
        GrammarError: The grammar would have too many characters.
    """

    def __init__(self) -> None:
        self.moves: dict[int, Moves] = {}
        self._room = MAX_CHARS // LEAST_CHARS

    def add(self, state: int, own: Moves) -> None:
        self._room -= len(own)
        if self._room < 0:
            raise too_many_chars()
        self.moves[state] = own


def _moves(marks: Collection[str], first: Collection[str] = ()) -> dict[int, Moves]:
    """Return where characters lead from each state; those that are not named lead to FREE.

    A state is what marks begin with and the text ends with, the longest of these; with `first` the
    text may also have been a beginning of one of those from its start on.

    Cost: linear in the marks, but for the characters that one state hands on to another.
    """
    table = _Table()
    longer, complete = _tree(marks)
    shorter = {FREE: FREE}  # per state: the longest other one that its text ends with
    todo = [FREE]
    for state in todo:  # grows on the way, from short to long
        others = table.moves[shorter[state]] if state else {}  # where it goes if no mark goes on
        own = dict(others)
        for char, to in longer[state].items():
            before = others.get(char, FREE)
            shorter[to] = before or FREE
            own[char] = None if to in complete or before is None else to
            if own[char] is not None:
                todo.append(to)
        table.add(state, own)
    return _first_moves(first, table, len(longer)) if first else table.moves


def _first_moves(first: Collection[str], plain: _Table, base: int) -> dict[int, Moves]:
    """Return the moves of texts that must not begin with some marks, the first state's first.

    base: The number of the first state; from it on none is taken.
    """
    table = _Table()
    longer, complete = _tree(first)
    todo = [(0, FREE)]
    for state, free in todo:  # grows on the way
        own = dict(plain.moves[free]) | ({} if state else dict.fromkeys(BLANK, base))
        for char, to in longer[state].items():
            following = plain.moves[free].get(char, FREE)
            if to in complete or following is None:
                own[char] = None
            else:
                own[char] = base + to
                todo.append((to, following))
        table.add(base + state, own)
    return table.moves | plain.moves


def _tree(marks: Collection[str]) -> tuple[list[dict[str, int]], set[int]]:
    """Return what goes on from each beginning of a mark, by character, and which are whole marks.

    Raises:
        GrammarError: There are more than a grammar has rules.
    """
    longer: list[dict[str, int]] = [{}]
    complete = set[int]()
    for mark in marks:
        state = 0
        for char in mark:
            if char not in longer[state]:
                if len(longer) > MAX_RULES:
                    raise too_many_rules()
                longer[state][char] = len(longer)
                longer.append({})
            state = longer[state][char]
        complete.add(state)
    return longer, complete


def _text_rules(rules: Rules, moves: Mapping[int, Moves], name: str, may_end: bool) -> str:
    """Add a rule per state and return the name of the first one.

    may_end: The text can end anywhere and does not go on where there is no way on; otherwise it
        ends just there.
    """
    names = {state: rules.reserve(name) for state in moves}
    for state, own in moves.items():
        parts = ['""'] if may_end else []
        others = "".join(map(class_char, own))
        parts.append(f"{f'[^{others}]' if others else '.'} {names[FREE]}")
        for char, to in own.items():
            if to is not None:
                parts.append(f"{literal(char)} {names[to]}")
            elif not may_end:
                parts.append(literal(char))
        rules.set(names[state], " | ".join(parts))
    return next(iter(names.values()))
