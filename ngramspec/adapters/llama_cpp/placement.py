"""Placement: where llama.cpp puts a model's weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ngramspec.errors import BackendError, InputError

ALL = -1
NO_DEVICE = "none"
_CPU = 0  # type of a device, in ggml-backend.h
# Weights of a mixture's experts, in llama.cpp's names of tensors.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@dataclass(frozen=True)
class Placement:
    """Where a model's weights lie.

    n_gpu_layers: Layers on the GPU, -1 = all.
    devices: Devices that may hold them, by llama.cpp's names; () = all, ("none",) = none.
    cpu_experts: Of how many layers, from the first, the experts stay in the CPU's memory; -1 = of
        all.
    """

    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    cpu_experts: int = 0

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: cpu_experts < -1.
        """
        if self.cpu_experts < ALL:
            raise InputError(f"cpu_experts must be >= -1, got {self.cpu_experts}")


class _Override(ctypes.Structure):
    pattern: bytes
    buffer_type: int
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def place(placement: Placement, params: Any) -> list[Any]:
    """Set a placement in llama_model_params; return what must live until the model is loaded.

    Raises:
        InputError: There is no such device.
        BackendError: llama.cpp does not say which devices there are.
    """
    params.n_gpu_layers = placement.n_gpu_layers
    kept: list[Any] = []
    if placement.devices:
        found = [_device(name) for name in placement.devices if name != NO_DEVICE]
        kept.append((ctypes.c_void_p * (len(found) + 1))(*found, None))
        params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
    if placement.cpu_experts:
        count = placement.cpu_experts
        layers = [""] if count == ALL else [rf"blk\.{layer}" for layer in range(count)]
        patterns = [(layer + _EXPERTS).encode() for layer in layers]
        cpu = _ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        kept.append((_Override * (len(patterns) + 1))(*(_Override(one, cpu) for one in patterns)))
        params.tensor_buft_overrides = ctypes.cast(kept[-1], ctypes.c_void_p)
    return kept


def device_names() -> list[str]:
    """Return the names of the devices that can hold weights, the CPU excepted.

    Raises:
        BackendError: llama.cpp does not say which there are.
    """
    devices = map(_device_at, range(_ggml("ggml_backend_dev_count", ctypes.c_size_t)()))
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    return [name(device).decode() for device in devices if not _is_cpu(device)]


def _device(name: str) -> Any:
    found = _ggml("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)(name.encode())
    if not found or _is_cpu(found):
        known = ", ".join([*device_names(), NO_DEVICE])
        raise InputError(f"llama.cpp has no device {name!r}; there is: {known}")
    return found


def _device_at(index: int) -> Any:
    return _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)(index)


def _is_cpu(device: Any) -> bool:
    return int(_ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(device)) == _CPU


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml's library."""
    try:
        from llama_cpp._ggml import libggml

        function = libggml[name]  # a new object, whose types nobody else sets
    except (ImportError, AttributeError) as error:
        raise BackendError(f"this build of llama.cpp has no {name}") from error
    function.restype, function.argtypes = result, arguments
    return function
