"""llama-cpp-python: drafts for a Llama by attach(), a target for the engine.

Importing this package does not import llama_cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngramspec.adapters.llama_cpp.attach import Attachment, attach
from ngramspec.adapters.llama_cpp.draft import DraftCounters, NgramDraft

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.adapters.llama_cpp.target import LlamaTarget

__all__ = [
    "Attachment",
    "DraftCounters",
    "LlamaModel",
    "LlamaTarget",
    "NgramDraft",
    "attach",
]


def __getattr__(name: str) -> Any:
    if name == "LlamaModel":
        from ngramspec.adapters.llama_cpp.model import LlamaModel

        return LlamaModel
    if name == "LlamaTarget":
        from ngramspec.adapters.llama_cpp.target import LlamaTarget

        return LlamaTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
