"""Drafter counters, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counts of one draft source since its drafter was made or reset, over all slots.

    A draft that recycle grew from another source's counts for both: for each, the tokens that are
    its own.
    """

    name: str
    begin_calls: int  # requests begun
    propose_calls: int  # times it was asked for a draft
    accept_calls: int  # verified drafts with tokens of it
    num_drafts: int  # the same number; a draft counts once, when it was verified
    num_accepted_drafts: int  # those with at least one accepted token of it
    num_draft_tokens: int  # tokens of these drafts that are its own
    num_accepted_tokens: int
    accepted_per_position: tuple[
        int, ...
    ]  # drafts accepted at position 0, 1, ... ; ends at the last non-zero
    begin_ns: int  # time in begin
    propose_ns: int  # time in propose, estimated from every 16th call
    accept_ns: int  # time in accept, estimated from every 16th call

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens, 0 without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def tokens_per_draft(self) -> float:
        """Tokens per verified draft, the target's own included; 1 without drafts.

        Passes without a draft do not count, as in llama-server's "mean acc len"; the
        mean_accepted_length of a Replay or a Generation counts them.
        """
        return 1.0 + (self.num_accepted_tokens / self.accept_calls if self.accept_calls else 0.0)

    def plus(self, other: SourceStats) -> SourceStats:
        """Return the sum of both, under this name."""
        pairs = zip_longest(self.accepted_per_position, other.accepted_per_position, fillvalue=0)
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name not in ("name", "accepted_per_position")
        }
        return SourceStats(
            name=self.name, accepted_per_position=tuple(a + b for a, b in pairs), **sums
        )

    def __str__(self) -> str:
        """Return what came of its drafts, in words."""
        milliseconds = (self.begin_ns + self.propose_ns + self.accept_ns) / 1e6
        return (
            f"{self.name}: {self.num_accepted_tokens} of {self.num_draft_tokens} drafted tokens "
            f"accepted, in {self.num_drafts} drafts that took {milliseconds:.1f} ms to make"
        )

    def line(self) -> str:
        """Return llama-server's statistics line for this source."""
        parts = [
            f"statistics {self.name:>16}: #calls(b,g,a) = {self.begin_calls:4d} "
            f"{self.propose_calls:6d} {self.accept_calls:6d}",
            f"#gen drafts = {self.num_drafts:6d}",
            f"#acc drafts = {self.num_accepted_drafts:5d}",
            f"#gen tokens = {self.num_draft_tokens:6d}",
            f"#acc tokens = {self.num_accepted_tokens:5d}",
        ]
        if self.accept_calls:
            rates = ", ".join(f"{n / self.accept_calls:.3f}" for n in self.accepted_per_position)
            parts.append(f"#mean acc len = {self.tokens_per_draft:.2f}")
            parts.append(f"#acc rate/pos = ({rates})")
        times = (f"{ns / 1e6:.3f}" for ns in (self.begin_ns, self.propose_ns, self.accept_ns))
        parts.append(f"dur(b,g,a) = {', '.join(times)} ms")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a recorded session would have cost: the outcome of Drafter.replay."""

    tokens: int  # output tokens after the first; a step yields its accepted tokens and one more
    steps: int  # target passes
    drafts: int  # steps with a draft
    drafted: int  # tokens in all drafts
    accepted: int  # drafted tokens that were right
    draft_lengths: npt.NDArray[np.int64]  # drafts by length, index 0 = steps without a draft
    begin_ns: int  # time in begin
    step_ns: int  # time in all propose and accept calls

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per target pass, accepted ones and the target's own; 1 is plain decoding."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens, 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0
