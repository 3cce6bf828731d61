"""llama-cpp-python: drafts for a Llama by attach(), or by its `draft_model=`.

Importing this package does not import llama_cpp.
"""

from ngramspec.hosts.llama_cpp.attach import Attachment, attach
from ngramspec.hosts.llama_cpp.draft import DraftCounters, NgramDraft

__all__ = ["Attachment", "DraftCounters", "NgramDraft", "attach"]
