"""What generate prints of a chat's answer: reasoning between the same marks for every model."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import examples
from ngramspec.cli.output import AnswerText
from ngramspec.llm import LLM
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.reasoning import REASONING_FORMATS, ReasoningFormat

HARMONY = "<|channel|><|message|>"
CODE = "def area(width, height):\n    return width * height\n"
THINK = f"Think, then rename `width` to `w` in this code:\n\n```python\n{CODE}```"


def shown(template: str, pieces: list[str], prompt: str = "") -> str:
    answer = AnswerText(chat_format(template, prompt, parses_reasoning=True))
    parts = [answer.pieces([(piece, True)], False) for piece in pieces]
    return "".join(text for spans in (*parts, answer.pieces([], True)) for text, _ in spans)


@pytest.mark.parametrize(
    ("template", "prompt", "answer", "printed"),
    [
        ("<think>", "", "<think>\na\n</think>\n\nx\n", "<think>\na\n</think>\n\nx\n"),
        ("<think>", "<think>\n", "a\n</think>\n\nx", "<think>\na\n</think>\n\nx"),
        ("<think>", "", "<think>\n\n</think>\n\nx", "x"),
        ("<think>", "", "<think>\na and", "<think>\na and"),
        ("[THINK]", "", "[THINK]a[/THINK]x", "<think>\na\n</think>\n\nx"),
        (
            HARMONY,
            "",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>x",
            "<think>\na\n</think>\n\nx",
        ),
        (
            "<|channel>thought",
            "",
            "<|channel>thought\na<channel|>x<|channel>thought\nb<channel|>y",
            "<think>\na\n</think>\n\nx\n\n<think>\nb\n</think>\n\ny",
        ),
    ],
)
def test_reasoning_stands_between_the_same_marks(
    template: str, prompt: str, answer: str, printed: str
) -> None:
    assert shown(template, [answer], prompt) == printed
    assert shown(template, list(answer), prompt) == printed


@given(st.text("ab \n\t<>[]|th", max_size=30), st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=examples(100), deadline=None)
def test_text_without_marks_stays_as_it_is(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    for template in ("", "<think> <tool_call>", "[THINK]", HARMONY):
        assert shown(template, pieces) == text


def test_without_a_format_spans_are_handed_on() -> None:
    spans = [("<think>a</think>", True), ("x", False)]
    assert list(AnswerText(None).pieces(spans, True)) == spans


def test_what_a_draft_guessed_keeps_its_colour() -> None:
    answer = AnswerText(chat_format("[THINK]", "", parses_reasoning=True))
    spans = [("[THINK]a", True), (" b", False), ("[/THINK]", True), ("x", True), ("y", False)]
    assert list(answer.pieces(spans, True)) == [
        ("<think>\n", False),
        ("a", True),
        (" b", False),
        ("\n</think>\n\n", False),
        ("x", True),
        ("y", False),
    ]


def test_the_embedded_model_reasons_where_it_is_asked_to(invoke: Any) -> None:
    asked = ("generate", "-p", THINK, "-n", "150", "--temp", "0", "--spec-type", "none")
    answer = json.loads(invoke(*asked, "--json").stdout)
    message = answer["message"]
    assert message["reasoning_content"]
    assert "think>" not in message["content"] + message["reasoning_content"]
    printed = invoke(*asked).stdout
    reasoning, content = message["reasoning_content"], message["content"]
    assert printed == f"<think>\n{reasoning}\n</think>\n\n{content}\n"


def test_marks_that_are_control_tokens_are_told_apart(
    invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model has three control tokens; one of them stands for such a mark here."""
    mark = "<|im_start|>"
    marks = ReasoningFormat(open=f"{mark}see", close=mark, signs=(mark,), special=True)
    formats = [marks, *REASONING_FORMATS]
    monkeypatch.setattr("ngramspec.text.chat.reasoning.REASONING_FORMATS", formats)
    stream, grammar = LLM.stream, f'root ::= {mark} "see I see." {mark} "It is noon."'

    def forced(self: LLM, prompt: Any, **options: Any) -> Any:
        return stream(self, prompt, **{**options, "grammar": grammar})

    monkeypatch.setattr(LLM, "stream", forced)
    asked = ("generate", "-p", "What time is it?", "-n", "60")
    assert invoke(*asked).stdout == "<think>\nI see.\n</think>\n\nIt is noon.\n"
    answer = json.loads(invoke(*asked, "--json").stdout)
    assert answer["text"] == f"{mark}see I see.{mark}It is noon."
    assert answer["message"]["reasoning_content"] == "I see."


def test_what_a_grammar_shapes_is_printed_as_it_is(invoke: Any) -> None:
    grammar = 'root ::= "<think>a</think>b"'
    asked = ("generate", "-p", "Hello", "-n", "60", "--grammar", grammar)
    assert invoke(*asked).stdout == "<think>a</think>b\n"
    assert "message" not in json.loads(invoke(*asked, "--json").stdout)


def test_a_prompt_that_is_no_chat_has_no_message(invoke: Any) -> None:
    answer = json.loads(invoke("generate", "-p", "import os", "--raw", "-n", "8", "--json").stdout)
    assert "message" not in answer
