"""Reasoning, such as text between <think> and </think>, is told from the answer, and left free."""

from __future__ import annotations

import pytest

from helpers.json_schemas import matcher_of
from ngramspec.text.chat.delta import ChatMessage
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.tools import Tool, Tools

# template, end of the prompt, answer, reasoning, content
ANSWERS = [
    ("<think>", "", "<think>\na</b> c\n</think>\n\nx ", "a</b> c", "x "),
    ("<think>", "<think>\n", "a\n</think>\n\nx", "a", "x"),
    ("<think>", "<think>\n\n</think>\n\n", "x", "", "x"),
    ("<think>", "", "</think>x", "", "x"),
    ("", "", "<think>a</think>x", "a", "x"),
    ("[THINK]", "", "[THINK]a[/THINK]x", "a", "x"),
    ("<seed:think>", "", "\n<seed:think>a</seed:think>\nx", "a", "x"),
    (
        "<|START_THINKING|>",
        "",
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>x<|END_RESPONSE|>",
        "a",
        "x",
    ),
    (
        "<|START_THINKING|> <|START_TEXT|>",
        "<|START_THINKING|>",
        "a<|END_THINKING|><|START_TEXT|>x<|END_TEXT|>",
        "a",
        "x",
    ),
    (
        "<|channel>thought",
        "",
        "<|channel>thought\na<channel|>x<|channel>thought\nb<channel|>y",
        "ab",
        "xy",
    ),
    ("<|channel>thought", "", "<|channel>thought\n<channel|>x<channel|>", "", "x"),
    ("<|inner_prefix|>", "", "<|inner_prefix|>a<|inner_suffix|>x", "a", "x"),
    (
        "<|think|> <|begin|>assistant",
        "<|begin|>assistant",
        "<|think|>a<|end|><|begin|>assistant<|content|>x<|end|>",
        "a",
        "x",
    ),
    ("<|START_THINKING|> <|START_TEXT|>", "<|START_THINKING|>", "a<|START_TEXT|>x", "a", "x"),
    (
        "<|open|> <|close|> <|end_of_msg|>",
        "<|open|>think<|sep|>",
        "a<|close|>think<|sep|><|open|>response<|sep|>x<|close|>response<|sep|>",
        "a",
        "x",
    ),
    ("<mm:think>", "", "<mm:think>a</mm:think>x", "a", "x"),
    ("<mm:think>", "", "</mm:think>x", "", "x"),
    ("<think{}> :opensource", "<think:opensource>", "a</think:opensource>x", "a", "x"),
    (
        "<think></think> <response></response>",
        "",
        "<think>a</think>\n<response>x</response>",
        "a",
        "x",
    ),
    (
        "<thinking> [BEGIN FINAL RESPONSE]",
        "Here are my reasoning steps:\n",
        "a\n[BEGIN FINAL RESPONSE]\nx",
        "a",
        "x",
    ),
    ("<thinking>", "", "<thinking>a</thinking>x", "a", "x"),
    (
        "<|channel|><|message|>",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "x<|end|><|start|>assistant<|channel|>final<|message|>y<|return|>",
        "a",
        "xy",
    ),
]


@pytest.mark.parametrize(("template", "prompt", "answer", "reasoning", "content"), ANSWERS)
def test_every_familys_reasoning_is_told_from_its_answer(
    template: str, prompt: str, answer: str, reasoning: str, content: str
) -> None:
    format = chat_format(template, prompt, parses_reasoning=True)
    whole = format.message(answer)
    assert (whole.reasoning, whole.content) == (reasoning, content)
    parser, message = format.parser(), ChatMessage()
    for char in answer:
        for delta in parser.feed(char):
            message.add(delta)
    for delta in parser.feed("", last=True):
        message.add(delta)
    assert (message.reasoning, message.content) == (reasoning, content)


def test_a_call_ends_the_reasoning_of_models_that_forget_its_end() -> None:
    template = "<tool_call> <function= <parameter= <think>"
    tools = Tools((Tool("now", {}, {}),))
    format = chat_format(template, "<think>\n", tools, parses_reasoning=True)
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    message = format.message(f"I look: <tool_call> or not.\n{call}")
    assert message.reasoning == "I look: <tool_call> or not."
    assert [one["function"]["name"] for one in message.calls] == ["now"]
    others = chat_format("<tool_call> <think>", "<think>\n", tools, parses_reasoning=True)
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    message = others.message(f"I could {call}.</think>No.")
    assert (message.reasoning, message.content) == (f"I could {call}.", "No.")
    assert not message.calls


def test_reasoning_that_is_not_told_apart_begins_where_the_prompt_opens_it() -> None:
    format = chat_format("<think>", "assistant<think>\n")
    message = format.message("a</think>x")
    assert (message.reasoning, message.content) == ("", "<think>\na</think>x")


@pytest.mark.parametrize(
    ("template", "prompt", "start", "close"),
    [
        ("<think>", "<think>\n", "", "</think>"),
        ("<think>", "", "<think>", "</think>"),
        ("[THINK]", "", "[THINK]", "[/THINK]"),
        (
            "<|channel|><|message|>",
            "",
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_reasoning_before_a_grammar_may_hold_anything_but_its_end(
    template: str, prompt: str, start: str, close: str
) -> None:
    format = chat_format(template, prompt, parses_reasoning=True)
    grammar = chat_grammar("", {"type": "boolean"}, "json_schema", format)
    matcher = matcher_of(grammar)
    for byte in f"{start}if a </b> & </thin <</ [/ é [/THIN <|en<|end:\n{close}true".encode():
        assert matcher.allows(byte)
        matcher.accept(byte)
    assert matcher.may_end


def test_a_prompt_that_has_ended_the_reasoning_leaves_none_to_a_grammar() -> None:
    for prompt, allowed in (("", True), ("<think>\n\n</think>\n\n", False)):
        format = chat_format("<think>", prompt, parses_reasoning=True)
        grammar = chat_grammar("", {"type": "boolean"}, "json_schema", format)
        matcher = matcher_of(grammar)
        assert matcher.allows(ord("<")) == allowed
        assert matcher.allows(ord("t"))
