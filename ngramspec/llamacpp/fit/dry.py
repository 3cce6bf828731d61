"""DryModel: a model without its weights, of which llama.cpp says what contexts would take."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.engine.sources.mtp import FEW
from ngramspec.errors import FormatError
from ngramspec.llamacpp.assistant import assistant_params
from ngramspec.llamacpp.contexts import Buffers, LoadedModel, make_context
from ngramspec.llamacpp.fit.plan import Need, Weights
from ngramspec.llamacpp.loading import Loading, apply_loading
from ngramspec.llamacpp.model import STATEFUL
from ngramspec.llamacpp.mtp import count_heads, heads_params
from ngramspec.llamacpp.nextn import staging_of
from ngramspec.llamacpp.placement import Placement, gpus, place, stays_on_host
from ngramspec.llamacpp.settings import ContextSettings, context_params
from ngramspec.text.tokenizers.gguf import check_gguf, read_metadata, read_tensors
from ngramspec.text.tokenizers.llama_library import catch_log, load_library, load_model

if TYPE_CHECKING:
    from typing_extensions import Self

ARCHITECTURE, TOKENS = "general.architecture", "tokenizer.ggml.tokens"
CONTEXT = ".context_length"  # after the architecture
SMALLEST = 256  # tokens; the smallest context that llama.cpp makes
MOST_PLANNED = 1 << 21  # tokens of a cache that llama.cpp is asked about
HEAD_ROWS = FEW + 1  # rows that MTP heads ask for, for each slot
DRAFT_ROWS = DEFAULT_MAX_DRAFT + 1  # rows of logits of a slot: a draft and the token before it
_LAYER = "blk."


class DryModel:
    """A model without weights and vocabulary, placed as the real one will be.

    It plans contexts with llama.cpp's own code for every family of models, but allocates nothing.

    Args:
        path: The GGUF file; for a split model, its first.
        placement: Where its weights will lie.
        loading: How it will be read.

    Raises:
        InputError: There is no such device or kind of memory.
        FormatError: Not a GGUF file.
        BackendError: llama-cpp-python is not installed, or cannot load the file.
        OSError: The file cannot be read.

    Cost: reads the metadata; 0.1 s for a vocabulary of 150,000 tokens.
    """

    def __init__(
        self, path: str | os.PathLike[str], placement: Placement, loading: Loading
    ) -> None:
        self.path, self.placement, self.loading = Path(path), placement, loading
        check_gguf(self.path)
        self.library = load_library()
        lib = self.library.lib
        catch_log(lib)
        header = read_metadata(self.path, (ARCHITECTURE, TOKENS).__contains__)
        tokens = header.get(TOKENS)
        self.architecture = architecture = str(header.get(ARCHITECTURE, ""))
        metadata = dict(loading.metadata)
        if isinstance(tokens, list):  # sorting them takes long, and only their number matters here
            metadata["tokenizer.ggml.model"] = "no_vocab"
            metadata[f"{architecture}.vocab_size"] = len(tokens)
        loading = replace(loading, mode="none", metadata=metadata)
        params = lib.llama_model_default_params()
        arrays = [*place(placement, lib, params), *apply_loading(loading, self.library, params)]
        params.no_alloc = True
        self.handle = load_model(self.library, self.path, params)
        del arrays
        address = self.handle.address
        self.size_bytes = int(lib.llama_model_size(address))
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(address))
        # All layers of an assistant are MTP layers.
        self.num_layers = int(lib.llama_model_n_layer(address)) or nextn_layers(self)
        self.has_encoder = bool(lib.llama_model_has_encoder(address))
        self.is_diffusion = bool(lib.llama_model_is_diffusion(address))
        self.n_swa = int(lib.llama_model_n_swa(address))
        self.is_stateful = (
            bool(lib.llama_model_is_recurrent(address) or lib.llama_model_is_hybrid(address))
            or architecture in STATEFUL
        )

    @cached_property
    def state_bytes(self) -> int:
        if not self.is_stateful:
            return 0
        settings = ContextSettings(context_size=SMALLEST, n_rs_seq=0)
        return self._buffers(context_params(self, settings)).states

    @cached_property
    def weights(self) -> Weights:
        return weights_of(read_tensors(self.path), self.num_layers, self.placement)

    def need(self, settings: ContextSettings) -> Need:
        """Return what a context takes.

        Raises:
            InputError: The sizes do not fit.
            BackendError: llama.cpp cannot make it.

        Cost: milliseconds; llama.cpp plans its largest computation.
        """
        rows = min(settings.max_outputs or settings.n_batch, settings.slots * DRAFT_ROWS)
        rows_more = max(1, rows // (settings.slots + settings.pad))

        def plan(own: ContextSettings) -> Need:
            return self._sum(self._buffers(context_params(self, own)), rows_more)

        return self._evenly(settings, plan)

    def need_of_heads(self, settings: ContextSettings, most: int) -> Need:
        """Return what the context of the model's MTP heads takes, beside one with these settings.

        most: Longest draft.

        Raises:
            InputError: The sizes do not fit.
            BackendError: There are no heads, or llama.cpp cannot run them.
            OSError, FormatError: The file cannot be read.
        """
        staging_of(self)
        num_heads = count_heads(self)

        def plan(own: ContextSettings) -> Need:
            params = heads_params(self, own, num_heads, most)
            return self._with_states(self._sum(self._buffers(params), HEAD_ROWS), own)

        return self._evenly(settings, plan)

    def need_of_assistant(self, assistant: DryModel, settings: ContextSettings) -> Need:
        """Return what an assistant's context takes, beside one with these settings.

        assistant: Checked by check_assistant.

        Raises:
            InputError: The sizes do not fit.
            BackendError: llama.cpp cannot run it.
        """
        staging_of(self)

        def plan(own: ContextSettings) -> Need:
            handle, _ = make_context(self, context_params(self, own))
            try:
                params = assistant_params(self, own, handle.address)
                buffers = assistant._buffers(params)
            finally:
                handle.free()
            need = assistant._sum(replace(buffers, cache=0), 1)  # the cache is the target's
            return self._with_states(need, own)

        return self._evenly(settings, plan)

    def _with_states(self, need: Need, settings: ContextSettings) -> Need:
        """Add the states that the target then keeps of every token of a decode."""
        width = int(self.library.lib.llama_model_n_embd_out(self.handle.address))
        return replace(need, outputs=need.outputs + 4 * width * settings.n_batch)

    def _evenly(self, settings: ContextSettings, plan: Callable[[ContextSettings], Need]) -> Need:
        """Return what a plan says, also for a cache that is too large to be planned."""
        each = settings.context_size_of(self)
        tokens = settings.cells or each * settings.slots
        if tokens <= MOST_PLANNED:
            return plan(settings)
        # Its table of cells would take gigabytes; memory grows evenly there.
        streams = 1 if settings.kv_unified else settings.slots
        low, high = (
            plan(
                replace(
                    settings, context_size=size // streams, cells=size if settings.kv_unified else 0
                )
            )
            for size in (MOST_PLANNED // 2, MOST_PLANNED)
        )
        return low.towards(high, (tokens - MOST_PLANNED // 2) / (MOST_PLANNED // 2))

    def _sum(self, buffers: Buffers, rows_more: int) -> Need:
        """Return what a context's buffers take.

        rows_more: How many times the rows of logits that it begins with.
        """
        names = {device.name for device in gpus(self.placement)}
        on_gpus = sum(size for name, size in buffers.compute.items() if name in names)
        return Need(
            context=buffers.context,
            host_compute=sum(buffers.compute.values()) - on_gpus,
            gpu_compute=on_gpus,
            outputs=buffers.outputs * rows_more,
        )

    def close(self) -> None:
        """Free it; a second call does nothing."""
        self.handle.free()

    def check_open(self) -> None:
        """Do nothing: it is in use only while it is open."""

    def _buffers(self, params: Any) -> Buffers:
        handle, buffers = make_context(self, params)
        handle.free()
        return buffers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def nextn_layers(model: LoadedModel) -> int:
    """Return how many layers of a model are MTP heads, as far as this llama.cpp knows."""
    count = getattr(model.library.lib, "llama_model_n_layer_nextn", None)
    return int(count(model.handle.address)) if count else 0


def trained_context(path: str | os.PathLike[str], loading: Loading | None = None) -> int:
    """Return the tokens of context that a model was trained with, without loading it.

    Args:
        path: The GGUF file.
        loading: Whose metadata count instead of the file's.

    Raises:
        FormatError: Not a GGUF file, or it does not say.
        OSError: The file cannot be read.
    """
    check_gguf(Path(path))
    metadata = dict(read_metadata(path, lambda key: key == ARCHITECTURE or key.endswith(CONTEXT)))
    metadata.update(loading.metadata if loading else {})
    tokens = metadata.get(f"{metadata.get(ARCHITECTURE)}{CONTEXT}")
    if not isinstance(tokens, int):
        raise FormatError(f"{os.fspath(path)}: the metadata do not say how long a context can be")
    return tokens


def weights_of(tensors: dict[str, int], num_layers: int, placement: Placement) -> Weights:
    """Return the bytes of tensors by where llama.cpp can put them.

    Args:
        tensors: Bytes by name.
        num_layers: Of the model.
        placement: What it keeps with the CPU stays on the host.
    """
    patterns = stays_on_host(placement)
    layers, host, output = [0] * num_layers, 0, 0
    for name, size in tensors.items():
        first, _, rest = name.removeprefix(_LAYER).partition(".")
        in_layer = name.startswith(_LAYER) and rest and first.isdigit() and int(first) < num_layers
        if any(pattern.search(name) for pattern in patterns):
            host += size
        elif in_layer:
            layers[int(first)] += size
        elif name.startswith("output"):
            output += size
        else:
            host += size
    tied = 0 if "output.weight" in tensors else tensors.get("token_embd.weight", 0)
    return Weights(layers=tuple(layers), host=host, output=output, tied=tied)
