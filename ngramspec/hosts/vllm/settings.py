"""ProposerSettings: draft settings from vLLM's configuration and the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ngramspec.drafting.config import CONFIGS, by_drafter, refuse_untaught
from ngramspec.drafting.names import DEFAULT_POLICY, DEFAULT_SPEC, nearest, parse_names
from ngramspec.errors import InputError
from ngramspec.hosts.vllm.counters import log

KEY = "ngramspec"  # in additional_config, and in the extra_args of a request
PREFIX = "NGRAMSPEC_"  # of variables of the environment
POLICIES = ("auto", "fixed")
MAX_NAMESPACES = 1024
MOST_THREADS = 64
_MIN_HISTORY, _MAX_HISTORY = 1024, 1 << 24
_CHANGING = ("dynamic", "pool")  # files that other processes write to
SUFFIX_PREFIX = "suffix_decoding_"
_CACHED = "max_cached_requests"  # 0 = requests share nothing
_DEPTH = "max_tree_depth"
# vLLM's settings of its suffix method without SUFFIX_PREFIX, with vLLM's defaults.
SUFFIX_DEFAULTS: dict[str, float] = {
    _DEPTH: 24,
    _CACHED: 10000,
    "max_spec_factor": 1.0,
    "min_token_prob": 0.1,
}
# What bounds drafts and memory here, in place of a setting.
_INSTEAD = {
    _DEPTH: "num_speculative_tokens is the longest draft",
    _CACHED: "the option capacity of suffix bounds what is kept, in tokens",
    "max_spec_factor": 'the option policy chooses lengths: "auto" or "fixed"',
    "min_token_prob": "the option min_probability of suffix ends drafts",
}
# Options that may come from the environment, and how their text is read.
_FROM_TEXT: dict[str, Any] = {
    "drafter": str,
    "policy": str,
    "namespaces": int,
    "log_seconds": float,
    "threads": int,
    "static": str,
    "dynamic": str,
    "pool": str,
    "tokenizer": str,
    "any_tokenizer": lambda text: text.lower() in ("1", "true", "yes"),
    "params": json.loads,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options other than drafter parameters."""

    drafter: str = DEFAULT_SPEC  # names, separated by commas
    # "auto": drafts as long as they pay; "fixed": as far as the drafters go
    policy: str = DEFAULT_POLICY
    namespaces: int = 32  # namespaces with their own pools at a time, 0 = one pool for all
    log_seconds: float = 60.0  # between log lines with figures by source, 0 = none
    threads: int | None = None  # most that draft for the rows of a step; None = by the cores
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by drafter name

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: A value is of the wrong type or out of its bounds.
        """
        parse_names(self.drafter, "priority")
        if self.policy not in POLICIES:
            raise InputError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if type(self.namespaces) is not int or not 0 <= self.namespaces <= MAX_NAMESPACES:
            raise InputError(f"namespaces must be in 0..{MAX_NAMESPACES}, got {self.namespaces!r}")
        seconds = self.log_seconds
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
            raise InputError(f"log_seconds must be a number >= 0, got {seconds!r}")
        threads = self.threads
        if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
            raise InputError(f"threads must be in 1..{MOST_THREADS}, got {threads!r}")
        own = self.params
        if not isinstance(own, Mapping) or not all(isinstance(p, Mapping) for p in own.values()):
            raise InputError(f"params must be parameters by drafter name, got {own!r}")


@dataclass(frozen=True, kw_only=True)
class ProposerSettings:
    """Facts of an engine, and the options for it.

    drafts_here: Drafts of this process are used; other ranks make none.
    one_drafts: No other rank must make equal drafts, so measured times may decide their length.
    """

    options: Options
    params: Mapping[str, Mapping[str, Any]]  # of each drafter, by name
    max_draft: int
    max_length: int  # tokens of a text
    max_rows: int
    vocab_size: int
    drafts_here: bool = True
    one_drafts: bool = True

    @property
    def max_history(self) -> int:
        """Return the tokens that a slot keeps."""
        return min(max(self.max_length, _MIN_HISTORY), _MAX_HISTORY)


def read_settings(
    vllm_config: Any, environment: Mapping[str, str] | None = None
) -> ProposerSettings:
    """Read additional_config["ngramspec"], which overrides NGRAMSPEC_* of the environment.

    Args:
        vllm_config: vllm.config.VllmConfig.
        environment: None = this process's.

    vLLM's suffix_decoding_* that would change nothing here are logged.

    Raises:
        InputError: An option is unknown, of the wrong type or out of its bounds, a file that other
            processes write to is named where all ranks must draft the same, or a drafter shares
            text between requests where suffix_decoding_max_cached_requests=0 forbids it.
    """
    values = _from_environment(os.environ if environment is None else environment)
    values.update(_from_config(getattr(vllm_config, "additional_config", None)))
    names = {option.name for option in fields(Options)}
    options = Options(**{name: values.pop(name) for name in list(values) if name in names})
    alone, drafts_here = _ranks(vllm_config.parallel_config)
    tokenizer = _tokenizer_path(vllm_config.model_config)
    if tokenizer and "tokenizer" not in values:
        values["tokenizer"] = tokenizer
    params = drafter_params(options, values)
    _keep_apart(vllm_config.speculative_config, params)
    changing = [role for own in params.values() for role in _CHANGING if role in own]
    if changing and not alone:
        raise InputError(
            f"{changing[0]} is a file that all ranks would change, but with the external launcher "
            "they must draft the same; use static files there"
        )
    if drafts_here:
        for line in _without_effect(vllm_config.speculative_config):
            log.warning("ngramspec: %s", line)
    return ProposerSettings(
        options=options,
        params=params,
        max_draft=int(vllm_config.speculative_config.num_speculative_tokens),
        max_length=int(vllm_config.model_config.max_model_len),
        max_rows=int(vllm_config.scheduler_config.max_num_seqs),
        vocab_size=int(vllm_config.model_config.get_vocab_size()),
        drafts_here=drafts_here,
        one_drafts=alone,
    )


def drafter_params(options: Options, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters of each drafter: the shared ones that it has, and its own.

    Raises:
        InputError: As by_drafter, or a drafter would draft nothing.
    """
    names = parse_names(options.drafter, "priority")
    everything = {one.name for name in names for one in fields(CONFIGS[name])}
    for key in set(shared) - everything - {"tokenizer"}:
        hint = nearest(key, sorted(everything | {one.name for one in fields(Options)}))
        raise InputError(f"unknown option {key!r} for {', '.join(names)}; {hint}")
    params = by_drafter(names, {k: shared[k] for k in shared if k in everything}, options.params)
    refuse_untaught("vLLM", params)
    return params


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, read in _FROM_TEXT.items():
        text = environment.get(PREFIX + name.upper(), "")
        if text:
            try:
                values[name] = read(text)
            except ValueError as error:
                raise InputError(f"{PREFIX}{name.upper()}={text!r}: {error}") from None
    return values


