"""The models that Ollama has pulled, found by name in its store. Nothing is ever written.

A store is a folder with manifests/HOST/NAMESPACE/MODEL/TAG and blobs/sha256-DIGEST; newer versions
of Ollama also have manifests-v2, whose files are links to blobs.
"""

from __future__ import annotations

import datetime
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

from ngramspec.errors import FormatError, InputError, NgramspecError
from ngramspec.models.ollama.manifest import (
    Layer,
    Manifest,
    blob_path,
    read_list,
    read_manifest,
    read_object,
    read_text,
)
from ngramspec.models.ollama.names import HOST, ModelName

_T = TypeVar("_T")
PathLike: TypeAlias = str | os.PathLike[str]

_FOLDERS = ("manifests-v2", "manifests")
_PUBLIC = (HOST, "ollama.com")  # one registry under two names
_SYSTEM_ROOTS = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")
_MOST_SHOWN = 10
_TEXTS = ("template", "prompt", "system")  # old models have "prompt" for "template"


class ModelNotFoundError(NgramspecError, FileNotFoundError):
    """No store has a model of that name; the message names similar or existing ones."""


@dataclass(frozen=True)
class StoredModel:
    """A model in a store; all files exist and have the sizes in the manifest.

    name: As it is stored.
    gguf: The model itself.
    template: Go template of a chat; None: the model has none.
    system: System message; None: the model has none.
    parameters: As in PARAMETER lines of a Modelfile, from JSON.
    licenses: Texts.
    messages: A conversation that precedes every other, in the form of the API.
    digest: SHA-256 of the manifest, without "sha256:".
    size: Bytes of all layers.
    modified: When the manifest was written, in UTC.
    config: Ollama's facts about the model: model_family, model_type, file_type, renderer and more.
    projectors, adapters: Further GGUF files.
    draft: GGUF of a draft model.
    """

    name: ModelName
    gguf: Path
    template: str | None
    system: str | None
    parameters: dict[str, object]
    licenses: tuple[str, ...]
    messages: tuple[dict[str, object], ...]
    digest: str
    size: int
    modified: datetime.datetime
    config: dict[str, object]
    projectors: tuple[Path, ...] = ()
    adapters: tuple[Path, ...] = ()
    draft: Path | None = None

    @property
    def family(self) -> str:
        """The architecture, such as llama; "" if unknown."""
        return _string(self.config.get("model_family"))

    @property
    def families(self) -> tuple[str, ...]:
        """All architectures in it."""
        return _strings(self.config.get("model_families"))

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What Ollama was told that it can do."""
        return _strings(self.config.get("capabilities"))

    @property
    def parameter_size(self) -> str:
        """Such as 8.0B; "" if unknown."""
        return _string(self.config.get("model_type"))

    @property
    def quantization(self) -> str:
        """Such as Q4_K_M; "" if unknown."""
        return _string(self.config.get("file_type"))


def default_roots(models: str | None = None, home: PathLike | None = None) -> list[Path]:
    """Return the folders where stores may be.

    Args:
        models: The value of OLLAMA_MODELS; if set, only this folder.
        home: Default: the user's home.
    """
    folder = (models or "").strip(" \"'")
    if folder:
        return [Path(folder)]
    own = Path(os.path.expanduser("~") if home is None else home, ".ollama", "models")
    some = [] if own.parts[0] == "~" else [own]  # a user need not have a home
    return [*some, *map(Path, _SYSTEM_ROOTS)]


def find_model(name: str | ModelName, roots: Iterable[PathLike]) -> StoredModel:
    """Find a model that Ollama has pulled.

    Args:
        name: Such as llama3 or user/model:tag; an exact match comes first, then any case.
        roots: Stores, the first one that has the model wins; those that do not exist are skipped.

    Raises:
        InputError: Not a valid name.
        ModelNotFoundError: No store has it; the message names the nearest ones.
        FormatError: The manifest is damaged, is not about one GGUF file, or a blob is missing or
            of another size.
        OSError: A file cannot be read.
    """
    model_name = ModelName.parse(name) if isinstance(name, str) else name
    stores = [Path(root) for root in roots]
    for root in stores:
        path = _manifest_path(root, model_name)
        if path:
            return _load(root, model_name, path)
    names = [other.short() for root in stores for other, _ in _manifests(root)]
    raise ModelNotFoundError(_not_found(model_name, list(dict.fromkeys(names)), stores))


def find_gguf(model: PathLike, roots: Iterable[PathLike]) -> tuple[Path, str]:
    """Return the GGUF file that a path or the name of a pulled model means, and that name.

    Args:
        model: The path of a file, or a name; what no name can be is returned as it is, with "".
        roots: As for find_model.

    Raises:
        InputError: As find_model; also for a model that needs a LoRA adapter.
        ModelNotFoundError, FormatError, OSError: As find_model.
    """
    path = Path(model)
    if not may_be_name(path):
        return path, ""
    stored = find_model(str(model), roots)
    if stored.adapters:
        raise InputError(f"{stored.name.short()} has a LoRA adapter, which is not supported")
    return stored.gguf, stored.name.short().removesuffix(":latest")


def may_be_name(path: Path) -> bool:
    """Return whether what a user gave as a model is no file and may be a model's name."""
    text = str(path)
    file = path.suffix.lower() == ".gguf" or text.startswith((".", "~")) or path.is_absolute()
    return not file and not path.exists()


