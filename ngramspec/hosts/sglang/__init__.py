"""SGLang: a plugin that lets the NGRAM algorithm draft from our drafters instead of its corpus.

Importing this package does not import sglang.
"""

from __future__ import annotations

from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.plugin import plugin

__all__ = ["Corpus", "plugin"]
