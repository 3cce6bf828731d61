"""DraftCounts and DraftTimes: what a source that runs a model counts, and what its drafts take."""

from __future__ import annotations

from ngramspec.stats import SourceStats

LATEST = 0.1  # weight of the latest call in what drafting takes


class DraftCounts:
    """Counts of one source, for all slots.

    begins, calls, accepts: Calls of these functions.
    drafts, drafted: Drafts that are sent, and their tokens.
    ns: Spent in drafting.
    """

    def __init__(self, n_max: int) -> None:
        self.begins = self.calls = self.accepts = 0
        self.drafts = self.drafted = 0
        self.ns = 0
        self._positions = [0] * n_max

    def sent(self, length: int) -> None:
        """Count a draft; `length` >= 1."""
        self.drafts += 1
        self.drafted += length

    def shortened(self, before: int, length: int) -> None:
        """Count only `length` of the `before` tokens of a draft that was counted."""
        self.drafted -= before - length
        self.drafts -= length == 0

    def judged(self, num_accepted: int) -> None:
        """Count a draft that was verified: its first `num_accepted` tokens were right."""
        self.accepts += 1
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
            accept_calls=self.accepts,
            num_drafts=self.drafts,
            num_accepted_drafts=self._positions[0],
            num_draft_tokens=self.drafted,
            num_accepted_tokens=sum(self._positions),
            accepted_per_position=per_position,
            begin_ns=0,
            propose_ns=self.ns,
            accept_ns=0,
        )


class DraftTimes:
    """Running means of what drafting takes, in seconds; 0.0 = nothing was seen yet.

    first: The decode that gives the first token.
    each: Every further decode.
    read: A token of the text that is only read.
    """

    def __init__(self) -> None:
        self.first = self.each = self.read = 0.0

    def took_first(self, seconds: float) -> None:
        """Note a decode that gave the first token of drafts."""
        self.first = followed(self.first, seconds)

    def took_each(self, seconds: float) -> None:
        """Note a decode that gave further tokens of drafts."""
        self.each = followed(self.each, seconds)

    def took_read(self, seconds: float) -> None:
        """Note what a token took that was only read."""
        self.read = followed(self.read, seconds)

    def price(self) -> tuple[float, float]:
        """Return what a draft takes beside its tokens, and each token."""
        each = self.each or self.first
        return max(self.first - each, 0.0), each


def followed(mean: float, latest: float) -> float:
    """Return a running mean; 0.0 = nothing was seen yet."""
    return mean + LATEST * (latest - mean) if mean else latest
