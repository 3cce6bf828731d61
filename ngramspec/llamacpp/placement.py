"""Placement: on which devices and in which memory llama.cpp puts a model's weights."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ngramspec.errors import InputError
from ngramspec.text.tokenizers.llama_library import function_of

ALL = -1
AUTO: Literal["auto"] = "auto"
NO_DEVICE = "none"
SPLITS = ("none", "layer", "row", "tensor")
# Types of devices, in ggml-backend.h.
_CPU, _GPU, _INTEGRATED = 0, 1, 2
_APPLE = "MTL"  # names of devices that use the host's memory begin so, as Metal's do
# Weights of feed-forward networks, in llama.cpp's names of tensors: of a mixture's experts, others.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


@dataclass(frozen=True)
class Placement:
    """Where a model's weights lie.

    n_gpu_layers: Layers on the GPU, -1 = all; "auto" = all if there is a GPU that llama.cpp can
        use. LLM and `ngramspec serve` then count how many fit.
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

    n_gpu_layers: int | Literal["auto"] = 0
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
        layers = self.n_gpu_layers
        _check(
            isinstance(layers, int) or layers == AUTO,
            f'n_gpu_layers must be a number or "auto", got {layers!r}',
        )
        choices = ", ".join(SPLITS)
        _check(self.split in (None, *SPLITS), f"split must be one of {choices}, got {self.split!r}")
        _check(self.main_gpu >= 0, f"main_gpu must be >= 0, got {self.main_gpu}")
        fine = all(0 <= share < math.inf for share in self.shares)
        _check(fine, f"shares must be numbers from 0 on, got {self.shares}")
        for pattern, _ in self.buffers:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"{pattern!r} is not a regular expression: {error}") from None

    @property
    def layers(self) -> int:
        """Return the layers on the GPU as llama.cpp takes them.

        Raises:
            BackendError: It depends on what GPUs there are, and llama.cpp does not say.
        """
        if self.n_gpu_layers == AUTO:
            return ALL if gpus(self) else 0
        return int(self.n_gpu_layers)


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
    params.n_gpu_layers = placement.layers
    params.main_gpu = placement.main_gpu
    if placement.split is not None:
        params.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{placement.split.upper()}")
    arrays: list[Any] = []
    if placement.shares:
        most, count = int(lib.llama_max_devices()), len(placement.shares)
        _check(count <= most, f"llama.cpp splits among at most {most} devices, got {count} shares")
        arrays.append((ctypes.c_float * most)(*placement.shares))
        params.tensor_split = ctypes.cast(arrays[-1], type(params.tensor_split))
    if placement.devices:
        devices = [_device(name) for name in placement.devices if name != NO_DEVICE]
        arrays.append((ctypes.c_void_p * (len(devices) + 1))(*devices, None))
        params.devices = ctypes.cast(arrays[-1], ctypes.c_void_p)
    overrides = list(_overrides(placement))
    if overrides:
        arrays.append((_Override * (len(overrides) + 1))(*overrides))
        params.tensor_buft_overrides = ctypes.cast(arrays[-1], ctypes.c_void_p)
    return arrays


def device_names() -> list[str]:
    """Return the names of the devices that can hold weights, the CPU excepted.

    Raises:
        BackendError: llama.cpp does not say which there are.
    """
    return [_name_of(device) for device in _devices() if not _is_cpu(device)]


@dataclass(frozen=True)
class Device:
    """A GPU that llama.cpp can use.

    name: llama.cpp's name, such as "CUDA0".
    description: The GPU's own name.
    free, total: Bytes of its memory.
    shares_host: Its memory is the host's.
    """

    name: str
    description: str
    free: int
    total: int
    shares_host: bool = False


def gpus(placement: Placement | None = None) -> list[Device]:
    """Return the GPUs that this build of llama.cpp can use, as a placement limits them.

    Raises:
        BackendError: As device_names.
    """
    by_type = {kind: [d for d in _devices() if _type_of(d) == kind] for kind in (_GPU, _INTEGRATED)}
    devices = [_read(device) for device in by_type[_GPU] or by_type[_INTEGRATED]]
    only = placement.devices if placement else ()
    return [one for one in devices if not only or one.name in only]


def device_lines() -> list[str]:
    """Return a line for each of those devices: its name, what it is, and its memory.

    Raises:
        BackendError: As device_names.
    """
    lines = []
    for one in (_read(device) for device in _devices() if not _is_cpu(device)):
        sizes = f"{one.total >> 20} MiB, {one.free >> 20} MiB free"
        lines.append(f"{one.name}: {one.description} ({sizes})")
    return lines


def host_memory() -> tuple[int, int]:
    """Return the free and all bytes of the host's memory, as llama.cpp knows them.

    Raises:
        BackendError: As device_names.
    """
    cpus = [_read(device) for device in _devices() if _is_cpu(device)]
    return (cpus[0].free, cpus[0].total) if cpus else (0, 0)


def stays_on_host(placement: Placement) -> list[re.Pattern[str]]:
    """Return patterns of the names of tensors that a placement keeps in the CPU's memory."""
    patterns = [re.compile(pattern) for pattern, memory in placement.buffers if memory == "CPU"]
    return patterns + [re.compile(pattern) for pattern in _cpu_patterns(placement)]


def _read(device: Any) -> Device:
    """Return what a device says of itself."""
    describe = function_of("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = function_of("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(device, free, total)
    name = _name_of(device)
    shares = _type_of(device) == _INTEGRATED or name.startswith(_APPLE)
    return Device(name, describe(device).decode(), free.value, total.value, shares)


def _overrides(placement: Placement) -> Iterator[_Override]:
    """Yield which tensors go to which kind of memory; what is said of single tensors comes first.

    Raises:
        InputError: There is no such kind of memory.
    """
    if placement.buffers:
        types = _buffer_types()
        for pattern, name in placement.buffers:
            _check(
                name in types,
                f"llama.cpp has no memory {name!r} for tensors; there is: {', '.join(types)}",
            )
            yield _Override(pattern.encode(), types[name])
    patterns = _cpu_patterns(placement)
    if patterns:
        cpu = function_of("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        yield from (_Override(pattern.encode(), cpu) for pattern in patterns)


def _cpu_patterns(placement: Placement) -> list[str]:
    """Return the patterns of experts and feed-forward networks that stay with the CPU."""
    patterns = []
    for count, pattern in ((placement.cpu_experts, _EXPERTS), (placement.cpu_dense, _DENSE)):
        layers = [""] if count == ALL else [rf"blk\.{layer}" for layer in range(count)]
        patterns += [layer + pattern for layer in layers]
    return patterns


def _buffer_types() -> dict[str, int]:
    """Return the kinds of memory by their names: one per device."""
    of_device = function_of("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = function_of("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    kinds = [kind for device in _devices() if (kind := of_device(device))]
    return {name(kind).decode(): kind for kind in kinds}


def _device(name: str) -> Any:
    by_name = function_of("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
    device = by_name(name.encode())
    if not device or _is_cpu(device):
        names = ", ".join([*device_names(), NO_DEVICE])
        raise InputError(f"llama.cpp has no device {name!r}; there is: {names}")
    return device


def _devices() -> list[Any]:
    count = function_of("ggml_backend_dev_count", ctypes.c_size_t)()
    at = function_of("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [at(index) for index in range(count)]


def _name_of(device: Any) -> str:
    name = function_of("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    return str(name(device).decode())


def _type_of(device: Any) -> int:
    return int(function_of("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(device))


def _is_cpu(device: Any) -> bool:
    return _type_of(device) == _CPU


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise InputError(message)
