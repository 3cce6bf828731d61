"""vLLM: a proposer for `method="custom_class"`, and a plugin that serves `method="suffix"`.

Importing this package does not import vllm.
"""

from __future__ import annotations

from ngramspec.hosts.vllm.proposer import Proposer

__all__ = ["Proposer"]
