"""Loading: how llama.cpp reads a model's file, and what it is to believe instead of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ngramspec.errors import InputError
from ngramspec.messages import page_url
from ngramspec.text.tokenizers.llama_library import Library

log = logging.getLogger(__name__)
MODES = {  # llama.cpp's words, and its names for them
    "auto": "AUTO",
    "none": "NONE",
    "mmap": "MMAP",
    "mlock": "MLOCK",
    "mmap+mlock": "MMAP_MLOCK",
    "dio": "DIRECT_IO",
}
LAZY_MODES = ("auto", "on", "off")
TEXT_BYTES = 127  # of a key or a text in llama_model_kv_override
MOST_INTEGER = 1 << 63
Value = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded.

    mode: One of MODES: map the file (auto, mmap), read it (none), by the device's own way (dio), or
        keep it in memory (mlock).
    lazy: One of LAZY_MODES: whether large tables are read row by row when they are needed.
    check_tensors: Look for values that are no numbers.
    repack: Let llama.cpp repack weights for the CPU. None: unless it was built with AMX kernels,
        which crash the process if GCC compiled them.
    host_buffers: Use memory of the host that devices reach faster.
    mtp: Load the model's MTP heads, too, if it has some.
    metadata: What keys of the file are to be instead, by key.
    """

    mode: str = "auto"
    lazy: str = "auto"
    check_tensors: bool = False
    repack: bool | None = None
    host_buffers: bool = True
    mtp: bool = False
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: An unknown mode, or a key or value that llama.cpp cannot hold.
        """
        for name, choices in (("mode", tuple(MODES)), ("lazy", LAZY_MODES)):
            value = getattr(self, name)
            if value not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        for key, value in self.metadata.items():
            texts = [key, value] if isinstance(value, str) else [key]
            long = next((text for text in texts if len(text.encode()) > TEXT_BYTES), None)
            if long is not None or not key:
                raise InputError(
                    f"metadata: keys and texts have 1..{TEXT_BYTES} bytes, got {long!r}"
                )
            if isinstance(value, int) and not -MOST_INTEGER <= value < MOST_INTEGER:
                raise InputError(f"metadata: {key} must fit in 64 bits, got {value}")

    def shown(self) -> dict[str, str]:
        """Return the metadata as llama.cpp shows what is in the file."""
        return {key: _shown(value) for key, value in self.metadata.items()}


def apply_loading(loading: Loading, library: Library, params: Any) -> list[Any]:
    """Set it in llama_model_params; return what must live until the model is loaded."""
    lib = library.lib
    params.load_mode = getattr(lib, f"LLAMA_LOAD_MODE_{MODES[loading.mode]}")
    params.lazy_mode = getattr(lib, f"LLAMA_LAZY_MODE_{loading.lazy.upper()}")
    params.check_tensors = loading.check_tensors
    params.use_extra_bufts = may_repack(library, loading.repack)
    params.no_host = not loading.host_buffers
    if hasattr(params, "load_mtp"):
        params.load_mtp = loading.mtp
    if not loading.metadata:
        return []
    overrides = (lib.llama_model_kv_override * (len(loading.metadata) + 1))()  # ends with no key
    for override, (key, value) in zip(overrides, loading.metadata.items(), strict=False):
        override.key = key.encode()
        _set_value(lib, override, value)
    params.kv_overrides = overrides
    return [overrides]


def may_repack(library: Library, asked: bool | None) -> bool:
    """Return whether weights are repacked; a warning tells when they are not for their safety."""
    if asked is None and library.has_amx:
        log.warning(
            "llama.cpp was built with AMX kernels, which crash where GCC compiled them: weights are"
            " not repacked for them. How to build it without: %s",
            page_url("project/reliability.md"),
        )
        return False
    return asked is not False


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _set_value(lib: Any, override: Any, value: Value) -> None:
    if isinstance(value, bool):
        override.tag, override.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
    elif isinstance(value, int):
        override.tag, override.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
    elif isinstance(value, float):
        override.tag, override.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    else:
        override.tag, override.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
