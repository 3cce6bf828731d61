"""What one NgramDraft counts, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DraftCounters:
    """What one NgramDraft did: calls, non-empty drafts, tokens, failures, time.

    drafted counts tokens handed to the host, accepted those of them that it committed.
    failures counts calls answered with an empty draft because something was wrong with the input.
    """

    calls: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    failures: int = 0
    seconds: float = 0.0

    def count(self, drafted: int) -> None:
        """Count one call and its draft of `drafted` tokens."""
        self.calls += 1
        self.drafts += drafted > 0
        self.drafted += int(drafted)
