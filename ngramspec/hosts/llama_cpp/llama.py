"""Llama: llama_cpp's own with drafts attached, for apps that can change an import."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import llama_cpp

from ngramspec.errors import BackendError
from ngramspec.hosts.llama_cpp.attach import attach
from ngramspec.hosts.llama_cpp.draft import NgramDraft

log = logging.getLogger(__name__)


class Llama(llama_cpp.Llama):
    """A llama_cpp.Llama that drafts: the same arguments, methods and text.

    `draft_model=NgramDraft(...)` chooses the drafts, None is NgramDraft(); `draft_model` of the
    object counts what they did. There are none, and one line in the log says why, for another draft
    model, which then works as in llama_cpp; with logits_all=True, which keeps the scores and
    logprobs that attach() does not; with vocab_only=True; and where attach() refuses: embeddings,
    recurrent and hybrid models, n_batch=1.

    Raises:
        VocabMismatchError: A statistics file of the NgramDraft was built with another tokenizer.
        Whatever llama_cpp.Llama raises.

    Cost: as llama_cpp.Llama, and O(n_batch). Threads: as llama_cpp.Llama.
    """

    if not TYPE_CHECKING:  # which takes llama_cpp's own signature

        @functools.wraps(llama_cpp.Llama.__init__)
        def __init__(self, *args: Any, draft_model: Any = None, **kwargs: Any) -> None:
            other = draft_model is not None and not isinstance(draft_model, NgramDraft)
            super().__init__(*args, draft_model=draft_model if other else None, **kwargs)
            reason = ""
            if other:
                reason = f"draft_model is a {type(draft_model).__name__}"
            elif self._logits_all:
                reason = "logits_all=True keeps the scores of every token"
            elif self.model_params.vocab_only:
                reason = "vocab_only=True"
            else:
                try:
                    attach(self, draft_model or NgramDraft())
                except BackendError as error:
                    reason = str(error)
            if reason:
                log.warning("ngramspec.Llama does not draft: %s", reason)
