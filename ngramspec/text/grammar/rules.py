"""From rules as lists of symbols to the native Rules, without left recursion and endless rules.

Before it reads a character, the matcher replaces rules by their alternatives until characters come
first. That ends unless a rule leads back to itself and leaves something to read after it each time.
No alternative is left that cannot be completed: no text can get to where it goes no further.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ngramspec._native.grammar.rules import Rules
from ngramspec.errors import InputError
from ngramspec.text.grammar.characters import Characters
from ngramspec.text.structured.chains import groups

# Kinds of symbols; a symbol is its value << BITS | kind.
RULE, CHAR, TOKEN, NOT_TOKEN = 1, 2, 3, 4
BITS = 3
KIND = (1 << BITS) - 1


@dataclass(slots=True)
class Rule:
    """A rule; it matches what any of its alternatives matches."""

    name: str
    alternatives: list[list[int]]
    empty: bool = False  # can match nothing
    links: dict[int, bool] = field(default_factory=dict)  # rules it can begin with: more may follow


def native_rules(rules: Sequence[Rule], characters: Characters) -> Rules:
    """Return the rules for a Matcher, the root first. Cost: linear in their size.

    Alternatives that can never be completed are taken out of `rules`.

    Raises:
        InputError: A rule begins with itself, or the root can never be completed.
    """
    for index in _closed(rules, lambda items: all(item & KIND == RULE for item in items)):
        rules[index].empty = True
    missing = {node << BITS | CHAR for node, edges in enumerate(characters.edges) if not edges}
    ending = _closed(rules, missing.isdisjoint)
    missing.update(index << BITS | RULE for index in range(len(rules)) if index not in ending)
    if 0 not in ending:
        raise InputError(
            f"the grammar can never be completed: its rule {_endless(rules, missing)!r} always "
            "leads back to itself or to a character that does not exist"
        )
    _find_links(rules)
    _refuse_left_recursion(rules)
    for rule in rules if missing else ():
        rule.alternatives = [items for items in rule.alternatives if missing.isdisjoint(items)]
    alternatives = [items for rule in rules for items in rule.alternatives]
    lengths = np.array([len(items) + 1 for items in alternatives], dtype=np.int64)
    symbols = np.fromiter(
        itertools.chain.from_iterable((*items, 0) for items in alternatives), dtype=np.int64
    )
    return Rules(
        symbols & KIND,
        (symbols >> BITS).astype(np.uint32).view(np.int32),  # token ids up to 2^32 - 1
        _offsets([len(rule.alternatives) for rule in rules]),
        _offsets(lengths)[:-1],
        _offsets([len(edges) for edges in characters.edges]),
        np.array([edge for edges in characters.edges for edge in edges], dtype=np.int32),
    )


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return where each of some pieces begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def _closed(rules: Sequence[Rule], may_hold: Callable[[list[int]], bool]) -> set[int]:
    """Return the rules with an alternative of which the same is true for all of its rules.

    may_hold: Tells from an alternative's other symbols whether that is possible.
    """
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    missing: dict[tuple[int, int], int] = {}
    closed: set[int] = set()
    for index, rule in enumerate(rules):
        for number, items in enumerate(rule.alternatives):
            if not may_hold(items):
                continue
            needs = [item >> BITS for item in items if item & KIND == RULE]
            missing[index, number] = len(needs)
            for need in needs:
                users[need].append((index, number))
            if not needs:
                closed.add(index)
    todo = list(closed)
    while todo:
        for user in users[todo.pop()]:
            missing[user] -= 1
            if missing[user] == 0 and user[0] not in closed:
                closed.add(user[0])
                todo.append(user[0])
    return closed


def _endless(rules: Sequence[Rule], missing: set[int]) -> str:
    """Return the name of the rule for which the root can never be completed.

    missing: Symbols that can never be read to their end.
    """
    index, seen = 0, {-1}
    while index not in seen:
        seen.add(index)
        here = rules[index]
        symbol = next(item for item in here.alternatives[0] if item in missing)
        index = symbol >> BITS if symbol & KIND == RULE else -1
    return here.name if index < 0 else rules[index].name


def _find_links(rules: Sequence[Rule]) -> None:
    """Collect what every rule may begin with."""
    for rule in rules:
        for items in rule.alternatives:
            for index, item in enumerate(items):
                if item & KIND != RULE:
                    break
                follower = item >> BITS
                more = index + 1 < len(items)
                rule.links[follower] = rule.links.get(follower, False) or more
                if not rules[follower].empty:
                    break


def _refuse_left_recursion(rules: Sequence[Rule]) -> None:
    """Raise InputError if a rule leads back to itself and something may follow."""
    links = {index: rule.links for index, rule in enumerate(rules)}
    number_of = {index: number for number, group in enumerate(groups(links)) for index in group}
    for index, rule in enumerate(rules):
        for follower, more in rule.links.items():
            if more and number_of[index] == number_of[follower]:
                raise InputError(f"the grammar's rule {rule.name!r} begins with itself")
