"""make_context: a context of llama.cpp, and the memory that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ngramspec._native.hosts import llama as native_llama
from ngramspec.errors import BackendError
from ngramspec.text.tokenizers.llama_library import Handle, Library, heard_log, reasons

MIB = 1 << 20
# Of cached keys and values.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# In llama.cpp's log; a cache's size stands alone, those of its buffers are 0 before it exists.
_BUFFER = re.compile(r"(\S+) +(compute|output) buffer size = +([\d.]+) MiB")
_CACHE = re.compile(r"^(\w+): .*?(?<!buffer )size = +([\d.]+) MiB")
_STATES = ("recurrent", "state")  # in names of functions


class NoContextError(BackendError):
    """llama.cpp could not make a context, mostly for want of memory."""


class LoadedModel(Protocol):
    """A model that contexts can be made of."""

    library: Library
    handle: Handle


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Bytes that a context takes, from llama.cpp's log.

    cache: Keys and values of all sequences.
    states: What recurrent layers keep, of all sequences.
    outputs: Rows of logits, one per sequence; it grows where a decode has more.
    compute: What a decode needs, by kind of memory, such as "CPU" or "CUDA0".
    """

    cache: int = 0
    states: int = 0
    outputs: int = 0
    compute: Mapping[str, int] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """Return the bytes of keys, values and states."""
        return self.cache + self.states

    @property
    def total(self) -> int:
        return self.context + self.outputs + sum(self.compute.values())


def make_context(
    model: LoadedModel, params: Any, slots: int | None = None
) -> tuple[Handle, Buffers]:
    """Return a context and what it takes.

    slots: Texts that it is for, where it has more sequences than that.

    Raises:
        NoContextError: It cannot be made; says how large it would have been.
    """
    lib = model.library.lib
    position = native_llama.log_position()
    with heard_log(lib) as lines:
        address = lib.llama_init_from_model(model.handle.address, params)
    if not address:
        reason = reasons(native_llama.log_since(position))
        sizes = f"{params.n_ctx:,} tokens for {slots or params.n_seq_max} sequences"
        raise NoContextError(f"llama.cpp cannot make a context of {sizes}{reason}")
    return Handle(lib.llama_free, address, model.handle), buffers_in(lines)


def buffers_in(lines: Iterable[str]) -> Buffers:
    """Return the sizes that llama.cpp logs when it makes a context."""
    cache = states = outputs = 0
    compute: dict[str, int] = {}
    for line in lines:
        if buffer := _BUFFER.search(line):
            place, kind, size = buffer[1], buffer[2], _bytes(buffer[3])
            if kind == "output":
                outputs += size
            else:
                compute[place] = compute.get(place, 0) + size
        elif own := _CACHE.match(line):
            if any(word in own[1] for word in _STATES):
                states += _bytes(own[2])
            else:
                cache += _bytes(own[2])
    return Buffers(cache=cache, states=states, outputs=outputs, compute=compute)


def _bytes(mib: str) -> int:
    return round(float(mib) * MIB)
