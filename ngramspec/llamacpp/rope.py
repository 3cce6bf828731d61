"""Rope: how positions are encoded, where it is not to be as the model says: for longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ngramspec.errors import InputError

SCALINGS = ("none", "linear", "yarn")
YARN = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """What is to be instead of the model's own; the defaults leave that.

    Source: llama.cpp's parameters of the same names.
    """

    scaling: str | None = None  # of SCALINGS
    freq_base: float = 0.0
    freq_scale: float = 0.0  # 1 / N stretches the context N times
    yarn_orig_ctx: int = 0  # tokens of context that the model was trained with
    yarn_ext_factor: float = -1.0  # these four: negative = as the model says
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: A value is out of its bounds.
        """
        if self.scaling not in (None, *SCALINGS):
            choices = ", ".join(SCALINGS)
            raise InputError(f"rope scaling must be one of {choices}, got {self.scaling!r}")
        for name in ("freq_base", "freq_scale"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"{name} must be finite and not negative, got {value}")
        for name in YARN:
            if not math.isfinite(value := getattr(self, name)):
                raise InputError(f"{name} must be finite, got {value}")
        if not 0 <= self.yarn_orig_ctx < 1 << 31:
            raise InputError(f"yarn_orig_ctx must be in 0..2147483647, got {self.yarn_orig_ctx}")


def apply_rope(rope: Rope, lib: Any, params: Any) -> None:
    """Set it in llama_context_params."""
    if rope.scaling is not None:
        params.rope_scaling_type = getattr(lib, f"LLAMA_ROPE_SCALING_TYPE_{rope.scaling.upper()}")
    params.rope_freq_base, params.rope_freq_scale = rope.freq_base, rope.freq_scale
    params.yarn_orig_ctx = rope.yarn_orig_ctx
    for name in YARN:
        setattr(params, name, getattr(rope, name))
