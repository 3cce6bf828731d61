"""POST /api/generate, asked by Ollama's own client; templates, contexts, suffixes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from helpers.ollama_serving import GREEDY, check_figures, lines
from helpers.serving import ANSWER, REPEAT, Serving, Start
from ngramspec.models.ollama.recipe import Recipe

FULL = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    '{{ range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}\n{{ .Content }}'
    "<|im_end|>\n{{ end }}{{ end }}<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[ollama.Client]:
    with ollama.Client(server.url) as client:
        yield client


def prompt_of(server: Serving, **body: Any) -> str:
    """Return the prompt that a request was given, from its context."""
    fields = {"model": "tiny", "stream": False, "options": {"num_predict": 1}, **body}
    answer = server.post("/api/generate", **fields).json()
    ids = answer["context"][: answer["prompt_eval_count"]]
    return server.served.model.detokenize(ids, special=True)


def test_a_prompt_is_answered(client: ollama.Client) -> None:
    answer = client.generate("tiny", REPEAT, options=GREEDY)
    assert answer.response == ANSWER
    assert answer.done_reason == "stop"
    assert answer.thinking is None
    assert len(answer.context) == answer.prompt_eval_count + answer.eval_count


def test_a_stream_brings_the_same_text_and_the_context_at_its_end(server: Serving) -> None:
    parts = lines(server, "/api/generate", prompt=REPEAT, options=GREEDY)
    assert "".join(line["response"] for line in parts) == ANSWER
    assert set(parts[0]) == {"model", "created_at", "response", "done"}
    assert parts[-1]["response"] == ""
    check_figures(parts[-1])
    assert len(parts[-1]["context"]) > 20
    assert not any("context" in line for line in parts[:-1])


def test_raw_prompts_are_continued_as_they_are(server: Serving, client: ollama.Client) -> None:
    answer = client.generate("tiny", "def area(", raw=True, options=GREEDY)
    assert answer.response == server.complete(max_tokens=64).choices[0].text
    assert answer.context is None


def test_system_and_template_of_a_request_count(server: Serving) -> None:
    text = prompt_of(server, prompt="hi", system="Be brief.")
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi")
    text = prompt_of(server, prompt="hi", system="S", template="{{ .System }}: {{ .Prompt }} -")
    assert text == "S: hi -"


def test_a_context_goes_before_the_next_prompt(server: Serving, client: ollama.Client) -> None:
    first = client.generate("tiny", REPEAT, options=GREEDY)
    text = prompt_of(server, prompt="more", context=first.context)
    before = server.served.model.detokenize(first.context, special=True)
    assert text == before + "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_a_stop_text_is_not_part_of_the_context(server: Serving, client: ollama.Client) -> None:
    answer = client.generate("tiny", REPEAT, options={**GREEDY, "stop": ["width"]})
    text = server.served.model.detokenize(answer.context, special=True)
    assert text.endswith(f"assistant\n{answer.response}")


def test_a_schema_is_followed(client: ollama.Client) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    answer = client.generate("tiny", REPEAT, format=schema, options={**GREEDY, "num_predict": 200})
    assert set(json.loads(answer.response)) <= {1, 2}


def test_a_model_without_the_tokens_refuses_a_suffix(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match='"tiny" does not support insert') as caught:
        client.generate("tiny", "def f(", suffix="return x")
    assert caught.value.status_code == 400


def test_the_template_lays_out_prompt_and_suffix(start: Start) -> None:
    template = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ .Prompt }}{{ end }}"
    server = start(slots=1, served={"recipe": Recipe(template=template)})
    assert prompt_of(server, prompt="a", suffix="b") == "<P>a<S>b<M>"
    assert prompt_of(server, prompt="a") == "a"
    shown = server.post("/api/show", model="tiny").json()
    assert shown["capabilities"] == ["completion", "insert"]


def test_a_models_own_template_system_and_messages_are_used(start: Start) -> None:
    messages = ({"role": "user", "content": "2?"}, {"role": "assistant", "content": "two"})
    recipe = Recipe(template=FULL, messages=messages, parameters={"top_k": 3, "stop": ("a", "b")})
    server = start(slots=1, served={"recipe": recipe, "system": "Count."})
    text = prompt_of(server, prompt="3?")
    assert text == (
        "<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n"
        "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\n3?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    other = prompt_of(server, prompt="3?", system="Be brief.")
    assert other == text.replace("Count.", "Be brief.")
    body = {"messages": [{"role": "user", "content": "3?"}]}
    assert server.post("/apply-template", **body).json()["prompt"] == text  # the Jinja template
    shown = server.post("/api/show", model="tiny").json()
    assert shown["system"] == "Count."
    assert shown["template"] == FULL
    assert shown["messages"] == list(messages)
    assert [line.split() for line in shown["parameters"].splitlines()] == [
        ["top_k", "3"], ["stop", '"a"'], ["stop", '"b"'],
    ]  # fmt: skip
    assert "MESSAGE assistant two" in shown["modelfile"]


def test_a_template_that_is_put_first_serves_the_other_api_too(
    start: Start,
) -> None:
    recipe = Recipe(template="{{ range .Messages }}[{{ .Role }}|{{ .Content }}]{{ end }}>",
                    template_first=True)  # fmt: skip
    server = start(slots=1, served={"recipe": recipe})
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    assert server.post("/apply-template", **body).json()["prompt"] == "[user|hi]>"
    body["messages"].append({"role": "assistant", "content": "And"})
    assert server.post("/apply-template", **body).json()["prompt"] == "[user|hi]>And"
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    prompt = server.post("/apply-template", **body, tools=[tool]).json()["prompt"]
    assert prompt.startswith("[system|You can call these functions")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw": True, "system": "x"}, "raw mode does not support template, system, or context"),
        ({"template": "{{ .Prompt"}, "template, line 1"),
        ({"context": [1, 99999]}, "context must hold token ids in 0..4095"),
        ({"images": ["aGk="]}, "text only, no images"),
        ({"prompt": 5}, "prompt is wrong"),
        ({"prompt": "x " * 5000}, "maximum context length is 2048"),
    ],
)
def test_wrong_requests_are_told(server: Serving, change: dict[str, Any], message: str) -> None:
    answer = server.client.post("/api/generate", json={"model": "tiny", "prompt": "x", **change})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_an_empty_prompt_loads(client: ollama.Client) -> None:
    assert client.generate("tiny").done_reason == "load"
    parts = list(client.generate("tiny", keep_alive=0, stream=True))
    assert [(one.done, one.done_reason, one.response) for one in parts] == [(True, "unload", "")]


def test_thinking_of_a_model_that_knows_it_is_told_apart(start: Start) -> None:
    template = FULL + "{{ if .Think }}<think>\n{{ end }}"
    server = start(slots=1, served={"recipe": Recipe(template=template + "{{ .Thinking }}")})
    body = {"model": "tiny", "prompt": "x", "stream": False, "options": GREEDY}
    assert prompt_of(server, prompt="x").endswith("<think>\n")
    assert not prompt_of(server, prompt="x", think=False).endswith("<think>\n")
    schema = {"enum": ["yes"]}
    answer = server.post("/api/generate", **body, format=schema).json()
    if answer["done_reason"] == "stop":
        assert answer["response"] == '"yes"'
    assert "thinking" not in server.post("/api/generate", **body, think=False).json()
    assert "thinking" in server.post("/api/show", model="tiny").json()["capabilities"]
