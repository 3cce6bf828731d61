"""ReplayTally: what one replay counted, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.costs import CostTable


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
        """Drafted tokens that the target had to check."""
        return _weighted(self.draft_lengths)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were right."""
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
