"""The Llamas that a draft knows, and the slot of the drafter that follows the text of each.

llama-cpp-python calls `draft_model(input_ids)` and nothing else: no model, no batch size, no end
tokens. But `input_ids` is always a view of one buffer that the Llama owns: that tells which one
calls. For ids that no Llama owns no draft is known to be safe.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ngramspec._native.core.arguments import leading_flagged
from ngramspec.arrays import TokenIds
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.files.cache_file import about_of
from ngramspec.files.container import is_container, open_container
from ngramspec.text.tokenizers import fingerprint_of_llama

log = logging.getLogger(__name__)

TAIL = 16
FILES = ("static", "dynamic", "pool")  # parameters that name statistics
NEEDED = (  # of a Llama, by all that serves it
    *("_batch", "_create_completion", "_ctx", "_is_hybrid", "_is_recurrent", "_logits_all"),
    *("_model", "_n_ctx", "_n_vocab", "_sampler", "context_params", "draft_model", "generate"),
    *("input_ids", "n_batch", "n_tokens", "reset", "sample", "scores", "tokenizer_"),
)
UNKNOWN, GOES_ON, ENDS = 0, 1, 2


class Armed(Protocol):
    """What a host needs from its Attachment."""

    def arm(self, draft: TokenIds, length: int) -> None: ...


class Host:
    """The facts of one Llama object; holds it weakly.

    attachment: Returns the Attachment that patched the Llama, or None; the patches keep it alive.
    refusal: why it gets no drafts, "" when it does.
    """

    def __init__(self, llama: Any, stated: Mapping[str, tuple[bytes, str]]) -> None:
        check_llama(llama)
        self.llama = weakref.ref(llama)
        self.n_batch = int(llama.n_batch)
        self.n_vocab = int(llama.n_vocab())
        self.attachment: Callable[[], Armed | None] = lambda: None
        self.refusal = mismatch(llama, stated)
        if llama._is_recurrent or llama._is_hybrid:
            self.refusal = "a recurrent or hybrid model cannot take back rejected draft tokens"
        self._vocab = llama._model.vocab
        self._ends = np.zeros(self.n_vocab, dtype=np.uint8)

    def num_rows(self) -> int:
        """Return how many tokens of a text have logits to verify drafts by, without attach().

        0 where the constructor of the Llama did not get a draft model: a draft would then end the
        process.
        """
        llama = self.llama()
        return 0 if llama is None or not llama._logits_all else int(llama.scores.shape[0])

    def room(self, length: int) -> int:
        """Return how many draft tokens the Llama can verify after a text of `length` tokens."""
        llama = self.llama()
        assert llama is not None  # it is calling
        end = min(length + self.n_batch - max(1, length - llama.n_tokens), llama.input_ids.shape[0])
        if self.attachment() is None:
            sampler = llama._sampler
            if sampler is not None and sampler.custom_samplers:
                return 0  # a logits processor would be shown tokens that are not verified
            end = min(end, self.num_rows())
        return int(end) - length

    def arm(self, draft: TokenIds, length: int) -> None:
        attachment = self.attachment()
        if attachment is not None:
            attachment.arm(draft, length)

    def usable_len(self, draft: TokenIds) -> int:
        """Return the length of the draft before its first end or out-of-range token."""
        while True:
            length = leading_flagged(draft, self._ends, GOES_ON)
            if length == draft.size or int(draft[length]) >= self.n_vocab:
                return length
            token = int(draft[length])
            if self._ends[token] == ENDS or self._is_end(token):
                self._ends[token] = ENDS
                return length
            self._ends[token] = GOES_ON

    def _is_end(self, token: int) -> bool:
        import llama_cpp.llama_cpp as lib

        return bool(lib.llama_vocab_is_eog(self._vocab, token))


class Stream:
    """The text of one Llama and the slot that follows it.

    length, tail: How many ids were seen last, and the newest of them.
    """

    def __init__(self, host: Host, slot: int) -> None:
        self.host = host
        self.slot = slot
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
    """Hosts, and streams of at most `slots` of them; the least recently used one is replaced.

    Not locked: the owner holds its lock around every call.
    """

    def __init__(self, slots: int, stated: Mapping[str, tuple[bytes, str]]) -> None:
        self._slots = slots
        self._stated = stated  # tokenizers that a Llama must have, by file
        self._clock = 0
        self._hosts: list[Host] = []
        self._streams: dict[Host, Stream] = {}
        self._foreign: Callable[[], Any] = lambda: None  # a buffer that no Llama owns

    def bind(self, llama: Any) -> Host:
        """Return the Host of `llama`, made on the first call."""
        self._hosts = [host for host in self._hosts if host.llama() is not None]
        for host in self._hosts:
            if host.llama() is llama:
                return host
        host = Host(llama, self._stated)
        if host.refusal:
            log.warning("no drafts: %s", host.refusal)
        self._hosts.append(host)
        return host

    def host_of(self, ids: TokenIds) -> Host | None:
        """Return the host whose buffer `ids` is a view of, None where there is none.

        Raises:
            BackendError: It is a Llama of a release that we do not know.
        """
        buffer = ids.base
        for host in self._hosts:
            llama = host.llama()
            if llama is not None and llama.input_ids is buffer:
                return host
        if buffer is None or self._foreign() is buffer:
            return None
        llama = owner_of(buffer)
        if llama is not None:
            return self.bind(llama)
        self._foreign = weakref.ref(buffer)
        return None

    def stream_of(self, host: Host) -> Stream:
        """Return the stream of a host, taking over the oldest slot if there is none."""
        stream = self._streams.get(host)
        if stream is None:
            stream = self._streams[host] = Stream(host, self._free_slot())
        self._clock += 1
        stream.used = self._clock
        return stream

    def __len__(self) -> int:
        return len(self._streams)

    def _free_slot(self) -> int:
        taken = {stream.slot for stream in self._streams.values()}
        for slot in range(self._slots):
            if slot not in taken:
                return slot
        oldest = min(self._streams.values(), key=lambda stream: stream.used)
        return self._streams.pop(oldest.host).slot


def owner_of(buffer: Any) -> Any | None:
    """Return the Llama whose token ids lie in a buffer, None if there is none.

    Cost: a look at all objects that Python's collector knows, some 10 ms.
    """
    kind = getattr(sys.modules.get("llama_cpp"), "Llama", None)
    if kind is None:
        return None
    llamas = (one for one in gc.get_objects() if issubclass(type(one), kind))
    return next((one for one in llamas if one.__dict__.get("input_ids") is buffer), None)


def check_llama(llama: Any) -> None:
    """Raise unless `llama` is an open Llama of a release that we know."""
    missing = [name for name in NEEDED if not hasattr(llama, name)]
    if len(missing) == len(NEEDED):
        raise InputError(f"expected a llama_cpp.Llama, got {type(llama).__name__}")
    if missing:
        raise BackendError(
            f"this llama-cpp-python has no {', '.join(missing)}: drafts need a release like 0.3.36"
        )
    if llama._batch.batch is None or llama._model.model is None:
        raise StateError("this Llama is closed")


def files_among(params: Mapping[str, Any]) -> list[Any]:
    """Return the statistics that drafter parameters name: paths or opened objects."""
    own = [params, *params.get("params", {}).values()]
    return [some[role] for some in own for role in FILES if some.get(role) is not None]


def stated_fingerprints(params: Mapping[str, Any]) -> dict[str, tuple[bytes, str]]:
    """Return the tokenizers that statistics state, by name of the file: fingerprint and model."""
    if params.get("any_tokenizer"):
        return {}
    stated: dict[str, tuple[bytes, str]] = {}
    for file in files_among(params):
        model = ""
        if isinstance(file, (str, os.PathLike)):
            name, fingerprint = os.fspath(file), None
            if is_container(name):
                container = open_container(name, verify=False)
                fingerprint = container.header.fingerprint
                model = about_of(container).get("tokenizer", "")
        else:
            name = str(getattr(file, "name", ""))
            fingerprint = getattr(file, "fingerprint", None)
        if fingerprint:
            stated[name] = fingerprint, f", of {model}" if model else ""
    return stated


def mismatch(llama: Any, stated: Mapping[str, tuple[bytes, str]]) -> str:
    """Return why statistics do not fit a Llama, "" when they do."""
    if not stated:
        return ""
    own = fingerprint_of_llama(llama)
    for name, (fingerprint, model) in stated.items():
        if fingerprint != own.digest:
            return (
                f"{name} was built with another tokenizer{model}: its fingerprint is "
                f"{fingerprint.hex()}, that of {own.name} is {own} (any_tokenizer overrides)"
            )
    return ""
