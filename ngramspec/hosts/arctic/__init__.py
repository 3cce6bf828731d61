"""Arctic Inference: its SuffixDecodingCache over our drafter, for engines that import Arctic's.

Importing this package does not import arctic_inference.
"""

from __future__ import annotations

from ngramspec.hosts.arctic.cache import SuffixDecodingCache, SuffixDecodingDraft

__all__ = ["SuffixDecodingCache", "SuffixDecodingDraft"]
