"""DraftCounts and DraftTimes: what a source that runs a model counts, and what its drafts take."""

from __future__ import annotations

from ngramspec.stats import SourceStats

LATEST = 0.1  # weight of the latest call in what drafting takes
EARLY = 4  # calls of which the shortest counts
CLAMP = 4.0  # a later call is clamped to within this factor of the mean, as passes are


class DraftCounts:
    """Counts of one source, for all slots.

    begins, calls: Requests, and times it was asked.
    drafts, drafted: Drafts that were verified, and their tokens.
    ns: Spent in drafting.
    """

    def __init__(self, n_max: int) -> None:
        self.begins = self.calls = 0
        self.drafts = self.drafted = 0
        self.ns = 0
        self._positions = [0] * n_max

    def judged(self, length: int, num_accepted: int) -> None:
        """Count a draft of which `length` tokens were verified, the first `num_accepted` right."""
        if not length:
            return
        self.drafts += 1
        self.drafted += length
        for position in range(num_accepted):
            self._positions[position] += 1

    def stats(self, name: str) -> SourceStats:
        """Return all of it under a source's name."""
        per_position = tuple(self._positions)
        while per_position and not per_position[-1]:
            per_position = per_position[:-1]
        return SourceStats(
            name=name,
            begin_calls=self.begins,
            propose_calls=self.calls,
            accept_calls=self.drafts,
            num_drafts=self.drafts,
            num_accepted_drafts=self._positions[0],
            num_draft_tokens=self.drafted,
            num_accepted_tokens=sum(self._positions),
            accepted_per_position=per_position,
            begin_ns=0,
            propose_ns=self.ns,
            accept_ns=0,
        )


class Duration:
    """What a call takes, in seconds; 0.0 = none was seen yet.

    The shortest of the first few counts: early calls are often slow, as memory is touched first.
    Later ones move a running mean; a stall counts as a few times the mean at most.
    """

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def note(self, seconds: float, count: int = 1) -> None:
        """Learn what each of `count` calls in a row took."""
        if not count:
            return
        seconds /= count
        self.calls += 1
        if self.calls <= EARLY:
            self.seconds = min(self.seconds, seconds) if self.seconds else seconds
        else:
            latest = min(max(seconds, self.seconds / CLAMP), self.seconds * CLAMP)
            self.seconds = followed(self.seconds, latest)


class DraftTimes:
    """What drafting takes.

    first: The decode that gives the first token.
    each: Every further decode.
    read: A token of the text that is only read.
    """

    def __init__(self) -> None:
        self.first, self.each, self.read = Duration(), Duration(), Duration()

    def price(self) -> tuple[float, float]:
        """Return what a draft takes beside its tokens, and each token, in seconds."""
        first = self.first.seconds
        each = self.each.seconds or first
        return max(first - each, 0.0), each


def followed(mean: float, latest: float) -> float:
    """Return a running mean; 0.0 = nothing was seen yet."""
    return mean + LATEST * (latest - mean) if mean else latest
