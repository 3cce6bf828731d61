"""POST /v1/messages, asked by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pydantic
import pytest

from helpers.later import Later
from helpers.protocols import events_in
from helpers.scripted_serving import serving_script
from helpers.serving import ANSWER, CALL, CHAT, OPENS, REPEAT, THINKING, Serving, Start
from ngramspec.server.anthropic.content import Content
from ngramspec.text.chat.delta import Delta

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Later("anthropic", "asks with Anthropic's client")

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
}
ONE_OF_ANY = {"type": "any", "disable_parallel_tool_use": True}
TIME: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as client:
        yield client


def client_of(server: Serving, **settings: Any) -> anthropic.Anthropic:
    """Return Anthropic's own client; it retries nothing."""
    return anthropic.Anthropic(
        **{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 60, **settings}
    )


def ask(client: anthropic.Anthropic, **body: Any) -> Any:
    """Return the client's answer to a greedy request."""
    fields: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 64, "temperature": 0}
    extra = {"temperature": 0, **body.pop("extra", {})}
    del fields["temperature"]
    return client.messages.create(**{**fields, **body}, extra_body=extra)


def events_of(client: httpx.Client, **body: Any) -> list[Any]:
    """Return the events of a stream; each must be named by its type."""
    fields: dict[str, Any] = {"messages": CHAT, "max_tokens": 64, "temperature": 0, "stream": True}
    reply = client.post("/v1/messages", json={**fields, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events_in(reply.text)


def kinds(events: list[Any]) -> list[str]:
    """Return types of events with those of their deltas, repeated ones once."""
    names = [event.get("delta", {}).get("type") or event["type"] for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# -- whole answers -----------------------------------------------------------------------------


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    message = ask(client)
    assert text_of(message) == ANSWER
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    timings = message.model_extra["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    plain = ask(client, extra={"speculative": False}).model_extra["timings"]
    assert plain["predicted_n"] == timings["predicted_n"]
    assert "draft_n" not in plain


def test_texts_of_the_system_are_lines(server: Serving, client: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                   {"type": "text", "text": "Be exact."}]  # fmt: skip
    messages = [{"role": "system", "content": "Be brief.\nBe exact."}, *CHAT]
    tokens = server.chat(messages=messages, max_tokens=1).usage.prompt_tokens
    counted = client.messages.count_tokens(model="tiny", messages=CHAT, system=system)
    assert counted.input_tokens == tokens


def test_a_conversation_of_blocks_is_that_of_messages(
    server: Serving, client: anthropic.Anthropic
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "What time\nis it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
         "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    blocks: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "What time"},
                                     {"type": "text", "text": "is it?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c", "name": "now", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "is_error": False,
             "content": [{"type": "text", "text": "noon"}]},
            {"type": "text", "text": "And now?"}]},
    ]  # fmt: skip
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=1).json()
    whole = client.messages.count_tokens(model="tiny", messages=blocks)
    assert whole.input_tokens == chat["usage"]["prompt_tokens"]
    for index, message in enumerate(blocks):  # every block is a part of the prompt
        for place in range(len(message["content"])):
            fewer = [dict(one) for one in blocks]
            fewer[index]["content"] = [b for i, b in enumerate(message["content"]) if i != place]
            count = client.messages.count_tokens(model="tiny", messages=fewer).input_tokens
            shown = message["content"][place]["type"] not in ("redacted_thinking", "thinking")
            assert (count < whole.input_tokens) == shown  # this template shows no reasoning


def test_a_line_that_changes_with_each_request_is_not_read(client: anthropic.Anthropic) -> None:
    def count(*texts: str) -> int:
        system: Any = [{"type": "text", "text": text} for text in texts]
        return client.messages.count_tokens(model="tiny", messages=CHAT, system=system).input_tokens

    line = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;"
    assert count(line, "Be brief.") == count("Be brief.")
    assert count(f"{line}Be brief.") == count("Be brief.")
    assert count(f"{line}\nBe brief.") == count("Be brief.")
    assert count(f"Be brief. {line}") > count("Be brief.")


def test_system_texts_within_a_chat_suit_templates_that_take_none(start: Start) -> None:
    """Claude Code sends them. Where a template refuses them the user says them."""
    shows = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    refuses = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "{{ m.role }}:{{ m.content }};{% endfor %}"
    )
    body: dict[str, Any] = {"model": "x", "system": "a", "messages": [
        {"role": "user", "content": "b"}, {"role": "system", "content": "c"},
        {"role": "assistant", "content": "d"}, {"role": "system", "content": "e"},
        {"role": "user", "content": "f"}]}  # fmt: skip
    for template, expected in (
        (shows, "system:a;user:b;system:c;assistant:d;system:e;user:f;"),
        (refuses, "system:a;user:b\nc;assistant:d;user:e\nf;"),
    ):
        server = start(slots=1, served={"template": template})
        with client_of(server) as client:
            count = client.messages.count_tokens(**body).input_tokens
        assert count == server.served.model.tokenize_prompt(expected).size
        items = [{"role": "developer", "content": "a"}, *body["messages"]]
        count = server.post("/v1/responses/input_tokens", input=items).json()["input_tokens"]
        assert count == server.served.model.tokenize_prompt(expected).size


