"""The names that the served model has for Ollama's clients."""

from __future__ import annotations

from ngramspec.errors import InputError
from ngramspec.models.ollama.names import ModelName
from ngramspec.server.model import ServedModel


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
