"""Kept: objects that take long to make, until newer ones need the room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Keeps objects that take long to make, until newer ones need the room.

    Args:
        most: Most objects.
        weight: Most weight of all together; the newest is kept whatever its weight.

    Thread-safety: safe. A dropped object is freed when nothing refers to it any more.
    """

    def __init__(self, most: int, weight: int) -> None:
        self._most, self._room = most, weight
        self._lock = threading.Lock()  # guards the rest
        self._items: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the object of a key, or make it; make() returns it and its weight.

        Threads that ask for the same key at once may each make it: none waits for another.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
        item, weight = make()
        dropped = []  # freed without the lock
        with self._lock:
            self._room -= weight
            if key in self._items:
                dropped.append(self._drop(key))
            self._items[key] = item, weight
            while len(self._items) > 1 and (len(self._items) > self._most or self._room < 0):
                dropped.append(self._drop(next(iter(self._items))))
        return item

    def clear(self) -> list[T]:
        """Drop and return everything."""
        with self._lock:
            return [self._drop(key) for key in list(self._items)]

    def _drop(self, key: Hashable) -> T:
        item, weight = self._items.pop(key)
        self._room += weight
        return item
