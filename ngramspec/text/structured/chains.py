"""longest_chain: how deep names that refer to one another can lead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


def longest_chain(nodes: Mapping[str, tuple[int, Iterable[str]]]) -> int:
    """Return the most that any way along references weighs, each node counted once.

    Nodes that lead back to one another count as if a way passed through all of them.

    Args:
        nodes: By name: its weight, and the names that it refers to; other names are left out.

    Cost: linear, without recursion.
    """
    met: dict[str, int] = {}  # nodes in their order
    first: dict[str, int] = {}  # the earliest node that one leads back to
    place: dict[str, int] = {}  # where one is in `waiting`
    waiting: list[str] = []  # in no group yet
    heaviest: dict[str, int] = {}  # of the ways from a node whose group is complete
    for start in nodes:
        path: list[tuple[str, Iterator[str]]] = []
        after: str | None = None if start in met else start
        while after is not None or path:
            if after is not None:
                met[after] = first[after] = len(met)
                place[after] = len(waiting)
                waiting.append(after)
                path.append((after, iter(nodes[after][1])))
            name, others = path[-1]
            after = next((one for one in others if one in nodes and one not in met), None)
            if after is not None:
                continue
            path.pop()
            group = [one for one in nodes[name][1] if one in nodes and one not in heaviest]
            first[name] = min([first[name], *(first[one] for one in group)])
            if first[name] == met[name]:
                group = waiting[place[name] :]
                del waiting[place[name] :]
                beyond = (heaviest.get(one, 0) for each in group for one in nodes[each][1])
                weight = max(beyond, default=0) + sum(nodes[one][0] for one in group)
                heaviest.update(dict.fromkeys(group, weight))
    return max(heaviest.values(), default=0)
