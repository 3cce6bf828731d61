"""Reasoning, such as text between <think> and </think>, is a member of its own in chats."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from helpers.serving import OPENS, THINKING, Serving


@pytest.mark.parametrize("format", ["auto", "deepseek", "deepseek-legacy", "none", "yes"])
def test_formats_of_reasoning_have_llama_servers_names(server: Serving, format: str) -> None:
    extra = {"reasoning_format": format}
    if format == "yes":
        with pytest.raises(openai.BadRequestError, match="auto, none, deepseek, deepseek-legacy"):
            server.chat(messages=THINKING, max_tokens=2, extra=extra)
        return
    message = server.chat(messages=THINKING, max_tokens=20, extra=extra).choices[0].message
    assert ("reasoning_content" in message.model_extra) == (format != "none")


def test_a_prompt_that_opens_the_reasoning_is_known(start) -> None:
    server = start(slots=1, served={"template": OPENS})
    grammar = 'root ::= "some thought\\n</think>\\n\\nthe answer"'
    message = server.chat(max_tokens=60, extra={"grammar": grammar}).choices[0].message
    assert message.model_extra["reasoning_content"] == "some thought"
    assert message.content == "the answer"
    schema = {"type": "boolean"}
    shaped = server.chat(messages=THINKING, max_tokens=300, extra={"json_schema": schema}).choices[
        0
    ]
    if shaped.finish_reason == "stop":
        assert shaped.message.content in ("true", "false")


@pytest.mark.parametrize(("budget", "reasons"), [(None, True), (-1, True), (0, False)])
def test_a_budget_of_nothing_ends_the_reasoning_at_once(
    start, budget: int | None, reasons: bool
) -> None:
    server = start(slots=1, served={"template": OPENS})
    extra = {"reasoning_budget_tokens": budget}
    message = server.chat(messages=THINKING, max_tokens=200, extra=extra).choices[0].message
    assert ("reasoning_content" in message.model_extra) == reasons


@pytest.mark.parametrize("budget", [0, -1])
def test_the_template_is_applied_with_the_budget_of_the_chat(start, budget: int) -> None:
    server = start(slots=1, served={"template": OPENS, "reasoning_budget": budget})
    plain: dict[str, Any] = {"messages": THINKING, "max_tokens": 1}
    for body in (plain, {**plain, "reasoning_budget_tokens": 0}):
        read = server.post("/chat/completions", **body, verbose=True).json()["__verbose"]["prompt"]
        assert server.post("/apply-template", **body).json()["prompt"] == read
        assert read.endswith("</think>\n\n") == (budget == 0 or body is not plain)


def test_an_answer_without_reasoning_has_no_such_member(server: Serving) -> None:
    message = server.chat(max_tokens=20).choices[0].message
    assert "reasoning_content" not in (message.model_extra or {})
