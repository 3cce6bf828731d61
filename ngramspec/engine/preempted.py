"""Preempted: what the cache held of requests that had to make room for older ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.slot import Slot
from ngramspec.engine.target import Target

log = logging.getLogger(__name__)
MOST_BYTES = 1 << 28  # of all copies
FADE = 0.9  # of a price that kept from copying: it may have been taken at a busy moment


@dataclass(slots=True)
class _Text:
    length: int  # tokens that the cache held
    state: Any = None  # a copy of that, None: it is read again


class Preempted:
    """Copies cells to memory where that is cheaper than reading their tokens again.

    Args:
        target: The model.
        stats: Counters; they say what reading takes.
    """

    def __init__(self, target: Target, stats: EngineStats) -> None:
        self._target, self._stats = target, stats
        self._texts: dict[Slot, _Text] = {}
        self._nbytes = 0  # of all copies
        # Seconds to copy a token and to bring it back. 0 = not measured yet.
        self._each_copied = self._each_restored = 0.0

    def put(self, slot: Slot, settled: bool) -> None:
        """Take note of a slot that is about to lose its cells.

        settled: Whether the target can copy them now.

        Cost: a copy of the slot's part of the cache, or nothing.
        """
        text = self._texts[slot] = _Text(slot.num_past)
        self._stats.num_preempted += 1
        if not (settled and text.length and self._pays()):
            return
        started = time.perf_counter()
        try:
            state = self._target.dump(slot.id, MOST_BYTES - self._nbytes)
        except Exception as error:
            log.info("slot %d cannot be copied, so it is read again: %r", slot.id, error)
            return
        if state.nbytes:
            self._each_copied = (time.perf_counter() - started) / text.length
            self._nbytes += state.nbytes
            text.state = state

    def take(self, slot: Slot, make_room: Callable[[], bool]) -> int:
        """Bring back what was copied of a slot; return how many tokens its cache holds then.

        make_room: Frees cells for it; False when there are none to free.
        """
        text, restored = self._texts[slot], 0
        self.drop(slot)
        if text.state is not None:
            started = time.perf_counter()
            while not (loaded := self._target.load(slot.id, text.state, text.length)):
                if not make_room():
                    break
            restored = text.length if loaded else 0
            self._each_restored = (time.perf_counter() - started) / text.length
        self._stats.num_restored_tokens += restored
        self._stats.num_reread_tokens += text.length - restored
        return restored

    def drop(self, slot: Slot) -> None:
        """Forget a slot, if it was preempted: its request has ended."""
        text = self._texts.pop(slot, None)
        if text is not None and text.state is not None:
            self._nbytes -= text.state.nbytes

    def _pays(self) -> bool:
        """Return whether copying tokens takes less time than reading them again."""
        read = self._stats.prompt_seconds / max(1, self._stats.num_prompt_tokens)
        if self._each_copied + self._each_restored < read:
            return True
        self._each_copied *= FADE
        self._each_restored *= FADE
        return False
