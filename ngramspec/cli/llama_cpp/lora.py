"""Options that load LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.cli.llama_cpp.words import rows_in
from ngramspec.cli.options import Decorator, option, options
from ngramspec.errors import InputError

SECTION = "Adapters"


def lora_options() -> Decorator:
    """Return the options of adapters."""
    return options(
        option(SECTION, "--lora", multiple=True, metavar="FILE",
               help="LoRA adapters in GGUF, comma-separated (repeatable)."),
        option(SECTION, "--lora-scaled", multiple=True, metavar="FILE:SCALE",
               help="The same with scales; 0: not applied."),
        option(SECTION, "--lora-init-without-apply", is_flag=True,
               help="Apply adapters only to requests that name them in `lora`, or after POST "
               "/lora-adapters."),
    )  # fmt: skip


def adapters_of(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return files of adapters and their scales, in the order of their numbers.

    Raises:
        InputError: A scale is missing or no number.
    """
    adapters = [(path, 1.0) for path in rows_in(values.get("lora", ()))]
    for text in rows_in(values.get("lora_scaled", ())):
        path, mark, scale = text.rpartition(":")
        try:
            adapters.append((path, float(scale)))
        except ValueError:
            mark = ""
        if not (path and mark):
            raise InputError(f"--lora-scaled must be FILE:SCALE, got {text!r}")
    if values.get("lora_init_without_apply"):
        return [(path, 0.0) for path, _ in adapters]
    return adapters
