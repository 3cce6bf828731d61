"""Manifests and blobs of an Ollama store: which files a model consists of.

A manifest is JSON: config and layers, each with mediaType, digest and size. A blob is a file of the
folder blobs, named by its SHA-256. A list of manifests offers one model for several runners.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ngramspec.errors import FormatError

MOST_BYTES = 16 << 20  # of a manifest or a blob that is no model

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_RUNNERS = ("ollama", "llamacpp")


@dataclass(frozen=True)
class Layer:
    """One part of a model.

    kind: The media type without "application/vnd.ollama.image.", such as model or template.
    digest: SHA-256 of the blob, in lower case.
    size: Of the blob in bytes.
    """

    kind: str
    digest: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """What a model consists of.

    digest: SHA-256 of the manifest itself, which Ollama shows as the model's.
    config: The layer that describes the model; None if the manifest names none.
    """

    digest: str
    config: Layer | None
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        layers = [*self.layers, *filter(None, [self.config])]
        return sum({layer.digest: layer.size for layer in layers}.values())


def read_manifest(path: Path, root: Path) -> Manifest:
    """Read a manifest.

    Args:
        path: The file; may be a link to a blob.
        root: The store.

    Raises:
        FormatError: Not a manifest, for no runner that reads GGUF, or outside of the store.
        OSError: The file cannot be read.
    """
    folders = [root / "manifests", root / "manifests-v2", root / "blobs"]
    real = path.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise FormatError(f"{path}: the manifest leads out of the store, to {real}")
    if not real.is_file():
        raise FormatError(f"{path}: the manifest is no file, or a link to none: {real}")
    data = _read(real)
    manifest = _object(_json(data, path), "an object as manifest", path)
    if manifest.get("mediaType") == _LIST:
        manifest = _chosen(manifest, root, path)
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise FormatError(f"{path}: expected a list of layers, found {_shown(layers)}")
    config = _layer(manifest["config"], "config", path) if manifest.get("config") else None
    parsed = tuple(_layer(item, f"layers[{at}]", path) for at, item in enumerate(layers))
    return Manifest(hashlib.sha256(data).hexdigest(), config, parsed)


def blob_path(root: Path, layer: Layer) -> Path:
    """Return the file of a layer.

    Raises:
        FormatError: It is missing, no file, of another size than the manifest says, or a link that
            leads out of the folder of blobs.
    """
    blobs = root / "blobs"
    for name in (f"sha256-{layer.digest}", f"sha256:{layer.digest}"):
        path = blobs / name
        if path.is_symlink() or path.exists():
            break
    else:
        raise FormatError(f"{blobs / f'sha256-{layer.digest}'}: the {layer.kind} blob is missing")
    if path.resolve().parent != blobs.resolve():
        raise FormatError(f"{path}: the {layer.kind} blob leads out of the store")
    state = path.stat() if path.exists() else None
    if state is None or not stat.S_ISREG(state.st_mode):
        raise FormatError(f"{path}: the {layer.kind} blob is no file")
    if state.st_size != layer.size:
        reason = f"expected {layer.size} bytes as in the manifest, found {state.st_size}"
        raise FormatError(f"{path}: {reason}: the {layer.kind} blob is damaged or not complete")
    return path


def read_text(root: Path, layer: Layer, errors: str = "strict") -> str:
    """Read a layer of text.

    Args:
        root: The store.
        layer: Of the manifest.
        errors: As for bytes.decode: "replace" if wrong characters do no harm.

    Raises:
        FormatError: As blob_path; also too large, not what its digest says, or not UTF-8.
    """
    path = blob_path(root, layer)
    data = _read(path)
    if hashlib.sha256(data).hexdigest() != layer.digest:
        raise FormatError(f"{path}: the {layer.kind} blob is damaged: its SHA-256 differs")
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected UTF-8, at offset {error.start}") from None


def read_object(root: Path, layer: Layer) -> dict[str, object]:
    """Read a layer that is a JSON object.

    Raises:
        FormatError: As read_text; also no JSON object.
    """
    path = blob_path(root, layer)
    text = read_text(root, layer)
    return dict(_object(_json(text, path), f"an object as {layer.kind}", path))


def read_list(root: Path, layer: Layer) -> list[object]:
    """Read a layer that is a JSON list.

    Raises:
        FormatError: As read_text; also no JSON list.
    """
    path = blob_path(root, layer)
    items = _json(read_text(root, layer), path)
    if not isinstance(items, list):
        raise FormatError(f"{path}: expected a list as {layer.kind}, found {_shown(items)}")
    return items


def _chosen(index: Mapping[str, object], root: Path, path: Path) -> Mapping[str, object]:
    """Return the manifest for a GGUF runner from a list."""
    offered = index.get("manifests")
    listed = offered if isinstance(offered, list) else []
    entries = [_object(item, "an object in manifests", path) for item in listed]
    for runner in _RUNNERS:
        for entry in entries:
            if str(entry.get("runner", "")).lower() == runner:
                if not entry.get("digest") or entry.get("layers"):
                    return entry
                layer = _layer({**entry, "size": 0}, "manifests", path)
                return _referenced(root, layer.digest)
    names = ", ".join(str(entry.get("runner")) for entry in entries) or "none"
    raise FormatError(f"{path}: expected a manifest for ollama or llamacpp, found {names}")


def _referenced(root: Path, digest: str) -> Mapping[str, object]:
    path = root / "blobs" / f"sha256-{digest}"
    if not path.exists():
        raise FormatError(f"{path}: the manifest blob is missing")
    blob = blob_path(root, Layer("manifest", digest, path.stat().st_size))
    return _object(_json(_read(blob), blob), "an object as manifest", blob)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"{path}: expected at most {MOST_BYTES} bytes")
    return data


def _json(data: bytes | str, path: Path) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected JSON: {error}") from None


def _layer(value: object, where: str, path: Path) -> Layer:
    entry = _object(value, f"an object as {where}", path)
    digest, size, kind = entry.get("digest"), entry.get("size"), entry.get("mediaType", "")
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if not match:
        expected = "sha256: and 64 hexadecimal digits"
        raise FormatError(f"{path}: {where}.digest: expected {expected}, found {_shown(digest)}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise FormatError(f"{path}: {where}.size: expected bytes, found {_shown(size)}")
    if not isinstance(kind, str):
        raise FormatError(f"{path}: {where}.mediaType: expected a text, found {_shown(kind)}")
    return Layer(kind.removeprefix("application/vnd.ollama.image."), match[1].lower(), size)


def _object(value: object, expected: str, path: Path) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise FormatError(f"{path}: expected {expected}, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
