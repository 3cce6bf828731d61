"""Which slot of the drafter serves which caller: one stream each, the oldest is replaced."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.adapters.llama_cpp.host import Host, find_llama
from ngramspec.adapters.llama_cpp.statistics import mismatch
from ngramspec.arrays import TokenIds

log = logging.getLogger(__name__)

TAIL = 16


class Stream:
    """One sequence of tokens and the slot that follows it.

    length, tail: How many ids were seen last, and the newest of them.
    """

    __slots__ = ("draft", "host", "length", "slot", "tail", "used")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.host: Host | None = None
        self.used = 0
        self.length = 0
        self.draft = np.empty(0, dtype=np.intc)
        self.tail = np.empty(0, dtype=np.intc)

    def saw(self, ids: TokenIds) -> None:
        """Remember the length and the end of `ids`, all that the slot holds."""
        self.length = int(ids.size)
        self.tail = ids[-TAIL:].copy()

    def matches(self, ids: TokenIds) -> bool:
        """Return whether `ids` looks like a continuation of what this stream saw last."""
        if not 0 < self.length <= ids.size:
            return False
        start = self.length - self.tail.size
        return bool(np.array_equal(ids[start : self.length], self.tail))


class StreamTable:
    """Streams by key, at most `slots`; the least recently used one is replaced.

    Not locked: the owner holds its lock around every call.
    """

    def __init__(self, slots: int, stated: Mapping[str, tuple[bytes, str]]) -> None:
        self._slots = slots
        self._stated = stated  # tokenizers that a Llama must have, by file
        self._clock = 0
        self._streams: dict[Hashable, Stream] = {}
        self._hosts: list[Host] = []
        self._buffers: dict[int, tuple[weakref.ref[Any], Host]] = {}

    def _by_key(self, key: Hashable) -> Stream:
        """Return the stream of `key`, taking over the oldest slot if there is none."""
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._fresh()
        self._clock += 1
        stream.used = self._clock
        return stream

    def of_array(self, ids: TokenIds, given: Any) -> Stream:
        """Return the stream of an input array: by owner if it has one, else by content."""
        buffer = getattr(given, "base", None)
        if isinstance(buffer, np.ndarray):
            host = self._host_of(buffer)
            return self.of_host(host) if host else self._by_key(("buffer", id(buffer)))
        for key, stream in self._streams.items():
            if isinstance(key, tuple) and key[0] == "loose" and stream.matches(ids):
                return self._by_key(key)
        return self._by_key(("loose", self._clock))

    def of_host(self, host: Host) -> Stream:
        """Return the stream of a Llama's text."""
        stream = self._by_key(("llama", id(host)))
        stream.host = host
        return stream

    def bind(self, llama: Any) -> Host:
        """Return the Host of `llama`, made on the first call."""
        self._hosts = [host for host in self._hosts if host.llama() is not None]
        for host in self._hosts:
            if host.llama() is llama:
                return host
        host = Host(llama)
        reason = mismatch(llama, self._stated)
        if reason:
            log.warning("no drafts: %s", reason)
        host.refusal = host.refusal or reason
        self._hosts.append(host)
        return host

    def __len__(self) -> int:
        """Return how many sequences are followed."""
        return len(self._streams)

    def _host_of(self, buffer: npt.NDArray[Any]) -> Host | None:
        known = self._buffers.get(id(buffer))
        if known is not None and known[0]() is buffer:
            return known[1]
        host = next((h for h in self._hosts if self._owns(h, buffer)), None)
        if host is None:
            llama = find_llama(buffer)
            if llama is None:
                return None
            host = self.bind(llama)
        self._buffers = {i: pair for i, pair in self._buffers.items() if pair[0]() is not None}
        self._buffers[id(buffer)] = (weakref.ref(buffer), host)
        return host

    @staticmethod
    def _owns(host: Host, buffer: npt.NDArray[Any]) -> bool:
        return getattr(host.llama(), "input_ids", None) is buffer

    def _fresh(self) -> Stream:
        taken = {stream.slot for stream in self._streams.values()}
        for slot in range(self._slots):
            if slot not in taken:
                return Stream(slot)
        oldest = min(self._streams, key=lambda key: self._streams[key].used)
        return Stream(self._streams.pop(oldest).slot)
