"""Options that fit layers and context to free memory, with llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ngramspec.cli.llama_cpp.words import Switch, numbers_in
from ngramspec.cli.options import AT_LEAST_1, Decorator, option, options
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.llamacpp.fit import Limits

WHOLE = 1 << 31  # tokens: no context is cut below it
MIB = 1 << 20
GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def fit_options(section: str) -> Decorator:
    """Return the options."""
    return options(
        option(section, "-fit", "--fit", "fit", env="FIT", type=Switch(auto=False), default="on",
               metavar="[on|off]",
               help="Fit layers and context that no option sets to free memory, and refuse what "
               "cannot fit."),
        option(section, "-fitt", "--fit-target", "fit_target", env="FIT_TARGET", metavar="MiB,...",
               help="Memory to leave free, of each GPU, or of the host without GPUs.  [default: "
               "1024, or a quarter of what is free]"),
        option(section, "-fitc", "--fit-ctx", "fit_ctx", env="FIT_CTX", type=AT_LEAST_1,
               default=4096, help="Context that --fit leaves each slot at least, in tokens."),
    )  # fmt: skip


# Options that contradict --exact, by the names of the settings that they set.
EXACT_FLAGS = {
    "exact": "--exact",
    "flash_attn": "--flash-attn off",
    "threads_batch": "--threads-batch",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    "kv_unified": "--kv-unified",
    "n_gpu_layers": "--n-gpu-layers, or set it to 0",
}


def take_whole(ctx: click.Context, values: dict[str, Any]) -> None:
    """Let no context be cut where a user asks for --ctx-size 0; without it, memory may cut it."""
    if not values["ctx_size"] and ctx.get_parameter_source("ctx_size") in GIVEN:
        values["fit_ctx"] = WHOLE


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Return how much a model may take, as a command's options say; without them the default.

    Raises:
        InputError: --fit-target is no list of numbers.
    """
    from ngramspec.llamacpp.fit import Limits, Words

    targets = numbers_in(values.get("fit_target"), "--fit-target")
    if any(not 0 <= target < WHOLE for target in targets):
        raise InputError(f"--fit-target must be MiB from 0 on, got {values['fit_target']}")
    words = Words("-c", "-np", "-ngl", "-ub", "--fit off", total=True, exact=EXACT_FLAGS)
    return Limits(
        enabled=values.get("fit", "on") == "on",
        margins=tuple(int(target * MIB) for target in targets),
        least=values.get("fit_ctx") or 1,
        words=words,
    )
