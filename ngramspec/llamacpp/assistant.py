"""open_assistant: MTP heads in a file of their own, which look at the target's cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.sources.draft_model import vocabulary_difference
from ngramspec.engine.sources.mtp import Assistant, States
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.nextn import NextnContext, staging_of
from ngramspec.llamacpp.placement import ALL, AUTO, Placement
from ngramspec.llamacpp.settings import ContextSettings, Runnable, context_params
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.tokenizers.gguf import Value, read_metadata, read_tensors

FAMILY, TARGET = "gemma4-assistant", "gemma4"
ARCHITECTURE = "general.architecture"
MASKED = "masked_embd"  # tensors that llama.cpp does not use
MOST_LAYERS = 512  # that llama.cpp knows
EXPERTS = ("expert_count", "expert_used_count", "expert_group_count")
SCALINGS = ("none", "linear", "yarn", "longrope")


def open_assistant(
    path: str | os.PathLike[str],
    target: LlamaTarget,
    stack: contextlib.ExitStack,
    *,
    n_max: int,
    n_min: int,
    p_min: float,
    placement: Placement,
) -> Assistant:
    """Load an assistant for all slots of a target; the stack closes it.

    Args:
        path: Its GGUF file.
        target: Without tokens yet: llama.cpp empties a cache that it shares.
        stack: Closes it.
        n_max, n_min, p_min: As for MtpHeads.
        placement: Of its weights; the devices are the target's.

    Raises:
        FormatError, OSError: The file cannot be read.
        InputError: It is no assistant, it does not fit the target, or a setting is out of its
            bounds.
        BackendError: This llama.cpp cannot run it.
        StateError: The target holds tokens, or is closed.
    """
    check_assistant(path, target.model.path, target.model.loading.metadata)
    if not target.is_empty:
        raise StateError(
            f"{Path(path).name} would empty the target's cache: open an assistant before the "
            "target reads its first text"
        )
    where = assistant_placement(placement, target.model.placement, target.model.num_layers)
    model = stack.enter_context(_load(path, where))
    if model.vocab_size != target.vocab_size:
        raise InputError(
            f"{model.path.name} does not fit the model: it has {model.vocab_size} tokens, "
            f"the model {target.vocab_size}"
        )
    if difference := vocabulary_difference(target.model, model, "assistant"):
        raise InputError(f"{model.path.name} does not fit the model: {difference}")
    context = stack.enter_context(contextlib.closing(LlamaAssistant(target, model)))
    return Assistant(
        context,
        n_max,
        n_min,
        p_min,
        label=f"MTP assistant {model.path.name}",
        path=os.fspath(path),
        nbytes=model.size_bytes + context.buffers.total - context.buffers.cache,
    )


def _load(path: str | os.PathLike[str], placement: Placement) -> LlamaModel:
    """Load an assistant. Raises: As LlamaModel."""
    try:
        return LlamaModel(path, placement=placement, loading=Loading(mtp=True))
    except BackendError as error:
        if not any(name.startswith(MASKED) for name in read_tensors(path)):
            raise
        raise BackendError(
            f"{error}; it has masked embeddings, which some releases of llama.cpp cannot read: "
            "convert it without them, or use another release"
        ) from None


class LlamaAssistant(NextnContext):
    """A context of an assistant, which shares the cache of a target's context.

    What is done to the target's cache is done to its own.

    Args:
        target: Without tokens.
        model: The assistant, checked by check_assistant.

    Raises:
        BackendError: This llama.cpp cannot run it.
    """

    def __init__(self, target: LlamaTarget, model: LlamaModel) -> None:
        staging = staging_of(model)
        params = assistant_params(target.model, target.settings, target.address)
        super().__init__(target, model, params, staging)
        target.model.use(self)
        if staging["llama_get_ctx_other"](self._handle.address) != target.address:
            self.close()
            raise BackendError("this llama.cpp does not share a target's cache with an assistant")

    def decode(self, batch: Batch, states: States, rows: Rows, head: int) -> States:
        """As NextnContext.

        Raises:
            BackendError, CapacityError: As there.
            StateError: The target is closed.
        """
        if self._target.closed:  # llama.cpp would read its freed cache
            raise StateError("the target is closed")
        return super().decode(batch, states, rows, head)

    def truncate(self, sequence: int, length: int) -> None:
        """Do nothing: the target removes tokens from the cache."""

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Return True: the target has copied the tokens."""
        return True

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Return True: the target has moved the tokens."""
        return True


def assistant_params(model: Runnable, settings: ContextSettings, target: Any) -> Any:
    """Return llama_context_params of an assistant.

    It has the target's sequences, streams and layout of values, as it looks at the same cells, and
    computes one token of each sequence at a time.

    Args:
        model: The target's.
        settings: The target's.
        target: Its llama_context.

    Raises:
        BackendError: This llama.cpp shares no cache.
    """
    lib, params = model.library.lib, context_params(model, settings)
    if not hasattr(params, "ctx_other"):
        raise BackendError(
            "this llama.cpp cannot run assistants, it shares no cache: llama-cpp-python 0.3.36 does"
        )
    params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target
    params.pooling_type = lib.LLAMA_POOLING_TYPE_NONE  # with another, it gives no states
    params.n_rs_seq = 0
    params.n_batch = params.n_ubatch = params.n_seq_max
    params.n_outputs_max = 0
    return params


def assistant_placement(asked: Placement, target: Placement, num_layers: int) -> Placement:
    """Return where an assistant's weights lie.

    The devices are the target's: llama.cpp ends the process where one of a cache is missing.

    Args:
        asked: By the user.
        target: The target's.
        num_layers: Of the target.
    """
    layers = asked.n_gpu_layers
    if layers == AUTO:
        whole = target.layers == ALL or target.layers > num_layers
        layers = ALL if whole else 0
    return replace(
        asked,
        n_gpu_layers=layers,
        devices=target.devices,
        split=target.split,
        main_gpu=target.main_gpu,
        shares=target.shares,
    )


def check_assistant(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    metadata: Mapping[str, Value] | None = None,
) -> None:
    """Check by their metadata that llama.cpp can run an assistant beside a target.

    It would end the process, or read beyond a cache, where sizes do not fit.

    Args:
        path: The assistant's file.
        target: The target's.
        metadata: What keys of the target's file are to be instead.

    Raises:
        FormatError, OSError: A file cannot be read.
        InputError: The file is no assistant, or does not fit the target; says why.
    """
    own, other = _Facts(path), _Facts(target, metadata or {})
    if own.family != FAMILY:
        raise InputError(
            f"{own.name} is not an assistant but a model of the family {own.family}: MTP heads in "
            f"a file of their own are of the family {FAMILY}; a smaller model drafts without "
            "draft-mtp"
        )
    if other.family != TARGET:
        raise InputError(
            f"{own.name} is an assistant for models of the family {TARGET}, and {other.name} is of "
            f"the family {other.family}"
        )
    _check_alone(own)
    width, needed = own.number("embedding_length_out", 0), other.number("embedding_length")
    if width != needed:
        raise own.error(f"it takes states of {width} numbers, those of {other.name} have {needed}")
    for local, source in zip((True, False), _shared_layers(own, other), strict=True):
        kind = "with a window" if local else "without a window"
        head = "attention.key_length_swa" if local else "attention.key_length"
        if own.number(head) != other.number(head):
            raise own.error(
                f"its heads {kind} have {own.number(head)} numbers, those of {other.name} "
                f"{other.number(head)}"
            )
        groups = other.numbers("attention.head_count_kv")[source]
        for layer, has_window in enumerate(own.flags("attention.sliding_window_pattern")):
            count = own.numbers("attention.head_count_kv")[layer]
            if has_window == local and count != groups:
                raise own.error(
                    f"its layer {layer} looks at {count} heads of keys, layer {source} of "
                    f"{other.name} has {groups}"
                )


def _check_alone(own: _Facts) -> None:
    """Check what llama.cpp asserts of an assistant's file."""
    layers, heads = own.number("block_count"), own.number("nextn_predict_layers", 0)
    if not 1 <= layers <= MOST_LAYERS or heads != layers:
        raise own.error(
            f"it names {heads} MTP layers of {layers}, and all of them must be: convert it again"
        )
    if not any(own.flags("attention.sliding_window_pattern")):
        raise own.error("none of its layers has a window")
    if any(own.number(key, 0) for key in EXPERTS):
        raise own.error("it has experts, which llama.cpp's assistants have not")
    scaling = own.text("rope.scaling.type", "none")
    if scaling not in SCALINGS:
        raise own.error(f"it scales positions as {scaling!r}, known are {', '.join(SCALINGS)}")
    for count, groups in zip(
        own.numbers("attention.head_count"), own.numbers("attention.head_count_kv"), strict=True
    ):
        if groups < 1 or count < 1 or count % groups:
            raise own.error(f"{count} heads cannot look at {groups} heads of keys")
    turned = own.number("rope.dimension_count", own.number("attention.key_length"))
    local = own.number("rope.dimension_count_swa", turned)
    for suffix, size in (("", turned), ("_swa", local)):
        keys, values = (own.number(f"attention.{kind}_length{suffix}") for kind in ("key", "value"))
        if keys != values:
            raise own.error(f"heads have {keys} numbers for keys and {values} for values")
        if size < 2 or size % 2 or size > keys:
            raise own.error(f"it turns {size} of the {keys} numbers of a head")


