"""LarkInput: what the text of a custom tool follows, as parts of a grammar with other text around.

What is regular becomes one terminal, together with what ends the text, so that no part of it can
take what follows. Only rules that hold themselves stay rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ngramspec.errors import GrammarError
from ngramspec.text.structured import lark_rules
from ngramspec.text.structured.chains import longest_chain
from ngramspec.text.structured.lark import Lark, Part, Text, is_terminal, read_lark, regex_text
from ngramspec.text.structured.lark_rules import (
    Either,
    Name,
    Row,
    Rules,
    Source,
    Times,
    counted,
    literal,
    row,
)

START = "start"
MAX_CHAIN = 200  # rules and groups within one another, by any way
MAX_SIZE = 200_000  # characters of terminals, repetitions and names written out


@dataclass(frozen=True)
class LarkInput:
    """A grammar whose rules are all there.

    rules: Those that `start` needs.
    ignored: What may stand between terminals.
    recursive: Names of rules that hold themselves, or others that do.
    """

    rules: Mapping[str, Part]
    ignored: Part
    recursive: frozenset[str]

    def part(
        self, rules: Rules, in_json: bool = False, end: str = "", mark: str = ""
    ) -> lark_rules.Part:
        """Return the texts of the grammar.

        Args:
            rules: The grammar that gets its rules.
            in_json: Within a string of JSON.
            end: What ends the text; it is part of what is returned.
            mark: What must not be in the text; `end` ends with it.

        Raises:
            GrammarError: It becomes too large.
        """
        return _Writer(self, rules, in_json).whole(end, mark)


def lark_input(text: str) -> LarkInput:
    """Return a grammar from its text.

    Raises:
        GrammarError: It cannot be read, lacks a rule, or is too large; names the rule.

    Cost: linear in the text.
    """
    lark = read_lark(text)
    rules = _needed(lark)
    links = {name: _names(part) for name, part in rules.items()}
    chains = {name: (_depth(part), links[name]) for name, part in rules.items()}
    if longest_chain(chains) > MAX_CHAIN:
        raise GrammarError(f"the rules of the grammar lead deeper than {MAX_CHAIN}")
    _refuse_endless(rules)
    recursive = _recursive(links)
    ignored: Part = Times(Either(tuple(lark.ignored)), 0, None) if lark.ignored else Row(())
    if recursive & {*_names(ignored)}:
        raise GrammarError("what the grammar ignores has a rule that holds itself")
    return _checked(LarkInput(rules, ignored, recursive))


def regex_input(pattern: str) -> LarkInput:
    """Return the grammar of a regular expression.

    Raises:
        GrammarError: No grammar can express it.
    """
    return _checked(LarkInput({START: regex_text(pattern)}, Row(()), frozenset()))


def _checked(whole: LarkInput) -> LarkInput:
    """Return a grammar that llguidance takes, within a string and as it is.

    Raises:
        GrammarError: It does not, or becomes too large.
    """
    _check_size(whole)
    for in_json in (False, True):
        rules = Rules()
        rules.grammar(whole.part(rules, in_json))
    return whole


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
    if isinstance(part, Name):
        return [part.text]
    if isinstance(part, Times):
        return _names(part.part)
    return [] if isinstance(part, Text) else [one for inner in part.parts for one in _names(inner)]


def _depth(part: Part) -> int:
    if isinstance(part, Times):
        return 1 + _depth(part.part)
    return 1 + max(map(_depth, part.parts), default=0) if isinstance(part, (Row, Either)) else 1


def _refuse_endless(rules: Mapping[str, Part]) -> None:
    """Refuse a rule whose texts never come to an end."""
    ending: set[str] = set()
    left = [*rules][::-1]
    while left:
        before = len(left)
        for name in left:
            if _ends(rules[name], ending):
                ending.add(name)
        left = [name for name in left if name not in ending]
        if len(left) == before:
            name, met = left[-1], set[str]()
            while name not in met:  # until one leads back to itself
                met.add(name)
                name = next(other for other in _names(rules[name]) if other in left)
            raise GrammarError(f"the rule {name!r} never comes to an end")


def _ends(part: Part, ending: Collection[str]) -> bool:
    """Tell whether a text of a part comes to an end; `ending`: rules of which this is known."""
    if isinstance(part, Name):
        return part.text in ending
    if isinstance(part, Times):
        return not part.low or _ends(part.part, ending)
    if isinstance(part, Text):
        return True
    return (any if isinstance(part, Either) else all)(_ends(one, ending) for one in part.parts)


def _recursive(links: Mapping[str, list[str]]) -> frozenset[str]:
    """Return the names that lead to themselves, or to one that does.

    Raises:
        GrammarError: One is a terminal.
    """
    left = {name: set(others) for name, others in links.items()}
    users: dict[str, list[str]] = {name: [] for name in links}
    for name, others in left.items():
        for other in others:
            users[other].append(name)
    todo = [name for name, others in left.items() if not others]
    for name in todo:  # grows on the way
        for user in users[name]:
            left[user].discard(name)
            if not left[user]:
                todo.append(user)
    recursive = frozenset(links).difference(todo)
    for name in recursive:
        if is_terminal(name):
            raise GrammarError(f"the terminal {name!r} holds itself")
    return recursive


def _check_size(whole: LarkInput) -> None:
    """Refuse a grammar that becomes too large when names and repetitions are written out."""
    sizes: dict[str, int] = {}

    def size_of(part: Part) -> int:
        if isinstance(part, Text):
            return len(part.plain)
        if isinstance(part, Name):
            if part.text in whole.recursive:
                return 1
            if part.text not in sizes:
                sizes[part.text] = size_of(whole.rules[part.text])
            return sizes[part.text]
        if isinstance(part, Times):
            return size_of(part.part) * max(part.low, part.high or 1)
        return 1 + sum(map(size_of, part.parts))

    parts = [whole.rules[name] for name in (START, *whole.recursive)]
    if sum(map(size_of, parts)) * (1 + size_of(whole.ignored)) > MAX_SIZE:
        raise GrammarError("the grammar is too large, repetitions written out")


class _Writer:
    def __init__(self, grammar: LarkInput, rules: Rules, in_json: bool) -> None:
        self._grammar = grammar
        self._rules = rules
        self._in_json = in_json
        self._names: dict[str, Name] = {}
        self._terminals: dict[tuple[str, bool], str] = {}
        self._ignored = ""
        if grammar.ignored != Row(()):
            self._ignored = rules.terminal("ignored", self._source(grammar.ignored, within=True))

    def whole(self, end: str, mark: str) -> lark_rules.Part:
        start = Name(START)
        if START not in self._grammar.recursive:
            source = f"({' '.join(filter(None, (self._ignored, self._source(start, False))))})"
            if mark:
                return self._rules.fenced(source, end, mark)
            return Source(self._rules.terminal("input", source))
        for name in self._grammar.recursive:
            self._names[name] = self._rules.reserve("input")
        for name, reserved in self._names.items():
            self._rules.set(reserved, self._part(self._grammar.rules[name]))
        before: lark_rules.Part = Source(self._ignored) if self._ignored else ""
        return row(before, self._names[START], end)

    def _part(self, part: Part) -> lark_rules.Part:
        """Return a part of a rule that holds itself."""
        if isinstance(part, Text) or not self._grammar.recursive.intersection(_names(part)):
            return self._terminal(part)
        if isinstance(part, Name):
            return self._names[part.text]
        if isinstance(part, Either):
            return lark_rules.either(*map(self._part, part.parts))
        if isinstance(part, Times):
            if part.high == 0:
                return ""
            return Times(self._part(part.part), part.low, part.high)
        joined: list[Part] = []  # what is regular, side by side, becomes one terminal
        parts: list[lark_rules.Part] = []
        for one in (*part.parts, None):
            if one is not None and not self._grammar.recursive.intersection(_names(one)):
                joined.append(one)
                continue
            if joined:
                parts.append(self._terminal(Row(tuple(joined))))
                joined = []
            if one is not None:
                parts.append(self._part(one))
        return row(*parts)

    def _terminal(self, part: Part) -> lark_rules.Part:
        source = self._source(part, within=False)
        return Source(self._rules.terminal("input", source)) if source else ""

    def _source(self, part: Part, within: bool) -> str:
        """Return a regular part as a terminal's source; `within` a terminal nothing is ignored."""
        self._rules.spend(1)
        if isinstance(part, Text):
            return self._ended(part.in_json if self._in_json else part.plain, within)
        if isinstance(part, Name):
            key = part.text, within or is_terminal(part.text)
            if key not in self._terminals:
                source = self._source(self._grammar.rules[part.text], key[1])
                self._terminals[key] = self._rules.terminal("input", source or literal(""))
            name = self._terminals[key]
            return self._ended(name, within) if is_terminal(part.text) else name
        if isinstance(part, Times):
            inner = self._source(part.part, within) if part.high != 0 else ""
            return f"({inner}){counted(part.low, part.high)}" if inner else ""
        parts = [self._source(one, within) for one in part.parts]
        if isinstance(part, Row):
            return " ".join(filter(None, parts))
        return f"({' | '.join(one or literal('') for one in parts)})"

    def _ended(self, source: str, within: bool) -> str:
        """Return a terminal in a rule: what is ignored may follow."""
        return f"({source} {self._ignored})" if self._ignored and not within else source
