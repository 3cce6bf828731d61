"""Hugging Face transformers: drafts for generate(), through its custom_generate hook.

Importing this package does not import transformers or torch.
"""

from __future__ import annotations

from ngramspec.hosts.transformers.generate import ngramspec_generate
from ngramspec.hosts.transformers.speculator import NgramSpeculator

__all__ = ["NgramSpeculator", "ngramspec_generate"]