def _shared_layers(own: _Facts, other: _Facts) -> tuple[int, int]:
    """Return whose keys and values the layers look at: those with a window, and the others.

    llama.cpp takes the target's last layer but one for the first kind, and the last for the second;
    these may have those of earlier ones.
    """
    layers = other.number("block_count") - other.number("nextn_predict_layers", 0)
    windows = other.flags("attention.sliding_window_pattern")
    if layers < 2 or windows[layers - 2 : layers] != [True, False]:
        raise own.error(
            f"the last two layers of {other.name} must be one with a window and one without: it "
            "shares their keys"
        )
    first = other.number("block_count") - other.number("attention.shared_kv_layers", 0)
    return min(layers, first) - 2, min(layers, first) - 1


class _Facts:
    """The metadata of a model's file.

    name: Of the file.
    family: The model's architecture.
    """

    def __init__(
        self, path: str | os.PathLike[str], instead: Mapping[str, Value] | None = None
    ) -> None:
        self.name = Path(path).name
        self._metadata = read_metadata(path, lambda key: not key.startswith("tokenizer."))
        self._metadata |= instead or {}
        self.family = str(self._metadata.get(ARCHITECTURE, ""))

    def number(self, key: str, default: int | None = None) -> int:
        """Return a number of the model, by its key without the family."""
        value = self._metadata.get(f"{self.family}.{key}", default)
        if not isinstance(value, int):
            raise self.error(f"it has no number {self.family}.{key}")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self._metadata.get(f"{self.family}.{key}", default))

    def numbers(self, key: str) -> list[int]:
        """Return a number for each layer; one in the file is that of all."""
        value = self._metadata.get(f"{self.family}.{key}")
        layers = self.number("block_count")
        if isinstance(value, int):
            return [value] * layers
        return self._list(key, layers)

    def flags(self, key: str) -> list[bool]:
        return [bool(one) for one in self._list(key, self.number("block_count"))]

    def error(self, reason: str) -> InputError:
        return InputError(f"{self.name} cannot be used as, or with, an assistant: {reason}")

    def _list(self, key: str, layers: int) -> list[int]:
        value = self._metadata.get(f"{self.family}.{key}")
        if not isinstance(value, np.ndarray) or value.size != layers:
            raise self.error(f"it has no list {self.family}.{key} of {layers} layers")
        return [int(one) for one in value]
