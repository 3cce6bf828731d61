"""How nodes refer to one another: in groups, and how deep that can lead."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def groups(links: Mapping[Node, Iterable[Node]]) -> list[list[Node]]:
    """Return nodes in groups that lead to one another, each behind those that it leads to.

    Tarjan's strongly connected components, without recursion.
    """
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}  # the earliest node that one leads back to
    stack: list[Node] = []  # in no group yet
    place: dict[Node, int] = {}  # where one is in the stack
    complete: list[list[Node]] = []
    for root in links:
        todo = [] if root in order else [(root, iter(links[root]))]
        while todo:
            node, others = todo[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                place[node] = len(stack)
                stack.append(node)
            other = next((one for one in others if one not in order or one in place), None)
            if other is None:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == order[node]:
                    complete.append(stack[place[node] :])
                    del stack[place[node] :]
                    for one in complete[-1]:
                        del place[one]
            elif other in order:
                low[node] = min(low[node], order[other])
            else:
                todo.append((other, iter(links[other])))
    return complete


def longest_chain(nodes: Mapping[str, tuple[int, Iterable[str]]]) -> int:
    """Return the most that any way along references weighs, each node counted once.

    Nodes that lead back to one another count as if a way passed through all of them.

    Args:
        nodes: By name: its weight, and the names that it refers to; other names are left out.

    Cost: linear, without recursion.
    """
    inside = {name: [one for one in others if one in nodes] for name, (_, others) in nodes.items()}
    heaviest: dict[str, int] = {}  # of the ways from a node whose group is complete
    for group in groups(inside):
        beyond = (heaviest.get(other, 0) for name in group for other in inside[name])
        weight = max(beyond, default=0) + sum(nodes[name][0] for name in group)
        heaviest.update(dict.fromkeys(group, weight))
    return max(heaviest.values(), default=0)
