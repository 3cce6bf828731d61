"""How a build tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told by the thread that called build."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase: "reading", "writing" or "measuring"; total in bytes, 0 = unknown."""
        ...

    def done(self, amount: int, tokens: int) -> None:
        """Tell how many bytes of the phase are done, and how many tokens are counted in all."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the user wants the build to stop at the next document."""
        ...


class NoProgress:
    """Shows nothing and never stops."""

    stopped = False

    def phase(self, name: str, total: int) -> None:
        """Show nothing."""

    def done(self, amount: int, tokens: int) -> None:
        """Show nothing."""
