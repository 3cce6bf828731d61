"""Messages and tools as templates see them."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.errors import InputError
from ngramspec.models.ollama.chat_template import FUNCTIONS, message_values, tool_values
from ngramspec.text.gotemplate import Template


def of_message(text: str, **fields: Any) -> str:
    value = message_values([{"role": "assistant", **fields}])[0]
    return Template.parse(text, FUNCTIONS).render({"m": value})


def of_tool(text: str, function: Any, **fields: Any) -> str:
    tools = tool_values([{"type": "function", "function": function, **fields}])
    return Template.parse(text, FUNCTIONS).render({"t": tools[0], "Tools": tools})


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "function": {"index": 1, "name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({"b": 1, "a": "<"}, '{"a":"\\u003c","b":1}'),
        ('{"b": 1, "a": "<"}', '{"a":"\\u003c","b":1}'),
        ({}, "{}"),
        (None, "{}"),
    ],
)
def test_arguments_are_an_object_or_json_of_one(arguments: Any, written: str) -> None:
    text = "{{ range .m.ToolCalls }}{{ .ID }}{{ .Function.Index }}{{ .Function.Name }}"
    text += "{{ .Function.Arguments }}{{ json .Function.Arguments }}{{ end }}"
    assert of_message(text, tool_calls=[call(arguments)]) == f"c1f{written}{written}"


@pytest.mark.parametrize("arguments", ["{", "[1]", '"text"', "[" * 100_000, 3, [1]])
def test_other_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(InputError, match=r"tool_calls\[0\].function.arguments must be an object"):
        of_message("", tool_calls=[call(arguments)])


def test_what_is_not_there_is_empty() -> None:
    text = "{{ .m.Content }}{{ .m.Thinking }}{{ len .m.ToolCalls }}{{ len .m.Images }}"
    text += "{{ len .m.ToolName }}{{ len .m.ToolCallID }}{{ if .m.Thinking }}no{{ end }}"
    assert of_message(text) == "0000"
    assert of_message(text, content=None, tool_calls=None) == "0000"
    text = "{{ range .m.ToolCalls }}{{ len .Function.Name }}{{ .Function.Arguments }}{{ end }}"
    assert of_message(text, tool_calls=[{}]) == "0{}"
    assert of_tool("{{ len .t.Function.Parameters.Properties }}", None) == "0"
    assert of_tool("{{ len .t.Function.Parameters.Required }}", {"name": "f"}) == "0"


def test_a_message_is_json_with_the_names_of_the_api() -> None:
    fields = {"content": "c", "odd": 1, "tool_calls": [call({"x": 1})], "thinking": "t"}
    assert of_message("{{ json .m }}", **fields) == (
        '{"role":"assistant","content":"c","thinking":"t","tool_calls":'
        '[{"id":"c","function":{"index":1,"name":"f","arguments":{"x":1}}}],"odd":1}'
    )


def test_a_tool_is_json_in_the_order_of_ollama_and_then_as_it_came() -> None:
    function = {
        "strict": True,
        "parameters": {
            "additionalProperties": False,
            "properties": {
                "z": {"description": "d", "type": ["string", "null"], "minLength": 1},
                "a": {
                    "type": ["integer"],
                    "items": {"type": "x"},
                    "anyOf": [{"type": "object", "properties": {}}],
                },
            },
            "type": "object",
        },
        "name": "f",
    }
    written = (
        '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{'
        '"a":{"anyOf":[{"type":"object","properties":{}}],"type":"integer","items":{"type":"x"}},'
        '"z":{"type":["string","null"],"description":"d","minLength":1}},'
        '"additionalProperties":false},"strict":true},"x":1}'
    )
    assert of_tool("{{ .t }}", function, x=1) == written
    assert of_tool("{{ .Tools }}", function, x=1) == f"[{written}]"
    assert of_tool("{{ json .t.Function }}", function) == of_tool("{{ .t.Function }}", function)
    shown = "{{ range $n, $p := .t.Function.Parameters.Properties }}{{ $n }}:{{ .Type }};"
    assert of_tool(shown + "{{ end }}", function) == "a:integer;z:[string null];"
    typed = "{{ range .t.Function.Parameters.Properties }}{{ . | toTypeScriptType }};{{ end }}"
    assert of_tool(typed, function) == "Record<string, any>;string | null;"


@pytest.mark.parametrize(
    ("function", "where"),
    [
        ({"name": 1}, "function.name must be a text"),
        ({"description": []}, "function.description must be a text"),
        ({"parameters": "p"}, "function.parameters must be an object"),
        ({"parameters": {"type": {}}}, "function.parameters.type must be a list"),
        ({"parameters": {"type": [1]}}, r"function.parameters.type\[0\] must be a text"),
        ({"parameters": {"required": "city"}}, "function.parameters.required must be a list"),
        ({"parameters": {"properties": []}}, "function.parameters.properties must be an object"),
        ({"parameters": {"properties": {"x": 1}}}, "properties.x must be an object, not int"),
        ({"parameters": {"properties": {"x": {"anyOf": [1]}}}}, r"x.anyOf\[0\] must be an object"),
    ],
)
def test_wrong_tools_say_where(function: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError, match=rf"tools\[0\]\..*{where}"):
        of_tool("", function)


def test_the_index_of_a_call_is_an_integer() -> None:
    with pytest.raises(InputError, match="index must be an integer, not str"):
        of_message("", tool_calls=[{"function": {"index": "1"}}])
    with pytest.raises(InputError, match="index must be an integer, not bool"):
        of_message("", tool_calls=[{"function": {"index": True}}])
