"""Which costs `ngramspec tune` reckons with, and how a program would get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.costs import PROFILES, CostTable, load_costs

USUAL = "cpu"
# Of the settings that costs do not depend on.
ANY_CONTEXT = {"parallel": 1, "ctx_size": 0, "kv_unified": False, "exact": False}


@dataclass(frozen=True)
class Costs:
    """A table and where it is from.

    profile: its name in PROFILES, None of a measured one.
    path: its file, None of a profile.
    reason: why it was taken, in words.
    """

    table: CostTable
    profile: str | None
    path: Path | None
    reason: str

    @property
    def source(self) -> str:
        """What it is, in words."""
        return f"profile {self.profile}" if self.path is None else f"{self.path}"


def choose_costs(options: Mapping[str, Any]) -> Costs:
    """Return the costs that the options name, those saved for the model, or a usual profile.

    Raises:
        FormatError: The file is no table of costs, or the model no GGUF file.
        BackendError: llama.cpp cannot load the model.
        OSError: A file cannot be read.
    """
    if options["costs"] is not None:
        return Costs(load_costs(options["costs"]), None, options["costs"], "given")
    if options["profile"] is not None:
        return Costs(PROFILES[options["profile"]], options["profile"], None, "given")
    if options["model"] is None:
        reason = "neither --profile nor --costs nor --model given"
        return Costs(PROFILES[USUAL], USUAL, None, reason)
    return _saved_costs(options)


def _saved_costs(options: Mapping[str, Any]) -> Costs:
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.adapters.llama_cpp.saved_costs import costs_path, find_costs
    from ngramspec.cli.target import context_settings, layers_of

    settings = context_settings({**options, **ANY_CONTEXT})
    layers = layers_of(options["n_gpu_layers"], "--n-gpu-layers")
    with LlamaModel(options["model"], n_gpu_layers=layers, vocab_only=True) as model:
        table = find_costs(model, settings)
        if table is not None:
            reason = f"saved for {model.path.name} by `ngramspec bench calibrate`"
            return Costs(table, None, costs_path(model, settings), reason)
        reason = (
            f"nothing saved for {model.path.name} in this setting; "
            f"`ngramspec bench calibrate --model {model.path}` measures it"
        )
        return Costs(PROFILES[USUAL], USUAL, None, reason)
