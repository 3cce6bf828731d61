"""Embedder: a context of a model that turns texts into vectors, beside one that generates."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ngramspec._native.hosts import llama as native_llama
from ngramspec.arrays import TokenIds, Vectors
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.llamacpp.contexts import make_context
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings, context_params
from ngramspec.llamacpp.target import OK
from ngramspec.text.tokenizers.llama_library import Handle, reasons

if TYPE_CHECKING:
    from typing_extensions import Self

POOLINGS = ("none", "mean", "cls", "last")
SEQUENCES = 32  # texts in one decode


class Embedder:
    """A context of its own for embeddings; the model's weights are shared.

    Args:
        model: The model; closing it closes the embedder.
        settings: Those of the target. A text can have as many tokens as `n_ubatch`, which is what
            llama.cpp computes at once, and no more than `context_size`.
        pooling: How vectors of tokens become one of the text, one of POOLINGS; None: as the model
            says, none if it says nothing.

    Raises:
        InputError: There is no such pooling, or a setting is out of its bounds.
        BackendError: llama.cpp cannot make the context.
        StateError: The model is closed.

    Memory: a cache of `n_ubatch` tokens, and as many rows of logits and vectors.

    Threads: calls wait for one another.

    pooling: The one in use.
    size: Numbers of a vector.
    most_tokens, most_texts: Of one call.
    """

    def __init__(
        self, model: LlamaModel, settings: ContextSettings, pooling: str | None = None
    ) -> None:
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        self._lib = lib = model.library.lib
        self._lock = threading.Lock()
        self._closed = True  # until it is fully made
        most = min(settings.n_ubatch, settings.context_size_of(model))
        # A divisor: with another number llama.cpp ends the process when it pools by "mean".
        self.most_texts = 1 if model.is_stateful else math.gcd(SEQUENCES, most)
        params = context_params(
            model,
            replace(
                settings,
                slots=self.most_texts,
                context_size=most,
                cells=0 if model.is_stateful else most,
                kv_unified=not model.is_stateful,
                n_batch=most,
                n_ubatch=most,
                max_outputs=0,
                n_rs_seq=0,
                pad=False,
                branches=1,
            ),
        )
        params.embeddings = True
        params.n_batch = params.n_ubatch = params.n_outputs_max = most
        if pooling is not None:
            params.pooling_type = getattr(lib, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
        self._handle, _ = make_context(model, params)
        kind = int(lib.llama_pooling_type(self._handle.address))
        names = {int(getattr(lib, f"LLAMA_POOLING_TYPE_{n.upper()}")): n for n in POOLINGS}
        if kind not in names:
            raise BackendError(f"{model.path}: the model ranks texts; it has no vectors")
        self.pooling = names[kind]
        self.most_tokens = most
        self.size = int(lib.llama_model_n_embd_out(model.handle.address))
        self._batch = lib.llama_batch_init(most, 0, 1)
        self._buffers = Handle(lib.llama_batch_free, self._batch)
        self._closed = False
        model.use(self)

    def embed(self, texts: Sequence[TokenIds]) -> list[Vectors]:
        """Return the vectors of texts that are not empty, as the model makes them.

        Returns:
            float32, shape (1, size) per text; with the pooling "none" one row per token.

        Raises:
            BackendError: llama.cpp cannot compute them.
            InputError: There are more texts or tokens than fit.
            StateError: It is closed.

        Threads: releases the GIL while llama.cpp computes.
        """
        total = sum(len(text) for text in texts)
        if not texts or len(texts) > self.most_texts or total > self.most_tokens:
            raise InputError(
                f"1..{self.most_texts} texts of {self.most_tokens} tokens together fit, got "
                f"{len(texts)} of {total}"
            )
        with self._lock:
            if self._closed:
                raise StateError("the embedder is closed")
            return self._embed(texts)

    def _embed(self, texts: Sequence[TokenIds]) -> list[Vectors]:
        lib, address = self._lib, self._handle.address
        self._fill(texts)
        memory = lib.llama_get_memory(address)
        if memory:
            lib.llama_memory_clear(memory, True)
        position = native_llama.log_position()
        status = int(lib.llama_decode(address, self._batch))
        if status != OK:
            reason = reasons(native_llama.log_since(position))
            raise BackendError(f"llama.cpp cannot compute embeddings (status {status}){reason}")
        if self.pooling != "none":
            return [
                self._copied(lib.llama_get_embeddings_seq(address, number))[None]
                for number in range(len(texts))
            ]
        sizes = np.cumsum([len(text) for text in texts])
        rows = [
            self._copied(lib.llama_get_embeddings_ith(address, row)) for row in range(sizes[-1])
        ]
        return np.split(np.array(rows, dtype=np.float32), sizes[:-1])

    def _fill(self, texts: Sequence[TokenIds]) -> None:
        """Write texts into the batch, each as a sequence."""
        batch, at = self._batch, 0
        for number, text in enumerate(texts):
            for position, token in enumerate(np.asarray(text).tolist()):
                batch.token[at] = token
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = number
                batch.logits[at] = 1
                at += 1
        batch.n_tokens = at

    def _copied(self, address: object) -> Vectors:
        if not address:
            raise BackendError("llama.cpp has made no embedding")
        return np.ctypeslib.as_array(address, (self.size,)).astype(np.float32, copy=True)

    def close(self) -> None:
        """Wait for a running call and free the context; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._buffers.free()
            self._handle.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