def list_models(roots: Iterable[PathLike], problems: list[str] | None = None) -> list[StoredModel]:
    """Return all models, by name.

    Args:
        roots: Stores; of two models with the same name, the first counts.
        problems: Collects what is wrong with models that are left out.

    Raises:
        OSError: A folder of manifests cannot be read.
    """
    models: dict[str, StoredModel] = {}
    seen: set[str] = set()
    for root in map(Path, roots):
        for name, path in _manifests(root):
            if name.shown().lower() in seen:
                continue
            seen.add(name.shown().lower())
            try:
                models[name.short()] = _load(root, name, path)
            except (FormatError, OSError) as error:
                if problems is not None:
                    problems.append(f"{name.short()}: {error}")
    return [models[name] for name in sorted(models)]


def _manifest_path(root: Path, model: ModelName) -> Path | None:
    hosts = _PUBLIC if model.host.lower() in _PUBLIC else (model.host,)
    for folder in _FOLDERS:
        for host in hosts:
            path = root / folder / ModelName(host, model.namespace, model.model, model.tag).path()
            if path.is_file() or path.is_symlink():
                return path
    for name, path in _manifests(root):
        if name.same_as(model):
            return path
    return None


def _manifests(root: Path) -> Iterator[tuple[ModelName, Path]]:
    """Yield all manifests of a store, the newer folder first."""
    for folder in _FOLDERS:
        top = root / folder
        for path in sorted(top.glob("*/*/*/*")) if top.is_dir() else ():
            try:
                name = ModelName.from_path(PurePosixPath(*path.relative_to(top).parts))
            except InputError:
                continue  # a file that Ollama did not write, such as .DS_Store
            if path.is_dir():
                continue
            if name.host.lower() in _PUBLIC:
                name = ModelName(HOST, name.namespace, name.model, name.tag)
            yield name, path


def _load(root: Path, name: ModelName, path: Path) -> StoredModel:
    manifest = read_manifest(path, root)
    texts = {kind: [read_text(root, layer) for layer in _of(manifest, kind)] for kind in _TEXTS}
    licenses = [read_text(root, layer, "replace") for layer in _of(manifest, "license")]
    parameters: dict[str, object] = {}
    for layer in _of(manifest, "params"):
        parameters |= read_object(root, layer)
    drafts = [blob_path(root, layer) for layer in _of(manifest, "draft")]
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
    return StoredModel(
        name=name,
        gguf=_gguf(root, manifest, path),
        template=_last([*texts["prompt"], *texts["template"]]),
        system=_last(texts["system"]),
        parameters=parameters,
        licenses=tuple(licenses),
        messages=tuple(_messages(root, manifest, path)),
        digest=manifest.digest,
        size=manifest.size,
        modified=written,
        config=read_object(root, manifest.config) if manifest.config else {},
        projectors=tuple(blob_path(root, layer) for layer in _of(manifest, "projector")),
        adapters=tuple(blob_path(root, layer) for layer in _of(manifest, "adapter")),
        draft=_last(drafts),
    )


def _of(manifest: Manifest, kind: str) -> list[Layer]:
    return [layer for layer in manifest.layers if layer.kind == kind]


def _last(items: Sequence[_T]) -> _T | None:
    return items[-1] if items else None


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _gguf(root: Path, manifest: Manifest, path: Path) -> Path:
    models = _of(manifest, "model")
    if len(models) == 1:
        return blob_path(root, models[0])
    if models:
        raise FormatError(f"{path}: expected one GGUF file, found one split into {len(models)}")
    kinds = ", ".join(sorted({layer.kind for layer in manifest.layers})) or "none"
    raise FormatError(f"{path}: expected a layer with a GGUF model, found only: {kinds}")


def _messages(root: Path, manifest: Manifest, path: Path) -> Iterator[dict[str, object]]:
    for layer in _of(manifest, "messages"):
        for message in read_list(root, layer):
            if not isinstance(message, dict):
                raise FormatError(f"{path}: expected objects as messages, found {message!r:.80}")
            yield message


def _not_found(model_name: ModelName, names: list[str], stores: list[Path]) -> str:
    where = ", ".join(map(str, stores)) or "no folder"
    reason = f"no model {model_name.short()!r} in {where}"
    if not names:
        return f"{reason}: there are no models"
    model = model_name.short().rpartition(":")[0]
    near = [name for name in names if name.rpartition(":")[0] == model]
    spelled = {name.removesuffix(":latest"): name for name in names}
    asked = model_name.short().removesuffix(":latest")
    near += [spelled[key] for key in difflib.get_close_matches(asked, spelled, cutoff=0.5)]
    if near:
        return f"{reason}; did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?"
    shown = ", ".join(sorted(names)[:_MOST_SHOWN])
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{reason}; there are {shown}{more}"
