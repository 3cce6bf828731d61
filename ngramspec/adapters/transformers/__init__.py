"""Hugging Face transformers: drafts for generate(), through its custom_generate hook.

Importing this package does not import transformers or torch.
"""

from __future__ import annotations

from ngramspec.adapters.transformers.generate import ngramspec_generate
from ngramspec.adapters.transformers.speculator import NgramSpeculator

__all__ = ["NgramSpeculator", "ngramspec_generate"]
