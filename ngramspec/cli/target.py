"""What the options of a command say about the target: the model and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ngramspec.adapters.llama_cpp.exact import find_exact, open_exact
from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.settings import ContextSettings, physical_cores
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.errors import InputError
from ngramspec.models import embedded_model

ALL_LAYERS = -1


def open_model(options: Mapping[str, Any]) -> LlamaModel:
    """Load the target model.

    Raises:
        FormatError, OSError: The file cannot be read.
        BackendError: llama.cpp cannot load it.
    """
    return LlamaModel(
        options["model"] or embedded_model(),
        n_gpu_layers=layers_of(options["n_gpu_layers"], "--n-gpu-layers"),
        use_mmap=options["mmap"],
        use_mlock=options["mlock"],
    )


def open_target(options: Mapping[str, Any], model: LlamaModel) -> LlamaTarget:
    """Return the target; with --exact in a setting that was tried.

    Raises:
        InputError: A setting is out of its bounds.
        BackendError: llama.cpp cannot run it, or the model has no exact setting.
    """
    if options["exact"]:
        threads = options["threads"] or (None if options["model"] else 1)
        return _open_exact(options, model, threads or physical_cores(), context_size(options))
    return LlamaTarget(model, context_settings(options))


def context_settings(options: Mapping[str, Any]) -> ContextSettings:
    """Return the settings of the target, those without --exact.

    Raises:
        InputError: A setting is out of its bounds.
    """
    slots = options["parallel"]
    threads = options["threads"] or (None if options["model"] else 1)
    unified = bool(options["kv_unified"])
    return ContextSettings(
        slots=slots,
        context_size=context_size(options),
        n_batch=max(options["batch_size"], slots),
        n_ubatch=options["ubatch_size"],
        threads=threads,
        threads_batch=options["threads_batch"] or threads,
        flash_attn={"on": True, "off": False}.get(options["flash_attn"], "auto"),
        type_k=options["cache_type_k"],
        type_v=options["cache_type_v"],
        kv_unified=unified,
        cells=options["ctx_size"] if unified else 0,
    )


def _open_exact(
    options: Mapping[str, Any], model: LlamaModel, threads: int, size: int
) -> LlamaTarget:
    """Return a target in a setting that was found to be exact by trying."""
    slots, cache_type = options["parallel"], options["cache_type_k"]
    if cache_type != options["cache_type_v"]:
        raise InputError("--exact needs one type for keys and values")
    click.echo("looking for an exact setting ...", err=True)
    found = find_exact(model, threads, slots, cache_type)
    target = open_exact(model, found, slots, size)
    click.echo(f"exact: {found.setting.text()}, batches up to {target.exact_batch}", err=True)
    return target


def context_size(options: Mapping[str, Any]) -> int:
    """Return the tokens of one slot, 0 = as trained; slots share them with --kv-unified.

    Raises:
        InputError: The context is too small for the slots.
    """
    total, slots = options["ctx_size"], options["parallel"]
    if total and total < slots:
        raise InputError(f"--ctx-size {total} is less than a token for each of {slots} slots")
    shared = options["kv_unified"] and not options["exact"]
    return int(total if shared else total // slots)


def layers_of(text: str | None, flag: str) -> int:
    """Return how many layers an option puts on the GPU, -1 = all.

    Raises:
        InputError: It is neither a number nor "all".
    """
    if text is None or text in ("auto", ""):
        return 0
    if text == "all":
        return ALL_LAYERS
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag} must be a number or all, got {text!r}") from None
