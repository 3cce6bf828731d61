"""Placement: on which devices and in which memory llama.cpp puts a model's weights."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ngramspec.adapters.llama_cpp.ggml import function_of
from ngramspec.errors import InputError

ALL = -1
NO_DEVICE = "none"
SPLITS = ("none", "layer", "row", "tensor")
_CPU = 0  # type of a device, in ggml-backend.h
# Weights of feed-forward networks, in llama.cpp's names of tensors: of a mixture's experts, others.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


@dataclass(frozen=True)
class Placement:
    """Where a model's weights lie.

    n_gpu_layers: Layers on the GPU, -1 = all.
    devices: Devices that may hold them, by llama.cpp's names; () = all, ("none",) = none.
    cpu_experts: Of how many layers, from the first, the experts of a mixture stay in the CPU's
        memory; -1 = of all.
    cpu_dense: The same for the feed-forward networks of models that are no mixtures.
    buffers: Pairs of a regular expression and the kind of memory, such as "CPU", for tensors whose
        names it finds; the first that fits counts.
    split: How several GPUs share the model, one of SPLITS; None = llama.cpp's way, by layers.
    main_gpu: The GPU that holds all of it (split "none") or what is not split ("row").
    shares: How much each GPU gets, in any unit; () = by its free memory.
    """

    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    cpu_experts: int = 0
    cpu_dense: int = 0
    buffers: tuple[tuple[str, str], ...] = ()
    split: str | None = None
    main_gpu: int = 0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: A value is out of its bounds, or a pattern is not a regular expression.
        """
        for name in ("cpu_experts", "cpu_dense"):
            value = getattr(self, name)
            _check(value >= ALL, f"{name} must be >= -1, got {value}")
        known = ", ".join(SPLITS)
        _check(self.split in (None, *SPLITS), f"split must be one of {known}, got {self.split!r}")
        _check(self.main_gpu >= 0, f"main_gpu must be >= 0, got {self.main_gpu}")
        fine = all(0 <= share < math.inf for share in self.shares)
        _check(fine, f"shares must be numbers from 0 on, got {self.shares}")
        for pattern, _ in self.buffers:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"{pattern!r} is not a regular expression: {error}") from None


class _Override(ctypes.Structure):
    pattern: bytes
    buffer_type: int
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def place(placement: Placement, lib: Any, params: Any) -> list[Any]:
    """Set a placement in llama_model_params; return what must live until the model is loaded.

    Raises:
        InputError: There is no such device or kind of memory, or too many shares.
        BackendError: llama.cpp does not say which devices there are.
    """
    params.n_gpu_layers = placement.n_gpu_layers
    params.main_gpu = placement.main_gpu
    if placement.split is not None:
        params.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{placement.split.upper()}")
    kept: list[Any] = []
    if placement.shares:
        most, given = int(lib.llama_max_devices()), len(placement.shares)
        _check(given <= most, f"llama.cpp splits among at most {most} devices, got {given} shares")
        kept.append((ctypes.c_float * most)(*placement.shares))
        params.tensor_split = ctypes.cast(kept[-1], type(params.tensor_split))
    if placement.devices:
        found = [_device(name) for name in placement.devices if name != NO_DEVICE]
        kept.append((ctypes.c_void_p * (len(found) + 1))(*found, None))
        params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
    overrides = list(_overrides(placement))
    if overrides:
        kept.append((_Override * (len(overrides) + 1))(*overrides))
        params.tensor_buft_overrides = ctypes.cast(kept[-1], ctypes.c_void_p)
    return kept


def device_names() -> list[str]:
    """Return the names of the devices that can hold weights, the CPU excepted.

    Raises:
        BackendError: llama.cpp does not say which there are.
    """
    return [_name_of(device) for device in _devices() if not _is_cpu(device)]


def device_lines() -> list[str]:
    """Return a line for each of those devices: its name, what it is, and its memory.

    Raises:
        BackendError: As device_names.
    """
    describe = function_of("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = function_of("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    lines = []
    for device in _devices():
        if not _is_cpu(device):
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            memory(device, free, total)
            sizes = f"{total.value >> 20} MiB, {free.value >> 20} MiB free"
            lines.append(f"{_name_of(device)}: {describe(device).decode()} ({sizes})")
    return lines


def _overrides(placement: Placement) -> Iterator[_Override]:
    """Yield which tensors go to which kind of memory; what is said of single tensors comes first.

    Raises:
        InputError: There is no such kind of memory.
    """
    if placement.buffers:
        known = _buffer_types()
        for pattern, name in placement.buffers:
            _check(
                name in known,
                f"llama.cpp has no memory {name!r} for tensors; there is: {', '.join(known)}",
            )
            yield _Override(pattern.encode(), known[name])
    for count, pattern in ((placement.cpu_experts, _EXPERTS), (placement.cpu_dense, _DENSE)):
        if count:
            layers = [""] if count == ALL else [rf"blk\.{layer}" for layer in range(count)]
            cpu = function_of("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
            yield from (_Override((layer + pattern).encode(), cpu) for layer in layers)


def _buffer_types() -> dict[str, int]:
    """Return the kinds of memory by their names: one per device."""
    of_device = function_of("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = function_of("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    kinds = [kind for device in _devices() if (kind := of_device(device))]
    return {name(kind).decode(): kind for kind in kinds}


def _device(name: str) -> Any:
    by_name = function_of("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
    found = by_name(name.encode())
    if not found or _is_cpu(found):
        known = ", ".join([*device_names(), NO_DEVICE])
        raise InputError(f"llama.cpp has no device {name!r}; there is: {known}")
    return found


def _devices() -> list[Any]:
    count = function_of("ggml_backend_dev_count", ctypes.c_size_t)()
    at = function_of("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [at(index) for index in range(count)]


def _name_of(device: Any) -> str:
    name = function_of("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    return str(name(device).decode())


def _is_cpu(device: Any) -> bool:
    return int(function_of("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(device)) == _CPU


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise InputError(message)
