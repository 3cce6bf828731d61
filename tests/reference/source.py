"""What every reference source shares: the four calls that the driver makes for one slot."""

from __future__ import annotations

Tree = tuple[list[int], list[int]]  # tokens, and the index of what each comes after, or -1


class InputError(ValueError):
    """A bad argument; nothing has changed."""


class StateError(RuntimeError):
    """A call that needs an active slot, made on an idle one; nothing has changed."""


class Source:
    """One drafter's knowledge of one slot.

    The driver owns the slot's history (a list of tokens, newest last) and hands it to each call.
    """

    top = 0  # how many of the target's likeliest tokens it takes
    ambiguous = False  # the last proposal rests on a tie that the rules leave open
    claims: (
        tuple[float, ...] | list[float]
    ) = ()  # how likely each of its tokens is right, if those before it are

    def start(self) -> None:
        """A request begins or the history is cut: forget what belongs to the run so far."""

    def rewind(self, length: int) -> None:
        """The history is about to be cut to `length` tokens."""

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        """history[start:] has just joined; `committed` says by accept rather than by begin."""

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        """The draft before the driver cuts it to `max_tokens`; empty for none."""
        return []

    def propose_after(self, history: list[int], other: list[int], max_tokens: int) -> list[int]:
        """The same after another source's draft, which joins nothing."""
        return []

    def propose_tree(
        self, history: list[int], max_tokens: int, max_width: int, other: Tree | None = None
    ) -> Tree:
        """The same with branches; `other`: what the other side drafted."""
        draft = self.propose(history, max_tokens)[:max_tokens]
        return draft, [i - 1 for i in range(len(draft))]

    def adopt(self, history: list[int], draft: list[int]) -> None:
        """After an ambiguous proposal: the other side drafted this."""

    def observe(self, text: list[int], tokens: list[int], logprobs: list[float]) -> None:
        """After `text`, the target held these tokens likeliest."""

    def finish(self) -> None:
        """The request is over."""

    def feedback(self, draft: list[int], committed: list[int]) -> None:
        """The draft this source made, as handed out, and the tokens that really came."""


def occurrences(history: list[int], size: int) -> list[int]:
    """Starts of the earlier occurrences of the last `size` tokens, oldest first."""
    last_start = len(history) - size
    if last_start < 0:
        return []
    key = history[last_start:]
    starts = (p for p in range(last_start) if history[p] == key[0])
    return [p for p in starts if history[p : p + size] == key]


def copy_from(history: list[int], start: int, length: int) -> list[int]:
    """`length` tokens from `start` on, running on through the copy itself at the end."""
    extended = list(history)
    for i in range(length):
        extended.append(extended[start + i])
    return extended[len(history) :]


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading tokens that agree."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def right_path(tree: Tree, committed: list[int]) -> int:
    """The most leading tokens of `committed` that a path from the root has."""
    tokens, parents = tree
    most = 0
    for i in range(len(tokens)):
        path, at = [], i
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        if path == committed[: len(path)]:
            most = max(most, len(path))
    return most


def widest(parents: list[int]) -> int:
    """The most tokens of a tree at one depth."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return max((depths.count(depth) for depth in depths), default=0)
