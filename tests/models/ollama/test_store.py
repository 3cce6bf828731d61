"""Finding models in stores that are built as Ollama builds them."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path

import pytest

from helpers.ollama_stores import CONFIG, GGUF, Store, digest_of
from ngramspec.errors import FormatError, InputError, NgramspecError
from ngramspec.models.ollama.names import ModelName
from ngramspec.models.ollama.store import (
    ModelNotFoundError,
    default_roots,
    find_model,
    list_models,
)


def test_a_model_comes_with_all_that_is_stored(store: Store) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    written = store.model(
        template="{{ .Prompt }}",
        system="Be brief.\u00e9",
        params={"stop": ["<|eot|>"], "temperature": 0.5},
        license=("MIT", "Apache"),
        messages=messages,
        projector=b"GGUFp",
        adapter=b"GGUFa",
        draft=b"GGUFd",
    )
    path = store.root / "manifests/registry.ollama.ai/library/llama3/latest"
    os.utime(path, (1.7e9, 1.7e9))
    model = find_model("llama3", [store.root])
    assert model.name == ModelName.parse("llama3:latest")
    assert model.gguf.read_bytes() == GGUF
    assert (model.template, model.system) == ("{{ .Prompt }}", "Be brief.\u00e9")
    assert model.parameters == {"stop": ["<|eot|>"], "temperature": 0.5}
    assert model.licenses == ("MIT", "Apache")
    assert list(model.messages) == messages
    assert [p.read_bytes() for p in (*model.projectors, *model.adapters)] == [b"GGUFp", b"GGUFa"]
    assert model.draft is not None
    assert model.draft.read_bytes() == b"GGUFd"
    assert model.digest == digest_of(path.read_bytes())
    assert model.size == sum(item["size"] for item in [written["config"], *written["layers"]])
    assert model.modified == datetime.datetime.fromtimestamp(1.7e9, datetime.timezone.utc)
    assert model.config == CONFIG
    assert (model.family, model.families) == ("llama", ("llama",))
    assert (model.parameter_size, model.quantization) == ("8.0B", "Q4_K_M")


def test_a_bare_model_has_no_more_than_its_file(store: Store) -> None:
    written = store.model()
    del written["config"]
    store.manifest("registry.ollama.ai/library/llama3/latest", written)
    model = find_model("llama3", [store.root])
    assert (model.template, model.system, model.draft) == (None, None, None)
    assert (model.parameters, model.licenses, model.messages) == ({}, (), ())
    assert (model.config, model.family, model.families, model.quantization) == ({}, "", (), "")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("registry.ollama.ai/library/llama3/8b", "llama3:8b"),
        ("registry.ollama.ai/user/model/latest", "user/model"),
        ("hf.co/user/Repo-GGUF/Q4_K_M", "hf.co/user/Repo-GGUF:Q4_K_M"),
        ("hf.co/user/Repo-GGUF/Q4_K_M", "HF.co/User/repo-gguf:q4_k_m"),
        ("ollama.com/library/llama3/latest", "llama3"),
    ],
)
def test_every_part_of_a_name_is_a_folder(store: Store, path: str, name: str) -> None:
    store.model(path)
    assert find_model(name, [store.root]).gguf.is_file()


def test_newer_stores_link_manifests_to_blobs(store: Store) -> None:
    data = json.dumps(store.model("other/library/m/latest", system="linked")).encode()
    digest = store.blob(data)
    link = store.root / "manifests-v2/ollama.com/library/llama3/latest"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"../../../../blobs/sha256-{digest}")
    model = find_model("llama3", [store.root])
    assert (model.system, model.digest) == ("linked", digest)
    assert model.name == ModelName.parse("llama3")
    link.unlink()
    link.symlink_to("../../../../blobs/sha256-" + "0" * 64)
    with pytest.raises(FormatError, match="a link to none"):
        find_model("llama3", [store.root])


@pytest.mark.skipif(sys.platform == "win32", reason="no file has a colon in its name")
def test_older_stores_have_a_colon_in_the_names_of_blobs(store: Store) -> None:
    written = store.model(system="old")
    for layer in [written["config"], *written["layers"]]:
        path = store.path_of(layer)
        path.rename(path.with_name(path.name.replace("-", ":")))
    assert find_model("llama3", [store.root]).system == "old"


def test_a_template_was_once_called_prompt(store: Store) -> None:
    store.model(prompt="{{ .Prompt }}!")
    assert find_model("llama3", [store.root]).template == "{{ .Prompt }}!"


def test_the_first_store_that_has_a_model_wins(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    one.model("registry.ollama.ai/library/a/latest", system="one")
    for name in "ab":
        other.model(f"registry.ollama.ai/library/{name}/latest", system="other")
    roots = [tmp_path / "missing", one.root, other.root]
    assert find_model("a", roots).system == "one"
    assert find_model("b", roots).system == "other"
    assert [model.system for model in list_models(roots)] == ["one", "other"]


def test_all_models_are_listed_by_name_and_damaged_ones_reported(store: Store) -> None:
    store.model("registry.ollama.ai/library/b/latest")
    store.model("registry.ollama.ai/library/a/x")
    store.model("registry.ollama.ai/user/a/latest")
    store.manifest("registry.ollama.ai/library/bad/latest", b"{")
    store.manifest("registry.ollama.ai/library/.DS_Store/x", b"no manifest")
    store.manifest("registry.ollama.ai/library/skill/deep/x", b"no manifest")
    problems: list[str] = []
    names = [model.name.short() for model in list_models([store.root], problems)]
    assert names == ["a:x", "b:latest", "user/a:latest"]
    assert len(problems) == 1
    assert problems[0].startswith("bad:latest: ")
    assert len(list_models([store.root])) == 3


def test_a_missing_model_names_those_that_are_near(store: Store) -> None:
    store.model("registry.ollama.ai/library/llama3/8b")
    store.model("registry.ollama.ai/library/qwen2/latest")
    with pytest.raises(ModelNotFoundError, match=r"did you mean llama3:8b\?") as caught:
        find_model("lama3:8b", [store.root])
    assert isinstance(caught.value, NgramspecError)
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelNotFoundError, match=r"did you mean llama3:8b\?"):
        find_model("llama3:70b-instruct-fp16-and-a-long-tag", [store.root])
    with pytest.raises(ModelNotFoundError, match=r"there are llama3:8b, qwen2:latest$"):
        find_model("zzzzzz", [store.root])
    with pytest.raises(ModelNotFoundError, match="there are no models"):
        find_model("llama3", [store.root / "nowhere"])
    with pytest.raises(ModelNotFoundError, match="in no folder"):
        find_model("llama3", [])


def test_a_long_list_of_models_is_cut(store: Store) -> None:
    for at in range(13):
        store.model(f"registry.ollama.ai/library/model{at:02}/latest")
    with pytest.raises(ModelNotFoundError, match="model09:latest and 3 more"):
        find_model("zzzzzz", [store.root])


def test_a_bad_name_is_refused_before_anything_is_read(store: Store) -> None:
    with pytest.raises(InputError, match="namespace"):
        find_model("../secret", [store.root])


def test_the_environment_comes_before_the_usual_folders(tmp_path: Path) -> None:
    assert default_roots(" '/data/models' ") == [Path("/data/models")]
    usual = default_roots(None, tmp_path)
    assert usual[0] == tmp_path / ".ollama" / "models"
    assert usual == default_roots("", tmp_path)
    assert Path("/usr/share/ollama/.ollama/models") in usual
    assert default_roots()[0] == Path.home() / ".ollama" / "models"


def test_a_user_need_not_have_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = default_roots(None, tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it does without a home
    assert default_roots() == usual[1:]


def test_a_manifest_may_offer_a_model_for_several_runners(store: Store) -> None:
    inner = store.model("x/y/z/w", system="chosen")
    data = json.dumps(inner).encode()
    listed = {"mediaType": "application/vnd.ollama.manifest.list.v2+json"}
    mlx = {"runner": "mlx", "layers": [store.layer("tensor", b"t")]}
    path = "registry.ollama.ai/library/llama3/latest"
    store.manifest(path, {**listed, "manifests": [mlx, {**inner, "runner": "llamacpp"}]})
    assert find_model("llama3", [store.root]).system == "chosen"
    reference = {"runner": "Ollama", "digest": f"sha256:{store.blob(data)}"}
    store.manifest(path, {**listed, "manifests": [mlx, reference]})
    assert find_model("llama3", [store.root]).system == "chosen"
    store.manifest(path, {**listed, "manifests": [mlx]})
    with pytest.raises(FormatError, match="expected a manifest for ollama or llamacpp, found mlx"):
        find_model("llama3", [store.root])
    missing = {"runner": "ollama", "digest": "sha256:" + "1" * 64}
    store.manifest(path, {**listed, "manifests": [missing]})
    with pytest.raises(FormatError, match="the manifest blob is missing"):
        find_model("llama3", [store.root])
