"""What to send of a free draft and of another one: the slow twin of `policy.arbiter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .arbiter import likeliest_path
from .auto_tree import children, gains


@dataclass
class Both:
    """Two drafts: the free one, a tree, and a chain that begins after its token `start`.

    p, parents: of all tokens of the free draft; the first `len(tokens)` could be sent.
    q: of the chain's tokens.
    """

    p: list[float]
    parents: list[int]
    tokens: list[int]
    q: list[float]
    draft: list[int]
    start: int

    def sent_children(self, token: int) -> list[int]:
        return [i for i in children(self.parents, token) if i < len(self.tokens)]

    def common(self) -> list[int]:
        """The tokens of the free draft that are also the first ones of the other."""
        places: list[int] = []
        at = self.start
        for token in self.draft:
            same = [i for i in self.sent_children(at) if self.tokens[i] == token]
            if not same:
                break
            at = same[0]
            places.append(at)
        return places


def start_of(p: Sequence[float], parents: Sequence[int], sent: int, after: bool) -> int:
    return [i for i in likeliest_path(p, parents, sent) if i < sent][-1] if after else -1


def corrected(both: Both, apart: float) -> tuple[list[float], list[float]]:
    """What is probable once both are known: of the free draft's tokens, and of the other's."""
    p, q, common = list(both.p), list(both.q), both.common()
    for k, node in enumerate(common):
        others = [i for i in both.sent_children(both.parents[node]) if i != node]
        if q[k] > p[node]:
            for i in others:
                p[i] *= (1 - q[k]) / (1 - p[node])
            p[node] = q[k]
    k = len(common)
    if k < len(q):
        here = both.sent_children(common[-1] if common else both.start)
        # One of the free tokens is right, the other's is, or none: independent but for both.
        free = min(sum(p[i] for i in here), 0.999)
        other = min(q[k] * (1 if k else apart), 0.999)
        total = free * (1 - other) + other * (1 - free) + (1 - free) * (1 - other)
        for i in here:
            p[i] *= (1 - other) / total
        q[k] = other * (1 - free) / total
    return p, q


def saved(p: Sequence[float], parents: Sequence[int], prices: Sequence[float]) -> list[float]:
    """The gains of a tree whose siblings stand in any order."""
    order: list[int] = []
    waiting = [-1]
    while waiting:
        token = waiting.pop(0)
        after = sorted(children(parents, token), key=lambda i: -p[i])
        order += after
        waiting += after
    links = [order.index(parents[i]) if parents[i] >= 0 else -1 for i in order]
    ordered = gains([p[i] for i in order], links, prices)
    return [ordered[order.index(i)] for i in range(len(p))]


def sent_tree(both: Both, num_free: int, end: int) -> tuple[list[int], list[int]]:
    """Tokens and parents, those of the free draft first."""
    tokens, parents = both.tokens[:num_free], both.parents[:num_free]
    at = both.start
    for k in range(end):
        common = both.common()
        if k < len(common) and common[k] < num_free:
            at = common[k]
        else:
            tokens.append(both.draft[k])
            parents.append(at)
            at = len(tokens) - 1
    return tokens, parents


def mix(
    both: Both,
    apart: float,
    prices: Callable[[int], float],
    room: int,
    branches: int,
) -> dict[tuple[int, int], float]:
    """What each pair of lengths that may be sent is worth, prices taken off."""
    p, q = corrected(both, apart)
    free = saved(p, both.parents, [prices(k) for k in range(len(p) + 1)])
    common, worths = both.common(), dict[tuple[int, int], float]()
    reached, at = 1.0, common[-1] if common else both.start
    while at >= 0:
        reached, at = reached * p[at], both.parents[at]
    for num_free in range(len(both.tokens) + 1):
        for end in range(len(both.draft) + 1 if both.start < num_free else 1):
            total, right = sum(free[:num_free]), reached
            for k in range(end):
                if k < len(common):
                    total += free[common[k]] if common[k] >= num_free else 0.0
                else:
                    right *= q[k]
                    total += right
            tokens, parents = sent_tree(both, num_free, end)
            ends = sum(not children(parents, i) for i in range(len(tokens)))
            alone = len(tokens) == num_free
            if (alone and num_free == len(both.tokens)) or (
                not alone and len(tokens) <= room and ends <= branches
            ):
                worths[num_free, end] = total - prices(len(tokens))
    return worths
