"""attach(): let one Llama use drafts, without a fork."""

from __future__ import annotations

import logging
from typing import Any

from ngramspec.adapters.llama_cpp.attachment import Attachment, check_llama
from ngramspec.adapters.llama_cpp.draft import DEFAULT_SPEC, NgramDraft
from ngramspec.adapters.llama_cpp.statistics import files_among
from ngramspec.errors import InputError, VocabMismatchError
from ngramspec.tokenizers import fingerprint_of_llama

log = logging.getLogger(__name__)


def attach(llama: Any, spec: Any = DEFAULT_SPEC, **params: Any) -> Attachment:
    """Let a Llama use drafts, without a score matrix or logits at prompt positions.

    Works for a Llama with and without draft_model, any n_batch, any n_ctx, and with set_cache,
    save_state and load_state; states saved while attached carry no scores. Attach before the first
    request: then the score matrix never takes memory. Another draft model of the Llama rests until
    detach(), with a warning in the log.

    Args:
        llama: A llama_cpp.Llama that is not attached yet.
        spec: Drafter names, comma-separated, or a ready NgramDraft.
        params: As for NgramDraft (max_draft, slots, policy, pool, drafter parameters).

    Returns:
        The Attachment; it does not keep the Llama alive.

    Raises:
        InputError: Bad spec or parameters, or `llama` is not a Llama.
        VocabMismatchError: A statistics file was built with another tokenizer.
        FormatError, OSError: As create_drafter, for statistics files.
        StateError: Already attached, or closed.
        BackendError: The model cannot take back tokens (recurrent, hybrid), the Llama serves
            embeddings, or this llama-cpp-python lacks what attach() relies on.

    Cost: O(n_batch). Threads: as the Llama.
    """
    check_llama(llama)
    if isinstance(spec, NgramDraft):
        if params:
            raise InputError(f"a ready NgramDraft takes no parameters, got {sorted(params)}")
        draft = spec
    else:
        if files_among(params):
            params.setdefault("tokenizer", fingerprint_of_llama(llama))
        draft = NgramDraft(spec, **params)
    host = draft.bind(llama)
    if host.refusal:
        raise VocabMismatchError(host.refusal)
    before = llama.draft_model
    if before is not None and not isinstance(before, NgramDraft):
        log.warning("%r drafts from now on; %s rests until detach()", draft, type(before).__name__)
    return Attachment(llama, draft, host)
