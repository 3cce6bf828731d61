"""Which tokens of a tree to send: the slow twin of `policy.chooser`, the rule written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ngramspec.costs import CostTable

from .auto import worths


def children(parents: Sequence[int], token: int) -> list[int]:
    """Return the tokens after one, or after the text (-1); the likeliest comes first."""
    return [i for i, parent in enumerate(parents) if parent == token]


def path(parents: Sequence[int], token: int) -> list[int]:
    """Return a token and all before it, the first one first."""
    return [] if token < 0 else [*path(parents, parents[token]), token]


def shallow(
    claims: Sequence[float], parents: Sequence[int], most: int
) -> tuple[list[int], list[float], list[int]]:
    """Return the tokens whose paths have at most `most` tokens, and the tree that they make."""
    nodes = [i for i in range(len(parents)) if len(path(parents, i)) <= most]
    links = [nodes.index(parents[i]) if parents[i] >= 0 else -1 for i in nodes]
    return nodes, [claims[i] for i in nodes], links


def chain_from(parents: Sequence[int], token: int) -> list[int]:
    """Return a token, its first child, that one's first child, and so on."""
    after = children(parents, token)
    return [token, *(chain_from(parents, after[0]) if after else [])]


def rest(p: Sequence[float], parents: Sequence[int], token: int, prices: Sequence[float]) -> float:
    """What the text that ends with a token is worth, by the chain that is known to follow it."""
    chain = [p[i] for i in chain_from(parents, token)[1:]]
    go_on = [0.0] * (len(chain) + 1)
    for i in range(len(chain) - 1, -1, -1):
        totals = worths(chain, i, go_on)
        go_on[i] = max(0.0, max(worth - prices[k] for k, worth in enumerate(totals)))
    return go_on[0]


def gains(
    p: Sequence[float], parents: Sequence[int], prices: Sequence[float], branch: float = 0.0
) -> list[float]:
    """What each token saves, on average over what may be emitted, less the price of its branch."""
    rests = [rest(p, parents, i, prices) for i in range(len(p))]
    return [
        math.prod(p[j] for j in path(parents, i))
        * (1 + sum(p[j] * rests[j] for j in children(parents, i)) - rests[i])
        - (branch if children(parents, parents[i])[0] != i else 0.0)
        for i in range(len(p))
    ]


def order(parents: Sequence[int], saved: Sequence[float]) -> list[int]:
    """Return the tokens in the order in which they are taken."""
    ranks: list[float] = []
    for i, parent in enumerate(parents):
        chain = [saved[j] for j in chain_from(parents, i)]
        rank = max(sum(chain[:k]) / k for k in range(1, len(chain) + 1))
        ranks.append(min(rank, ranks[parent]) if parent >= 0 else rank)
    return sorted(range(len(parents)), key=lambda i: -ranks[i])


def rate_for(
    p: Sequence[float], parents: Sequence[int], room: int, table: CostTable, rate: float
) -> float:
    """Return the rate to choose by: the present one, or what the start of the tree can bring."""
    emitted, rates = 1.0, [1.0 / table.cost(1)]
    for i in range(max(0, min(room, len(p)))):
        emitted += math.prod(p[j] for j in path(parents, i))
        rates.append(emitted / (1.07 * table.cost(2 + i) - 0.07 * table.cost(1)))
    return min(rate, max(rates))


def net(saved: Sequence[float], sent: Sequence[int], prices: Sequence[float]) -> float:
    """What sending some tokens is worth beyond none, the costs taken off."""
    return sum(saved[i] for i in sent) - (prices[len(sent)] - prices[0])


def choose(
    p: Sequence[float],
    parents: Sequence[int],
    prices: Sequence[float],
    room: int,
    branch: float = 0.0,
) -> list[int]:
    """Return the tokens to send: so many from the start of the order as are worth most."""
    saved = gains(p, parents, prices, branch)
    taken = order(parents, saved)
    most = max(0, min(room, len(p)))
    sizes = [net(saved, taken[:k], prices) for k in range(most + 1)]
    return taken[: sizes.index(max(sizes))]
