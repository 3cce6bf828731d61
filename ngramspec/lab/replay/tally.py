"""ReplayTally: what one replay counted, and the figures that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ngramspec.costs import CostTable
from ngramspec.errors import FormatError


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

    def foresighted(self) -> ReplayTally:
        """Return the counts if every draft had been cut at its last right token."""
        return dataclasses.replace(self, draft_lengths=self.accepted_lengths)


def total_of(tallies: Iterable[ReplayTally]) -> ReplayTally:
    """Return the summed counts of at least one replay, and their largest memory."""
    tallies = list(tallies)
    memories = [tally.nbytes for tally in tallies if tally.nbytes is not None]
    return ReplayTally(
        requests=sum(tally.requests for tally in tallies),
        draft_lengths=_added(tally.draft_lengths for tally in tallies),
        accepted_lengths=_added(tally.accepted_lengths for tally in tallies),
        begin_ns=sum(tally.begin_ns for tally in tallies),
        step_ns=sum(tally.step_ns for tally in tallies),
        nbytes=max(memories, default=None),
    )


def read_tally(record: Mapping[str, Any]) -> ReplayTally:
    """Return a tally from dataclasses.asdict, as read from JSON; other keys are ignored.

    Raises:
        FormatError: A count is missing or not a number >= 0.
    """
    try:
        tally = ReplayTally(
            requests=_count(record["requests"]),
            draft_lengths=_counts(record["draft_lengths"]),
            accepted_lengths=_counts(record["accepted_lengths"]),
            begin_ns=_count(record["begin_ns"]),
            step_ns=_count(record["step_ns"]),
            nbytes=None if record["nbytes"] is None else _count(record["nbytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"not the counts of a replay: {error!r}") from None
    if tally.steps != sum(tally.accepted_lengths) or tally.accepted > tally.drafted:
        raise FormatError("not the counts of a replay: drafted and accepted tokens do not agree")
    return tally


def _weighted(counts: Sequence[int]) -> int:
    return sum(length * count for length, count in enumerate(counts))


def _added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def _counts(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_count(value) for value in values)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value
