"""Bodies of Ollama's routes, and the names that the served model has in them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from ngramspec.errors import InputError
from ngramspec.models.ollama.names import ModelName
from ngramspec.server.embeddings.texts import MAX_TEXTS
from ngramspec.server.errors import ApiError, bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Integer, Objects, at_most

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
# Each part but the last ends with a unit, so that a text matches in one way only.
_PART, _UNIT = r"0+(?:\.0*)?", "(?:ns|us|µs|ms|s|m|h)"
BOUNDS = {
    "draft_max": "speculative.n_max",
    "draft_min": "speculative.n_min",
    "draft_p_min": "speculative.p_min",
}
_NOTHING = re.compile(rf"[+-]?(?=0)(?:{_PART}{_UNIT})*(?:{_PART})?")


class NamedBody(Body):
    """A body that names a model; `name` is the older field."""

    model: str | None = None
    name: str | None = None

    def named(self, served: ServedModel) -> str:
        """Return the name as the client wrote it.

        Raises:
            ApiError: There is none, or it is not the served model.
        """
        name = self.model or self.name
        if not name:
            raise bad_request("model is required", "model")
        if not serves(served, name):
            raise ApiError(404, f"model {name!r} not found", code="model_not_found")
        return name


class OllamaBody(NamedBody):
    """Fields of both generating routes."""

    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    draft_model: Any = None  # LM Studio's

    @property
    def unloads(self) -> bool:
        duration = self.keep_alive
        return bool(_NOTHING.fullmatch(duration)) if isinstance(duration, str) else duration == 0

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the speculative.* fields; fields in the options override those of the body.

        The bounds of drafts may have the names that Modelfiles give them.
        """
        members = {**(self.model_extra or {}), **(self.options or {})}
        bounds = {of: members[name] for name, of in BOUNDS.items() if name in members}
        return bounds | {name: value for name, value in members.items() if _is_speculative(name)}

    @property
    def parameters(self) -> dict[str, Any]:
        options = self.options or {}
        return {
            name: value
            for name, value in options.items()
            if not _is_speculative(name) and name not in BOUNDS
        }


class GenerateBody(OllamaBody):
    """POST /api/generate."""

    prompt: Text = ""
    suffix: Text = ""
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[Any] | None = None  # token ids
    images: list[Any] | None = None


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    messages: Objects | None = None
    tools: Annotated[list[dict[str, Any]], at_most(MAX_TOOLS)] | None = None


class PullBody(NamedBody):
    """POST /api/pull."""

    stream: bool | None = None


class ShowBody(NamedBody):
    """POST /api/show."""

    verbose: bool | None = None


def _is_speculative(name: str) -> bool:
    return name == "speculative" or name.startswith("speculative.")


class EmbedBody(NamedBody):
    """POST /api/embed."""

    input: Annotated[str | list[str] | None, at_most(MAX_TEXTS)] = None
    truncate: bool | None = None
    dimensions: Integer | None = None


class OldEmbedBody(NamedBody):
    """POST /api/embeddings."""

    prompt: str | None = None


def serves(served: ServedModel, name: str) -> bool:
    """Return whether a name means the served model.

    Its names are its name and aliases, its file name with and without the suffix, and its name in
    Ollama's store. A missing tag means "latest"; case does not count.
    """
    path, stored = served.model.path, served.recipe.name
    names = [*served.ids, path.name, path.stem, *([stored.shown()] if stored else [])]
    return _key(name) in map(_key, names)


def listed_name(served: ServedModel) -> str:
    """Return the name with its tag, as Ollama lists it."""
    try:
        return ModelName.parse(served.name).short()
    except InputError:
        return served.name


def _key(name: str) -> str:
    try:
        return ModelName.parse(name).shown().lower()
    except InputError:
        return name.lower()
