"""CorpusSettings: draft settings from the environment; SGLang's own flags set the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import CONFIGS, by_drafter, refuse_untaught
from ngramspec.drafting.names import DEFAULT_SPEC, parse_names
from ngramspec.engine.sources.pools import Pools
from ngramspec.errors import InputError

MAX_HISTORY = 1 << 24
TRUE = ("1", "true", "yes")
# Files that others write to: each rank of tensor parallelism drafts, and all must draft the same.
_CHANGING = ("dynamic", "pool")


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """Drafters, and their parameters by name.

    spec: names, the first non-empty draft wins; only suffix drafts trees here.
    params: parameters by drafter name.
    """

    spec: str = DEFAULT_SPEC
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, pools: Pools, slots: int, index: Any = None) -> Drafter:
        """Return a drafter over shared pools.

        Args:
            pools: What all requests share.
            slots: Slots of the drafter.
            index: SuffixIndex that suffix reads, instead of a file of the parameters.

        Raises:
            As create_drafter.
        """
        params = {name: dict(own) for name, own in self.params.items()}
        pools.join(params, "")
        if index is not None:
            params["suffix"]["static"] = index
        # No policy: it goes by measured time, and ranks would draft different trees.
        return create_drafter(self.spec, slots=slots, max_history=MAX_HISTORY, params=params)

    @property
    def has_index(self) -> bool:
        """Return whether suffix reads a file."""
        return self.params.get("suffix", {}).get("static") is not None


def read_settings(environment: Mapping[str, str] | None = None) -> CorpusSettings:
    """Read NGRAMSPEC_DRAFTER, _STATIC, _TOKENIZER, _ANY_TOKENIZER and _PARAMS.

    Args:
        environment: None = this process's.

    Raises:
        InputError: A name or value is wrong, a file is named that other processes write to, or a
            drafter would draft nothing.
    """
    variables = os.environ if environment is None else environment
    spec = variables.get("NGRAMSPEC_DRAFTER", "") or "suffix"
    names = parse_names(spec, "priority")
    shared: dict[str, Any] = {}
    for key in ("static", "tokenizer"):
        text = variables.get(f"NGRAMSPEC_{key.upper()}", "")
        if text:
            shared[key] = text
    if variables.get("NGRAMSPEC_ANY_TOKENIZER", "").lower() in TRUE:
        shared["any_tokenizer"] = True
    everything = {one.name for name in names for one in fields(CONFIGS[name])}
    if "static" in shared and "static" not in everything:
        raise InputError(f"NGRAMSPEC_STATIC: {', '.join(names)} read no statistics")
    own = _own_params(variables.get("NGRAMSPEC_PARAMS", ""))
    shared = {key: value for key, value in shared.items() if key in everything}
    params = by_drafter(names, shared, own, "NGRAMSPEC_PARAMS")
    if "suffix" in params:  # all rows are verified, filled or not
        params["suffix"].setdefault("min_probability", 0.0)
    for name, values in params.items():
        for key in _CHANGING:
            if key in values:
                raise InputError(f"{name}: {key} changes, and all ranks must draft the same")
    refuse_untaught("SGLang", params)
    return CorpusSettings(spec=spec, params=params)


def _own_params(text: str) -> Mapping[str, Mapping[str, Any]]:
    if not text:
        return {}
    try:
        own = json.loads(text)
    except ValueError as error:
        raise InputError(f"NGRAMSPEC_PARAMS={text!r}: {error}") from None
    if not isinstance(own, dict) or not all(isinstance(p, dict) for p in own.values()):
        raise InputError(f"NGRAMSPEC_PARAMS must hold parameters by drafter name, got {text!r}")
    return own
