"""Names of models: what Ollama takes, and nothing that is no safe path."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import InputError, NgramspecError
from ngramspec.models.ollama.names import ModelName


@pytest.mark.parametrize(
    ("text", "shown", "short"),
    [
        ("llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("llama3:8b-q4_K_M", "registry.ollama.ai/library/llama3:8b-q4_K_M", "llama3:8b-q4_K_M"),
        ("user/model", "registry.ollama.ai/user/model:latest", "user/model:latest"),
        ("host/user/model:tag", "host/user/model:tag", "host/user/model:tag"),
        ("localhost:5000/user/m", "localhost:5000/user/m:latest", "localhost:5000/user/m:latest"),
        ("https://hf.co/a/b:Q4_0", "hf.co/a/b:Q4_0", "hf.co/a/b:Q4_0"),
        ("registry.ollama.ai/library/m:x", "registry.ollama.ai/library/m:x", "m:x"),
        ("_m..v1.2-x", "registry.ollama.ai/library/_m..v1.2-x:latest", "_m..v1.2-x:latest"),
    ],
)
def test_what_is_left_out_gets_the_default(text: str, shown: str, short: str) -> None:
    name = ModelName.parse(text)
    assert name.shown() == shown
    assert name.short() == short
    assert ModelName.parse(name.short()) == name
    assert ModelName.from_path(name.path()) == name


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "model: ''"),
        (":tag", "model: ''"),
        ("model:", "tag: ''"),
        ("user/", "model: ''"),
        ("/model", "namespace: ''"),
        ("//model", "host: ''"),
        ("../model", "namespace: '..'"),
        ("user/..", "model: '..'"),
        ("model:..", "tag: '..'"),
        ("../../../etc/passwd", "host: '../../..'"),
        ("/etc/passwd", "host: ''"),
        ("a/b/c/d", "host: 'a/b'"),
        ("a.b/model", "namespace: 'a.b'"),
        ("a:b:c", "model: 'a:b'"),
        ("-model", "model: '-model'"),
        ("mod el", "model: 'mod el'"),
        ("mod\\el", "model: 'mod"),
        ("mod\nel", "model: 'mod"),
        ("model\n", "model: 'model"),
        ("modèle", "model: 'mod"),
        ("m" * 81, "model: 'mmm"),
        ("m:" + "t" * 81, "tag: 'ttt"),
        ("h" * 351 + "/user/m", "host: 'hhh"),
    ],
)
def test_bad_names_say_which_part_and_what_is_expected(text: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelName.parse(text)
    assert f"not a {part}" in str(caught.value)
    assert "expected letters, digits" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_case_does_not_count_when_names_are_compared() -> None:
    assert ModelName.parse("Llama3:8B").same_as(ModelName.parse("llama3:8b"))
    assert not ModelName.parse("llama3:8b").same_as(ModelName.parse("llama3"))


@pytest.mark.parametrize("path", ["a/b/c", "a/b/c/d/e", "a/b/../d"])
def test_a_path_has_four_valid_parts(path: str) -> None:
    with pytest.raises(InputError):
        ModelName.from_path(PurePosixPath(path))


@given(st.text(alphabet="aZ0_-.:/\\ \n\u00e9", max_size=30))
def test_a_name_is_refused_or_a_safe_path(text: str) -> None:
    try:
        path = ModelName.parse(text).path()
    except NgramspecError:
        return
    assert len(path.parts) == 4
    assert not path.is_absolute()
    assert not {"..", ".", ""} & set(path.parts)
