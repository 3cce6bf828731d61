"""suffix as a tree: what is likeliest to be emitted, with all before it, is taken in next."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .source import Tree
from .suffix import SuffixSource
from .suffix_learn import Record
from .suffix_model import Candidate, Choice

TIE = 1e-3  # products this close, relatively, may be taken in either order


@dataclass(eq=False)
class Node:
    """A drafted token, or the root; its claims multiply along the path."""

    index: int
    path: list[int]  # tokens from the root on, its own last
    claims: list[float]
    live: list[Candidate]  # those that agree with the path
    record: Record | None = None  # of what comes after it


Leaf = tuple[Node, Choice]  # what could be taken in next, and after what


class TreeSource(SuffixSource):
    """How a tree is drafted."""

    def propose_tree(
        self, history: list[int], max_tokens: int, max_width: int, other: Tree | None = None
    ) -> Tree:
        """Return the tree, `other` where its ties were decided otherwise by the other side."""
        tokens, parents = [], []
        if not self.find(history, max_tokens):
            return tokens, parents
        nodes = [Node(-1, [], [], [Candidate(**vars(one)) for one in self.candidates])]
        leaves = self.consider(nodes[0], history)
        widths = [0] * self.limit
        while leaves and len(tokens) < self.limit and not self.has_ended(nodes, other):
            node, choice = leaf = self.next_leaf(leaves, len(tokens), other)
            leaves.remove(leaf)
            widths[len(node.path)] += 1
            if widths[len(node.path)] == max_width:
                leaves = [one for one in leaves if len(one[0].path) != len(node.path)]
            assert node.record is not None
            if not node.record.next:
                node.record.chosen = choice  # as likely as any: it came first
            node.record.next[choice.token] = None
            live = self.following(node, choice, history)
            claims = [*node.claims, choice.p]
            nodes.append(Node(len(tokens), [*node.path, choice.token], claims, live))
            tokens.append(choice.token)
            parents.append(node.index)
            self.claims.append(choice.p)
            if len(tokens) < self.limit and not self.has_ended(nodes, other):
                offered = self.consider(nodes[-1], history)
                leaves += [one for one in offered if widths[len(one[0].path)] < max_width]
                node.record.next[choice.token] = nodes[-1].record
        assert other is None or (tokens, parents) == other
        return tokens, parents

    def has_ended(self, nodes: list[Node], other: Tree | None) -> bool:
        """Was the last token so unlikely that the tree ends with it?"""
        all_right = prod(nodes[-1].claims)
        if other is not None and abs(all_right - self.floor) < TIE * self.floor:
            return len(nodes) - 1 == len(other[0])
        return all_right < self.floor

    def consider(self, node: Node, history: list[int]) -> list[Leaf]:
        """Vote on what comes after a node, as for a draft without branches; return the choices."""
        if not node.live:
            return []
        record = self.vote(node.live, [*history, *node.path], len(history))
        if record.sure is not None:
            node.live = self.survivors(node.live, record.chosen.candidate)
        else:
            record.chosen = max(record.choices, key=lambda choice: choice.p)
        node.record = record
        self.records.append(record)
        return [(node, choice) for choice in record.choices or [record.chosen]]

    def next_leaf(self, leaves: list[Leaf], n: int, other: Tree | None) -> Leaf:
        """The likeliest, or the given one if it is as likely."""
        best = max(leaves, key=promise)
        if other is None:
            return best
        assert n < len(other[0]), "the tree ended too early"
        (leaf,) = [
            (node, choice)
            for node, choice in leaves
            if (choice.token, node.index) == (other[0][n], other[1][n])
        ]
        assert promise(leaf) >= (1 - TIE) * promise(best)
        return leaf

    def following(self, node: Node, choice: Choice, history: list[int]) -> list[Candidate]:
        """What agrees with this choice and goes on."""
        draft = [*node.path, choice.token]
        copies = [Candidate(**vars(one)) for one in node.live]
        return [one for one in copies if self.goes_on(one, history, draft)]


def promise(leaf: Leaf) -> float:
    """How likely it and all before it are right."""
    node, choice = leaf
    return prod([*node.claims, choice.p])
