"""EngineThread: runs an engine's steps in a thread of its own."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from types import TracebackType

from ngramspec.engine.engine import Engine
from ngramspec.errors import BackendError

log = logging.getLogger(__name__)
IDLE_SECONDS = 0.2


class EngineThread:
    """Runs an engine until it is closed, or the process ends; a context manager.

    If a step raises, which is a bug, all requests end with that error and the thread goes on. If
    ending them raises too, the thread fails all requests, leaves the reason in `engine.failure` and
    exits. `engine.beats` grows at least every IDLE_SECONDS unless a step takes longer, so that a
    hanging step can be detected.

    Args:
        engine: The engine; no other thread may call its step or close.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngramspec-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close, drain=False)  # before what the steps use is freed

    def __enter__(self) -> EngineThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    @property
    def alive(self) -> bool:
        """Return whether the thread runs; after `close` only if it hangs in a step."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in this thread, which cannot wait for its own end."""
        return threading.current_thread() is self._thread

    def close(self, drain: bool = True, timeout: float = 30.0, last: float = 30.0) -> bool:
        """Stop after the running requests, or at once; cancel what is left and close the engine.

        Args:
            drain: Let running and waiting requests finish first.
            timeout: Seconds for that.
            last: Seconds to wait for the last step. If it takes longer, all requests are marked
                as failed and the thread stays `alive`: its target must not be closed.

        Returns:
            bool: Whether all requests finished by themselves.
        """
        atexit.unregister(self.close)
        engine = self.engine
        engine.refuse()
        deadline = time.monotonic() + timeout
        while drain and engine.busy and self.alive and time.monotonic() < deadline:
            time.sleep(0.005)
        finished = not engine.busy and engine.failure is None
        self._stopping.set()
        engine.wake()
        self._thread.join(last)
        if self.alive:
            engine.abandon(BackendError(f"a step did not end within {last:g} seconds"))
        elif engine.failure is None:
            engine.close()
        return finished

    def _run(self) -> None:
        engine = self.engine
        try:
            while not self._stopping.is_set():
                engine.beats += 1
                try:
                    if not engine.step():
                        engine.wait_for_work(IDLE_SECONDS)
                except Exception as error:
                    log.exception("a step of the engine failed")
                    engine.fail(error)
        except BaseException as error:  # of any kind: nobody may wait for this thread forever
            engine.abandon(error)
            log.critical("the engine's thread ends", exc_info=True)
