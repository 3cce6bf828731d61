"""recycle: the target's likeliest successors of tokens and pairs, and trees of them.

Sums and products are rounded to 32 bits where the native ones are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import exp
from pathlib import Path

import numpy as np

import ngramspec

from .source import Source, Tree
from .suffix_model import Adaptive, single

CLAIMS = Path(ngramspec.__file__).parent / "models" / "recycle_claims.npy"
WAYS = 4
MOST_USED = 15
LEAVES = 128  # choices that wait
SURE = single(0.97)
LEAST = single(0.0005)
MOST_LIKELY = single(np.float32(1) - np.float32(0.0005))
BOUNDS = (66, 197, 655, 1311, 2621, 5243, 9830, 16384, 26214, 36044, 45875, 52428, 58982, 62258,
          64224)  # fmt: skip
LEVELS = (0.2, 0.5, 0.8, 0.95)
PRIOR = 30
Context = tuple[int, ...]  # one token, or two, the older one first
Followers = list[tuple[int, int]]  # tokens and their probabilities in 65,535ths, likeliest first


@dataclass
class Entry:
    """What the pool knows of a context."""

    context: Context
    followers: Followers
    used: int = 1


class SuccessorPool:
    """Sets of at most WAYS entries."""

    def __init__(self, capacity: int = 1 << 17, top: int = 8) -> None:
        self.num_sets = math.ceil(capacity / WAYS)
        self.top = top
        self.sets: dict[int, list[Entry | None]] = {}
        self.num_observed = self.num_evicted = 0

    @property
    def num_entries(self) -> int:
        return sum(entry is not None for ways in self.sets.values() for entry in ways)

    def ways(self, context: Context) -> list[Entry | None]:
        before, last = (-1, *context)[-2:]
        value = ((before + 1) * 0x9E3779B97F4A7C15 + last) * 0xD6E8FEB86659FD93 % 2**64
        value = (value ^ value >> 32) * 0xD6E8FEB86659FD93 % 2**64
        return self.sets.setdefault((value >> 32) * self.num_sets >> 32, [None] * WAYS)

    def find(self, context: Context) -> Followers:
        entries = [one for one in self.ways(context) if one is not None and one.context == context]
        return entries[0].followers if entries else []

    def put(self, context: Context, followers: Followers) -> None:
        if not followers:
            return
        ways, likeliest = self.ways(context), followers[: self.top]
        self.num_observed += 1
        for entry in ways:
            if entry is not None and entry.context == context:
                entry.followers, entry.used = likeliest, min(entry.used + 1, MOST_USED)
                return
        if None in ways:
            ways[ways.index(None)] = Entry(context, likeliest)
            return
        full = [entry for entry in ways if entry is not None]
        place = min(range(WAYS), key=lambda i: full[i].used)
        for entry in full:
            entry.used = max(0, entry.used - 1)
        ways[place] = Entry(context, likeliest)
        self.num_evicted += 1

    def clear(self) -> None:
        self.sets = {}


Claim = tuple[bool, int, int, bool, int, int]


class Claims:
    """How often successors of each class were right; shared by the slots of a drafter."""

    def __init__(self) -> None:
        self.start = np.load(CLAIMS)
        self.adaptives: dict[Claim, Adaptive] = {}

    def of(self, claim: Claim) -> Adaptive:
        if claim not in self.adaptives:
            self.adaptives[claim] = Adaptive(int(self.start[tuple(map(int, claim))]), PRIOR)
        return self.adaptives[claim]


def bucket_of(p: int) -> int:
    return sum(p // 64 * 64 + 32 > bound for bound in BOUNDS)


def verdict_of(claim: float) -> int:
    return 0 if claim <= 0 else 1 + sum(claim >= single(level) for level in LEVELS)


@dataclass(eq=False)
class Node:
    """The text, or a drafted token, and what was considered after it."""

    path: list[int]
    index: int  # in the tree, -1 = the text
    place: int | None  # in the given tree, -1 = the text, None = not in it
    all_right: float
    first: bool  # it and all before it are the likeliest
    considered: list[tuple[int, Claim]] = field(default_factory=list)
    next: dict[int, Node] = field(default_factory=dict)


@dataclass(eq=False)
class Leaf:
    """A token that could be taken in next."""

    after: Node
    token: int
    p: float
    place: int | None
    first: bool = False

    @property
    def all_right(self) -> float:
        return single(np.float32(self.after.all_right) * np.float32(self.p))


class RecycleSource(Source):
    """One slot; pool and claims are those of all slots."""

    def __init__(
        self,
        max_draft: int = 64,
        min_probability: float = 0.01,
        key_tokens: int = 2,
        top: int = 8,
        capacity: int = 1 << 17,
        pool: SuccessorPool | None = None,
        model: Claims | None = None,
    ) -> None:
        self.max_draft = max_draft
        self.floor = single(min_probability)
        self.key_tokens = key_tokens
        self.pool = pool or SuccessorPool(capacity, top)
        self.top = self.pool.top
        self.model = model or Claims()
        self.root: Node | None = None  # of the last proposal
        self.base = -1  # length of the history then

    def start(self) -> None:
        self.root = None

    def observe(self, text: list[int], tokens: list[int], logprobs: list[float]) -> None:
        scaled = [int(single(single(exp(log)) * 65535 + 0.5)) for log in logprobs]
        followers = [(token, p) for token, p in zip(tokens, scaled, strict=True) if p > 0]
        followers = followers[: self.pool.top]
        self.pool.put((text[-1],), followers)
        if self.key_tokens == 2 and len(text) > 1:
            self.pool.put((text[-2], text[-1]), followers)

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        node = self.root if committed and self.base == start else None
        self.root = None
        for token in history[start:]:
            if node is None:
                return
            for other, claim in node.considered:
                self.model.of(claim).learn(other == token)
            node = node.next.get(token)

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.propose_tree(history, max_tokens, 1)[0]

    def propose_tree(
        self, history: list[int], max_tokens: int, max_width: int, other: Tree | None = None
    ) -> Tree:
        """Ties are decided as the native side does: `other` is not needed."""
        return self.graft(history, max_tokens, max_width, ([], []), [])

    def graft(
        self, history: list[int], limit: int, width: int, stem: Tree, claims: list[float]
    ) -> Tree:
        """Grow a tree from the text and another source's tree."""
        tokens: list[int] = []
        parents: list[int] = []
        self.claims = []
        limit = min(limit, self.max_draft)
        if not history or limit <= 0:
            return tokens, parents
        self.base = len(history)
        self.root = Node([], -1, -1, 1.0, True)
        leaves = self.consider(self.root, history, stem, claims)
        depths = [0] * limit
        while leaves and len(tokens) < limit:
            leaf = max(leaves, key=lambda one: one.all_right)  # of equals, the one offered first
            leaves.remove(leaf)
            if leaf.all_right < self.floor:
                break
            depth = len(leaf.after.path)
            path = [*leaf.after.path, leaf.token]
            node = Node(path, len(tokens), leaf.place, leaf.all_right, leaf.first)
            leaf.after.next[leaf.token] = node
            tokens.append(leaf.token)
            parents.append(leaf.after.index)
            self.claims.append(leaf.p)
            depths[depth] += 1
            if depths[depth] == width:
                leaves = [one for one in leaves if len(one.after.path) != depth]
            if len(tokens) < limit:
                choices = self.consider(node, history, stem, claims)
                for one in choices if depths[depth + 1] < width else ():  # else their depth is full
                    self.offer(leaves, one)
        return tokens, parents

    def offer(self, leaves: list[Leaf], new: Leaf) -> None:
        """Add a choice; the least likely, of equals the one offered last, gives way."""
        if len(leaves) == LEAVES:
            least = min(reversed(leaves), key=lambda one: one.all_right)
            if new.all_right <= least.all_right:
                return
            leaves.remove(least)
        leaves.append(new)

    def consider(
        self, node: Node, history: list[int], stem: Tree, claims: list[float]
    ) -> list[Leaf]:
        """The choices after a node: the stem's, then those of the longest known context."""
        children = [i for i, parent in enumerate(stem[1]) if parent == node.place]
        choices = [Leaf(node, stem[0][i], claims[i], i) for i in children]
        most = max((leaf.p for leaf in choices), default=0.0)
        if most < SURE:
            top = next((leaf.token for leaf in choices if leaf.p == most), None)
            tokens = [leaf.token for leaf in choices]
            pair, followers = self.look_up([*history[-2:], *node.path])
            for rank, (token, p) in enumerate(followers):
                place, same = min(len(node.path), 2), token == top
                claim = (pair, place, verdict_of(most), same, min(rank, 3), bucket_of(p))
                node.considered.append((token, claim))
                if token not in tokens:
                    p_right = min(max(self.model.of(claim).value, LEAST), MOST_LIKELY)
                    choices.append(Leaf(node, token, p_right, None))
        if choices:
            max(choices, key=lambda leaf: leaf.p).first = node.first
        return choices

    def look_up(self, text: list[int]) -> tuple[bool, Followers]:
        if self.key_tokens == 2 and len(text) > 1:
            followers = self.pool.find((text[-2], text[-1]))
            if followers:
                return True, followers
        return False, self.pool.find((text[-1],))
