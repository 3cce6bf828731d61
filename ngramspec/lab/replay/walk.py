"""The replay of one set: recorded outputs play the target, draft after draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec.costs import CostTable
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.verify.tree import positions

Tokens: TypeAlias = npt.NDArray[np.int32]
# A draft, or a tree: tokens and the index of each one's parent, -1 = the text.
Draft: TypeAlias = Tokens | tuple[Tokens, Tokens]


class Player(Protocol):
    """A drafter during a replay; it may keep what it learns from request to request."""

    def begin(self, prompt: Tokens) -> None:
        """Start a request."""

    def propose(self, limit: int) -> Draft:
        """Return a draft; what exceeds `limit` tokens, the end of the output, is cut off."""

    def accept(self, tokens: Tokens, num_accepted: int) -> None:
        """Take what the target emitted: accepted draft tokens, then one of its own."""

    def end(self) -> None:
        """End the request."""

    def nbytes(self) -> int:
        """Return the bytes of its memory now, without the text that any engine holds anyway."""


@dataclass(frozen=True)
class Subject:
    """A drafter with its settings.

    name: what tables call it.
    open: returns a fresh player for a target with these costs.
    adaptive: whether its drafts depend on the costs, so that each profile needs a replay.
    """

    name: str
    open: Callable[[CostTable], Player]
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class ReplayTally:
    """Counts of the replay of one set.

    requests: requests replayed.
    draft_lengths: steps by drafted tokens; index 0 = steps without a draft.
    accepted_lengths: steps by accepted tokens.
    begin_ns: time in begin, in end and for the first output token.
    step_ns: time in propose and accept.
    nbytes: the drafter's largest memory at the end of a request; None = not known.
    """

    requests: int
    draft_lengths: tuple[int, ...]
    accepted_lengths: tuple[int, ...]
    begin_ns: int
    step_ns: int
    nbytes: int | None

    @property
    def steps(self) -> int:
        """Passes of the target."""
        return sum(self.draft_lengths)

    @property
    def drafted(self) -> int:
        return _weighted(self.draft_lengths)

    @property
    def accepted(self) -> int:
        return _weighted(self.accepted_lengths)

    @property
    def tokens(self) -> int:
        """Generated tokens: the accepted ones and one of the target's own per step."""
        return self.steps + self.accepted

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per pass of the target; 1 is plain decoding."""
        return self.tokens / self.steps if self.steps else 1.0

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens, 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def drafted_per_token(self) -> float:
        """Drafted tokens per generated token: the cost of verification."""
        return self.drafted / self.tokens if self.tokens else 0.0

    @property
    def us_per_step(self) -> float:
        """Microseconds in propose and accept per pass of the target."""
        return self.step_ns / 1e3 / self.steps if self.steps else 0.0

    @property
    def begin_us(self) -> float:
        """Microseconds in begin and end per request."""
        return self.begin_ns / 1e3 / self.requests if self.requests else 0.0

    def speedup(self, table: CostTable) -> float:
        """Return the modelled speed-up over plain decoding, drafting taken as free.

        It is tokens x T(1) / (sum over steps of T(1 + drafted tokens)).
        """
        costs = table.dense(len(self.draft_lengths))
        spent = sum(n * cost for n, cost in zip(self.draft_lengths, costs, strict=True))
        return self.tokens * table.cost(1) / spent if spent else 1.0


def _weighted(counts: Sequence[int]) -> int:
    return sum(length * count for length, count in enumerate(counts))


def walk(
    open_player: Callable[[], Player],
    requests: Iterable[RecordedRequest],
    *,
    cold: bool = False,
    on_request: Callable[[], object] | None = None,
) -> ReplayTally:
    """Replay the requests of a set in order.

    The first output token comes with the prompt and costs no step. Drafts are cut at the end of
    the output, and only what is left counts as drafted. A step yields its accepted tokens and one
    of the target's own; after a draft that reaches the end of the output, that is the end token.

    Args:
        open_player: Makes a fresh player.
        requests: In the order in which they came, each with a prompt and two output tokens or more.
        cold: Open a player for every request instead of one that keeps what it learned.
        on_request: Called after each request.
    """
    counts = _Counts()
    player = None if cold else open_player()
    for request in requests:
        _walk_request(player or open_player(), request, counts)
        if on_request is not None:
            on_request()
    return ReplayTally(
        requests=counts.requests,
        draft_lengths=_dense(counts.drafted),
        accepted_lengths=_dense(counts.accepted),
        begin_ns=counts.begin_ns,
        step_ns=counts.step_ns,
        nbytes=counts.nbytes,
    )


@dataclass
class _Counts:
    """Counts during a replay; drafted, accepted: steps by number of tokens."""

    requests: int = 0
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    begin_ns: int = 0
    step_ns: int = 0
    nbytes: int = 0


def _walk_request(player: Player, request: RecordedRequest, counts: _Counts) -> None:
    output, clock = request.output, perf_counter_ns
    propose, accept = player.propose, player.accept
    started = clock()
    player.begin(request.prompt)
    accept(output[:1], 0)
    counts.begin_ns += clock() - started
    done, length = 1, len(output)
    while done < length:
        started = clock()
        draft = propose(length - done)
        spent = clock() - started
        drafted, right = verified(draft, output, done)
        emitted = output[done : done + right + 1]
        started = clock()
        accept(emitted, right)
        counts.step_ns += spent + clock() - started
        counts.drafted[drafted] += 1
        counts.accepted[right] += 1
        done += right + 1
    counts.requests += 1
    counts.nbytes = max(counts.nbytes, player.nbytes())
    started = clock()
    player.end()
    counts.begin_ns += clock() - started


def verified(draft: Draft, output: Tokens, done: int) -> tuple[int, int]:
    """Return the number of drafted tokens within the output, and how many are right."""
    left = len(output) - done
    if not isinstance(draft, tuple):
        return len(draft[:left]), right_prefix(draft[:left], output, done)
    tokens, parents = draft
    drafted = len(tokens)
    if drafted > left:
        drafted = int((positions(parents) < left).sum())
    return drafted, right_path(tokens, parents, output[done:])


def right_path(tokens: Tokens, parents: Tokens, output: Tokens) -> int:
    """Return how many next tokens of the output a path of the tree has."""
    expected = output[: len(tokens)].tolist()
    at, right = -1, 0
    for i, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        if right < len(expected) and parent == at and token == expected[right]:
            at, right = i, right + 1
    return right


def right_prefix(draft: Tokens, output: Tokens, done: int) -> int:
    """Return how many leading tokens of the draft the output has from `done` on."""
    wrong = np.flatnonzero(draft != output[done : done + len(draft)])
    return int(wrong[0]) if len(wrong) else len(draft)


def _dense(counts: Counter[int]) -> tuple[int, ...]:
    return tuple(counts[length] for length in range(max(counts, default=0) + 1))
