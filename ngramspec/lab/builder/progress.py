"""How a build reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from the thread that called build."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase such as "reading" or "writing"; total in bytes, 0 = unknown."""
        ...

    def done(self, amount: int, tokens: int) -> None:
        """Report the bytes of the phase that are done, and all tokens counted so far."""
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
