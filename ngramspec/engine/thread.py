"""EngineThread: runs an engine's steps in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from ngramspec.engine.engine import Engine

log = logging.getLogger(__name__)
IDLE_SECONDS = 0.2


class EngineThread:
    """Runs an engine until it is closed; a context manager.

    A step that raises, which it does not on purpose, ends all requests with that error and goes on.

    Args:
        engine: The engine; no other thread may call its step or close.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngramspec-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    def close(self, drain: bool = True, timeout: float = 30.0) -> bool:
        """Stop after the running requests, or at once; cancel what is left and close the engine.

        Args:
            drain: Let running and waiting requests finish first.
            timeout: Seconds for that.

        Returns:
            bool: Whether all requests finished by themselves.
        """
        self.engine.refuse()
        deadline = time.monotonic() + timeout
        while drain and self.engine.busy and time.monotonic() < deadline:
            time.sleep(0.005)
        finished = not self.engine.busy
        self._stopping.set()
        self._thread.join()
        self.engine.close()
        return finished

    def _run(self) -> None:
        engine = self.engine
        while not self._stopping.is_set():
            try:
                if not engine.step():
                    engine.wait_for_work(IDLE_SECONDS)
            except Exception as error:
                log.exception("a step of the engine failed")
                engine.fail(error)
