"""The replay of one set: recorded outputs play the target, draft after draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns

import numpy as np

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.replay.player import Draft, Player, Tokens
from ngramspec.lab.replay.tally import ReplayTally
from ngramspec.verify.tree import positions


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


class _Counts:
    """Counts during a replay; drafted, accepted: steps by number of tokens."""

    def __init__(self) -> None:
        self.requests = 0
        self.drafted: dict[int, int] = {}
        self.accepted: dict[int, int] = {}
        self.begin_ns = 0
        self.step_ns = 0
        self.nbytes = 0

    def add(self, drafted: int, accepted: int, spent_ns: int) -> None:
        """Count a step."""
        self.drafted[drafted] = self.drafted.get(drafted, 0) + 1
        self.accepted[accepted] = self.accepted.get(accepted, 0) + 1
        self.step_ns += spent_ns


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
        counts.add(drafted, right, spent + clock() - started)
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


def _dense(counts: dict[int, int]) -> tuple[int, ...]:
    return tuple(counts.get(length, 0) for length in range(max(counts, default=0) + 1))
