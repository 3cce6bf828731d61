"""Builds a store as Ollama writes it: manifests by name, blobs by digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ngramspec.models import embedded_model

GGUF = b"GGUF\x03\x00\x00\x00" + bytes(16)
CONFIG = {"model_format": "gguf", "model_family": "llama", "model_families": ["llama"]}
CONFIG |= {"model_type": "8.0B", "file_type": "Q4_K_M"}
KIND = "application/vnd.ollama.image."


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Store:
    """A folder with manifests and blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)

    def blob(self, data: bytes, mark: str = "-") -> str:
        """Write a blob; return its digest."""
        digest = digest_of(data)
        (self.root / "blobs" / f"sha256{mark}{digest}").write_bytes(data)
        return digest

    def layer(self, kind: str, data: bytes | str | dict[str, Any] | list[Any]) -> dict[str, Any]:
        """Write a blob; return the layer of a manifest for it."""
        if isinstance(data, dict | list):
            data = json.dumps(data)
        raw = data.encode() if isinstance(data, str) else data
        return {
            "mediaType": KIND + kind,
            "digest": f"sha256:{self.blob(raw)}",
            "size": len(raw),
        }

    def manifest(self, path: str, contents: object, folder: str = "manifests") -> Path:
        """Write a manifest: a value as JSON, or bytes as they are."""
        file = self.root / folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents if isinstance(contents, bytes) else json.dumps(contents).encode())
        return file

    def model(
        self, path: str = "registry.ollama.ai/library/llama3/latest", **layers: Any
    ) -> dict[str, Any]:
        """Write a whole model; return its manifest, which may be changed and written again."""
        parts = {"model": GGUF, **layers}
        contents = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": self.layer("config", CONFIG),
            "layers": [
                self.layer(kind, part)
                for kind, data in parts.items()
                for part in (data if isinstance(data, tuple) else (data,))
            ],
        }
        self.manifest(path, contents)
        return contents

    def path_of(self, layer: dict[str, Any]) -> Path:
        """Return the blob of a layer."""
        return self.root / "blobs" / layer["digest"].replace(":", "-")


def tinycode(root: Path) -> Store:
    """Return a store with the embedded model as tinycode:0.5b."""
    store = Store(root)
    path = "registry.ollama.ai/library/tinycode/0.5b"
    store.model(path, model=embedded_model().read_bytes())
    return store
