"""Manifests and blobs of Ollama stores: each damage is told, and listing never fails for one model.

An input is a line that says which file it is for, and the file: a manifest, or a blob of a layer
whose digest and size the manifest then has.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fuzz import json_inputs
from fuzz.target import Finding, Run, Target
from ngramspec.errors import InputError, NgramspecError
from ngramspec.models.ollama.recipe import find_recipe
from ngramspec.models.ollama.store import find_model, list_models

KINDS = ("template", "system", "params", "messages", "license", "config", "model", "adapter")
HEADS = [b"manifest", *(kind.encode() for kind in KINDS)]
DIGEST = "sha256:" + hashlib.sha256(b"GGUF").hexdigest()
LAYER = {"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST, "size": 4}
MEMBERS = {
    "layers": ([], [LAYER], [LAYER, LAYER]),
    "config": (LAYER, None, {}),
    "mediaType": (
        *(f"application/vnd.ollama.image.{kind}" for kind in KINDS),
        "application/vnd.ollama.manifest.list.v2+json",
    ),
    "manifests": (
        [],
        [{"runner": "ollama", "layers": [LAYER]}],
        [{"runner": "ollama", "digest": DIGEST}],
    ),
    "runner": ("ollama", "llamacpp", "mlx"),
    "digest": (DIGEST, "sha256:" + "0" * 64, "sha256-" + DIGEST[7:], "sha256:../x"),
    "size": (0, 4, 5, -1),
    "stop": (["a"], "a", []),
    "temperature": (0.5, -1, "1"),
    "num_ctx": (1, 2048, 2**63, 1e300),
    "role": ("user", "x"),
    "content": ("x", None),
    "model_families": (["llama"], None, [5]),
    "model_family": ("llama", 5),
    "model_type": ("8B", 5),
    "file_type": ("Q4_0", 5),
}


@contextmanager
def opened() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "models")
        blobs = root / "blobs"
        blobs.mkdir(parents=True)
        path = root / "manifests/registry.ollama.ai/library/m/latest"
        path.parent.mkdir(parents=True)

        def run(data: bytes) -> None:
            head, _, text = data.partition(b"\n")
            for old in blobs.iterdir():
                old.unlink()
            (blobs / DIGEST.replace(":", "-")).write_bytes(b"GGUF")
            kind = head.decode("ascii", "replace")
            path.write_bytes(manifest_with(blobs, kind, text) if kind in KINDS else text)
            check(root)

        yield run


def manifest_with(blobs: Path, kind: str, data: bytes) -> bytes:
    """Return a manifest with one layer of a kind, whose blob is written."""
    digest = hashlib.sha256(data).hexdigest()
    (blobs / f"sha256-{digest}").write_bytes(data)
    layer = {"digest": f"sha256:{digest}", "size": len(data)}
    layer["mediaType"] = f"application/vnd.ollama.image.{kind}"
    manifest = (
        {"layers": [LAYER, layer]} if kind != "config" else {"config": layer, "layers": [LAYER]}
    )
    return json.dumps(manifest).encode()


def check(root: Path) -> None:
    problems: list[str] = []
    listed = list_models([root], problems)
    if len(listed) + len(problems) != 1:
        raise Finding("a model is neither listed nor told as damaged")
    try:
        model = find_model("m", [root])
    except NgramspecError:
        if listed:
            raise
        return
    if listed != [model]:
        raise Finding("the list has another model")
    with suppress(InputError):  # an adapter, which is not supported
        find_recipe("m", [root])


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.models.ollama",),
    mutate=json_inputs.mutation(MEMBERS, HEADS),
    words=tuple(MEMBERS),
)
