"""llama-cpp-python: drafts for a plain Llama, attach() for the full gain, a target for the engine.

Importing this package does not import llama_cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngramspec.adapters.llama_cpp.attach import attach
from ngramspec.adapters.llama_cpp.attachment import Attachment
from ngramspec.adapters.llama_cpp.counters import DraftCounters
from ngramspec.adapters.llama_cpp.draft import NgramDraft

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
