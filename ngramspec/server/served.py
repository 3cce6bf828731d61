"""Served: the model that the server offers, with its defaults for requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ngramspec.engine.sampling import Sampling
from ngramspec.ollama.recipe import Recipe

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp.model import LlamaModel
    from ngramspec.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Served:
    """A loaded model, its engine and what requests get that say nothing else."""

    name: str  # the model's id for clients
    model: LlamaModel
    engine: Engine
    aliases: tuple[str, ...] = ()  # further ids
    created: int = field(default_factory=lambda: int(time.time()))
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = -1  # -1 = until the context is full
    stop: tuple[str, ...] = ()
    system: str = ""  # system message of chats that bring none
    template: str | None = None  # chat template in Jinja, None = the model's
    recipe: Recipe = field(default_factory=Recipe)  # what Ollama knows of the model
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    cache_prompt: bool = True
    batch_size: int = 2048  # tokens; sizes the context of /infill, as in llama-server
    spm_infill: bool = False  # /infill: suffix before prefix

    @property
    def ids(self) -> tuple[str, ...]:
        """Return every id that clients may use."""
        return (self.name, *self.aliases)

    @property
    def chat_template(self) -> str:
        """Return the chat template in use, "" when there is none."""
        return self.template or self.go_template or self.model.chat_template or ""

    @property
    def go_template(self) -> str | None:
        """Return the chat template in use if it is one in Go's language."""
        first = self.recipe.template_first or not self.model.chat_template
        return self.recipe.template if first and not self.template else None
