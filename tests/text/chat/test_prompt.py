"""The prompt of a conversation, and the format of its answer; every documented error."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.scripted_model import ScriptedModel
from ngramspec.errors import ChatError, InputError
from ngramspec.text.chat.prompt import chat_prompt

CLOCK = {"type": "function", "function": {"name": "get_time"}}
ASK = {"role": "user", "content": "What time is it?"}


class Listing(ScriptedModel):
    """Notes the tools that its template gets."""

    listed: Any = None

    def render_chat(self, messages: Any, /, *, tools: Any = None, **variables: Any) -> str:
        self.listed = tools
        return super().render_chat(messages, tools=tools, **variables)


def test_a_template_that_knows_tools_gets_them_in_openais_shape() -> None:
    model = Listing("{{ tools }} <tool_call>")
    prompt = chat_prompt(model, [ASK], [CLOCK])
    assert prompt.text == "user: What time is it?\nassistant:"
    described = {"name": "get_time", "description": "", "parameters": {}}
    assert model.listed == [{"type": "function", "function": described}]
    answer = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    (call,) = prompt.format.message(answer).calls
    assert call["function"] == {"name": "get_time", "arguments": "{}"}
    assert chat_prompt(model, [ASK]).format.message(answer).content == answer
    assert model.listed is None


def test_a_template_that_knows_no_tools_gets_them_as_text() -> None:
    model = Listing("nothing")
    prompt = chat_prompt(model, [ASK], [CLOCK])
    assert prompt.text.startswith("system: You can call these functions")
    assert '"name": "get_time"' in prompt.text
    assert model.listed is None


def test_the_template_of_chats_with_tools_tells_their_format() -> None:
    model = ScriptedModel("{{ tools }} [THINK]")
    model.tool_template = "{{ tools }} [TOOL_CALLS]"
    with_tools = chat_prompt(model, [ASK], [CLOCK]).format
    assert (with_tools.calls.name, with_tools.shows_special) == ("Mistral", True)
    assert chat_prompt(model, [ASK]).format.reasoning.open == "[THINK]"


def test_reasoning_that_the_prompt_has_opened_is_told_apart() -> None:
    class Opening(ScriptedModel):
        def render_chat(self, messages: Any, /, **variables: Any) -> str:
            return super().render_chat(messages, **variables) + "<think>\n"

    answer = "Hm.</think>Noon."
    message = chat_prompt(Opening("<think>"), [ASK]).format.message(answer)
    assert (message.reasoning, message.content) == ("Hm.", "Noon.")
    assert chat_prompt(ScriptedModel("<think>"), [ASK]).format.message(answer).content == answer


@pytest.mark.parametrize(
    ("messages", "tools", "field"),
    [
        ([ASK, 5], None, "messages[1]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], None, "messages[0].content[0]"),
        ([ASK], ["get_time"], "tools[0]"),
        ([ASK], [{"type": "retrieval"}], "tools[0]"),
    ],
)
def test_what_has_not_openais_shape_is_refused(messages: Any, tools: Any, field: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_prompt(ScriptedModel(""), messages, tools)
    assert caught.value.field == field


def test_a_template_that_refuses_says_so() -> None:
    class Refusing(ScriptedModel):
        def chat_capabilities(self, template: str | None = None) -> dict[str, bool]:
            raise InputError("this model has no chat template")

    with pytest.raises(InputError, match="no chat template"):
        chat_prompt(Refusing(""), [ASK])
