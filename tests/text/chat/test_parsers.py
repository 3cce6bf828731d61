"""Reading answers as they come: whatever the pieces are cut into, the result is the same."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import examples
from ngramspec.text.chat.calls import HERMES, formats_of
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.parser import ChatParser
from ngramspec.text.chat.reasoning import THINK
from ngramspec.text.chat.tools import Tool, Tools

EXAMPLES = examples(60)
CUTS = st.lists(st.integers(0, 200), max_size=12)
TOOLS = tuple(Tool(name, {"type": "object"}, {}) for name in ("f", "g"))
SCRAPS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "[ARGS]",
        "[",
        "]",
        "{",
        "}",
    ),
    *(
        '"name"',
        ": ",
        '"f"',
        '"g"',
        ", ",
        '"arguments"',
        '"parameters"',
        "{}",
        '"',
        "\\",
        "\n",
        " ",
    ),
    *('{"name": "f", "arguments": {}}', '{"name": "other", "parameters": {"x": "}"}}', "f", "text"),
)
# answer, content before and after the calls, calls
CALLS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("no call at all", "no call at all", []),
    ('{"x": 1}', '{"x": 1}', []),
    ("a <tool", "a <tool", []),
    ("<tool_call>garbage</tool_call> tail", "<tool_call>garbage</tool_call> tail", []),
    ('<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
    ('<tool_call>{"na', '<tool_call>{"na', []),
    ("[TOOL_CALLS] what", "[TOOL_CALLS] what", []),
    ('see {"name": "f", "parameters": {}}', 'see {"name": "f", "parameters": {}}', []),
    ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "}"}, "c": "\\""}}\n</tool_call>',
        "",
        [("f", '{"a": {"b": "}"}, "c": "\\""}')],
    ),
    (
        'Yes. \n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>\n{"arguments": {"x": 1}, "name": "g"}\n</tool_call> bye',
        "Yes. bye",
        [("f", "{}"), ("g", '{"x": 1}')],
    ),
    ('<tool_call>{"name": "f", "arguments": {"a"', "", [("f", '{"a"')]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [("f", '{"a": 1}')]),
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"q": 1}'), ("g", "{}")],
    ),
    ('[TOOL_CALLS]f[ARGS]{"q": [1, {"z": 2}]}', "", [("f", '{"q": [1, {"z": 2}]}')]),
    ('[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"q": 1}', "", [("f", '{"q": 1}')]),
    ('{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": []}}',
        "",
        [("f", "{}"), ("g", '{"b": []}')],
    ),
    ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
]
THOUGHTS = [
    ("<think>\nab c\n</think>\n\nxyz", False, "ab c", "xyz"),
    ("no thought", False, "", "no thought"),
    ("  <thi", False, "", "  <thi"),
    ("<think>never ends ", False, "never ends", ""),
    ("foo </thin bar\n</think>\nq", True, "foo </thin bar", "q"),
    ("  indented", False, "", "  indented"),
    ("<think></think>x", False, "", "x"),
    ("later <think>x</think>", False, "", "later <think>x</think>"),
]


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


def call_parser(one: bool = False) -> ChatParser:
    return ChatParser(formats_of(HERMES), Tools(TOOLS, parallel=not one))


def read_calls(text: str, cuts: list[int], one: bool = False) -> tuple[str, list[Any]]:
    """Return content and calls of an answer that comes in pieces."""
    parser = call_parser(one)
    deltas = [delta for piece in pieces(text, cuts) for delta in parser.feed(piece)]
    deltas += parser.feed("", last=True)
    content, calls = "", []
    for delta in deltas:
        if delta.kind == "content":
            content += delta.text
        elif delta.kind == "call":
            assert delta.index == len(calls)
            assert delta.call_id
            calls.append([delta.text, ""])
        else:
            calls[delta.index][1] += delta.text
    assert parser.num_calls <= len(calls)
    assert parser.called == bool(calls)
    return content, [tuple(call) for call in calls]


@pytest.mark.parametrize(("answer", "content", "calls"), CALLS, ids=[c[0][:30] for c in CALLS])
def test_calls_are_found(answer: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read_calls(answer, []) == (content, calls)
    assert read_calls(answer, list(range(len(answer)))) == (content, calls)


@given(st.sampled_from(CALLS), CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_where_an_answer_is_cut_makes_no_difference(case: Any, cuts: list[int]) -> None:
    assert read_calls(case[0], cuts) == (case[1], case[2])


@given(st.lists(st.sampled_from(SCRAPS), max_size=14).map("".join), CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_text_reads_alike_in_any_pieces_and_none_is_lost(text: str, cuts: list[int]) -> None:
    content, calls = whole = read_calls(text, [])
    assert read_calls(text, cuts) == whole
    assert calls or content == text


def test_calls_beyond_the_limit_are_left_out() -> None:
    two = CALLS[10][0]
    assert read_calls(two, [], one=True) == ("Yes.", [("f", "{}")])


LONG: dict[str, tuple[str, str]] = {  # template, a part that is repeated after a start
    "content": ("<tool_call>", "|some words "),
    "spaces": ("<tool_call>", "|\n"),
    "marks": ("<tool_call>", "|<tool_call>"),
    "marks and braces": ("<tool_call>", '|<tool_call>{"'),
    "marks and lists": ("<tool_call>", '|<tool_call>{"x": ['),
    "marks in strings": ("<tool_call>", '|<tool_call>{"x": [\\"'),
    "almost a mark": ("<tool_call>", "|<tool_cal"),
    "reasoning": ("<tool_call>", "<think>|a  "),
    "a string": ("<tool_call>", '<tool_call>{"name": "f", "arguments": {"x": "|ab '),
    "escapes": ("<tool_call>", '<tool_call>{"name": "f", "arguments": {"x": "|\\n'),
    "no name": ("<tool_call>", '<tool_call>{"x": "|ab '),
    "the name last": ("<tool_call>", '<tool_call>{"arguments": {"x": "|ab '),
    "brackets": ("<tool_call>", '<tool_call>{"name": "f", "arguments": {"x": |['),
    "calls": ("<tool_call>", '|<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'),
    "names": ("[TOOL_CALLS]", "|[TOOL_CALLS]f "),
    "a text between tags": ("<tool_call> <function= <parameter=", "<function=f><parameter=x>|ab\n"),
    "a list between tags": ("<tool_call> <function= <parameter=", "<function=f><parameter=n>|[1, "),
    "tags": ("<tool_call> <function= <parameter=", "<function=f>|<parameter=x>\n1\n</parameter>\n"),
    "keys": ("<tool_call> <arg_key></arg_key><arg_value>", "<tool_call>f|<arg_key>x</arg_key>"),
    "nested lists": ("List of tools: [", "<|tool_call_start|>[f(x=|[1,"),
    "nested objects": ("'<|tool_call>call:'", "<|tool_call>call:f{x:|{a:"),
    "channels": ("<|channel|><|message|>", "|<|channel|>"),
    "messages": ("<|channel|><|message|>", "|<|channel|>final<|message|>a<|end|>"),
}


@pytest.mark.parametrize("piece", [4, 1 << 20], ids=["tokens", "whole"])
@pytest.mark.parametrize("name", LONG)
def test_the_cost_of_an_answer_is_linear(name: str, piece: int) -> None:
    """An answer four times as long takes some four times as long; sixteen if it were quadratic."""
    template, written = LONG[name]
    start, _, part = written.partition("|")
    parameters = {"properties": {"x": {"type": "string"}, "n": {"type": "array"}}}
    format = chat_format(template, "", Tools((Tool("f", parameters, {}),)), parses_reasoning=True)

    def seconds(size: int) -> float:
        text, parser = start + part * (size // len(part)), format.parser()
        began = time.process_time()
        for at in range(0, len(text), piece):
            parser.feed(text[at : at + piece])
        parser.feed("", last=True)
        return time.process_time() - began

    assert any(seconds(80_000) < 9 * seconds(20_000) + 0.01 for _ in range(4))


def test_mistrals_call_ids_have_nine_characters() -> None:
    parser = call_parser()
    (call, _) = parser.feed('[TOOL_CALLS] [{"name": "f", "arguments": {}}]')
    assert len(call.call_id) == 9
    assert call.call_id.isalnum()


@given(st.sampled_from(THOUGHTS), CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_reasoning_is_told_from_the_answer(case: Any, cuts: list[int]) -> None:
    text, inside, reasoning, answer = case
    parser = ChatParser([], Tools(), THINK, begun=inside)
    deltas = [one for piece in pieces(text, cuts) for one in parser.feed(piece)]
    deltas += parser.feed("", last=True)
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == reasoning
    assert "".join(delta.text for delta in deltas if delta.kind == "content") == answer
