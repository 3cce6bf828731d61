"""llama.cpp as the engine's target: models, contexts, memory, draft models, exact settings.

Importing this package does not import llama_cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.target import LlamaTarget

__all__ = ["LlamaModel", "LlamaTarget"]


def __getattr__(name: str) -> Any:
    if name == "LlamaModel":
        from ngramspec.llamacpp.model import LlamaModel

        return LlamaModel
    if name == "LlamaTarget":
        from ngramspec.llamacpp.target import LlamaTarget

        return LlamaTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
