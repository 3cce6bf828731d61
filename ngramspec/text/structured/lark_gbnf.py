"""From Lark grammars to GBNF.

Lark reads a text in tokens, each as long as it can be; GBNF knows characters only. So what is
written here takes a text if there is any way to divide it, and a few more texts than Lark does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.gbnf import Rules
from ngramspec.text.structured.lark import (
    Either,
    Lark,
    Name,
    Part,
    Sequence,
    Text,
    Times,
    is_terminal,
    read_lark,
)
from ngramspec.text.structured.regular import EMPTY_TEXT, Spelling, gbnf, lengths

START = "start"
MAX_VISITS = 200_000  # of names, to find what matches the empty text


@dataclass(frozen=True)
class LarkGrammar:
    """A grammar whose rules are all there and begin with something.

    rules: Those that `start` needs.
    ignored: What may stand between terminals.
    """

    rules: Mapping[str, Part]
    ignored: tuple[Part, ...]

    def gbnf(self, rules: Rules, name: str, spelling: Spelling) -> str:
        """Add rules and return GBNF for the texts of the grammar.

        Raises:
            GrammarError: It becomes too large.
        """
        return _Writer(self, rules, name, spelling).whole()


def lark_grammar(text: str) -> LarkGrammar:
    """Return a grammar from its text.

    Raises:
        GrammarError: It cannot be read, lacks a rule, or one begins with itself through another;
            names the rule.

    Cost: linear in the text.
    """
    lark = read_lark(text)
    needed = _needed(lark).items()
    rules = {name: _without_left_recursion(name, part) for name, part in needed}
    _refuse_left_recursion(rules)
    return LarkGrammar(rules, tuple(lark.ignored))


def _needed(lark: Lark) -> dict[str, Part]:
    """Return the rules that `start` and what is ignored need."""
    if START not in lark.rules:
        raise GrammarError(f"the grammar has no rule {START!r}")
    needed: dict[str, Part] = {}
    todo = [START, *(name for part in lark.ignored for name in _names(part))]
    for name in todo:  # grows on the way
        if name in needed:
            continue
        if name not in lark.rules:
            raise GrammarError(f"the grammar lacks the rule {name!r:.60}")
        needed[name] = lark.rules[name]
        if is_terminal(name):
            for other in _names(needed[name]):
                if not is_terminal(other):
                    raise GrammarError(f"the terminal {name!r} has the rule {other!r} in it")
        todo += _names(needed[name])
    return needed


def _names(part: Part) -> list[str]:
    """Return the names in a part."""
    if isinstance(part, Name):
        return [part.name]
    if isinstance(part, Times):
        return _names(part.part)
    return [] if isinstance(part, Text) else [one for inner in part.parts for one in _names(inner)]


def _without_left_recursion(name: str, part: Part) -> Part:
    """Return a rule that does not begin with itself: x: x a | b becomes x: b a*."""
    parts = part.parts if isinstance(part, Either) else (part,)
    again, others = list[Part](), list[Part]()
    for one in parts:
        row = one.parts if isinstance(one, Sequence) else (one,)
        if row and row[0] == Name(name):
            again.append(Sequence(row[1:]))
        else:
            others.append(one)
    if not again:
        return part
    if not others:
        raise GrammarError(f"the rule {name!r} begins with itself and has no other beginning")
    return Sequence((Either(tuple(others)), Times(Either(tuple(again)), 0, None)))


def _refuse_left_recursion(rules: Mapping[str, Part]) -> None:
    """Refuse rules that still begin with themselves: GBNF cannot have them."""
    empty = _empty_rules(rules)
    links = {name: _beginnings(part, empty) for name, part in rules.items()}
    done: set[str] = set()
    for root in links:
        path: dict[str, list[str]] = {}
        todo = [root]
        while todo:
            name = todo[-1]
            if name not in path and name not in done:
                path[name] = list(links[name])
            if path.get(name):
                following = path[name].pop()
                if following in path:
                    through = f" through {name!r}" if name != following else ""
                    raise GrammarError(f"the rule {following!r} begins with itself{through}")
                todo.append(following)
            else:
                path.pop(name, None)
                done.add(name)
                todo.pop()


def _empty_rules(rules: Mapping[str, Part]) -> set[str]:
    """Return the names of the rules that match the empty text.

    Raises:
        GrammarError: That takes more than MAX_VISITS.
    """
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, part in rules.items():
        for other in _names(part):
            users[other].append(name)
    empty: set[str] = set()
    todo, sizes = list(rules), {name: len(_names(part)) for name, part in rules.items()}
    visits = 0
    while todo:
        name = todo.pop()
        visits += sizes[name]
        if visits > MAX_VISITS:
            raise GrammarError(f"the rule {name!r} depends on too many others")
        if name not in empty and _is_empty(rules[name], empty):
            empty.add(name)
            todo += users[name]
    return empty


def _is_empty(part: Part, empty: set[str]) -> bool:
    """Tell whether a part matches the empty text."""
    if isinstance(part, Text):
        return lengths(part.tree)[0] == 0
    if isinstance(part, Name):
        return part.name in empty
    if isinstance(part, Times):
        return not part.low or _is_empty(part.part, empty)
    empties = (_is_empty(one, empty) for one in part.parts)
    return all(empties) if isinstance(part, Sequence) else any(empties)


def _beginnings(part: Part, empty: set[str]) -> set[str]:
    """Return the names with which a part can begin."""
    if isinstance(part, Text):
        return set()
    if isinstance(part, Name):
        return {part.name}
    if isinstance(part, Times):
        return _beginnings(part.part, empty)
    names: set[str] = set()
    for one in part.parts:
        names |= _beginnings(one, empty)
        if isinstance(part, Sequence) and not _is_empty(one, empty):
            break
    return names


class _Writer:
    def __init__(self, grammar: LarkGrammar, rules: Rules, name: str, spelling: Spelling) -> None:
        self._grammar = grammar
        self._rules = rules
        self._name = name
        self._spelling = spelling
        self._names: dict[str, str] = {}
        self._between = ""  # rule of what is ignored

    def whole(self) -> str:
        for name in self._grammar.rules:
            self._names[name] = self._rules.reserve(f"{self._name}-{name}")
        if self._grammar.ignored:
            parts = [self._written(part, within=True) for part in self._grammar.ignored]
            either = " | ".join(part or EMPTY_TEXT for part in parts)
            self._between = self._rules.add(f"{self._name}-ignored", f"({either})*")
        for name, part in self._grammar.rules.items():
            self._rules.set(self._names[name], self._written(part, within=is_terminal(name)))
        return " ".join(filter(None, (self._between, self._names[START])))

    def _written(self, part: Part, within: bool) -> str:
        """Return GBNF for a part; `within` a terminal nothing is ignored."""
        self._rules.spend(1)
        if isinstance(part, Text):
            text = gbnf(part.tree, self._rules, self._name, self._spelling)
            return text if within else self._ended(text)
        if isinstance(part, Name):
            text = self._names[part.name]
            return self._ended(text) if is_terminal(part.name) and not within else text
        if isinstance(part, Times):
            inner = self._written(part.part, within)
            if not inner:
                return ""
            one = inner if isinstance(part.part, Name) and " " not in inner else f"({inner})"
            return self._times(one, part)
        parts = [self._written(one, within) for one in part.parts]
        if isinstance(part, Sequence):
            return " ".join(filter(None, parts))
        return f"({' | '.join(one or EMPTY_TEXT for one in parts)})"

    def _times(self, one: str, part: Times) -> str:
        if (part.low, part.high) == (0, 1):
            return f"{one}?"
        return self._rules.repeated(one, part.low, part.high)

    def _ended(self, terminal: str) -> str:
        """Return a terminal in a rule: what is ignored may follow."""
        return " ".join(filter(None, (terminal, self._between)))
