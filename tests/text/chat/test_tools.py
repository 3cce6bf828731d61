"""Tools of a chat: which may be called, how templates get them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.errors import ChatError
from ngramspec.text.chat.tools import tools_of

WEATHER = {"type": "function", "function": {"name": "get_weather"}}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
PATCH = {"type": "custom", "custom": {"name": "patch"}}


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def chosen(choice: Any, *tools: Any) -> tuple[list[str], bool, bool]:
    offer = tools_of(tools, choice)
    return [tool.name for tool in offer.tools], offer.required, offer.several


def test_only_what_is_chosen_may_be_called() -> None:
    both = ["get_weather", "get_time"]
    assert chosen(None, WEATHER, CLOCK) == (both, False, True)
    assert chosen("required", WEATHER, CLOCK) == (both, True, True)
    assert chosen("none", WEATHER, CLOCK) == ([], False, True)
    assert chosen(CLOCK, WEATHER, CLOCK) == (["get_time"], True, False)
    assert chosen(allowed("auto", WEATHER), WEATHER, CLOCK) == (["get_weather"], False, True)
    assert chosen(allowed("required", CLOCK, WEATHER), WEATHER, CLOCK) == (both, True, True)
    assert chosen(allowed("auto", PATCH, WEATHER), PATCH, CLOCK) == (["patch"], False, True)
    assert not tools_of(None)
    assert not tools_of([WEATHER], parallel=False).several


def test_templates_get_what_they_read_of_a_tool() -> None:
    function = {"name": "f", "description": 5, "parameters": None, "strict": True, "more": 1}
    (tool,) = tools_of([{"type": "function", "function": function}]).tools
    assert tool.strict
    assert tool.described() == {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {}},
    }
    (patch,) = tools_of([PATCH]).tools
    assert patch.custom
    parameters = patch.described()["function"]["parameters"]
    assert parameters["properties"] == {"input": {"type": "string"}}


def custom(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "query", **fields}}


def grammar(**fields: Any) -> dict[str, Any]:
    return custom(format={"type": "grammar", **fields})


@pytest.mark.parametrize(
    ("tools", "choice", "field", "words"),
    [
        ([5], None, "tools[0]", "must be an object, got 5"),
        ([WEATHER, {"type": "function"}], None, "tools[1]", ".function must be an object"),
        ([{"type": "retrieval"}], None, "tools[0]", "of type function or custom"),
        ([{"type": "function", "function": {}}], None, "tools[0]", "must have a name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": [1]}}],
            None,
            "tools[0]",
            "parameters must be a JSON schema",
        ),
        ([{"type": "custom"}], None, "tools[0]", "must have a name"),
        ([custom(format={"type": "json"})], None, "tools[0].format", "of type text or grammar"),
        ([grammar(syntax="peg", definition="a")], None, "tools[0].format", "got 'peg'"),
        ([grammar(syntax="lark")], None, "tools[0].format", "must have a definition"),
        ([grammar(syntax="regex", definition="(?<!a)b")], None, "tools[0].format", "no grammar"),
        ([], "required", "tool_choice", "only allowed with tools"),
        ([WEATHER], "perhaps", "tool_choice", "must be none, auto, required or a function"),
        ([WEATHER], CLOCK, "tool_choice", "names 'get_time', which is not in tools"),
        ([WEATHER], allowed("auto"), "tool_choice", "allows none of the tools"),
        ([WEATHER], {"type": "allowed_tools"}, "tool_choice", "a list of allowed tools"),
    ],
)
def test_what_has_not_openais_shape_is_refused(
    tools: list[Any], choice: Any, field: str, words: str
) -> None:
    with pytest.raises(ChatError, match=words) as caught:
        tools_of(tools, choice)
    assert (caught.value.field, caught.value.supported) == (field, True)