def test_a_begun_answer_is_continued(client: anthropic.Anthropic) -> None:
    begun: list[Any] = [*CHAT, {"role": "assistant", "content": "```python\ndef area("}]
    assert text_of(ask(client, messages=begun)).startswith("width, height")


def test_why_an_answer_ends(client: anthropic.Anthropic, start: Start) -> None:
    message = ask(client, stop_sequences=["nowhere", "width *"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "width *")
    with client_of(start(slots=1, context_size=256)) as small:
        message = ask(small, max_tokens=4096, extra={"ignore_eos": True})
    assert message.stop_reason == "model_context_window_exceeded"


def test_a_stop_text_of_the_server_is_no_stop_sequence(start: Start) -> None:
    server = start(slots=1, served={"stop": ("width *",)})
    with client_of(server) as client:
        message = ask(client)
    assert text_of(message).endswith("return ")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


class Answer(pydantic.BaseModel):
    right: bool


def test_a_schema_is_followed_and_parsed(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(
        model="tiny", messages=CHAT, max_tokens=300, output_format=Answer,
        extra_body={"logit_bias": {"}": 10}, "temperature": 0},
    )  # fmt: skip
    assert isinstance(message.parsed_output, Answer)
    older = {"type": "json_schema", "schema": {"type": "boolean"}}
    assert text_of(ask(client, extra={"output_format": older})) in ("true", "false")


def test_drafts_are_set_per_request(server: Serving, client: anthropic.Anthropic) -> None:
    before = server.engine.stats().num_draft_tokens
    ask(client, extra={"speculative": {"enabled": False}})
    assert server.engine.stats().num_draft_tokens == before
    ask(client, extra={"prediction": {"type": "content", "content": ANSWER}})
    assert server.engine.stats().num_draft_tokens > before


# -- streams -----------------------------------------------------------------------------------


def test_a_stream_tells_of_every_step(server: Serving) -> None:
    events = events_of(server.client)
    assert kinds(events) == [
        "message_start", "content_block_start", "text_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["output_tokens"] == 0
    assert start["usage"]["input_tokens"] > 0
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    assert "".join(one.get("delta", {}).get("text", "") for one in events) == ANSWER
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > 0
    assert events[-2]["timings"]["draft_n_accepted"] > 0
    assert [event["type"] for event in events if "timings" in event] == ["message_delta"]
    assert events[-1] == {"type": "message_stop"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": [WEATHER], "tool_choice": ONE_OF_ANY, "max_tokens": 200},
        {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 260},  # several calls
        {"messages": THINKING, "max_tokens": 150},
        {"stop_sequences": ["width *"]},
    ],
)
def test_a_stream_is_the_whole_answer_in_pieces(
    client: anthropic.Anthropic, body: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 64, **body}
    whole = ask(client, **body)
    with client.messages.stream(**fields, extra_body={"temperature": 0}) as events:
        message = events.get_final_message()
    fresh = {"id", "parsed_output", "usage"}
    content = [(b.type, b.model_dump(exclude=fresh)) for b in message.content]
    assert content == [(b.type, b.model_dump(exclude=fresh)) for b in whole.content]
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert (message.stop_reason, message.stop_sequence) == (whole.stop_reason, whole.stop_sequence)


# -- tools -------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [ONE_OF_ANY, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_forced(client: anthropic.Anthropic, choice: Any) -> None:
    tools = [WEATHER] if choice["type"] == "any" else [TIME, WEATHER]
    message = ask(client, tools=tools, tool_choice=choice, max_tokens=200)
    (call,) = message.content
    assert (call.type, call.name, message.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    conversation: list[Any] = [*CHAT, {"role": "assistant", "content": message.content},
                               {"role": "user", "content": [result]}]  # fmt: skip
    assert ask(client, messages=conversation, tools=tools, max_tokens=2).usage.output_tokens == 2


def test_one_call_only_where_no_more_are_allowed() -> None:
    script = CALL.format("get_weather", '{"city": "Oslo"}') + CALL.format("now", "{}")
    body = {"messages": CHAT, "max_tokens": 500, "tools": [WEATHER, TIME]}
    with serving_script(script) as client:
        both = client.post("/v1/messages", json=body).json()["content"]
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        one = client.post("/v1/messages", json={**body, "tool_choice": choice}).json()["content"]
        none = client.post("/v1/messages", json={**body, "tool_choice": {"type": "none"}}).json()[
            "content"
        ]
    assert [block["name"] for block in both] == ["get_weather", "now"]
    assert [block["name"] for block in one] == ["get_weather"]
    assert [block["type"] for block in none] == ["text"]


def test_a_strict_tool_whose_schema_cannot_be_enforced_is_refused(server: Serving) -> None:
    schema = {"type": "object", "properties": {"x": {"pattern": "(?=a)"}}}
    tool = {"name": "f", "input_schema": schema}
    body = {"messages": CHAT, "max_tokens": 2}
    assert server.post("/v1/messages", **body, tools=[tool]).status_code == 200
    reply = server.post("/v1/messages", **body, tools=[{**tool, "strict": True}])
    assert reply.status_code == 400
    assert "tools.f" in reply.json()["error"]["message"]


def test_texts_and_calls_are_blocks_in_their_order() -> None:
    calls = CALL.format("get_weather", '{"city": "Oslo"}') + CALL.format("now", "{}")
    with serving_script(f"It is {calls} done") as client:
        events = events_of(client, tools=[WEATHER, TIME], max_tokens=500)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [one["content_block"]["type"] for one in starts] == [
        "text", "tool_use", "tool_use", "text"]  # fmt: skip
    assert [one["index"] for one in starts] == [0, 1, 2, 3]
    assert [one["index"] for one in events if one["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_is_a_text_that_nobody_runs() -> None:
    with serving_script(CALL.format("get_weather", '{"city": "Oslo"}')) as client:
        body = {"messages": CHAT, "tools": [WEATHER], "max_tokens": 62}
        cut = client.post("/v1/messages", json=body).json()
        more = {"max_tokens": 200, "stop_sequences": ["slo"]}
        stopped = client.post("/v1/messages", json={**body, **more}).json()
    assert cut["stop_reason"] == "max_tokens"
    assert [block["type"] for block in cut["content"]] == ["text"]
    text = cut["content"][0]["text"]
    assert text.startswith('{"name": "get_weather", "arguments": {')
    assert stopped["content"] == [
        {"type": "text", "text": '{"name": "get_weather", "arguments": {"city": "O'}
    ]
    assert stopped["stop_reason"] == "stop_sequence"


def test_tools_that_only_anthropic_has_are_left_out(
    client: anthropic.Anthropic, caplog: pytest.LogCaptureFixture
) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with caplog.at_level("WARNING"):
        both = client.messages.count_tokens(model="tiny", messages=CHAT, tools=[search, TIME])
    assert "web_search_20250305" in caplog.text
    only = client.messages.count_tokens(model="tiny", messages=CHAT, tools=[TIME])
    assert both.input_tokens == only.input_tokens


# -- thinking ----------------------------------------------------------------------------------


def test_thinking_is_a_block_before_the_answer(
    server: Serving, client: anthropic.Anthropic
) -> None:
    message = ask(client, messages=THINKING, max_tokens=150)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].signature == ""
    events = events_of(server.client, messages=THINKING, max_tokens=150)
    assert kinds(events)[:6] == [
        "message_start", "content_block_start", "thinking_delta", "signature_delta",
        "content_block_stop", "content_block_start",
    ]  # fmt: skip


def test_thinking_can_be_disabled(start: Start) -> None:
    server = start(slots=1, served={"template": OPENS})
    with client_of(server) as client:
        for thinking, expected in (
            ({"type": "enabled", "budget_tokens": 1024}, "thinking"),
            ({"type": "adaptive"}, "thinking"),
            ({"type": "disabled"}, "text"),
        ):
            message = ask(client, messages=THINKING, thinking=thinking, max_tokens=60)
            assert message.content[0].type == expected, thinking


def test_thinking_has_a_budget(client: anthropic.Anthropic) -> None:
    free = ask(client, messages=THINKING, max_tokens=150).content[0].thinking
    thinking: Any = {"type": "enabled", "budget_tokens": 5}
    message = ask(client, messages=THINKING, thinking=thinking, max_tokens=150)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert len(message.content[0].thinking) < len(free)
    assert free.startswith(message.content[0].thinking.rstrip())


@pytest.mark.parametrize(
    ("level", "shown"), [("low", "low"), ("high", "high"), ("max", "high"), ("xhigh", "high")]
)
def test_the_effort_is_told_in_words_that_models_know(start: Start, level: str, shown: str) -> None:
    template = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ messages[0].content }}"
    server = start(slots=1, served={"template": template})
    with client_of(server) as client:
        count = client.messages.count_tokens(
            model="x", messages=[{"role": "user", "content": "a"}],
            output_config={"effort": level}, thinking={"type": "adaptive"},
        )  # fmt: skip
    assert count.input_tokens == server.served.model.tokenize_prompt(f"{shown}|True|a").size


# -- what is refused ---------------------------------------------------------------------------

USER: dict[str, Any] = {"role": "user", "content": "x"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages must not be empty"),
    "messages that are none": ({"messages": "x"}, "messages"),
    "a role": ({"messages": [{**USER, "role": "tool"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "a block that is none": ({"messages": [{**USER, "content": ["x"]}]}, "messages[0].content[0]"),
    "an image": ({"messages": [{**USER, "content": [{"type": "image", "source": {}}]}]},
                 "image input is not supported"),
    "an image as a result": ({"messages": [{**USER, "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}]},
        "messages[0].content[0].content[0]"),
    "a document": ({"messages": [{**USER, "content": [
        {"type": "document", "source": {"type": "base64"}}]}]}, "document"),
    "a block of no type": ({"messages": [{**USER, "content": [{"type": {}}]}]}, "text only"),
    "a text that is none": ({"messages": [{**USER, "content": [{"type": "text", "text": 5}]}]},
                            "messages[0].content[0].text"),
    "a result of nothing": ({"messages": [{**USER, "content": [{"type": "tool_result"}]}]},
                            "tool_use_id"),
    "an input that is none": ({"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "c", "name": "f", "input": "x"}]}]}, "input must be an object"),
    "a system that is none": ({"system": [{"type": "image"}]}, "system[0]"),
    "a tool without a name": ({"tools": [{"input_schema": {}}]}, "tools[0]"),
    "a tool without a schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "a choice": ({"tools": [TIME], "tool_choice": {"type": "x"}}, "tool_choice.type"),
    "a choice without a name": ({"tools": [TIME], "tool_choice": {"type": "tool"}}, "tool_choice"),
    "a choice of no tool": ({"tools": [TIME], "tool_choice": {"type": "tool", "name": "x"}},
                            "tool_choice"),
    "a kind of thinking": ({"thinking": {"type": "x"}}, "thinking.type"),
    "a format": ({"output_config": {"format": {"type": "x"}}}, "output_config.format"),
    "a format without a schema": ({"output_config": {"format": {"type": "json_schema"}}},
                                  "output_config.format"),
    "stop texts": ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
    "tokens": ({"max_tokens": "many"}, "max_tokens"),
    "an unknown setting for drafts": ({"speculative.x": 1}, "speculative.x"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_anthropics_shape(server: Serving, name: str) -> None:
    body, words = REFUSED[name]
    for stream in (False, True):
        reply = server.post("/v1/messages", messages=[USER], max_tokens=1, stream=stream, **{})
        assert reply.status_code == 200
        reply = server.post(
            "/v1/messages", **{"messages": [USER], "max_tokens": 1, "stream": stream, **body}
        )
        assert reply.status_code == 400, reply.text
        answer = reply.json()
        assert (answer["type"], set(answer["error"])) == ("error", {"type", "message"})
        assert answer["error"]["type"] == "invalid_request_error"
        assert words in answer["error"]["message"]


def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_know(
    client: anthropic.Anthropic,
) -> None:
    """Claude Code shortens the chat when it reads them."""
    long: list[Any] = [{"role": "user", "content": "x " * 4000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2048"):
        ask(client, messages=long)
    assert client.messages.count_tokens(model="tiny", messages=long).input_tokens > 4000


def test_keys_are_taken_as_anthropics_clients_send_them(start: Start) -> None:
    server = start(slots=1, api_keys=("secret",))
    for keys in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
        with client_of(server, **keys) as client:
            assert ask(client, max_tokens=1).usage.output_tokens == 1
    with client_of(server) as client, pytest.raises(anthropic.AuthenticationError) as caught:
        ask(client)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "Invalid API Key"},
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "type"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
    ],
)
def test_paths_that_are_not_there(
    server: Serving, method: str, path: str, status: int, type: str
) -> None:
    reply = server.client.request(method, path)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, type)


def test_a_server_that_takes_no_more_is_overloaded(start: Start) -> None:
    server = start(slots=1)
    server.bridge.intake.close()
    with client_of(server) as client, pytest.raises(anthropic.APIStatusError) as caught:
        ask(client)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"]
    assert caught.value.response.json()["error"]["type"] == "overloaded_error"


def test_the_model_is_listed_in_anthropics_shape(client: anthropic.Anthropic) -> None:
    page = client.models.list()
    (model,) = page.data
    assert (model.id, model.type, model.display_name) == ("tiny", "model", "tiny")
    assert page.has_more is False
    assert model.created_at.year > 2000
    assert client.models.retrieve("tiny").max_input_tokens == 2048


# -- requests as Claude Code sends them --------------------------------------------------------


def test_claude_codes_requests_are_answered(server: Serving) -> None:
    """Their members by its public documentation; the texts are ours."""
    ephemeral = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    bash = {
        "name": "Bash",
        "description": "Runs a command.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What to run"},
                "timeout": {"type": "number"},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        "eager_input_streaming": True,
    }
    body = {
        "model": "claude-opus-4-8",
        "messages": [
            {"role": "user", "content": "<available-deferred-tools>A</available-deferred-tools>"},
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                {"type": "text", "text": "list the files", **ephemeral}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I run ls.", "signature": "EqQB"},
                {"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": {"command": "ls"},
                 "caller": {"type": "direct"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "a.py", **ephemeral},
                {"type": "tool_result", "tool_use_id": "toolu_02", "is_error": True,
                 "content": [{"type": "tool_reference", "tool_name": "A"}]},
                {"type": "text", "text": "<system-reminder>y</system-reminder>"}]},
            {"role": "system", "content": "Be quick."},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.69; cch=0a1b2;"},
            {"type": "text", "text": "You are an agent.", **ephemeral},
        ],
        "tools": [{**bash, "name": f"Tool{i}"} for i in range(4)] + [
            {**bash, "defer_loading": True}, {"type": "web_search_20250305", "name": "web_search",
                                              "max_uses": 8}],
        "metadata": {"user_id": json.dumps({"device_id": "0", "session_id": "1"})},
        "max_tokens": 3,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "diagnostics": {"previous_message_id": None},
        "stream": True,
    }  # fmt: skip
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
        "sec-fetch-mode": "cors",
        "user-agent": "claude-cli/2.1.69 (external, cli)",
    }
    reply = server.client.post("/v1/messages?beta=true", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "event: message_stop" in reply.text
    del body["stream"], body["max_tokens"]
    reply = server.client.post("/v1/messages/count_tokens?beta=true", json=body, headers=headers)
    assert set(reply.json()) == {"input_tokens"}
    assert server.client.head("/").status_code == 200


def test_a_chat_without_text_is_no_error(server: Serving) -> None:
    reply = server.post("/v1/messages", messages=[{**USER, "content": []}], max_tokens=1)
    assert reply.status_code == 200
    assert REPEAT not in reply.text


@pytest.mark.parametrize("wrong", ['{"a": ' + "[" * 100_000, '{"a": 1e999}', '{"a": NaN}'])
def test_a_call_whose_arguments_no_client_can_read_is_a_text(wrong: str) -> None:
    content = Content()
    content.add(Delta("call", "f", call_id="1"))
    content.add(Delta("arguments", wrong))
    text = f'{{"name": "f", "arguments": {wrong}'
    assert content.json() == [{"type": "text", "text": text}]
