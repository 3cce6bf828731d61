"""What vLLM's settings of its suffix method mean here."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import InputError

PREFIX = "suffix_decoding_"
CACHED = "max_cached_requests"  # 0 = requests share nothing
DEPTH = "max_tree_depth"
# The settings without PREFIX, with vLLM's defaults.
DEFAULTS: dict[str, float] = {
    DEPTH: 24,
    CACHED: 10000,
    "max_spec_factor": 1.0,
    "min_token_prob": 0.1,
}
# What bounds drafts and memory here, in place of a setting.
INSTEAD = {
    DEPTH: "num_speculative_tokens is the longest draft",
    CACHED: "the option capacity of suffix bounds what is kept, in tokens",
    "max_spec_factor": 'the option policy chooses lengths: "auto" or "fixed"',
    "min_token_prob": "the option min_probability of suffix ends drafts",
}


def keep_apart(speculative_config: Any, params: dict[str, dict[str, Any]]) -> None:
    """Let drafters share no text between requests, if vLLM's setting says so.

    Args:
        speculative_config: vllm.config.SpeculativeConfig.
        params: Parameters by drafter name; changed. A `share` of suffix that is set stays.

    Raises:
        InputError: A drafter cannot but share.
    """
    if _value(speculative_config, CACHED) != 0:
        return
    for name, own in params.items():
        if name == "suffix":
            own.setdefault("share", False)
        elif name == "ngram-mod":
            raise _shares(name, "it has one pool for all")
        elif name == "ngram-cache" and own.get("dynamic") and own.get("dynamic_update", True):
            raise _shares(name, "unless dynamic_update is False")


def without_effect(speculative_config: Any) -> list[str]:
    """Return a line for each setting that is not at its default and changes nothing here."""
    lines = []
    for name, default in DEFAULTS.items():
        value = _value(speculative_config, name)
        counts = value == default or (name == CACHED and value == 0)
        # Where num_speculative_tokens is not set, vLLM takes it from the depth.
        if counts or (name == DEPTH and value == speculative_config.num_speculative_tokens):
            continue
        lines.append(f"{PREFIX}{name}={value!r} has no effect: {INSTEAD[name]}")
    return lines


def _value(speculative_config: Any, name: str) -> Any:
    return getattr(speculative_config, PREFIX + name, DEFAULTS[name])


def _shares(name: str, why: str) -> InputError:
    return InputError(
        f"{PREFIX}{CACHED}=0 lets requests share nothing, but {name} drafts from the text of "
        f"others ({why}): leave it out of drafter, or leave {PREFIX}{CACHED} out"
    )
