"""Budgets of reasoning over HTTP: fields, defaults and marks as llama-server has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.serving import CODE, OPENS, THINK, THINKING, Serving, Start, serving
from ngramspec.llamacpp.model import LlamaModel

PROMPT = f"<|im_start|>user\n{THINK}<|im_end|>\n<|im_start|>assistant\n"
TAGS = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tag": "</think>"}


@pytest.fixture(scope="module")
def thinking(model: LlamaModel) -> Iterator[Serving]:
    with serving(model, drafter="suffix") as server:
        yield server


def answer(server: Serving, **extra: Any) -> tuple[str, str]:
    """Return reasoning and content of a chat."""
    message = server.chat(messages=THINKING, max_tokens=150, extra=extra).choices[0].message
    return (message.model_extra or {}).get("reasoning_content") or "", message.content or ""


def text_of(server: Serving, stream: bool, **extra: Any) -> str:
    """Return the whole text of a chat, reasoning and content."""
    reply = server.chat(messages=THINKING, max_tokens=60, stream=stream, extra=extra)
    if not stream:
        message = reply.choices[0].message
        return ((message.model_extra or {}).get("reasoning_content") or "") + (
            message.content or ""
        )
    parts = [event.choices[0].delta for event in reply if event.choices]
    return "".join(
        (part.model_extra or {}).get("reasoning_content") or part.content or "" for part in parts
    )


def size(server: Serving, text: str) -> int:
    return len(server.served.model.tokenize(text, add_special=False))


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_budget_tokens"])
@pytest.mark.parametrize("budget", [1, 5, 12])
def test_reasoning_ends_after_its_budget(thinking: Serving, field: str, budget: int) -> None:
    free, _ = answer(thinking)
    assert size(thinking, free) > 12
    reasoning, content = answer(thinking, **{field: budget})
    assert free.startswith(reasoning)
    assert budget - 2 <= size(thinking, reasoning) <= budget  # white space around it is dropped
    assert content
    assert not content.startswith("</think>")


def test_what_ends_in_time_is_not_touched(thinking: Serving) -> None:
    for budget in (-1, -5, 140, 1 << 40):
        assert answer(thinking, reasoning_budget_tokens=budget) == answer(thinking)


def test_a_budget_of_0_ends_reasoning_at_once(thinking: Serving) -> None:
    assert answer(thinking, reasoning_budget_tokens=0)[0] == ""


def test_the_message_comes_before_the_end(thinking: Serving) -> None:
    message = "\nI must answer now.\n"
    fields = {"reasoning_budget_tokens": 5, "reasoning_budget_message": message}
    reasoning, content = answer(thinking, **fields)
    assert reasoning.endswith("I must answer now.")
    assert content


def test_drafts_change_nothing(thinking: Serving) -> None:
    for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 5}):
        for budget in (3, 8):
            fields = {"reasoning_budget_tokens": budget, **sampling, "n": 2, **TAGS}
            texts = [
                [choice["content"] for choice in thinking.post(
                    "/completion", prompt=PROMPT, n_predict=80, speculative=drafts, **fields
                ).json()]
                for drafts in (False, True)
            ]  # fmt: skip
            assert texts[0] == texts[1]


def test_a_stream_has_the_same_parts(thinking: Serving) -> None:
    extra = {"reasoning_budget_tokens": 6, "reasoning_budget_message": " ... so"}
    whole = answer(thinking, **extra)
    parts = {"reasoning": "", "content": ""}
    for event in thinking.chat(messages=THINKING, max_tokens=150, stream=True, extra=extra):
        if event.choices:
            delta = event.choices[0].delta
            parts["reasoning"] += (delta.model_extra or {}).get("reasoning_content") or ""
            parts["content"] += delta.content or ""
    assert (parts["reasoning"], parts["content"]) == whole


def test_a_prompt_that_opens_the_reasoning_counts_from_its_end(thinking: Serving) -> None:
    fields = {"n_predict": 60, "reasoning_budget_tokens": 4, "return_tokens": True}
    completion = thinking.post("/completion", prompt=PROMPT + "<think>\n", **fields).json()
    close = thinking.served.model.tokenize("</think>", add_special=False).tolist()
    assert completion["tokens"][4 : 4 + len(close)] == close


def test_completions_take_marks_of_their_own(thinking: Serving) -> None:
    marks = {"reasoning_budget_start_tag": "area(", "reasoning_budget_end_tags": ["): #", "!!"]}
    fields = {"prompt": CODE + "def area(", "reasoning_budget_tokens": 3, "n_predict": 30, **marks}
    content = thinking.post("/completion", **fields).json()["content"]
    free = thinking.post("/completion", **{**fields, "reasoning_budget_tokens": -1}).json()[
        "content"
    ]
    head, _, _ = content.partition("): #")
    assert free.startswith(head)
    assert size(thinking, head) == 3
    text = thinking.complete(prompt=fields["prompt"], max_tokens=30, extra=marks | {
        "reasoning_budget_tokens": 3
    }).choices[0].text  # fmt: skip
    assert text == content


def test_a_grammar_goes_on_after_the_forced_end(thinking: Serving) -> None:
    schema = {"type": "object", "properties": {"w": {"type": "integer"}}, "required": ["w"]}
    chat = thinking.chat(
        messages=THINKING,
        max_tokens=150,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        extra={"reasoning_budget_tokens": 4, "reasoning_budget_message": "(enough)"},
    )
    message = chat.choices[0].message
    reasoning = (message.model_extra or {}).get("reasoning_content")
    assert message.content.startswith("{")
    assert reasoning is None or reasoning.endswith("(enough)")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": 'root ::= "I say " ("yes" | "no") " to this"'},
        {"structured_outputs": {"choice": ["yes indeed", "no, never"]}},
    ],
)
def test_a_grammar_without_reasoning_has_no_budget(
    start: Start, fields: dict[str, Any], stream: bool
) -> None:
    server = start(slots=1, served={"template": OPENS})
    texts = [
        text_of(server, stream, **fields, reasoning_budget_tokens=budget) for budget in (-1, 1, 0)
    ]
    assert "yes" in texts[0] or "no" in texts[0]
    assert len(set(texts)) == 1


def test_a_close_mark_in_the_message_ends_it(start: Start) -> None:
    server = start(slots=1, served={"reasoning_budget": 2, "reasoning_message": "!</think>so"})
    schema = {"type": "boolean"}
    asked: dict[str, Any] = {"messages": THINKING, "max_tokens": 60}
    for shape in ({}, {"json_schema": schema}):
        message = server.chat(**asked, extra=shape).choices[0].message
        assert (message.model_extra or {}).get("reasoning_content", "!").endswith("!")
        assert "so" not in (message.content or "")[:2]
    own = {"json_schema": schema, "reasoning_budget_tokens": 0}
    own["reasoning_budget_message"] = "a</think>b</think>"
    assert server.chat(**asked, extra=own).choices[0].message.content in ("true", "false")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    called = server.chat(**asked, tools=tools, tool_choice="required").choices[0]
    assert called.finish_reason in ("tool_calls", "length")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_budget_tokens", "5"),
        ("reasoning_budget_tokens", 1.5),
        ("thinking_budget_tokens", True),
        ("reasoning_budget_message", 3),
        ("reasoning_budget_message", "a" * ((1 << 14) + 1)),
        ("reasoning_budget_end_tags", ["a"] * 17),
    ],
)
def test_wrong_values_are_refused(thinking: Serving, field: str, value: Any) -> None:
    body = {"messages": THINKING, "max_tokens": 2, "reasoning_budget_tokens": 3, field: value}
    reply = thinking.post("/v1/chat/completions", **body)
    assert reply.status_code == 400
    assert field in reply.json()["error"]["message"]


@pytest.mark.parametrize("field", ["reasoning_budget_start_tag", "reasoning_budget_end_tag"])
def test_long_marks_are_refused(thinking: Serving, field: str) -> None:
    body = {"prompt": "x", "n_predict": 2, "reasoning_budget_tokens": 3, **TAGS, field: "a" * 2000}
    reply = thinking.post("/completion", **body)
    assert reply.status_code == 400
    assert "mark of reasoning" in reply.json()["error"]["message"]


def test_the_server_has_a_budget_of_its_own(start: Start) -> None:
    defaults = {"reasoning_budget": 6, "reasoning_message": " (enough)"}
    server = start(slots=1, served=defaults)
    reasoning, _ = answer(server)
    assert reasoning.endswith("(enough)")
    assert size(server, reasoning) < 14
    assert answer(server, reasoning_budget_tokens=-1)[0] == reasoning
    assert len(answer(server, reasoning_budget_tokens=100)[0]) > len(reasoning)
    free = server.post("/completion", prompt=PROMPT, n_predict=60).json()["content"]
    assert "(enough)" not in free  # without marks no budget, as in llama-server
    ollama = server.post(
        "/api/chat", model="tiny", messages=THINKING, stream=False, options={"temperature": 0}
    ).json()["message"]
    assert "(enough)" in ollama.get("thinking", "") + ollama["content"]


def test_the_command_takes_llama_servers_options(spawn: Callable[..., Process]) -> None:
    server = spawn("-c", "2048", "-np", "1", "--temp", "0", "--reasoning-budget", "5",
                   "--reasoning-budget-message", " (enough)")  # fmt: skip
    body = {"messages": THINKING, "max_tokens": 100}
    completion = httpx.post(f"{server.url()}/v1/chat/completions", json=body, timeout=60).json()
    assert completion["choices"][0]["message"]["reasoning_content"].endswith("(enough)")
