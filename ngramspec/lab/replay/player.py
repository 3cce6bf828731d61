"""What is replayed: a Subject opens Players, which draft for one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec.costs import CostTable

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


class Subject(Protocol):
    """A drafter with its settings."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def adaptive(self) -> bool:
        """Whether its drafts depend on the costs, so that each profile needs a replay."""

    def open(self, profile: CostTable) -> Player:
        """Return a fresh player for a target with these costs."""


@dataclass(frozen=True)
class FixedSubject:
    """A drafter that drafts the same for every target.

    name: what tables call it.
    opener: returns a fresh player.
    """

    name: str
    opener: Callable[[], Player]
    adaptive: bool = False

    def open(self, profile: CostTable) -> Player:
        """Return a fresh player."""
        return self.opener()
