"""Options that say how the target runs, with llama-server's names; serve and bench have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ngramspec.cli.group import SectionOption
from ngramspec.cli.options import Function

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
THREADS = click.IntRange(1, 512)


def option(section: str, *flags: str, env: str = "", **settings: Any) -> Any:
    """Return an option under a heading; `env` is the end of a LLAMA_ARG_ variable."""
    if isinstance(settings.get("type"), (click.IntRange, click.FloatRange)):
        settings.setdefault("metavar", "N")
    settings.setdefault("show_default", settings.get("default") not in (None, (), False))
    if env:
        settings["envvar"] = env if env.startswith("LLAMA_") else f"LLAMA_ARG_{env}"
    return click.option(*flags, cls=SectionOption, section=section, **settings)


# By name: flags and settings.
RUNNING: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "n_gpu_layers": (
        ("-ngl", "--n-gpu-layers", "--gpu-layers", "n_gpu_layers"),
        {"env": "N_GPU_LAYERS", "metavar": "N",
         "help": "Layers on the GPU: a number, or all.  [default: 0]"},
    ),
    "batch_size": (
        ("-b", "--batch-size"),
        {"env": "BATCH", "type": click.IntRange(1), "default": 2048,
         "help": "Tokens in one decode."},
    ),
    "ubatch_size": (
        ("-ub", "--ubatch-size"),
        {"env": "UBATCH", "type": click.IntRange(1), "default": 512,
         "help": "Tokens that are computed at once."},
    ),
    "threads": (
        ("-t", "--threads"),
        {"env": "THREADS", "type": THREADS,
         "help": "Default: one per core; 1 for the embedded model."},
    ),
    "threads_batch": (
        ("-tb", "--threads-batch"),
        {"env": "THREADS_BATCH", "type": THREADS,
         "help": "Threads for prompts.  [default: --threads]"},
    ),
    "flash_attn": (
        ("-fa", "--flash-attn"),
        {"env": "FLASH_ATTN", "default": "auto", "metavar": "[on|off|auto]",
         "type": click.Choice(["on", "off", "auto"]), "help": "Flash attention."},
    ),
    "cache_type_k": (
        ("-ctk", "--cache-type-k"),
        {"env": "CACHE_TYPE_K", "default": "f16", "metavar": "TYPE",
         "type": click.Choice(CACHE_TYPES), "help": "Type of the cached keys."},
    ),
    "cache_type_v": (
        ("-ctv", "--cache-type-v"),
        {"env": "CACHE_TYPE_V", "default": "f16", "metavar": "TYPE",
         "type": click.Choice(CACHE_TYPES), "help": "Type of the cached values."},
    ),
    "exact": (
        ("--exact",),
        {"is_flag": True,
         "help": "Bit-exact setting: drafts cannot change a token. Tried at start; fails where "
         "the model has none."},
    ),
}  # fmt: skip


def running(section: str, name: str) -> Any:
    """Return one of the options of RUNNING."""
    flags, settings = RUNNING[name]
    return option(section, *flags, **settings)


def running_options(section: str) -> Callable[[Function], Function]:
    """Add all of them to a command."""

    def add(function: Function) -> Function:
        for name in reversed(RUNNING):
            function = running(section, name)(function)
        return function

    return add
