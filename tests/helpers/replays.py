"""For the tests of replays: small requests, and players whose drafts are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.replay.walk import Draft, Tokens


def tokens(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


def request(prompt: Sequence[int], output: Sequence[int]) -> RecordedRequest:
    return RecordedRequest(tokens(*prompt), tokens(*output))


@dataclass
class Scripted:
    """A player that gives out drafts in turn and notes what it is told."""

    drafts: list[Draft]
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def begin(self, prompt: Tokens) -> None:
        self.calls.append(("begin", prompt.tolist()))

    def propose(self, limit: int) -> Draft:
        self.calls.append(("propose", limit))
        return self.drafts.pop(0) if self.drafts else tokens()

    def accept(self, emitted: Tokens, num_accepted: int) -> None:
        self.calls.append(("accept", emitted.tolist(), num_accepted))

    def end(self) -> None:
        self.calls.append(("end",))

    def nbytes(self) -> int:
        return len(self.calls)
