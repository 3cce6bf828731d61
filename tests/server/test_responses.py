"""POST /v1/responses, asked by OpenAI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest

from helpers.failing import fail_after
from helpers.protocols import events_in
from helpers.scripted_serving import serving_script
from helpers.serving import ANSWER, CALL, CHAT, REPEAT, THINK, Serving, Start
from ngramspec.errors import BackendError

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
}
TIME: dict[str, Any] = {"type": "function", "name": "now", "parameters": {"type": "object"}}


def ask(server: Serving, **body: Any) -> Any:
    """Return the greedy answer of OpenAI's client; `extra` holds other fields."""
    extra = body.pop("extra", {})
    fields: dict[str, Any] = {"model": "tiny", "input": REPEAT, "temperature": 0, **body}
    return server.openai.responses.create(**fields, extra_body=extra)


def post(client: httpx.Client, **body: Any) -> Any:
    reply = client.post("/v1/responses", json={"input": "?", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events_of(client: httpx.Client, **body: Any) -> list[Any]:
    """Return the events of a stream; each must be named by its type and numbered."""
    reply = client.post("/v1/responses", json={"input": REPEAT, "stream": True, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_in(reply.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    """Return the types of events, repeated ones once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


# -- whole answers -----------------------------------------------------------------------------


def test_a_text_is_answered(server: Serving) -> None:
    answer = ask(server)
    assert answer.output_text == ANSWER
    assert answer.id.startswith("resp_")
    assert answer.output[0].id.startswith("msg_")
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "tiny")
    assert answer.error is answer.incomplete_details is None
    assert answer.model_extra["timings"]["predicted_n"] == answer.usage.output_tokens
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_instructions_come_first_and_developers_are_the_system(server: Serving) -> None:
    items = [{"role": "developer", "content": "Be brief."}, *CHAT]
    tokens = ask(server, instructions="Be exact.", input=items).usage.input_tokens
    system = {"role": "system", "content": "Be exact.\nBe brief."}
    assert tokens == server.chat(messages=[system, *CHAT]).usage.prompt_tokens


def test_a_conversation_of_items_is_that_of_messages(server: Serving) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
         "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None,
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c",
         "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "message", "role": "user", "content": "And now?"},
    ]  # fmt: skip
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=1).json()
    answer = server.post("/v1/responses", input=items, max_output_tokens=1).json()
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    counted = server.post("/v1/responses/input_tokens", input=items).json()
    tokens = chat["usage"]["prompt_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": tokens}
    assert server.post("/v1/chat/completions/input_tokens", messages=messages).json() == counted


def test_what_was_answered_can_be_sent_back(server: Serving) -> None:
    first = ask(server, tools=[WEATHER], tool_choice="required", max_output_tokens=200)
    call = first.output[0]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items: list[Any] = [{"role": "user", "content": REPEAT}, *first.output, result]
    assert ask(server, input=items, tools=[WEATHER], max_output_tokens=5).status == "incomplete"


def test_an_answer_that_is_cut_is_incomplete(server: Serving) -> None:
    answer = ask(server, max_output_tokens=4)
    assert (answer.status, answer.output[0].status) == ("incomplete", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == answer.max_output_tokens == 4
    last = events_of(server.client, max_output_tokens=3)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_what_was_asked_is_repeated(server: Serving) -> None:
    answer = ask(server, metadata={"a": "b"}, top_p=0.5, tools=[WEATHER], max_output_tokens=2,
                 parallel_tool_calls=False, store=True, instructions="x",
                 reasoning={"effort": "low"}, text={"verbosity": "low"})  # fmt: skip
    assert answer.metadata == {"a": "b"}
    assert (answer.temperature, answer.top_p, answer.parallel_tool_calls) == (0, 0.5, False)
    assert answer.tools[0].name == "get_weather"
    assert (answer.tool_choice, answer.instructions, answer.store) == ("auto", "x", False)
    assert (answer.reasoning.effort, answer.text.format.type) == ("low", "text")


def test_a_long_request_is_not_repeated(server: Serving) -> None:
    reply = server.post(
        "/v1/responses", input="?", metadata={"a": "b" * (1 << 20)}, tools=[WEATHER]
    )
    assert (reply.status_code, reply.json()["metadata"], reply.json()["tools"]) == (200, {}, [])


class Rectangle(pydantic.BaseModel):
    width: int = pydantic.Field(ge=0, le=999)
    name: str = pydantic.Field(max_length=4)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_followed_and_parsed(server: Serving, stream: bool) -> None:
    fields: dict[str, Any] = {"model": "tiny", "input": "?", "max_output_tokens": 1500}
    fields |= {"text_format": Rectangle, "extra_body": {"logit_bias": {'"': 4}}}
    if stream:
        with server.openai.responses.stream(**fields) as events:
            answer = events.get_final_response()
    else:
        answer = server.openai.responses.parse(**fields)
    assert isinstance(answer.output_parsed, Rectangle)


def test_any_json_object(server: Serving) -> None:
    answer = ask(server, text={"format": {"type": "json_object"}}, max_output_tokens=1500,
                 extra={"logit_bias": {"}": 20}})  # fmt: skip
    assert isinstance(json.loads(answer.output_text), dict)


def test_no_likeliest_tokens_ask_for_no_log_probabilities(server: Serving) -> None:
    answer = ask(server, top_logprobs=0, max_output_tokens=2)
    assert not answer.output[0].content[0].logprobs


def test_logprobs_are_told_when_they_are_included(server: Serving) -> None:
    include: Any = ["message.output_text.logprobs"]
    whole = ask(server, include=include, top_logprobs=2, max_output_tokens=8).output[0].content[0]
    chat = server.chat(logprobs=True, top_logprobs=2, max_tokens=8).choices[0].logprobs.content
    assert [one.token for one in whole.logprobs] == [one.token for one in chat]
    assert [len(one.top_logprobs) for one in whole.logprobs] == [2] * 8
    events = list(ask(server, include=include, max_output_tokens=8, stream=True))
    streamed = [
        one for event in events if event.type.endswith("text.delta") for one in event.logprobs
    ]
    assert [one.token for one in streamed] == [one.token for one in chat]
    assert [one.token for one in events[-1].response.output[0].content[0].logprobs] == [
        one.token for one in chat
    ]


def test_a_prediction_is_drafted_from(server: Serving) -> None:
    prediction = {"type": "content", "content": ANSWER}
    only = {"speculative.types": "none", "prediction": prediction}
    details = ask(server, extra={"prediction": prediction}).usage.output_tokens_details.model_extra
    assert details["accepted_prediction_tokens"] > 0
    off = ask(server, extra=only).usage.output_tokens_details.model_extra
    assert off["accepted_prediction_tokens"] == 0


# -- streams -----------------------------------------------------------------------------------


def test_a_stream_tells_of_every_step(server: Serving) -> None:
    events = events_of(server.client)
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(one.get("delta", "") for one in events) == ANSWER
    first, last = events[0]["response"], events[-1]["response"]
    assert first["id"] == last["id"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["output"][0]["content"][0]["text"] == ANSWER
    assert events[-2]["item"] == last["output"][0]
    assert {one["item_id"] for one in events if "item_id" in one} == {last["output"][0]["id"]}
    assert events[-1]["timings"]["predicted_n"] == last["usage"]["output_tokens"]


def test_spans_of_text_that_is_held_back_come_with_the_next_event() -> None:
    body = {"tools": [WEATHER], "speculative": {"spans": True}}
    with serving_script("It is " + CALL.format("get_weather", '{"city": "Oslo"}')) as client:
        events = events_of(client, **body)
    spans = [span for event in events for span in event.get("speculative", {}).get("spans", ())]
    assert "".join(text for text, _ in spans) == "It is " + CALL.format(
        "get_weather", '{"city": "Oslo"}'
    )


# -- tools -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required",
         "tools": [{"type": "function", "name": "get_weather"}]},
    ],
)  # fmt: skip
def test_a_call_can_be_forced(server: Serving, choice: Any) -> None:
    tools = [WEATHER] if choice == "required" else [TIME, WEATHER]
    settings = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answer = ask(server, **settings, max_output_tokens=200)
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert call.id.startswith("fc_")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    events = events_of(server.client, **settings, temperature=0, max_output_tokens=200)
    assert kinds(events)[2:-1] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
    ]  # fmt: skip
    assert "".join(one.get("delta", "") for one in events) == call.arguments
    assert events[-2]["item"]["arguments"] == events[-3]["arguments"] == call.arguments


def test_texts_and_calls_are_items_in_their_order() -> None:
    calls = CALL.format("get_weather", '{"city": "Oslo"}') + CALL.format("now", "{}")
    with serving_script(f"It is {calls} done") as client:
        events = events_of(client, tools=[WEATHER, TIME])
    whole = events[-1]["response"]["output"]
    assert [item["type"] for item in whole] == ["message", *["function_call"] * 2, "message"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == whole
    assert [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert len({item["id"] for item in whole}) == 4


def test_tools_of_namespaces_keep_them() -> None:
    space = {"type": "namespace", "name": "mcp__files", "description": "x", "tools": [TIME]}
    tools = [{"type": "web_search"}, {"type": "image_generation"}, space]
    with serving_script(CALL.format("mcp__files__now", "{}")) as client:
        (call,) = post(client, tools=tools)["output"]
        assert (call["namespace"], call["name"]) == ("mcp__files", "now")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
        assert post(client, tools=tools, input=[{"role": "user", "content": "?"}, call, result])


def test_custom_tools_are_given_their_text() -> None:
    text = '*** Begin Patch\n"a"\n'
    script = CALL.format("apply_patch", json.dumps({"input": text}))
    with serving_script(script) as client:
        events = events_of(client, tools=[PATCH], tool_choice={"type": "custom",
                                                               "name": "apply_patch"})  # fmt: skip
        call = events[-1]["response"]["output"][0]
        assert (call["type"], call["name"], call["input"]) == (
            "custom_tool_call", "apply_patch", text)  # fmt: skip
        assert kinds(events)[2:-1] == [
            "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
            "output_item.done",
        ]  # fmt: skip
        assert events[2]["item"]["input"] == ""
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done"}
        assert post(client, tools=[PATCH], input=[{"role": "user", "content": "?"}, call, result])
    with serving_script(CALL.format("apply_patch", '{"text": "a"}')) as client:
        assert post(client, tools=[PATCH])["output"][0]["input"] == '{"text": "a"}'


def test_the_grammar_of_a_custom_tool_is_told(server: Serving) -> None:
    with_grammar = server.post("/v1/responses/input_tokens", input="?", tools=[PATCH]).json()
    plain = {**PATCH, "format": {"type": "text"}}
    without = server.post("/v1/responses/input_tokens", input="?", tools=[plain]).json()
    assert with_grammar["input_tokens"] > without["input_tokens"]


SQL = """
start: "SELECT " column (", " column)~0..2 " FROM t" ["\\n"]
column: "a" | "b" "_"? /[0-9]{2}/
"""
GRAMMARS = [
    ("lark", SQL, r"SELECT (a|b_?[0-9]{2})(, (a|b_?[0-9]{2}))* FROM t\n?"),
    ("regex", r'[a-c]{3}"[0-9]{1,9}\n', r'[a-c]{3}"[0-9]{1,9}\n'),
]


@pytest.mark.parametrize(("syntax", "definition", "expected"), GRAMMARS)
def test_the_grammar_of_a_custom_tool_is_enforced(
    server: Serving, syntax: str, definition: str, expected: str
) -> None:
    shape = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool = {"type": "custom", "name": "query", "format": shape}
    for seed in range(3):
        answer = ask(
            server, tools=[tool], tool_choice={"type": "custom", "name": "query"},
            max_output_tokens=300, temperature=1.2, extra={"seed": seed},
        )  # fmt: skip
        (call,) = answer.output
        assert (call.type, answer.status) == ("custom_tool_call", "completed")
        assert re.fullmatch(expected, call.input)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            {"syntax": "lark", "definition": "start: a\na: b\nb: a"},
            "the rule 'a' never comes to an end",
        ),
        ({"syntax": "lark", "definition": "start: /(?=a)/"}, "the rule 'start': no grammar can"),
        ({"syntax": "regex", "definition": "(?<!a)b"}, "no grammar can express"),
        ({"syntax": "regex", "definition": "(" * 900 + ")" * 900}, "nests groups too deep"),
        ({"syntax": "regex", "definition": "a)|(?:b"}, "unbalanced parenthesis"),
        ({"syntax": "regex", "definition": "a" * 4001}, "at most 4000 characters"),
        ({"syntax": "peg", "definition": "a"}, "one of the syntaxes lark, regex, got 'peg'"),
        ({"syntax": "lark"}, "must have a definition"),
        ({"type": "json"}, "must be of type text or grammar"),
    ],
)
def test_grammars_of_custom_tools_that_cannot_be_enforced_are_refused(
    server: Serving, shape: dict[str, Any], words: str
) -> None:
    tool = {"type": "custom", "name": "query", "format": {"type": "grammar", **shape}}
    reply = server.post("/v1/responses", input="?", tools=[tool])
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "tools[0].format"


# -- reasoning ---------------------------------------------------------------------------------


def test_reasoning_is_an_item_before_the_answer(server: Serving) -> None:
    answer = ask(server, input=THINK, max_output_tokens=150)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].summary == []
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    events = events_of(server.client, input=THINK, temperature=0, max_output_tokens=150)
    assert kinds(events)[2:8] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    pieces = [event["delta"] for event in events if event["type"].endswith("reasoning_text.delta")]
    assert "".join(pieces) == answer.output[0].content[0].text
    details = events[-1]["response"]["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] == answer.usage.output_tokens_details.reasoning_tokens


def test_reasoning_is_a_summary_when_one_is_asked_for(server: Serving) -> None:
    body: dict[str, Any] = {"input": THINK, "reasoning": {"summary": "auto"}, "temperature": 0}
    events = events_of(server.client, **body, max_output_tokens=150)
    assert kinds(events)[2:8] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    item = events[-1]["response"]["output"][0]
    assert (item["summary"][0]["type"], item["content"]) == ("summary_text", [])
    assert item["summary"][0]["text"] == events[-1]["response"]["output"][0]["summary"][0]["text"]
    sent = {"role": "user", "content": THINK}
    count = server.post("/v1/responses/input_tokens", input=[sent, item, sent])
    assert count.status_code == 200


# -- what is refused ---------------------------------------------------------------------------

USER: dict[str, Any] = {"role": "user", "content": "x"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an earlier response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "the background": ({"background": True}, "background"),
    "no input": ({"input": None}, "input"),
    "an empty input": ({"input": []}, "input"),
    "an image": ({"input": [{**USER, "content": [{"type": "input_image", "image_url": "x"}]}]},
                 "input[0].content[0]"),
    "a role": ({"input": [{**USER, "role": "x"}]}, "input[0]"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "an item of a type": ({"input": [USER, {"type": "computer_call"}]}, "input[1]"),
    "an item with a type of no text": ({"input": [{"type": {}}]}, "input[0]"),
    "a reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    "a call without a name": ({"input": [{"type": "function_call", "call_id": "c",
                                          "arguments": "{}"}]}, "input[0].name"),
    "a result without a call": ({"input": [{"type": "function_call_output", "output": "x"}]},
                                "input[0].call_id"),
    "a call at the end": ({"input": [USER, {"type": "function_call", "call_id": "c", "name": "now",
                                           "arguments": "{}"}]}, "input"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0]"),
    "parameters": ({"tools": [{**TIME, "parameters": 5}]}, "tools[0]"),
    "a namespace": ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0]"),
    "tools of a namespace": ({"tools": [{"type": "namespace", "name": "x", "tools": [5]}]},
                             "tools[0]"),
    "a choice of another tool": ({"tools": [TIME], "tool_choice": {"type": "function",
                                                                   "name": "x"}}, "tool_choice"),
    "a choice of a search": ({"tools": [TIME], "tool_choice": {"type": "web_search"}},
                             "tool_choice"),
    "a choice of none": ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "tools": []}},
                         "tool_choice"),
    "a format": ({"text": {"format": {"type": "x"}}}, "text.format"),
    "a format without a schema": ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    "logprobs": ({"top_logprobs": 1 << 40}, "top_logprobs"),
    "an unknown setting for drafts": ({"speculative.x": 1}, "speculative.x"),
}  # fmt: skip


def test_a_model_without_a_template_is_told_by_the_input(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1)
    monkeypatch.setattr(server.served.model, "chat_template", None)
    error = server.post("/v1/responses", input="x").json()["error"]
    assert (error["param"], "no chat template" in error["message"]) == ("input", True)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_what_is_wrong_is_refused_by_its_field(server: Serving, name: str, path: str) -> None:
    body, field = REFUSED[name]
    reply = server.post(path, **{"input": "x", "max_output_tokens": 1, **body})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert field in error["message"]


def test_a_prompt_that_is_too_long_has_openais_code(server: Serving) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, input="x " * 4000)
    assert caught.value.code == "context_length_exceeded"
    counted = server.post("/v1/responses/input_tokens", input="x " * 4000).json()
    assert counted["input_tokens"] > 4000


def test_no_response_is_kept(server: Serving) -> None:
    answer = ask(server, store=True, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError, match="keeps no responses"):
        server.openai.responses.retrieve(answer.id)


def test_a_failure_in_a_stream_is_a_failed_response(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 6, BackendError("the device is gone"))
        stream = ask(server, stream=True, extra={"speculative": False})
        events = list(stream)
    error, failed = events[-2:]
    assert (error.type, failed.type) == ("error", "response.failed")
    assert failed.response.error.message == error.message == "the device is gone"
    assert failed.response.error.code == error.code == "server_error"
    assert (failed.response.status, failed.response.output[0].status) == ("failed", "incomplete")
    with monkeypatch.context() as patch:
        fail_after(patch, 0, BackendError("the device is gone"))
        with pytest.raises(openai.InternalServerError, match="the device is gone"):
            ask(server, stream=True)


# -- requests as Codex sends them --------------------------------------------------------------


def test_codexs_requests_are_answered(server: Serving) -> None:
    """Their members by its public sources and documentation; the texts are ours."""
    shell = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
             "parameters": {"type": "object", "additionalProperties": False,
                            "properties": {"command": {"type": "array",
                                                       "items": {"type": "string"}},
                                           "workdir": {"type": "string"}},
                            "required": ["command"]}}  # fmt: skip
    body = {
        "model": "local",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "<permissions>all</permissions>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "<environment_context/>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
            {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"',
             "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "not JSON"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "x", "call_id": "call_2"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"},
        ],
        "tools": [shell, PATCH, {"type": "web_search", "external_web_access": False},
                  {"type": "image_generation", "output_format": "png"}, {"type": "local_shell"},
                  {"type": "namespace", "name": "mcp__x", "description": "", "tools": [TIME]}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-aa",
        "client_metadata": {"x-codex-installation-id": "0"},
        "text": {"verbosity": "medium"},
        "service_tier": "priority",
        "max_output_tokens": 4,
    }  # fmt: skip
    events = events_of(server.client, **body)
    assert events[-1]["type"] == "response.incomplete"
    forced = {**body, "tool_choice": "required", "max_output_tokens": 300}
    call = events_of(server.client, **forced, temperature=0)[-1]["response"]["output"][0]
    assert call["type"] in ("function_call", "custom_tool_call")


@pytest.fixture(autouse=True)
def nothing_runs_on(server: Serving) -> Iterator[None]:
    yield
    server.wait_idle()
