"""Formats of tool calls and reasoning: adding one takes a class and its place in the registry.

The server here knows nothing of llama.cpp: its model and target are scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from helpers.scripted_model import ScriptedModel, ScriptedTarget
from helpers.written_calls import FAMILIES
from ngramspec.engine import Engine, EngineThread
from ngramspec.server import ChatModel, ServedModel, create_app
from ngramspec.server.responses.output import Output
from ngramspec.server.responses.tools import response_tools
from ngramspec.text.chat.calls import CALL_FORMATS
from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
)
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from ngramspec.text.chat.text import Read, Stops, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules

TEMPLATE = "{{ tools }} <tool_call><function=name>"
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
HERMES_CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


@dataclass(frozen=True, kw_only=True)
class Functions(CallFormat):
    """<tool_call><function=name>{...}</function></tool_call>, whose mark Hermes has too."""

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        if not (yield from text.passes("<function=")):
            raise NotACallError
        name: list[str] = []
        if not (yield from text.until(Stops(">"), name.append)):
            raise NotACallError
        sink.begin("".join(name))
        yield from text.until(Stops(("</function>",)), sink.arguments)
        sink.end()
        yield from closing(text, "</tool_call>")

    def rule(self, rules: Rules, tools: Tools) -> Part:
        return f"<tool_call><function={tools.tools[0].name}>{{}}</function></tool_call>"


FUNCTIONS = Functions(name="functions", signs=("<function=",), marks=(Mark("<tool_call>"),))
BRACKETS = ReasoningFormat(open="[[", close="]]")


@contextmanager
def serving(
    script: str, template: str = TEMPLATE, tool_template: str | None = None
) -> Iterator[tuple[TestClient, ScriptedTarget]]:
    target = ScriptedTarget(script)
    model: ChatModel = ScriptedModel(template)
    model.tool_template = tool_template
    engine = Engine(target, "suffix", slots=2)
    app = create_app(ServedModel(name="script", model=model, engine=engine))
    with EngineThread(engine), TestClient(app, base_url="http://localhost") as client:
        yield client, target


@pytest.fixture
def registered() -> None:
    CALL_FORMATS.insert(0, FUNCTIONS)
    REASONING_FORMATS.insert(0, BRACKETS)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Leave the registries as they were."""
    calls, reasoning = list(CALL_FORMATS), list(REASONING_FORMATS)
    yield
    CALL_FORMATS[:], REASONING_FORMATS[:] = calls, reasoning


