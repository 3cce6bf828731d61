"""The grammars of any text up to a mark, and of any text without marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ngramspec.server.structured.gbnf import Rules, class_char, literal

BLANK = " \t\n"
Moves = Mapping[str, "str | None"]  # by character: the state that follows, None for no way on


def until(rules: Rules, mark: str) -> str:
    """Add rules for any text that ends with the first mark in it, and return the first's name.

    Args:
        rules: The grammar.
        mark: One character or more.

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

    Cost: one rule per character of a mark; what marks begin with counts once.

    Source: Aho and Corasick's automaton.
    """
    moves = _moves(marks)
    return _text_rules(rules, _first_moves(first, moves) if first else moves, "free", may_end=True)


def _moves(marks: Collection[str]) -> dict[str, Moves]:
    """Return where characters lead from each beginning of a mark, the longest that was just read.

    Characters that are not named lead to "".
    """
    longer: dict[str, dict[str, str]] = {"": {}}
    for mark in marks:
        for size in range(len(mark)):
            longer.setdefault(mark[:size], {})[mark[size]] = mark[: size + 1]
            longer.setdefault(mark[: size + 1], {})
    complete = set(marks)
    shorter = {"": ""}  # per state: the longest other one that its text ends with
    moves: dict[str, dict[str, str | None]] = {}
    todo = [""]
    for state in todo:  # grows on the way, from short to long
        others = moves[shorter[state]] if state else {}  # where it goes if no mark goes on
        moves[state] = dict(others)
        for char, to in longer[state].items():
            before = others.get(char, "")
            shorter[to] = before or ""
            if to in complete or before is None:
                moves[state][char] = None
            else:
                moves[state][char] = to
                todo.append(to)
    return {**moves}


def _first_moves(first: Collection[str], moves: Mapping[str, Moves]) -> dict[str, Moves]:
    """Return the moves of texts that must not begin with some marks; the first state is "^"."""
    made: dict[str, Moves] = {"^": {}}
    todo = [("^", "", "")]
    for state, text, plain in todo:  # grows on the way
        longer = dict.fromkeys(
            mark[len(text)] for mark in first if mark.startswith(text) and len(mark) > len(text)
        )
        own = dict(moves[plain]) | (dict.fromkeys(BLANK, "^") if not text else {})
        for char in longer:
            following = moves[plain].get(char, "")
            if text + char in first or following is None:
                own[char] = None
            else:
                own[char] = f"^{text}{char}"
                todo.append((f"^{text}{char}", text + char, following))
        made[state] = own
    return {**made, **moves}


def _text_rules(rules: Rules, moves: Mapping[str, Moves], name: str, may_end: bool) -> str:
    """Add a rule per state and return the name of the first one.

    may_end: The text can end anywhere and does not go on where there is no way on; otherwise it
        ends just there.
    """
    names = {state: rules.reserve(name) for state in moves}
    for state, own in moves.items():
        parts = ['""'] if may_end else []
        others = "".join(map(class_char, own))
        parts.append(f"{f'[^{others}]' if others else '.'} {names['']}")
        for char, to in own.items():
            if to is not None:
                parts.append(f"{literal(char)} {names[to]}")
            elif not may_end:
                parts.append(literal(char))
        rules.set(names[state], " | ".join(parts))
    return next(iter(names.values()))
