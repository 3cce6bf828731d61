"""Options for contexts longer than a model was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.options import COUNT, Decorator, NumberRange, option, options

if TYPE_CHECKING:
    from ngramspec.llamacpp.rope import Rope

SECTION = "Longer contexts"
ABOVE_0 = NumberRange(0, min_open=True)
YARN = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast")


def rope_options() -> Decorator:
    """Return the options of RoPE."""
    return options(
        option(SECTION, "--rope-scaling", env="ROPE_SCALING_TYPE", metavar="METHOD",
               type=click.Choice(["none", "linear", "yarn"]),
               help="none, linear or yarn.  [default: the model's]"),
        option(SECTION, "--rope-scale", env="ROPE_SCALE", type=ABOVE_0,
               help="Stretch the context N times."),
        option(SECTION, "--rope-freq-base", env="ROPE_FREQ_BASE", type=NumberRange(0),
               help="Base frequency.  [default: the model's]"),
        option(SECTION, "--rope-freq-scale", env="ROPE_FREQ_SCALE", type=NumberRange(0),
               help="1 / N is --rope-scale N."),
        option(SECTION, "--yarn-orig-ctx", env="YARN_ORIG_CTX", type=COUNT, default=0,
               help="Context that the model was trained with; 0: the model's."),
        option(SECTION, "--yarn-ext-factor", env="YARN_EXT_FACTOR", type=float, metavar="N",
               help="Mix of extrapolation, 0: interpolation only."),
        option(SECTION, "--yarn-attn-factor", env="YARN_ATTN_FACTOR", type=float, metavar="N",
               help="Scale of attention."),
        option(SECTION, "--yarn-beta-slow", env="YARN_BETA_SLOW", type=float, metavar="N",
               help="High correction dimension."),
        option(SECTION, "--yarn-beta-fast", env="YARN_BETA_FAST", type=float, metavar="N",
               help="Low correction dimension."),
    )  # fmt: skip


def rope_of(values: Mapping[str, Any]) -> Rope:
    """Return what the options say; of those that a command does not have, nothing.

    Raises:
        click.UsageError: Two options give the scale.
        InputError: A value is out of its bounds.
    """
    from ngramspec.llamacpp.rope import Rope

    scale, freq_scale = values.get("rope_scale"), values.get("rope_freq_scale")
    if scale is not None and freq_scale is not None:
        raise click.UsageError("give either --rope-scale or --rope-freq-scale")
    yarn = {name: values[name] for name in YARN if values.get(name) is not None}
    return Rope(
        scaling=values.get("rope_scaling"),
        freq_base=values.get("rope_freq_base") or 0.0,
        freq_scale=1 / scale if scale is not None else freq_scale or 0.0,
        yarn_orig_ctx=values.get("yarn_orig_ctx") or 0,
        **yarn,
    )
