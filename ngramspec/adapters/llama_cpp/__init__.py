"""The llama-cpp-python drop-in: drafts for a plain Llama, and attach() for the full gain.

Importing this package does not import llama_cpp.
"""

from __future__ import annotations

from ngramspec.adapters.llama_cpp.attach import attach
from ngramspec.adapters.llama_cpp.attachment import Attachment
from ngramspec.adapters.llama_cpp.counters import DraftCounters
from ngramspec.adapters.llama_cpp.draft import NgramDraft
from ngramspec.adapters.llama_cpp.generate import (
    Generation,
    TokenEvent,
    generate_tokens,
    stream_tokens,
)

__all__ = [
    "Attachment",
    "DraftCounters",
    "Generation",
    "NgramDraft",
    "TokenEvent",
    "attach",
    "generate_tokens",
    "stream_tokens",
]
