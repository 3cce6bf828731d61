"""Choose the costs of a target: given, saved for a model, or the usual ones."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.costs import PROFILES, CostTable, load_costs

if TYPE_CHECKING:
    from ngramspec.llamacpp.loading import Loading
    from ngramspec.llamacpp.placement import Placement
    from ngramspec.llamacpp.settings import ContextSettings

DEFAULT_PROFILE = "cpu"


@dataclass(frozen=True)
class Costs:
    """A table and its source.

    profile: its name in PROFILES, None for a measured one.
    path: its file, None for a profile.
    reason: why it was taken, in words.
    """

    table: CostTable
    profile: str | None
    path: Path | None
    reason: str

    @property
    def source(self) -> str:
        """The source, in words."""
        return f"profile {self.profile}" if self.path is None else f"{self.path}"


def choose_costs(file: Path | None = None, profile: str | None = None) -> Costs:
    """Return the costs of a file or a profile, the usual ones without either.

    Raises:
        FormatError: The file is no table of costs.
        OSError: It cannot be read.
    """
    if file is not None:
        return Costs(load_costs(file), None, file, "given")
    if profile is not None:
        return Costs(PROFILES[profile], profile, None, "given")
    reason = "neither costs nor a model given"
    return Costs(PROFILES[DEFAULT_PROFILE], DEFAULT_PROFILE, None, reason)


def saved_costs(
    path: str | os.PathLike[str],
    settings: ContextSettings,
    placement: Placement | None = None,
    loading: Loading | None = None,
) -> Costs:
    """Return the costs that are saved for a model, or the usual ones.

    Args:
        path: The model's GGUF file; only its vocabulary is loaded.
        settings: How the model is run; slots and contexts do not matter.
        placement: Where its weights lie; None = on the GPU, if there is one.
        loading: How its file is read; None = mapped.

    Raises:
        InputError: There is no such device or kind of memory.
        FormatError: It is no GGUF file.
        BackendError: llama.cpp cannot load it.
        OSError: A file cannot be read.
    """
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.placement import AUTO, Placement
    from ngramspec.llamacpp.saved_costs import costs_path, find_costs, other_costs

    placement = placement or Placement(AUTO)
    with LlamaModel(path, placement=placement, loading=loading, vocab_only=True) as model:
        table = find_costs(model, settings)
        if table is not None:
            file = costs_path(model, settings)
            rough = json.loads(file.read_bytes()).get("rough")  # older versions did not write it
            reason = f"saved for {model.path.name}"
            if rough is False:
                reason += " by `ngramspec bench calibrate`"
            elif rough:
                reason = (
                    f"measured roughly when {model.path.name} was started; `ngramspec bench "
                    "calibrate` is exact"
                )
            return Costs(table, None, file, reason)
        other = other_costs(model, settings)
        reason = (
            f"nothing saved for {model.path.name} in this setting{f', {other}' if other else ''}; "
            f"`ngramspec bench calibrate --model {model.path}` measures it"
        )
        return Costs(PROFILES[DEFAULT_PROFILE], DEFAULT_PROFILE, None, reason)
