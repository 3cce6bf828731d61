"""Files of kind "slot": what a slot of an engine held, so that it can go on from there."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.errors import FormatError
from ngramspec.files.cache_file import about_of
from ngramspec.files.container import Container, Header, new_container, open_container

KIND = "slot"
_TOKEN = "<i4"
_COUNTS = ("num_prompt", "num_reusable")
NO_STATE: NDArray[np.uint8] = np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class SavedSlot:
    """What a slot held. The state is the target's; only the same target can read it."""

    tokens: NDArray[np.int32]  # those that the state holds, shape (n,)
    state: NDArray[np.uint8]  # the target's cache of these tokens
    history: NDArray[np.int32]  # the text that the drafters knew, empty without drafters
    identity: bytes  # of the target and its settings, 16 bytes
    vocab_size: int  # every token id is below it
    num_prompt: int = 0  # of the tokens, those of the last request's prompt
    num_reusable: int = 0  # of the tokens, those that another prompt may reuse
    namespace: str = ""  # of the last request
    adapters: tuple[tuple[int, float], ...] = ()  # that the state was computed with, and scales
    window: NDArray[np.uint8] = field(default_factory=NO_STATE.copy)  # that the state lacks
    num_window: int = 0  # of the tokens, those that the sequence held at that window; 0: no window


def write_slot(path: str | os.PathLike[str], saved: SavedSlot) -> int:
    """Write a slot's file, private to its owner, whole or not at all; return its bytes.

    Raises:
        OSError: It cannot be written; an existing file is kept.
    """
    about = {name: getattr(saved, name) for name in ("namespace", "adapters", *_COUNTS)}
    if saved.num_window:
        about["num_window"] = saved.num_window
    with new_container(path) as writer:
        writer.add("about", json.dumps(about).encode())
        writer.add("tokens", np.ascontiguousarray(saved.tokens, _TOKEN))
        writer.add("history", np.ascontiguousarray(saved.history, _TOKEN))
        writer.add("state", saved.state)
        if saved.num_window:
            writer.add("window", saved.window)
        size = writer.offset
        writer.finish(Header(KIND, saved.identity, saved.vocab_size))
    return size


def read_slot(path: str | os.PathLike[str]) -> tuple[SavedSlot, int]:
    """Return what write_slot has written, every byte checked, and the bytes of the file.

    Raises:
        FormatError: It is of another kind, incomplete or damaged.
        OSError: It cannot be read.
    """
    container = open_container(path, KIND, verify=True)
    with_window = "window" in container.sections
    for name in ("about", "tokens", "history", "state", *["window"] * with_window):
        container.view(name)
        if not container.sections[name].checksum:
            raise _unexpected(container, name, "a checksum", 0)
    about = about_of(container)
    size = container.header.vocab_size
    tokens = _tokens(container, "tokens", size)
    names = (*_COUNTS, *["num_window"] * with_window)
    counts = {name: _count(container, about, name, tokens.size) for name in names}
    namespace = about.get("namespace")
    if not isinstance(namespace, str):
        raise _unexpected(container, "about", "a namespace", namespace)
    adapters = about.get("adapters")
    if not (isinstance(adapters, list) and all(map(_is_adapter, adapters))):
        raise _unexpected(container, "about", "pairs of adapters and scales", adapters)
    saved = SavedSlot(
        tokens=tokens,
        state=np.frombuffer(container.view("state"), np.uint8).copy(),
        window=np.frombuffer(container.view("window") if with_window else b"", np.uint8).copy(),
        history=_tokens(container, "history", size),
        identity=container.header.fingerprint or b"",
        vocab_size=size,
        namespace=namespace,
        adapters=tuple((number, float(scale)) for number, scale in adapters),
        **counts,
    )
    return saved, os.stat(path).st_size


def _is_adapter(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2):
        return False
    number, scale = pair
    if type(number) is not int or number < 0 or type(scale) not in (int, float):
        return False
    return bool(abs(scale) <= sys.float_info.max)  # neither too large an integer nor no number


def _tokens(container: Container, section: str, vocab_size: int) -> NDArray[np.int32]:
    ids = container.array(section, _TOKEN).astype(np.int32)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        span = f"{ids.min()}..{ids.max()}"
        raise _unexpected(container, section, f"token ids in 0..{vocab_size - 1}", span)
    return ids


def _count(container: Container, about: dict[str, Any], name: str, most: int) -> int:
    value = about.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _unexpected(container, "about", f"{name} in 0..{most}", value)
    return value


def _unexpected(container: Container, section: str, expected: str, actual: object) -> FormatError:
    return FormatError(f"{container.place(section)}: expected {expected}, found {actual!r:.80}")
