"""The names that the served model has for Ollama's clients."""

from __future__ import annotations

from ngramspec.errors import InputError
from ngramspec.ollama.names import ModelName
from ngramspec.server.model import ServedModel


def serves(served: ServedModel, name: str) -> bool:
    """Tell whether a client means the served model.

    It goes by its aliases, the name of its file with and without the ending, and its name in
    Ollama's store; a tag that is left out is "latest", and case does not count.
    """
    path, stored = served.model.path, served.recipe.name
    known = [*served.ids, path.name, path.stem, *([stored.shown()] if stored else [])]
    return _key(name) in map(_key, known)


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
