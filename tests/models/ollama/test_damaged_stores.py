"""Damaged stores: every kind of damage is named, and nothing outside of blobs is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from helpers.ollama_stores import Store
from ngramspec.errors import FormatError, NgramspecError
from ngramspec.models.ollama.manifest import MOST_BYTES
from ngramspec.models.ollama.store import find_model, list_models

PATH = "registry.ollama.ai/library/llama3/latest"
DIGEST = "sha256:" + "a" * 64


def refused(store: Store) -> str:
    """Return why the model is refused."""
    with pytest.raises(FormatError) as caught:
        find_model("llama3", [store.root])
    return str(caught.value)


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        (b"", "expected JSON"),
        (b"{", "expected JSON"),
        (b"\xff\xfe\x00", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected an object as manifest"),
        (b"{}", "expected a list of layers, found None"),
        (b'{"layers": {}}', "expected a list of layers"),
        (b'{"layers": [3]}', "expected an object as layers[0], found 3"),
        (b'{"layers": []}', "expected a layer with a GGUF model, found only: none"),
        (b'{"config": "x", "layers": []}', "expected an object as config"),
    ],
)
def test_what_is_no_manifest_is_refused(store: Store, contents: bytes, match: str) -> None:
    path = store.manifest(PATH, contents)
    assert match in refused(store)
    assert str(path) in refused(store)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"digest": "sha256:../../secret"}, "digest: expected sha256: and 64 hexadecimal digits"),
        ({"digest": DIGEST[:-1]}, "64 hexadecimal"),
        ({"digest": DIGEST[:-1] + "g"}, "64 hexadecimal"),
        ({"digest": DIGEST + "\n"}, "64 hexadecimal"),
        ({"digest": "md5:" + "a" * 64}, "64 hexadecimal"),
        ({"digest": 5}, "64 hexadecimal digits, found 5"),
        ({"digest": None}, "64 hexadecimal digits, found None"),
        ({"size": "8"}, "size: expected bytes, found '8'"),
        ({"size": -1}, "size: expected bytes"),
        ({"size": True}, "size: expected bytes"),
        ({"mediaType": 7}, "mediaType: expected a text"),
        ({"digest": DIGEST}, "the model blob is missing"),
        ({"size": 9}, "expected 9 bytes as in the manifest, found 24: the model blob is damaged"),
    ],
)
def test_layers_are_checked(store: Store, change: dict[str, Any], match: str) -> None:
    written = store.model()
    written["layers"][0] |= change
    store.manifest(PATH, written)
    assert match in refused(store)


def test_text_blobs_are_compared_with_their_digest(store: Store) -> None:
    written = store.model(template="{{ .Prompt }}", license="MIT")
    path = store.path_of(written["layers"][1])
    path.write_text("{{ .Prompt !}")
    assert "the template blob is damaged: its SHA-256 differs" in refused(store)


@pytest.mark.parametrize(
    ("kind", "data", "match"),
    [
        ("template", b"ab\xff", "expected UTF-8, at offset 2"),
        ("params", b"[1]", "expected an object as params"),
        ("params", b"{", "expected JSON"),
        ("messages", b"{}", "expected a list as messages"),
        ("messages", b"[1]", "expected objects as messages, found 1"),
    ],
)
def test_contents_of_blobs_are_checked(store: Store, kind: str, data: bytes, match: str) -> None:
    store.model(**{kind: data})
    assert match in refused(store)


def test_a_license_may_have_odd_characters(store: Store) -> None:
    store.model(license=b"MIT \xa9")
    assert find_model("llama3", [store.root]).licenses == ("MIT \ufffd",)


def test_a_model_that_is_not_one_gguf_file_is_refused(store: Store) -> None:
    store.model(model=(b"GGUF1", b"GGUF2"))
    assert "expected one GGUF file, found one split into 2" in refused(store)
    store.model(model=(), tensor=b"t")
    assert "expected a layer with a GGUF model, found only: tensor" in refused(store)


def test_large_blobs_are_not_read(store: Store) -> None:
    written = store.model(template="x")
    path = store.path_of(written["layers"][1])
    with path.open("r+b") as file:
        file.truncate(MOST_BYTES + 1)
    written["layers"][1]["size"] = MOST_BYTES + 1
    store.manifest(PATH, written)
    assert f"expected at most {MOST_BYTES} bytes" in refused(store)


def test_links_that_lead_out_of_the_store_are_refused(store: Store, tmp_path: Path) -> None:
    written = store.model(template="x")
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    path = store.path_of(written["layers"][1])
    path.unlink()
    path.symlink_to(secret)
    assert "the template blob leads out of the store" in refused(store)
    manifest = store.root / "manifests" / PATH
    outside = tmp_path / "manifest"
    manifest.rename(outside)
    manifest.symlink_to(outside)
    assert "the manifest leads out of the store" in refused(store)


def test_a_blob_that_is_a_folder_or_a_dangling_link_is_refused(store: Store) -> None:
    written = store.model(template="x")
    path = store.path_of(written["layers"][1])
    path.unlink()
    path.mkdir()
    assert "the template blob is no file" in refused(store)
    path.rmdir()
    path.symlink_to(path.parent / "nothing")
    assert "the template blob is no file" in refused(store)


def test_the_folder_of_blobs_itself_may_be_elsewhere(store: Store, tmp_path: Path) -> None:
    store.model(system="moved")
    (store.root / "blobs").rename(tmp_path / "elsewhere")
    (store.root / "blobs").symlink_to(tmp_path / "elsewhere")
    assert find_model("llama3", [store.root]).system == "moved"


@settings(SETTINGS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_manifest_is_used_or_refused(store: Store, data: st.DataObject) -> None:
    written = copy.deepcopy(store.model(template="t", params={"seed": 1}))
    odd = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers()))
    place: Any = written
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(odd)
            break
        place = place[key]
    raw = json.dumps(written).encode()
    cut = data.draw(st.sampled_from([len(raw), len(raw) // 2]))
    store.manifest(PATH, raw[:cut])
    problems: list[str] = []
    models = list_models([store.root], problems)
    assert len(models) + len(problems) == 1
    if models:
        assert find_model("llama3", [store.root]) == models[0]
    else:
        with pytest.raises(NgramspecError) as caught:
            find_model("llama3", [store.root])
        assert str(caught.value) in problems[0]