def streamed(client: TestClient, **fields: Any) -> tuple[dict[str, str], list[Any], str]:
    """Return texts by kind, calls and the finish reason of a streamed chat."""
    body = {"messages": [{"role": "user", "content": "?"}], "stream": True, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    texts, calls, reason = {"content": "", "reasoning_content": ""}, [], ""
    for line in answer.text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        choice = json.loads(line[6:])["choices"][0]
        reason = choice["finish_reason"] or reason
        for name in texts:
            texts[name] += choice["delta"].get(name) or ""
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return texts, calls, reason


def test_a_format_that_is_registered_is_read_while_it_streams(registered: None) -> None:
    call = '<tool_call><function=get_time>{"zone": 1}</function></tool_call>'
    with serving(f"[[ Well. ]]It is {call} now.", f"{TEMPLATE} [[") as (client, _):
        texts, calls, reason = streamed(client, tools=[TOOL])
    assert texts == {"content": "It is now.", "reasoning_content": "Well."}
    assert calls == [["get_time", '{"zone": 1}']]
    assert reason == "tool_calls"


def test_what_is_not_registered_is_content() -> None:
    script = '[[ Well. ]]<functions.get_time>{"zone": 1}</function>'
    with serving(script) as (client, _):
        texts, calls, reason = streamed(client, tools=[TOOL])
    assert (texts["content"], calls, reason) == (script, [], "stop")


def test_formats_with_the_same_mark_are_told_apart(registered: None) -> None:
    with serving(HERMES_CALL) as (client, _):
        assert streamed(client, tools=[TOOL])[1] == [["get_time", "{}"]]
    with serving("<tool_call>neither") as (client, _):
        texts, calls, _ = streamed(client, tools=[TOOL])
    assert (texts["content"], calls) == ("<tool_call>neither", [])


def test_a_forced_call_has_the_grammar_of_the_models_format(registered: None) -> None:
    with serving("", TEMPLATE) as (client, target):
        streamed(client, tools=[TOOL], tool_choice="required")
    with serving("", "{{ tools }} <tool_call>") as (client, other):
        streamed(client, tools=[TOOL], tool_choice="required")
    assert "<function=get_time>{}</function>" in target.samplings[0].grammar
    assert "<function=" not in other.samplings[0].grammar


def test_tools_whose_arguments_take_too_large_a_grammar_may_be_called_freely() -> None:
    def tool(name: str, *values: Any) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"x": {"enum": values}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    large = [tool("large", *range(100_001)), TOOL]
    together = [*(tool(f"some{i}", "a" * 130_000) for i in range(9)), TOOL]
    with serving("", "{{ tools }} <tool_call>") as (client, target):
        for tools, field in ((large, "tools.large"), (together, None)):
            streamed(client, tools=tools)
            assert target.samplings[-1].grammar == ""  # all share its room
            chat = {"messages": [{"role": "user", "content": "?"}], "tools": tools}
            reply = client.post("/v1/chat/completions", json={**chat, "tool_choice": "required"})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
            assert "more than 1" in reply.json()["error"]["message"]


def whole(client: TestClient, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return the message and the finish reason of a chat that is not streamed."""
    body = {"messages": [{"role": "user", "content": "?"}], **fields}
    choice = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    return choice["message"], choice["finish_reason"]


def test_a_template_of_its_own_tells_the_format_of_chats_with_tools() -> None:
    script = 'Action:\n```json\n[\n    {"tool_name": "get_time", "parameters": {}}\n]\n```'
    template = '{{ tools }} Action: ```json "tool_name"'
    with serving(script, "{{ tools }}", template) as (client, _):
        assert streamed(client, tools=[TOOL])[1:] == ([["get_time", "{}"]], "tool_calls")
        assert streamed(client)[0]["content"] == script
        chat = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL]}
        answer = client.post("/api/chat", json={**chat, "model": "script", "stream": False}).json()
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "get_time"


HARMONY = "<|start|>assistant<|channel|>final<|message|>"
FINAL = f"<|channel|>analysis<|message|>Hm.<|end|>{HARMONY}It is noon.<|return|>"
TOOL_MESSAGE = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"


def test_an_answer_of_channels_is_told_apart_without_tools() -> None:
    with serving(FINAL, HARMONY) as (client, _):
        texts, calls, reason = streamed(client)
        assert texts == {"content": "It is noon.", "reasoning_content": "Hm."}
        assert (calls, reason) == ([], "stop")
        message, _ = whole(client, reasoning_format="none")
        assert message["content"] == "<|channel|>analysis<|message|>Hm.<|end|>It is noon."
    with serving(f"{TOOL_MESSAGE}{{}}<|call|>", HARMONY) as (client, _):
        assert streamed(client, tools=[TOOL])[1:] == ([["get_time", "{}"]], "tool_calls")
        assert whole(client)[0]["content"] == ""  # a tool that was not offered


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        (HERMES_CALL, [["get_time", "{}"]]),
        (HERMES_CALL.replace("}}", "}"), [["get_time", "{}"]]),
        (HERMES_CALL.replace("}}", ""), [["get_time", "{\n}"]]),
        (HERMES_CALL.replace("}}", "") + HERMES_CALL, [["get_time", "{\n}"], ["get_time", "{}"]]),
        ('<tool_call>{"name": "get_time", "arguments": {"zone"', [["get_time", '{"zone"']]),
        ('<tool_call>{"name": "get_time", "argum', [["get_time", ""]]),
        ('<tool_call>{"name": "get_ti', []),
    ],
)
def test_streams_end_for_the_reason_of_whole_answers(script: str, calls: list[Any]) -> None:
    with serving(script, "{{ tools }} <tool_call>") as (client, _):
        texts, streamed_calls, reason = streamed(client, tools=[TOOL])
        ends_whole = bool(calls) and calls[-1][1].endswith("}")
        assert (streamed_calls, reason) == (calls, "tool_calls" if ends_whole else "stop")
        message, whole_reason = whole(client, tools=[TOOL])
        functions = [call["function"] for call in message.get("tool_calls", ())]
        assert [[function["name"], function["arguments"]] for function in functions] == calls
        assert whole_reason == reason
        assert (message["content"] or "") == texts["content"]
        half = {"tools": [TOOL], "max_tokens": len(script) - 1}
        assert streamed(client, **half)[2] == whole(client, **half)[1] == "length"


ARGUMENTS = {"zone": "UTC", "hours": 3, "names": ["a", "b"]}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_was_cut_is_no_completed_item(name: str) -> None:
    """Wherever an answer ends: a client may run what is completed."""
    family = FAMILIES[name]
    text = family.write([("get_time", ARGUMENTS)])
    tools = Tools((Tool("get_time", TOOL["function"]["parameters"], {}),))
    format = chat_format(family.template, "", tools, parses_reasoning=True)
    for size in range(1, len(text) + 1):
        parser, output = format.parser(), Output(response_tools(()), False)
        for delta in parser.feed(text[:size], last=True):
            output.add(delta)
        output.close("incomplete" if size < len(text) else "completed")
        for item in output.json():
            if item["type"] == "function_call" and item["status"] == "completed":
                assert json.loads(item["arguments"]) == ARGUMENTS
    assert [item["status"] for item in output.json()] == ["completed"]


@pytest.mark.parametrize("name", ["GLM 4.5, 4.6", "Gemma 4"])
def test_a_response_tells_that_a_call_was_cut(name: str) -> None:
    family = FAMILIES[name]
    script = family.write([("get_time", {"zone": "UTC"})])
    tool = {"type": "function", **TOOL["function"]}
    body = {"input": "?", "tools": [tool]}
    with serving(script, family.template) as (client, _):
        for most in range(1, len(script) + 1):
            cut = {**body, "max_output_tokens": most}
            answer = client.post("/v1/responses", json=cut).json()
            text = client.post("/v1/responses", json={**cut, "stream": True}).text
            events = [json.loads(line[6:]) for line in text.split("\n") if line[:5] == "data:"]
            done = [event["item"] for event in events if event["type"].endswith("item.done")]
            for items in (answer["output"], done):
                calls = [item for item in items if item["type"] == "function_call"]
                for item in calls:
                    if item["status"] == "completed":
                        assert json.loads(item["arguments"]) == {"zone": "UTC"}
        assert calls
        whole = client.post("/v1/responses", json=body).json()["output"]
        assert [item["status"] for item in whole] == ["completed"]


def test_an_answer_that_follows_a_schema_is_no_call_of_another_family() -> None:
    script = '{"name": "get_time", "parameters": {"text": "' + "word " * 20 + '"}}'
    asked = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    with serving(script, "{{ tools }} <tool_call>") as (client, _):
        texts, calls, reason = streamed(client, tools=[TOOL], response_format=asked)
        assert (texts["content"], calls, reason) == (script, [], "stop")
        chat = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL], "format": "json"}
        lines = client.post("/api/chat", json={**chat, "model": "script"}).text.splitlines()
        parts = [json.loads(line)["message"] for line in lines]
        assert "".join(part["content"] for part in parts) == script
        assert sum(bool(part["content"]) for part in parts) > 1  # it streams
        assert streamed(client, tools=[TOOL])[1][0][0] == "get_time"
    with serving(script, '{{ tools }} "parameters"') as (client, _):
        calls = streamed(client, tools=[TOOL], response_format=asked)[1]
        assert [name for name, _ in calls] == ["get_time"]


def test_every_protocol_answers_for_any_model() -> None:
    with serving("one two") as (client, _):
        chat = {"messages": [{"role": "user", "content": "?"}]}
        answer = client.post("/v1/chat/completions", json=chat).json()
        assert answer["choices"][0]["message"]["content"] == "one two"
        answer = client.post("/completion", json={"prompt": "x\nassistant:"}).json()
        assert answer["content"] == "one two"
        answer = client.post("/api/chat", json={**chat, "model": "script", "stream": False}).json()
        assert answer["message"]["content"] == "one two"
        assert client.get("/v1/models").json()["data"][0]["meta"]["n_vocab"] == 257
        assert client.get("/props").json()["model_path"] == "scripted.bin"


def test_half_a_character_in_a_call_does_not_end_the_stream() -> None:
    script = '<tool_call>{"name": "get_time", "arguments": {"zone": "a\\ud800"}}</tool_call> ok'
    with serving(script) as (client, _):
        assert streamed(client, tools=[TOOL])[2] == "tool_calls"
        chat = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL], "model": "script"}
        lines = client.post("/api/chat", json=chat).text.splitlines()
    calls = [json.loads(line)["message"].get("tool_calls") for line in lines]
    assert [call[0]["function"]["arguments"] for call in calls if call] == [{"zone": "a?"}]
    assert json.loads(lines[-1])["done"]


def test_half_a_character_in_a_name_does_not_end_the_stream() -> None:
    with serving('<tool_call>{"name": "x\\ud800", "arguments": {}}</tool_call>') as (client, _):
        assert streamed(client, tools=[TOOL])[1] == [["x?", "{}"]]
