"""Filling in the middle, with a model that has the tokens for it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

pytest.importorskip("gguf")

from helpers.gguf_models import FIM_TOKENS, with_fim_tokens
from helpers.serving import Serving, serving

PRE, SUF, MID, REP, SEP = FIM_TOKENS.values()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = with_fim_tokens(tmp_path_factory.mktemp("fim") / "fim.gguf")
    with serving(path, exact=False, slots=1, served={"batch_size": 64}) as server:
        yield server


def tokens_of(server: Serving, text: str) -> list[int]:
    return list(server.post("/tokenize", content=text, parse_special=False).json()["tokens"])


def text_of(server: Serving, ids: list[int]) -> str:
    return str(server.post("/detokenize", tokens=ids).json()["content"])


def test_the_layout_is_llama_servers(server: Serving) -> None:
    answer = server.post(
        "/infill",
        input_prefix="def f():\n    ",
        input_suffix="\n\nf()",
        input_extra=[{"filename": "a.py", "text": "import os\n"}],
        prompt="return",
        n_predict=1,
    ).json()
    extra = [REP, *tokens_of(server, "myproject\n"), SEP, *tokens_of(server, "a.py\n")]
    extra += [*tokens_of(server, "import os\n"), SEP, *tokens_of(server, "filename\n")]
    prefix = [PRE, *tokens_of(server, "def f():\n    "), *tokens_of(server, "return")]
    suffix = [SUF, *tokens_of(server, "\n\nf()")]
    assert answer["prompt"] == text_of(server, [*extra, *prefix, *suffix, MID])


def test_long_texts_are_cut_to_one_batch(server: Serving) -> None:
    prefix, suffix = "a b c d " * 100, "x y z w " * 100
    answer = server.post("/infill", input_prefix=prefix, input_suffix=suffix, n_predict=1).json()
    assert answer["tokens_evaluated"] < 64 + 20
    tail = tokens_of(server, prefix)[-48:]
    assert text_of(server, [PRE, *tail, SUF]) in answer["prompt"]
    assert text_of(server, [SUF, *tokens_of(server, suffix)[:14], MID]) in answer["prompt"]


def test_a_suffix_makes_a_completion_fill_in(server: Serving) -> None:
    answer = server.complete(prompt="def f():", suffix="f()", max_tokens=4)
    assert answer.usage.prompt_tokens == 3 + len(tokens_of(server, "def f():")) + len(
        tokens_of(server, "f()")
    )
    with pytest.raises(openai.BadRequestError, match="must be a text"):
        server.complete(prompt=[1, 2], suffix="f()", max_tokens=4)


def test_the_layout_keeps_its_begin_token(server: Serving) -> None:
    for path, body in (
        ("/infill", {"input_prefix": "def f():", "input_suffix": "f()"}),
        ("/v1/completions", {"prompt": "def f():", "suffix": "f()"}),
    ):
        reply = server.post(path, **body, max_tokens=1, add_special_tokens=False)
        assert reply.status_code == 400
        assert "add_special_tokens must not be false" in reply.json()["error"]["message"]
        reply = server.post(path, **body, max_tokens=1, add_special_tokens=True)
        assert reply.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"input_suffix": "x"},
        {"input_prefix": "x"},
        {"input_prefix": "x", "input_suffix": "y", "prompt": [1]},
        {"input_prefix": "x", "input_suffix": "y", "input_extra": [{"filename": "a"}]},
        {"input_prefix": "x", "input_suffix": "y", "input_extra": "z"},
    ],
)
def test_bad_fields_are_told(server: Serving, body: dict[str, object]) -> None:
    assert server.post("/infill", **body).status_code == 400
