"""Recipes: what a model of a store, a Modelfile, or one on top of the other says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.ollama_stores import CONFIG, GGUF
from ngramspec.errors import FormatError, InputError
from ngramspec.models.ollama.recipe import Recipe, find_recipe, read_recipe
from ngramspec.models.ollama.store import ModelNotFoundError


def write(folder: Path, text: str) -> Path:
    path = folder / "Modelfile"
    path.write_text(text)
    return path


def test_a_stored_model_is_a_recipe(store: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    store.model(
        template="{{ .Prompt }}", system="S", params={"top_k": 4, "stop": ["a"]}, messages=messages,
        license=("one", "two"), draft=b"GGUF small",
    )  # fmt: skip
    recipe = find_recipe("llama3", [store.root])
    assert recipe.gguf is not None
    assert recipe.gguf.read_bytes() == GGUF
    assert (recipe.template, recipe.template_first, recipe.system) == ("{{ .Prompt }}", False, "S")
    assert recipe.parameters == {"top_k": 4, "stop": ("a",)}
    assert recipe.messages == tuple(messages)
    assert recipe.licenses == ("one", "two")
    assert [Path(one).read_bytes() for one in recipe.drafts] == [b"GGUF small"]
    assert recipe.name is not None
    assert recipe.name.short() == "llama3:latest"
    assert recipe.notes == ()


def test_what_cannot_be_used_of_a_stored_model_is_noted(store: Any) -> None:
    store.model(template="{{ .Prompt", params={"top_k": 4, "odd": 1}, projector=b"images")
    recipe = find_recipe("llama3", [store.root])
    assert recipe.template is None
    assert recipe.parameters == {"top_k": 4}
    assert [note.split(":")[2].strip()[:13] for note in recipe.notes] == [
        "the projector", "its template ", "a parameter i",
    ]  # fmt: skip


def test_the_template_of_a_model_with_a_renderer_is_left_out(store: Any) -> None:
    manifest = store.model(template="{{ .Prompt }}")
    manifest["config"] = store.layer("config", {**CONFIG, "renderer": "own"})
    store.manifest("registry.ollama.ai/library/llama3/latest", manifest)
    recipe = find_recipe("llama3", [store.root])
    assert recipe.template is None
    assert "renderer 'own'" in recipe.notes[0]


def test_adapters_of_store_and_modelfile_add_up(store: Any, tmp_path: Path) -> None:
    store.model(adapter=b"GGUF lora")
    (stored,) = find_recipe("llama3", [store.root]).adapters
    assert stored.read_bytes() == b"GGUF lora"
    (tmp_path / "x.gguf").write_bytes(GGUF)
    recipe = read_recipe(write(tmp_path, "FROM llama3\nADAPTER x.gguf"), [store.root])
    assert recipe.adapters == (stored, tmp_path / "x.gguf")
    with pytest.raises(InputError, match=r"ADAPTER y\.gguf: no such file"):
        read_recipe(write(tmp_path, "FROM llama3\nADAPTER y.gguf"), [store.root])
    with pytest.raises(InputError, match="is a folder: convert it to a GGUF file"):
        read_recipe(write(tmp_path, "FROM llama3\nADAPTER ."), [store.root])


def test_a_modelfile_goes_on_top_of_a_stored_model(store: Any, tmp_path: Path) -> None:
    store.model(template="old {{ .Prompt }}", system="old", params={"top_k": 4, "seed": 1},
                license="old", messages=[{"role": "user", "content": "old"}])  # fmt: skip
    base = find_recipe("llama3", [store.root])
    plain = read_recipe(write(tmp_path, "FROM llama3"), [store.root])
    assert plain == base
    text = (
        "FROM llama3\nTEMPLATE new {{ .Prompt }}\nSYSTEM new\nPARAMETER top_k 9\nLICENSE new\n"
        "MESSAGE user new\nDRAFT ngram-mod,ngram-cache\nREQUIRES 0.1\n"
    )
    recipe = read_recipe(write(tmp_path, text), [store.root])
    assert (recipe.template, recipe.template_first) == ("new {{ .Prompt }}", True)
    assert recipe.system == "new"
    assert recipe.parameters == {"top_k": 9, "seed": 1}
    assert recipe.messages == ({"role": "user", "content": "new"},)
    assert recipe.licenses == ("new",)
    assert recipe.drafts == ("ngram-mod", "ngram-cache")
    assert recipe.gguf == base.gguf
    assert recipe.name == base.name
    assert "REQUIRES 0.1 has no effect" in recipe.notes[0]


def test_files_are_relative_to_the_modelfile(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    for name in ("model.gguf", "small.gguf"):
        (folder / name).write_bytes(GGUF)
    recipe = read_recipe(write(folder, "FROM ./model.gguf\nFROM more.gguf\nDRAFT small.gguf"), [])
    assert recipe.gguf == folder / "model.gguf"
    assert recipe.drafts == (str(folder / "small.gguf"),)
    assert "further FROM lines are not used: more.gguf" in recipe.notes[0]
    assert recipe.name is None


@pytest.mark.parametrize(
    ("lines", "drafts"),
    [
        (("qwen2:0.5b",), ("qwen2:0.5b",)),
        (("qwen2:0.5b", "ngram-mod"), ("qwen2:0.5b", "ngram-mod")),
        (("qwen2:0.5b, ngram-mod",), ("qwen2:0.5b", "ngram-mod")),
        (("ngram-mod,small.gguf",), ("ngram-mod", "FOLDER/small.gguf")),
        (("a,b.gguf",), ("FOLDER/a,b.gguf",)),  # a file's name may have a comma
        ((), ("STORED",)),
    ],
)
def test_drafts_are_names_and_files(
    store: Any, tmp_path: Path, lines: tuple[str, ...], drafts: tuple[str, ...]
) -> None:
    store.model(draft=b"GGUF small")
    for name in ("small.gguf", "a,b.gguf"):
        (tmp_path / name).write_bytes(GGUF)
    text = "FROM llama3\n" + "".join(f"DRAFT {line}\n" for line in lines)
    resolved = read_recipe(write(tmp_path, text), [store.root]).drafts
    stored = find_recipe("llama3", [store.root]).drafts
    expected = tuple(one.replace("FOLDER", str(tmp_path)) for one in drafts)
    assert resolved == (stored if drafts == ("STORED",) else expected)


def test_a_split_model_is_found_by_its_first_part(tmp_path: Path) -> None:
    names = [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        (tmp_path / name).write_bytes(GGUF)
    several = "\n".join(f"FROM {name}" for name in names)
    for text in ("FROM ./model-*.gguf", f"FROM {tmp_path}/model-*.gguf", several):
        recipe = read_recipe(write(tmp_path, text), [])
        assert recipe.gguf == tmp_path / names[0]
        assert recipe.notes == ()
    with pytest.raises(InputError, match=r"FROM \./none-\*\.gguf: no such file"):
        read_recipe(write(tmp_path, "FROM ./none-*.gguf"), [])


def test_capabilities_of_store_and_modelfile_add_up(store: Any, tmp_path: Path) -> None:
    manifest = store.model()
    manifest["config"] = store.layer("config", {**CONFIG, "capabilities": ["completion", "tools"]})
    store.manifest("registry.ollama.ai/library/llama3/latest", manifest)
    assert find_recipe("llama3", [store.root]).capabilities == ("completion", "tools")
    recipe = read_recipe(write(tmp_path, "FROM llama3\nCAPABILITY thinking"), [store.root])
    assert recipe.capabilities == ("completion", "tools", "thinking")


def test_a_base_that_is_nowhere_names_the_modelfile(store: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "FROM lama3")
    store.model()
    with pytest.raises(
        ModelNotFoundError, match=r"Modelfile: FROM lama3: no such file, and .*llama3"
    ):
        read_recipe(path, [store.root])
    with pytest.raises(InputError, match="is a folder"):
        read_recipe(write(tmp_path, "FROM ."), [])
    with pytest.raises(InputError, match="not a model name"):
        read_recipe(write(tmp_path, "FROM ./a b/c.gguf"), [])
    with pytest.raises(FormatError, match="TEMPLATE: template, line 1"):
        read_recipe(write(tmp_path, "FROM llama3\nTEMPLATE {{ .Prompt"), [store.root])


def test_a_plain_file_has_no_recipe() -> None:
    assert Recipe().name is None
    assert Recipe().gguf is None
