"""function_of: functions of ggml that llama-cpp-python does not declare; its types of caches."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import BackendError

# Of cached keys and values.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


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
