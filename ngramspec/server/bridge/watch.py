"""EngineWatch: checks from the event loop whether the engine's thread is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ngramspec.engine import Engine

MOST_BETWEEN = 2.0  # seconds between two looks that count; in the rest the process was paused


class EngineWatch:
    """Looks at the engine's beats. Belongs to the event loop.

    Only time in which the watch itself runs counts, so after a stop of the process or a sleep of
    the machine nothing seems to hang.

    Args:
        engine: The engine that an EngineThread runs.
        patience: Seconds without a beat after which a step counts as hanging; 0 = never.

    trouble: What is wrong, "" while all is well.
    lost: The engine will not recover: its thread has ended, or hung for twice the patience.
    """

    def __init__(self, engine: Engine, patience: float) -> None:
        self.trouble = ""
        self.lost = False
        self._engine = engine
        self._patience = patience
        self._beats = -1
        self._silent = 0.0  # seconds since the last beat that was seen
        self._looked = 0.0

    def look(self, now: float) -> str:
        """Return the trouble at a time of the loop's clock."""
        passed, self._looked = min(now - self._looked, MOST_BETWEEN), now
        failure, beats = self._engine.failure, self._engine.beats
        if failure is not None:
            self.trouble = f"the engine's thread has ended: {type(failure).__name__}"
            self.lost = True
        elif beats != self._beats:
            self._beats, self._silent = beats, 0.0
            self.trouble = ""
        else:
            self._silent += passed
            if 0 < self._patience < self._silent:
                self.trouble = f"a step of the engine hangs for {self._silent:.0f} seconds"
                self.lost = self._silent > 2 * self._patience
        return self.trouble
