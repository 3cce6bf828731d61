"""Whether llama.cpp can follow the rules of a grammar from their first symbols.

Before it reads a character, llama.cpp replaces the rule on top of each stack by its alternatives
until a character or nothing is on top. That ends unless a rule leads back to itself and leaves
something on the stack each time. It asserts that a stack is left in the end. Its own check for left
recursion follows every path to every rule again and recurses once per step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ngramspec.errors import InputError

MAX_PATHS = 1 << 12  # ways from a rule to its first characters; their stacks are compared in pairs
MAX_VISITS = 1 << 26  # elements that llama.cpp's own check passes over
MAX_DEPTH = 3000  # rules on one path


@dataclass(frozen=True, slots=True)
class Item:
    """A symbol of a sequence."""

    rule: int  # index of the rule that it refers to, -1 = characters or a token
    size: int  # elements that llama.cpp keeps for it


@dataclass(slots=True)
class Link:
    """How a rule may begin with another one."""

    ways: int = 0
    leaves: bool = False  # something follows it in the sequence


@dataclass(slots=True)
class Rule:
    """A rule, or a chain of equal rules, each of which may go on to the next."""

    name: str
    alternatives: list[list[Item]]
    chain: int = 1
    empty: bool = False  # can match nothing
    starts: bool = False  # can begin with a character
    ways: int = 0  # to begin with one directly
    links: dict[int, Link] = field(default_factory=dict)


@dataclass(slots=True)
class Cost:
    """The cost of following a rule."""

    paths: int = 1
    visits: int = 0
    depth: int = 0


def check_rules(rules: Sequence[Rule]) -> Cost:
    """Raise InputError unless llama.cpp can follow the rules. Cost: linear in their size.

    Returns:
        Cost: The cost of following the first rule.
    """
    _find_empty(rules)
    _find_links(rules)
    _find_starts(rules)
    for rule in rules:
        if not (rule.empty or rule.starts):
            raise InputError(f"the grammar's rule {rule.name!r} never comes to a character")
    costs: dict[int, Cost] = {}
    for group in _groups(rules):
        _check_group(group, rules, costs)
    return costs[0]


def _find_empty(rules: Sequence[Rule]) -> None:
    """Mark the rules that can match nothing."""
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    missing: dict[tuple[int, int], int] = {}
    todo = []
    for index, rule in enumerate(rules):
        for number, items in enumerate(rule.alternatives):
            if all(item.rule >= 0 for item in items):
                missing[index, number] = len(items)
                for item in items:
                    users[item.rule].append((index, number))
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
                if item.rule < 0:
                    rule.starts = True
                    rule.ways += 1
                    break
                link = rule.links.setdefault(item.rule, Link())
                link.ways += 1
                link.leaves |= index + 1 < len(items)
                if not rules[item.rule].empty:
                    break


def _find_starts(rules: Sequence[Rule]) -> None:
    """Mark the rules that can begin with a character, directly or through another rule."""
    users: dict[int, list[int]] = defaultdict(list)
    for index, rule in enumerate(rules):
        for follower in rule.links:
            users[follower].append(index)
    todo = [index for index, rule in enumerate(rules) if rule.starts]
    while todo:
        for user in users[todo.pop()]:
            if not rules[user].starts:
                rules[user].starts = True
                todo.append(user)


def _check_group(group: Sequence[int], rules: Sequence[Rule], costs: dict[int, Cost]) -> None:
    """Check rules that lead to one another, after all other rules that they lead to."""
    cost, deepest = Cost(paths=len(group)), 0
    for index in group:
        rule = rules[index]
        # One path passes through the whole chain only if the repeated part can match nothing.
        length = rule.chain if index in rule.links else 1
        cost.depth += length
        visits = sum(item.size for items in rule.alternatives for item in items)
        paths = rule.ways
        for follower, link in rule.links.items():
            if follower in costs:
                paths += link.ways * costs[follower].paths
                visits += link.ways * costs[follower].visits
                deepest = max(deepest, costs[follower].depth)
            elif link.leaves:
                raise InputError(f"the grammar's rule {rule.name!r} begins with itself")
        cost.paths += length * paths
        cost.visits += length * visits
    cost.depth += deepest
    if cost.paths > MAX_PATHS or cost.visits > MAX_VISITS or cost.depth > MAX_DEPTH:
        raise InputError(f"the grammar's rule {rules[group[0]].name!r} has too many ways to begin")
    for index in group:
        costs[index] = cost


def _groups(rules: Sequence[Rule]) -> list[list[int]]:
    """Return the rules in groups that lead to one another, each after those that it leads to.

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
