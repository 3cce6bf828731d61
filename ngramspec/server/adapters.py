"""ServedAdapters: LoRA adapters that requests can use, and the scales where they say none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.engine.request import Adapters
from ngramspec.server.errors import bad_request

MAX_ENTRIES = 1024  # in a request
MAX_SCALE = 1e6


@dataclass(frozen=True)
class ServedAdapter:
    """A loaded adapter, as clients see it; its number is its place."""

    path: str
    task_name: str = ""
    prompt_prefix: str = ""


class ServedAdapters:
    """ServedAdapters(adapters, scales): loaded adapters and their scales, which clients can change.

    Thread-safety: safe.
    """

    def __init__(
        self, adapters: Sequence[ServedAdapter] = (), scales: Sequence[float] = ()
    ) -> None:
        self._adapters = tuple(adapters)
        self._lock = threading.Lock()  # guards _applied
        self._applied = _applied(dict(enumerate(scales)))

    def list(self) -> list[dict[str, Any]]:
        """Return the adapters and their scales, as llama-server shows them."""
        scales = dict(self.applied)
        return [
            {
                "id": number,
                "path": adapter.path,
                "scale": scales.get(number, 0.0),
                "task_name": adapter.task_name,
                "prompt_prefix": adapter.prompt_prefix,
            }
            for number, adapter in enumerate(self._adapters)
        ]

    @property
    def applied(self) -> Adapters:
        """Return what requests use that say nothing."""
        with self._lock:
            return self._applied

    def apply(self, entries: Any) -> None:
        """Set what requests use that say nothing; as `chosen`."""
        adapters = self.chosen(entries, "the body")
        with self._lock:
            self._applied = adapters

    def chosen(self, entries: Any, field: str = "lora") -> Adapters:
        """Return the adapters of a list of objects with id and scale; those left out are off.

        Raises:
            ApiError: It is no such list, or there is no such adapter.
        """
        if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
            raise bad_request(f"{field} must be a list of objects with id and scale", "lora")
        return _applied(dict(self._entry(one, field) for one in entries))

    def _entry(self, entry: Any, field: str) -> tuple[int, float]:
        if not isinstance(entry, dict):
            raise bad_request(f"{field} must be a list of objects with id and scale", "lora")
        number, scale = entry.get("id", -1), entry.get("scale", 0.0)
        if type(number) is not int or not 0 <= number < len(self._adapters):
            count = len(self._adapters)
            raise bad_request(f"there is no adapter {number!r:.40}; {count} are loaded", "lora")
        if type(scale) not in (int, float) or not -MAX_SCALE <= scale <= MAX_SCALE:
            raise bad_request(
                f"the scale of an adapter must be a number, got {scale!r:.40}", "lora"
            )
        return number, float(scale)


def _applied(scales: dict[int, float]) -> Adapters:
    return tuple((number, scale) for number, scale in sorted(scales.items()) if scale)
