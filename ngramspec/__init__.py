"""Draftless speculative decoding: n-gram drafters that propose from earlier text.

LLM: a GGUF model with drafts, for many requests at a time.
Llama: llama_cpp's, with drafts. attach, NgramDraft: drafts in a llama_cpp.Llama of yours.
create_drafter, with AutoPolicy and SuffixPool: drafts for an engine of your own.
ngramspec.verify: what a pass over a draft says stays.
ngramspec.errors: what is raised.

Importing the package loads numpy and the native modules only; the rest comes at first use.
"""

from typing import TYPE_CHECKING, Any

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.cache.static import StaticCache
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.mod.pool import HashPool
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.recycle.successors import SuccessorPool
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec._version import __version__
from ngramspec.drafting import DRAFTER_NAMES, create_drafter
from ngramspec.files.llama_lookup import read_lookup_cache, write_lookup_cache
from ngramspec.models import embedded_model
from ngramspec.stats import Replay, SourceStats

if TYPE_CHECKING:
    from ngramspec.files.cache_file import open_cache
    from ngramspec.files.dynamic_file import DynamicFile
    from ngramspec.files.pool_file import open_pool
    from ngramspec.files.suffix_file import open_suffix_index
    from ngramspec.hosts.llama_cpp.attach import attach
    from ngramspec.hosts.llama_cpp.draft import NgramDraft
    from ngramspec.hosts.llama_cpp.llama import Llama as Llama
    from ngramspec.hosts.transformers.generate import ngramspec_generate
    from ngramspec.hosts.transformers.speculator import NgramSpeculator
    from ngramspec.llm import LLM

__all__ = [
    "DRAFTER_NAMES",
    "LLM",
    "AutoPolicy",
    "Drafter",
    "DynamicFile",
    "HashPool",
    "NgramCache",
    "NgramDraft",
    "NgramSpeculator",
    "Replay",
    "SourceStats",
    "StaticCache",
    "SuccessorPool",
    "SuffixPool",
    "__version__",
    "attach",
    "create_drafter",
    "embedded_model",
    "ngramspec_generate",
    "open_cache",
    "open_pool",
    "open_suffix_index",
    "read_lookup_cache",
    "write_lookup_cache",
]

# Loaded when first used, so that importing the package stays light.
_LATE = {
    "LLM": "ngramspec.llm",
    "DynamicFile": "ngramspec.files.dynamic_file",
    "Llama": "ngramspec.hosts.llama_cpp.llama",  # not in __all__: it imports llama_cpp
    "NgramDraft": "ngramspec.hosts.llama_cpp",
    "NgramSpeculator": "ngramspec.hosts.transformers",
    "attach": "ngramspec.hosts.llama_cpp",
    "ngramspec_generate": "ngramspec.hosts.transformers",
    "open_cache": "ngramspec.files.cache_file",
    "open_pool": "ngramspec.files.pool_file",
    "open_suffix_index": "ngramspec.files.suffix_file",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        import importlib

        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are loaded at first use."""
    return sorted({*__all__, *_LATE})
