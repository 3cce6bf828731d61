"""open_draft_model: a second, smaller model as a draft source beside a target."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

from ngramspec.engine.sources.draft_model import (
    N_MAX,
    N_MIN,
    P_MIN,
    DraftModel,
    vocabulary_difference,
)
from ngramspec.engine.sources.spelling import Speller
from ngramspec.engine.sources.translated_model import TranslatedDraftModel
from ngramspec.engine.sources.translation import Translator, check_texts
from ngramspec.errors import BackendError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.placement import AUTO, Placement
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.tokenizers.llama_vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class DraftModelSettings:
    """A draft model: its file, how it drafts, and how it runs."""

    path: str | os.PathLike[str]
    name: str = ""  # what to call it; "" = as its file
    n_max: int = N_MAX  # longest draft
    n_min: int = N_MIN  # shorter drafts are dropped
    p_min: float = P_MIN  # a draft ends before a token that is less probable
    # where its weights lie; auto: on the GPU if all of the target's are
    placement: Placement = field(default_factory=lambda: Placement(AUTO))
    context_size: int = 0  # tokens per slot, 0 = as the target
    threads: int | None = None  # None = as the target
    threads_batch: int | None = None  # None = as the target, or as threads
    type_k: str = "f16"
    type_v: str = "f16"
    # strings of the target's texts, such as chat markers, and what stands for them in the draft
    # model's, where that has another vocabulary
    replace: tuple[tuple[str, str], ...] = ()


ASSISTANT = "-assistant"  # how the names of such families end
NO_EXCHANGE = "--spec-replace does nothing: the draft model has the target's vocabulary"


def open_draft_model(
    settings: DraftModelSettings, target: LlamaTarget, stack: contextlib.ExitStack
) -> DraftModel:
    """Load a draft model for all slots of a target; the stack closes it.

    Raises:
        FormatError, OSError: The file cannot be read.
        InputError: A setting is out of its bounds, the model cannot take tokens back, or a string
            to replace is empty.
        BackendError: llama.cpp cannot run it, or its vocabulary differs from the target's and one
            of them changes texts.

    A model of another vocabulary drafts through text.
    """
    model = stack.enter_context(LlamaModel(settings.path, placement=settings.placement))
    if model.architecture.endswith(ASSISTANT):
        raise BackendError(
            f"{model.path.name} is an MTP assistant, which needs the target's cache: open it with "
            "--spec-type draft-mtp, or MtpSettings(path=...)"
        )
    context = draft_context(settings, target.settings, target.context_size)
    small = stack.enter_context(LlamaTarget(model, context))
    difference = vocabulary_difference(target, small)
    options: dict[str, Any] = {
        "n_max": settings.n_max,
        "n_min": settings.n_min,
        "p_min": settings.p_min,
        "label": settings.name,
        "path": os.fspath(settings.path),
        "nbytes": model.size_bytes + small.buffers.total,
    }
    if difference:
        vocabularies = target.model.vocabulary, model.vocabulary
        translator = _translator(*vocabularies, settings, difference)
        return TranslatedDraftModel(small, translator, target.context_size, **options)
    source = DraftModel(small, **options)
    if settings.replace:
        source.info = dataclasses.replace(source.info, notes=(NO_EXCHANGE,))
    return source


def _translator(
    target: Vocabulary, draft: Vocabulary, settings: DraftModelSettings, difference: str
) -> Translator:
    """Return what translates between two vocabularies that differ.

    Raises:
        BackendError: No text can go from one to the other.
        InputError: A string to replace is empty.
    """
    try:
        own, other = (Speller(one, one.special["bos"], one.add_bos) for one in (target, draft))
        check_texts(own, "target's")
        check_texts(other, "draft model's")
    except BackendError as error:
        raise BackendError(f"{difference}, and {error}") from None
    translator = Translator(own, other, settings.replace)
    translator.prepare()
    return translator


def draft_context(
    settings: DraftModelSettings, own: ContextSettings, context_size: int
) -> ContextSettings:
    """Return how a draft model's context is made, for a target's settings and tokens per slot."""
    threads = settings.threads
    return dataclasses.replace(
        own,
        context_size=settings.context_size or context_size,
        threads=threads or own.threads,
        threads_batch=settings.threads_batch or threads or own.threads_batch,
        flash_attn="auto",
        type_k=settings.type_k,
        type_v=settings.type_v,
        kv_unified=False,
        cells=0,
        max_outputs=0,
        n_rs_seq=0,  # a state is saved instead: snapshots reach back one decode only
        pad=False,
        branches=1,
    )
