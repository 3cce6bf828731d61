"""From rules as lists of symbols to the native Rules; left recursion is refused.

Before it reads a character, the matcher replaces rules by their alternatives until characters come
first. That ends unless a rule leads back to itself and leaves something to read after it each time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ngramspec._native.grammar.rules import Rules
from ngramspec.errors import InputError
from ngramspec.grammar.characters import Characters

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
    begins: bool = False  # can begin with a character or a token
    links: dict[int, bool] = field(default_factory=dict)  # rules it can begin with: more may follow


def native_rules(rules: Sequence[Rule], characters: Characters) -> Rules:
    """Return the rules for a Matcher, the root first. Cost: linear in their size.

    Raises:
        InputError: A rule begins with itself, or the root can neither begin nor be empty.
    """
    _find_empty(rules)
    _find_links(rules)
    _find_beginnings(rules)
    if not (rules[0].empty or rules[0].begins):
        raise InputError(f"the grammar's rule {rules[0].name!r} never comes to a character")
    _refuse_left_recursion(rules)
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


def _find_empty(rules: Sequence[Rule]) -> None:
    """Mark the rules that can match nothing."""
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    missing: dict[tuple[int, int], int] = {}
    todo = []
    for index, rule in enumerate(rules):
        for number, items in enumerate(rule.alternatives):
            if all(item & KIND == RULE for item in items):
                missing[index, number] = len(items)
                for item in items:
                    users[item >> BITS].append((index, number))
                if not items and not rule.empty:
                    rule.empty = True
                    todo.append(index)
    while todo:
        for user in users[todo.pop()]:
            missing[user] -= 1
            if missing[user] == 0 and not rules[user[0]].empty:
                rules[user[0]].empty = True
                todo.append(user[0])


def _find_links(rules: Sequence[Rule]) -> None:
    """Collect what every rule may begin with."""
    for rule in rules:
        for items in rule.alternatives:
            for index, item in enumerate(items):
                if item & KIND != RULE:
                    rule.begins = True
                    break
                follower = item >> BITS
                more = index + 1 < len(items)
                rule.links[follower] = rule.links.get(follower, False) or more
                if not rules[follower].empty:
                    break


def _find_beginnings(rules: Sequence[Rule]) -> None:
    """Mark the rules that can begin with a character, directly or through another rule."""
    users: dict[int, list[int]] = defaultdict(list)
    for index, rule in enumerate(rules):
        for follower in rule.links:
            users[follower].append(index)
    todo = [index for index, rule in enumerate(rules) if rule.begins]
    while todo:
        for user in users[todo.pop()]:
            if not rules[user].begins:
                rules[user].begins = True
                todo.append(user)


def _refuse_left_recursion(rules: Sequence[Rule]) -> None:
    """Raise InputError if a rule leads back to itself and something may follow."""
    groups = {index: number for number, group in enumerate(_groups(rules)) for index in group}
    for index, rule in enumerate(rules):
        for follower, more in rule.links.items():
            if more and groups[index] == groups[follower]:
                raise InputError(f"the grammar's rule {rule.name!r} begins with itself")


def _groups(rules: Sequence[Rule]) -> list[list[int]]:
    """Return the rules in groups that lead to one another.

    Tarjan's strongly connected components, without recursion.
    """
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    groups: list[list[int]] = []
    for root in range(len(rules)):
        todo = [] if root in order else [(root, iter(rules[root].links))]
        while todo:
            node, followers = todo[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
                waiting.add(node)
            follower = next((f for f in followers if f not in order or f in waiting), None)
            if follower is None:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == order[node]:
                    groups.append(_pop_until(stack, node))
                    waiting.difference_update(groups[-1])
            elif follower in order:
                low[node] = min(low[node], order[follower])
            else:
                todo.append((follower, iter(rules[follower].links)))
    return groups


def _pop_until(stack: list[int], node: int) -> list[int]:
    popped = [stack.pop()]
    while popped[-1] != node:
        popped.append(stack.pop())
    return popped
