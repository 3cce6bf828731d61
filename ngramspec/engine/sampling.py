"""Sampling: how the target's tokens are chosen, with llama.cpp's parameters and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from ngramspec.errors import InputError

MAX_BIASES = 1 << 14  # entries of logit_bias
MAX_BIAS = 1e9  # below the largest single-precision float
MAX_BREAKERS = 64  # dry_sequence_breakers: each is compared with the whole vocabulary
# llama.cpp's order.
SAMPLERS = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
)
MORE_SAMPLERS = ("infill",)  # only where asked for
DRY_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Parameters of one request's sampler chain; the defaults are llama-server's.

    temperature 0 with neutral penalties and no grammar is greedy decoding.
    """

    temperature: float = 0.8  # 0 takes the likeliest token
    dynatemp_range: float = 0.0  # how far temperature varies with the entropy
    dynatemp_exponent: float = 1.0
    top_k: int = 40  # 0 = all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0  # off when negative
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0  # fewest candidates that the filters leave
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # tokens looked back on, -1 = the whole context
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0 = off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    mirostat: int = 0  # 0, 1 or 2; replaces the filters
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    grammar: str = ""  # GBNF with a rule "root", or Lark that begins with "%llguidance"
    seed: int | None = None  # None = random; Generation.seed has the one used
    ignore_eos: bool = False  # end tokens are never chosen
    samplers: tuple[str, ...] = SAMPLERS  # which may be used, in this order; see SAMPLERS

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: A value has the wrong type or is out of its bounds.
        """
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            kinds = int if isinstance(low, int) else (int, float)
            number = isinstance(value, kinds) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise InputError(f"{name} must be in {low}..{high}, got {value!r}")
        seed = self.seed
        if seed is not None and not (type(seed) is int and 0 <= seed < 1 << 32):
            raise InputError(f"seed must be in 0..4294967295, got {seed!r}")
        if not isinstance(self.grammar, str):
            raise InputError(f"grammar must be a text, got {self.grammar!r:.80}")
        breakers = self.dry_sequence_breakers
        if not are_texts(breakers):
            raise InputError(f"dry_sequence_breakers must be texts, got {breakers!r:.80}")
        if len(breakers) > MAX_BREAKERS:
            raise InputError(
                f"dry_sequence_breakers must be at most {MAX_BREAKERS}, got {len(breakers)}"
            )
        # Hashable: what is made of them is kept by them.
        object.__setattr__(self, "dry_sequence_breakers", tuple(breakers))
        choices, named = (*SAMPLERS, *MORE_SAMPLERS), self.samplers
        if not (are_texts(named) and len(set(named).intersection(choices)) == len(named)):
            text = f"{named!r:.200}"
            raise InputError(
                f"samplers must be some of {', '.join(choices)}, each once, got {text}"
            )
        self._check_biases()

    def _check_biases(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            text = f"{self.logit_bias!r:.80}"
            raise InputError(f"logit_bias must be a mapping from token ids to numbers, got {text}")
        if len(self.logit_bias) > MAX_BIASES:
            most, count = MAX_BIASES, len(self.logit_bias)
            raise InputError(f"logit_bias must have at most {most} tokens, got {count}")
        for token, bias in self.logit_bias.items():
            if not is_int(token) or token < 0:
                raise InputError(f"logit_bias must hold token ids, got {token!r:.80}")
            if not (is_int(bias) or isinstance(bias, float)):
                raise InputError(f"the logit_bias of {token} must be a number, got {bias!r:.80}")
            if not -math.inf <= bias < math.inf:
                raise InputError(f"the logit_bias of {token} must be finite or -inf, got {bias}")
            if bias > MAX_BIAS:
                raise InputError(f"the logit_bias of {token} must be at most {MAX_BIAS:g}")

    @property
    def greedy(self) -> bool:
        """Return whether the choice is always the likeliest token of the unchanged logits."""
        return (
            self.temperature <= 0
            and not self.mirostat
            and not (self.grammar or self.logit_bias or self.ignore_eos)
            and self.repeat_penalty == 1.0
            and not (self.frequency_penalty or self.presence_penalty or self.dry_multiplier)
        )


def is_int(value: object) -> TypeGuard[int]:
    """Return whether this is a whole number; True and False are none, although Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)


def are_texts(values: object) -> bool:
    """Return whether this is a list or tuple of texts."""
    return isinstance(values, (list, tuple)) and all(isinstance(text, str) for text in values)


BOUNDS: dict[str, tuple[float, float]] = {  # integer bounds for integer values
    "temperature": (0.0, 100.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "top_k": (0, 1 << 30),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, 1000.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "min_keep": (0, 1 << 30),
    "repeat_penalty": (0.01, 100.0),
    "repeat_last_n": (-1, 1 << 30),
    "frequency_penalty": (-100.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (0, 1 << 30),
    "dry_penalty_last_n": (-1, 1 << 30),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 100.0),
}
