"""Recipe: what Ollama adds to a model's GGUF file, from a store, a Modelfile or both."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ngramspec.errors import FormatError, InputError
from ngramspec.models.ollama.chat_template import ChatTemplate
from ngramspec.models.ollama.modelfile import Modelfile, read_modelfile
from ngramspec.models.ollama.names import ModelName
from ngramspec.models.ollama.parameters import Parameter, check_parameter
from ngramspec.models.ollama.store import ModelNotFoundError, StoredModel, find_model

PathLike = str | os.PathLike[str]
_SHARD = re.compile(r"-([0-9]{5})-of-[0-9]{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to use a model; a plain GGUF file sets only `gguf`.

    gguf: The model itself.
    stored: Where it was found, None outside of a store.
    template: Go template of a chat, None if there is none.
    template_first: Prefer `template` to the Jinja template of the GGUF file.
    messages: A conversation that precedes every other, in the form of the API.
    adapters: LoRA adapters in GGUF.
    capabilities: What Ollama says it can do, in its words; it finds out more itself.
    drafts: What is to draft: names of drafters, and the name or path of a draft model.
    notes: What a user should know.
    """

    gguf: Path | None = None
    stored: StoredModel | None = None
    template: str | None = None
    template_first: bool = False
    system: str = ""
    messages: tuple[Mapping[str, object], ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    licenses: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()
    capabilities: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> ModelName | None:
        return None if self.stored is None else self.stored.name


def find_recipe(name: str, roots: Iterable[PathLike]) -> Recipe:
    """Return the recipe of a model that Ollama has pulled.

    Raises:
        InputError: Not a valid name.
        ModelNotFoundError, FormatError, OSError: As find_model.
    """
    stored = find_model(name, roots)
    shown = stored.name.short()
    notes: list[str] = []
    if stored.projectors:
        notes.append(f"{shown}: the projector for images is not used")
    return Recipe(
        gguf=stored.gguf,
        stored=stored,
        template=_stored_template(stored, notes),
        system=stored.system or "",
        messages=stored.messages,
        parameters=_checked(stored, notes),
        licenses=stored.licenses,
        drafts=() if stored.draft is None else (str(stored.draft),),
        adapters=stored.adapters,
        capabilities=stored.capabilities,
        notes=tuple(notes),
    )


def read_recipe(path: PathLike, roots: Iterable[PathLike]) -> Recipe:
    """Return the recipe that a Modelfile describes.

    Args:
        path: The Modelfile; files in FROM, ADAPTER and DRAFT are relative to it.
        roots: Stores in which FROM may be the name of a model.

    Raises:
        InputError: As read_modelfile and find_recipe; also for an ADAPTER that is no file.
        FormatError: As read_modelfile and find_recipe; also for a TEMPLATE that is not Go's.
        ModelNotFoundError: FROM is neither a file nor a model of a store.
        OSError: The file cannot be read.
    """
    written = read_modelfile(path)
    if written.template is not None:
        try:
            ChatTemplate.parse(written.template)
        except FormatError as error:
            raise FormatError(f"{path}: TEMPLATE: {error}") from None
    base = _base(written.base, Path(path), roots)
    notes = [*base.notes, *(f"{path}: {note}" for note in written.notes)]
    further = [one for one in written.more if not is_shard(one)]
    if further:
        notes.append(f"{path}: further FROM lines are not used: {', '.join(further)}")
    return replace(_overlaid(base, written, Path(path)), notes=tuple(notes))


def _overlaid(base: Recipe, written: Modelfile, path: Path) -> Recipe:
    """Return a recipe with what a Modelfile overrides."""
    own = written.template is not None
    messages = tuple({"role": one.role, "content": one.content} for one in written.messages)
    return replace(
        base,
        template=written.template if own else base.template,
        template_first=own or base.template_first,
        system=base.system if written.system is None else written.system,
        messages=messages or base.messages,
        parameters={**base.parameters, **written.parameters},
        licenses=written.licenses or base.licenses,
        adapters=(*base.adapters, *(_adapter(text, path) for text in written.adapters)),
        capabilities=(*base.capabilities, *written.capabilities),
        drafts=tuple(one for text in written.drafts for one in _drafts(text, path)) or base.drafts,
    )


def _base(text: str, modelfile: Path, roots: Iterable[PathLike]) -> Recipe:
    file = modelfile.parent / Path(text).expanduser()
    if not file.exists() and "*" in text:  # a split model: llama.cpp finds the parts by the first
        file = Path(min(glob.glob(str(file)), default=file))
    if file.is_file():
        return Recipe(gguf=file)
    if file.is_dir():
        raise InputError(f"{modelfile}: FROM {text} is a folder: it must be a GGUF file or a model")
    try:
        return find_recipe(text, roots)
    except (ModelNotFoundError, InputError) as error:
        kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else InputError
        raise kind(f"{modelfile}: FROM {text}: no such file, and {error}") from None


def _adapter(text: str, modelfile: Path) -> Path:
    file = modelfile.parent / Path(text).expanduser()
    if file.is_dir():
        raise InputError(f"{modelfile}: ADAPTER {text} is a folder: convert it to a GGUF file")
    if not file.is_file():
        raise InputError(f"{modelfile}: ADAPTER {text}: no such file")
    return file


def is_shard(text: str) -> bool:
    """Return whether a file's name is that of a further part of a split model."""
    match = _SHARD.search(text)
    return match is not None and int(match[1]) > 1


def _drafts(text: str, modelfile: Path) -> list[str]:
    """Return the parts of a DRAFT line: files with their folder, names as they are."""
    file = modelfile.parent / Path(text).expanduser()
    if file.is_file():
        return [str(file)]
    parts = [part.strip() for part in text.split(",")]
    return (
        [text] if parts == [text] else [one for part in parts for one in _drafts(part, modelfile)]
    )


def _stored_template(stored: StoredModel, notes: list[str]) -> str | None:
    """Return the template of a stored model if it can be used."""
    shown, renderer = stored.name.short(), stored.config.get("renderer")
    if renderer:
        notes.append(f"{shown}: Ollama's renderer {renderer!r} is not supported: using Jinja")
        return None
    try:
        if stored.template is not None:
            ChatTemplate.parse(stored.template)
    except (FormatError, InputError) as error:
        notes.append(f"{shown}: its template is not used: {error}")
        return None
    return stored.template


def _checked(stored: StoredModel, notes: list[str]) -> dict[str, Parameter]:
    """Return the parameters that are known and valid."""
    parameters: dict[str, Parameter] = {}
    for name, value in stored.parameters.items():
        try:
            if value is not None:
                parameters[name] = check_parameter(name, value)
        except InputError as error:
            notes.append(f"{stored.name.short()}: a parameter is left out: {error}")
    return parameters