def _from_config(additional: Any) -> dict[str, Any]:
    own = additional.get(KEY) if isinstance(additional, Mapping) else None
    if own is None:
        return {}
    if not isinstance(own, Mapping) or not all(isinstance(name, str) for name in own):
        raise InputError(f'additional_config["{KEY}"] must hold options by name, got {own!r}')
    return dict(own)


def _ranks(parallel: Any) -> tuple[bool, bool]:
    """Return whether only one rank's drafts are used, and whether this is it.

    vLLM takes the drafts of the first tensor-parallel rank of the last pipeline stage; other stages
    make no proposer. With the external launcher every rank schedules for itself.
    """
    if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        return int(parallel.world_size) == 1, True
    stage = int(parallel.tensor_parallel_size)
    stage *= int(getattr(parallel, "prefill_context_parallel_size", 1))
    return True, int(parallel.rank) % stage == 0


def _tokenizer_path(model_config: Any) -> str:
    """Return the model's tokenizer.json where it is a local file, to check statistics against."""
    folder = getattr(model_config, "tokenizer", None) or getattr(model_config, "model", None)
    if not isinstance(folder, str):
        return ""
    path = Path(folder) / "tokenizer.json"
    return str(path) if path.is_file() else ""


def _keep_apart(speculative_config: Any, params: dict[str, dict[str, Any]]) -> None:
    """Let drafters share no text between requests, if vLLM's setting says so.

    Args:
        speculative_config: vllm.config.SpeculativeConfig.
        params: Parameters by drafter name; changed. A `share` of suffix that is set stays.

    Raises:
        InputError: A drafter cannot but share.
    """
    if _suffix_value(speculative_config, _CACHED) != 0:
        return
    for name, own in params.items():
        if name == "suffix":
            own.setdefault("share", False)
        elif name == "ngram-mod":
            raise _sharing_error(name, "it has one pool for all")
        elif name == "ngram-cache" and own.get("dynamic") and own.get("dynamic_update", True):
            raise _sharing_error(name, "unless dynamic_update is False")


def _without_effect(speculative_config: Any) -> list[str]:
    """Return a line for each setting that is not at its default and changes nothing here."""
    lines = []
    for name, default in SUFFIX_DEFAULTS.items():
        value = _suffix_value(speculative_config, name)
        counts = value == default or (name == _CACHED and value == 0)
        # Where num_speculative_tokens is not set, vLLM takes it from the depth.
        if counts or (name == _DEPTH and value == speculative_config.num_speculative_tokens):
            continue
        lines.append(f"{SUFFIX_PREFIX}{name}={value!r} has no effect: {_INSTEAD[name]}")
    return lines


def _suffix_value(speculative_config: Any, name: str) -> Any:
    return getattr(speculative_config, SUFFIX_PREFIX + name, SUFFIX_DEFAULTS[name])


def _sharing_error(name: str, why: str) -> InputError:
    return InputError(
        f"{SUFFIX_PREFIX}{_CACHED}=0 lets requests share nothing, but {name} drafts from the text "
        f"of others ({why}): leave it out of drafter, or leave {SUFFIX_PREFIX}{_CACHED} out"
    )
