"""Messages of a chat for a template, with tools that it may not know; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.errors import ChatError
from ngramspec.text.chat.messages import for_template, messages_of, text_of, with_objects
from ngramspec.text.chat.tools import tools_of

CLOCK = {"type": "function", "function": {"name": "get_time"}}
ASK = {"role": "user", "content": "What time is it?"}
CALL = {"type": "function", "function": {"name": "get_time", "arguments": {"zone": 1}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12:30"}


def test_a_template_that_knows_tools_gets_them_beside_the_messages() -> None:
    tools = tools_of([CLOCK])
    messages = messages_of([ASK, CALLING, RESULT])
    turns, listed = for_template(messages, tools, tools.tools, writes_calls=True)
    assert turns == messages
    assert turns[1]["tool_calls"][0]["function"]["arguments"] == '{"zone":1}'
    assert [tool["function"]["name"] for tool in listed] == ["get_time"]


def test_a_template_that_writes_calls_only_keeps_them() -> None:
    messages = messages_of([ASK, CALLING, RESULT])
    assert for_template(messages, tools_of([CLOCK]), None, writes_calls=True) == (messages, [])


def test_a_template_that_knows_no_tools_gets_them_as_text() -> None:
    messages = messages_of([ASK, CALLING, RESULT])
    turns, listed = for_template(messages, tools_of([CLOCK]), None, writes_calls=False)
    assert listed == []
    assert [message["role"] for message in turns] == ["system", "user", "assistant", "user"]
    assert '"name": "get_time"' in turns[0]["content"]
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": 1}}\n</tool_call>'
    assert turns[2]["content"] == call
    assert turns[3]["content"] == "<tool_response>\n12:30\n</tool_response>"
    assert for_template(messages_of([ASK]), tools_of(None), None, False) == ([ASK], [])


def broken(call: Any) -> list[Any]:
    return [ASK, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("messages", "field", "words"),
    [
        (5, "messages", "must be a list of messages, got 5"),
        ([], "messages", "must not be empty"),
        ([ASK, 5], "messages[1]", "must be an object, got 5"),
        ([{"role": 7, "content": "x"}], "messages[0]", "role must be a text, got 7"),
        ([{"role": "user"}], "messages[0].content", "content is required"),
        ([{"role": "user", "content": 5}], "messages[0].content", "a text or a list of parts"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", "a text"),
        ([{**CALLING, "tool_calls": 5}], "messages[0].tool_calls", "must be a list"),
        (broken(5), "messages[1].tool_calls[0]", "a function with a name"),
        (broken({"function": {}}), "messages[1].tool_calls[0]", "a function with a name"),
    ],
)
def test_what_has_not_openais_shape_is_refused(messages: Any, field: str, words: str) -> None:
    with pytest.raises(ChatError, match=words) as caught:
        messages_of(messages)
    assert (caught.value.field, caught.value.supported) == (field, True)


def test_arguments_that_are_not_json_are_refused_where_they_are_read() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{"}}
    (message,) = messages_of([{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(ChatError, match="arguments of a tool call are not JSON"):
        with_objects(message)
    with pytest.raises(ChatError, match="arguments of a tool call are not JSON"):
        for_template([message], tools_of(None), None, writes_calls=False)


def test_a_part_that_is_no_text_is_not_supported() -> None:
    with pytest.raises(ChatError, match="is of type 'image_url'; a chat takes text") as caught:
        text_of([{"type": "image_url", "image_url": "x"}], "content")
    assert (caught.value.field, caught.value.supported) == ("content[0]", False)
