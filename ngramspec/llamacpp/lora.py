"""LoRA adapters: loaded with a model, applied to a context with a scale each."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec._native.hosts import llama as native_llama
from ngramspec.engine.request import Adapters
from ngramspec.errors import BackendError, InputError
from ngramspec.text.tokenizers.llama_library import Handle, Library, reasons

TEXT_BYTES = 1 << 12  # of a text in an adapter's metadata that are read


@dataclass(frozen=True)
class LoraAdapter:
    """A loaded adapter; it lives as long as its model."""

    path: Path
    address: Any
    task_name: str  # as its metadata says, "" = nothing
    prompt_prefix: str


def load_adapters(
    library: Library, model: Handle, paths: Sequence[str | os.PathLike[str]]
) -> tuple[LoraAdapter, ...]:
    """Load adapters for a model, before any context of it is made.

    Raises:
        BackendError: One cannot be read, is not for this model, or works only after certain tokens.
    """
    lib, adapters = library.lib, []
    for path in map(Path, paths):
        position = native_llama.log_position()
        address = lib.llama_adapter_lora_init(model.address, os.fsencode(path))
        if not address:
            reason = reasons(native_llama.log_since(position))
            raise BackendError(f"llama.cpp cannot load the adapter {path}{reason}")
        if lib.llama_adapter_get_alora_n_invocation_tokens(address):
            raise BackendError(f"{path}: adapters that certain tokens switch on do not work here")
        texts = (
            _text(lib, address, f"adapter.lora.{key}") for key in ("task_name", "prompt_prefix")
        )
        adapters.append(LoraAdapter(path, address, *texts))
    return tuple(adapters)


def apply_adapters(lib: Any, context: Any, loaded: Sequence[LoraAdapter], chosen: Adapters) -> None:
    """Make a context compute with adapters, and with no others.

    Args:
        lib: The module llama_cpp.llama_cpp.
        context: The llama_context.
        loaded: The model's.
        chosen: Numbers in `loaded`, and scales.

    Raises:
        InputError: There is no adapter of a number.
        BackendError: llama.cpp refuses.
    """
    wrong = [number for number, _ in chosen if number >= len(loaded)]
    if wrong:
        raise InputError(f"there is no adapter {wrong[0]}; {len(loaded)} are loaded")
    count = len(chosen)
    addresses = (lib.llama_adapter_lora_p_ctypes * count)(*(loaded[n].address for n, _ in chosen))
    scales = (ctypes.c_float * count)(*(scale for _, scale in chosen))
    status = lib.llama_set_adapters_lora(context, addresses, count, scales)
    if status:
        raise BackendError(f"llama.cpp does not apply the adapters (status {status})")


def _text(lib: Any, address: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(TEXT_BYTES)
    if lib.llama_adapter_meta_val_str(address, key.encode(), buffer, TEXT_BYTES) < 0:
        return ""
    return buffer.value.decode("utf-8", "replace")
