"""Choose the costs of a target: those saved for a model, or the usual ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ngramspec.costs import PROFILES, CostTable

DEFAULT_PROFILE = "cpu"


@dataclass(frozen=True)
class Costs:
    """A table and its source.

    path: its file, None for the profile that is usual.
    reason: why it was taken, in words.
    """

    table: CostTable
    path: Path | None
    reason: str

    @property
    def source(self) -> str:
        return f"profile {self.table.name}" if self.path is None else f"{self.path}"


def saved_costs(path: Path | None) -> Costs:
    """Return the costs that are saved for a model with the usual settings, or the usual ones.

    Args:
        path: Its GGUF file, of which only the vocabulary is loaded; nothing is saved for another
            file, or for None.

    Raises:
        BackendError: llama.cpp cannot load it.
        OSError: A file cannot be read.
    """
    from ngramspec.text.tokenizers.gguf import is_gguf

    if path is None or not is_gguf(path):
        return Costs(PROFILES[DEFAULT_PROFILE], None, "no model given")
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.placement import AUTO, Placement
    from ngramspec.llamacpp.saved_costs import costs_path, find_costs, other_costs
    from ngramspec.llamacpp.settings import ContextSettings

    settings = ContextSettings()
    with LlamaModel(path, placement=Placement(AUTO), vocab_only=True) as model:
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
            return Costs(table, file, reason)
        other = other_costs(model, settings)
        reason = (
            f"nothing saved for {model.path.name} in this setting{f', {other}' if other else ''}; "
            f"`ngramspec bench calibrate --model {model.path}` measures it"
        )
        return Costs(PROFILES[DEFAULT_PROFILE], None, reason)
