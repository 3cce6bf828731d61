"""The entry point sglang.srt.plugins: SGLang's NGRAM algorithm uses our drafters if asked to."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from ngramspec.engine.sources.pools import Pools
from ngramspec.hosts.sglang.contract import CLASS, CORPUS, HOOKS, METHOD, WORKER, differences
from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.settings import read_settings

SWITCH = "NGRAMSPEC_SGLANG"
log = logging.getLogger("ngramspec")


def plugin() -> None:
    """Replace SGLang's corpus by ours, if NGRAMSPEC_SGLANG is set to 1.

    If SGLang is not as expected or the settings are wrong, that is logged and SGLang drafts by
    itself. SGLang calls this in each of its processes.
    """
    if os.environ.get(SWITCH, "") in ("", "0"):
        return
    try:
        changed = differences(_read, Corpus)
        if changed:
            log.warning(
                "%s is set, but this SGLang differs from what ngramspec expects: %s. It drafts by "
                "itself", SWITCH, "; ".join(changed),
            )  # fmt: skip
            return
        settings = read_settings()
        settings.make(Pools(settings.params), 1)  # raises before anything is replaced
        hooks: Any = importlib.import_module(HOOKS)
        register, kinds = hooks.HookRegistry.register, hooks.HookType
        register(f"{CORPUS}.{CLASS}", Corpus, kinds.REPLACE)
        register(f"{WORKER}.NGRAMWorker.{METHOD}", meet, kinds.BEFORE)
        log.info("SGLang's NGRAM algorithm drafts with ngramspec: %s", settings.spec)
    except Exception:
        log.exception("%s: SGLang drafts by itself", SWITCH)


def meet(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Pass the whole texts of new requests to our corpus, before the worker passes their ends."""
    corpus = getattr(worker, "ngram_corpus", None)
    if isinstance(corpus, Corpus):
        config = getattr(getattr(worker, "model_runner", None), "model_config", None)
        corpus.meet(getattr(batch, "reqs", ()), getattr(config, "vocab_size", 0))


def _read(module: str) -> str:
    """Return the source of a module of SGLang, without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("sglang is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return (folder.joinpath(*module.split(".")[1:]).with_suffix(".py")).read_text("utf-8")
