"""Find and check the llama.cpp that llama-cpp-python loads, and catch its log."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec._native.hosts import llama as native_llama
from ngramspec.errors import BackendError
from ngramspec.messages import not_installed

# Functions that are called by address, without the GIL.
CALLED = (
    *("llama_decode", "llama_get_logits", "llama_get_memory", "llama_memory_clear"),
    *("llama_memory_seq_add", "llama_memory_seq_cp", "llama_memory_can_shift"),
    *("llama_memory_seq_pos_max", "llama_memory_seq_pos_min"),
    *("llama_memory_seq_rm", "llama_sampler_accept", "llama_sampler_apply", "llama_tokenize"),
    *("llama_sampler_clone", "llama_sampler_free"),
    "llama_vocab_is_eog",
)
# Other names that are needed and are new or changed in recent versions.
NEEDED = (
    *("LLAMA_LOAD_MODE_MMAP", "LLAMA_FLASH_ATTN_TYPE_AUTO", "LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY"),
    *("llama_init_from_model", "llama_n_rs_seq", "llama_sampler_init_penalties"),
    *("llama_sampler_init_grammar", "llama_state_seq_set_data_ext"),
    "llama_vocab_get_suppress_tokens",
)
SIZES = {"llama_batch": 56, "llama_token_data": 12, "llama_token_data_array": 32}
_LOADING = threading.Lock()
_LOG = threading.RLock()  # llama.cpp has one log callback per process
_MARK = "error loading model: "
_HEARD: dict[int, list[str]] = {}  # lines by the thread that wants them
_CALLBACKS: list[Any] = []  # kept for good: another thread may be about to call one


@dataclass(frozen=True)
class Library:
    """llama.cpp: its functions for Python, and the addresses of those that native code calls."""

    lib: Any  # the module llama_cpp.llama_cpp
    calls: dict[str, int]  # function name -> address

    @property
    def has_amx(self) -> bool:
        """Return whether it was built with AMX kernels, which crash if GCC compiled them.

        Source: llama.cpp issue 20824. They run only on weights that it repacks for them.
        """
        return b"AMX_INT8 = 1" in self.lib.llama_print_system_info()


class Handle:
    """An object of llama.cpp, freed once: by free(), when garbage-collected, or at exit."""

    def __init__(self, free: Callable[[Any], Any], address: Any, *needs: Any) -> None:
        self.address = address
        self._free = weakref.finalize(self, _free, free, address, needs)

    def free(self) -> None:
        """Free it, unless it is freed already."""
        self._free()


def _free(free: Callable[[Any], Any], address: Any, needs: tuple[Any, ...]) -> None:
    """Free something; `needs` stay alive until then."""
    free(address)


_LOADED: list[Library] = []


def load_library() -> Library:
    """Return llama.cpp.

    Raises:
        BackendError: llama-cpp-python is not installed, or its version does not fit.
    """
    with _LOADING:
        if not _LOADED:
            _LOADED.append(_load())
        return _LOADED[0]


def _load() -> Library:
    try:
        import llama_cpp.llama_cpp as lib
    except ImportError as error:
        raise BackendError(not_installed("this needs llama-cpp-python", "llama")) from error
    _check(lib)
    with caught_log(lib):
        lib.llama_backend_init()
    calls = {name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in CALLED}
    return Library(lib, calls)


def _check(lib: Any) -> None:
    """Raise BackendError unless the library has all that is used, laid out as expected."""
    advice = "ngramspec needs llama-cpp-python 0.3.36 or a compatible later version"
    missing = [name for name in (*CALLED, *NEEDED, *SIZES) if not hasattr(lib, name)]
    if missing:
        raise BackendError(f"llama.cpp lacks {', '.join(missing)}: {advice}")
    for name, size in SIZES.items():
        if (actual := ctypes.sizeof(getattr(lib, name))) != size:
            raise BackendError(f"{name} has {actual} bytes, expected {size}: {advice}")
    if len(lib.llama_sampler_init_penalties.argtypes) != 5:
        raise BackendError(f"llama_sampler_init_penalties takes other arguments: {advice}")


def catch_log(lib: Any) -> None:
    """Keep what llama.cpp logs for error messages; from now on it prints nothing."""
    with _LOG:
        lib.llama_log_set(lib.llama_log_callback(native_llama.log_address()), ctypes.c_void_p(0))


@contextmanager
def caught_log(lib: Any) -> Iterator[None]:
    """Keep what llama.cpp logs inside the block, then restore its log callback."""
    with _LOG:
        before, data = lib.llama_log_callback(), ctypes.c_void_p()
        lib.llama_log_get(ctypes.byref(before), ctypes.byref(data))
        catch_log(lib)
        try:
            yield
        finally:
            lib.llama_log_set(before, data)


@contextmanager
def heard_log(lib: Any) -> Iterator[list[str]]:
    """Collect all lines that this thread makes llama.cpp log inside the block.

    Warnings and errors are kept as catch_log does; what its callback was before is restored.
    """
    own = threading.get_ident()
    with _LOG:
        if not _CALLBACKS:
            _CALLBACKS.append(lib.llama_log_callback(_hear))
            _CALLBACKS.append(lib.llama_log_callback(native_llama.log_address()))
        before, data = lib.llama_log_callback(), ctypes.c_void_p()
        lib.llama_log_get(ctypes.byref(before), ctypes.byref(data))
        lines = _HEARD[own] = [""]
        lib.llama_log_set(_CALLBACKS[0], ctypes.c_void_p(0))
        try:
            yield lines
        finally:
            lib.llama_log_set(before, data)
            del _HEARD[own]


def _hear(level: int, text: bytes, user_data: Any) -> None:
    """Take a part of a log: the callback for llama_log_set, from any thread."""
    _CALLBACKS[1](level, text, user_data)
    lines = _HEARD.get(threading.get_ident())
    if lines is not None:
        first, *more = text.decode("utf-8", "replace").split("\n")
        lines[-1] += first
        lines.extend(more)


def load_model(library: Library, path: Path, params: Any) -> Handle:
    """Let llama.cpp load a model; its log must be caught.

    Raises:
        BackendError: It cannot; says why.
    """
    position = native_llama.log_position()
    address = library.lib.llama_model_load_from_file(os.fsencode(path), params)
    if not address:
        reason = reasons(native_llama.log_since(position))
        raise BackendError(f"llama.cpp cannot load {path}{reason}")
    return Handle(library.lib.llama_model_free, address)


def reasons(lines: Iterable[str]) -> str:
    """Return what llama.cpp's log says about a failure, as the end of a message; "" for nothing."""
    lines = [line for line in lines if line]
    marked = [line.partition(_MARK)[2] for line in lines if _MARK in line]
    texts = marked or [line.partition(": ")[2] or line for line in lines]  # without function names
    return f": {'; '.join(dict.fromkeys(texts))}" if texts else ""


def function_of(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml's library.

    Args:
        name: Its name in C.
        result: ctypes type of what it returns, None for nothing.
        arguments: ctypes types of its arguments.

    Raises:
        BackendError: This build of llama.cpp does not have it.
    """
    try:
        from llama_cpp._ggml import libggml

        function = libggml[name]  # a new object, whose types nobody else sets
    except (ImportError, AttributeError) as error:
        raise BackendError(f"this build of llama.cpp has no {name}") from error
    function.restype, function.argtypes = result, arguments
    return function
