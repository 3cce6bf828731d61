"""Streamed chats: what every event holds, and that together they are the whole answer."""

from __future__ import annotations

import json
import threading
from typing import Any

import ollama
import pytest

from helpers.protocols import Protocol, of
from helpers.scripted_model import ANSWER
from helpers.scripted_serving import serving_script
from helpers.serving import CHAT, REPEAT, TEXT, Serving


def events_of(server: Serving, **body: Any) -> list[Any]:
    return list(server.chat(stream=True, **body))


def text_of(events: list[Any], index: int = 0) -> str:
    choices = (choice for event in events for choice in event.choices if choice.index == index)
    return "".join(choice.delta.content or "" for choice in choices)


def test_the_events_are_the_answer_in_pieces(server: Serving) -> None:
    whole = server.chat(max_tokens=64).choices[0]
    events = events_of(server, max_tokens=64)
    assert text_of(events) == whole.message.content
    assert len({event.id for event in events}) == 1
    assert {event.object for event in events} == {"chat.completion.chunk"}
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices[0].finish_reason == whole.finish_reason == "stop"
    assert events[-1].model_extra["timings"]["predicted_n"] > 0


def test_usage_comes_in_an_event_of_its_own_when_asked_for(server: Serving) -> None:
    events = events_of(server, max_tokens=8, stream_options={"include_usage": True})
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == 8
    assert events[-1].model_extra["timings"]["predicted_n"] == 8
    assert all(event.usage is None for event in events[:-1])
    assert all(event.usage is None for event in events_of(server, max_tokens=8))


def test_the_wire_format_is_sse_with_an_end_mark(server: Serving) -> None:
    reply = server.post("/v1/chat/completions", messages=CHAT, stream=True, max_tokens=3)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line.removeprefix("data: ")) for line in lines[:-2])


BREAKS = "a\x85b\u2028c\u2029d"  # where str.splitlines, and so many a client, ends a line
SAY = {"name": "say", "parameters": {"type": "object"}}


@of()
def test_no_stream_has_what_ends_a_line_within_a_line(protocol: Protocol) -> None:
    call = json.dumps({"name": "say", "arguments": {"x": BREAKS}}, ensure_ascii=False)
    script = f"<think>{BREAKS}</think>{BREAKS}<tool_call>\n{call}\n</tool_call>"
    with serving_script(script) as client:
        own = {"/v1/completions": {"echo": True}, "/api/generate": {"raw": True}}
        more = protocol.tools(SAY) if protocol.has_tools else own.get(protocol.path, {})
        body = {**protocol.body(BREAKS, 200, **more), "stream": True}
        if not protocol.has_tools:
            body["prompt"] = BREAKS + ANSWER
        answers = [
            client.post(protocol.path, json={**body, "speculative.spans": spans})
            for spans in (False, True)
        ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.text.splitlines() == answer.text.split("\n")[:-1]
        assert all(f"\\u{ord(char):04x}" in answer.text for char in BREAKS if not char.isascii())


def test_clients_that_split_lines_read_what_ends_one(server: Serving) -> None:
    schema = {"enum": [BREAKS]}
    with ollama.Client(server.url) as client:
        parts = list(client.generate("tiny", "x", stream=True, format=schema))
    assert json.loads("".join(part.response for part in parts)) == BREAKS
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(text_of(events_of(server, response_format=form))) == BREAKS
    body = {"prompt": "x", "json_schema": schema, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert json.loads("".join(event["content"] for event in events)) == BREAKS


def test_choices_stream_side_by_side(server: Serving) -> None:
    settings = {"temperature": 1.2, "seed": 5, "max_tokens": 20, "n": 3}
    whole = server.chat(**settings)
    events = events_of(server, **settings)
    for choice in whole.choices:
        assert text_of(events, choice.index) == choice.message.content
    ends = [e for e in events if e.choices and e.choices[0].finish_reason]
    assert sorted(event.choices[0].index for event in ends) == [0, 1, 2]


def test_logprobs_stream_with_their_text(server: Serving) -> None:
    settings = {"max_tokens": 10, "logprobs": True, "top_logprobs": 1}
    whole = server.chat(**settings).choices[0].logprobs.content
    events = events_of(server, **settings)
    entries = [e for event in events for e in (event.choices[0].logprobs or _Empty).content]
    assert [entry.token for entry in entries] == [entry.token for entry in whole]


class _Empty:
    content: tuple[()] = ()


def test_eight_clients_at_once_get_what_each_gets_alone(server: Serving) -> None:
    prompts = [[{"role": "user", "content": text}] for text in (REPEAT, TEXT, "one", "two")] * 2
    alone = [server.chat(messages=m, max_tokens=40).choices[0].message.content for m in prompts]
    texts: dict[int, str] = {}

    def ask(index: int) -> None:
        texts[index] = text_of(events_of(server, messages=prompts[index], max_tokens=40))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [texts[i] for i in range(len(prompts))] == alone


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_an_error_before_the_first_token_has_its_status(server: Serving, path: str) -> None:
    reply = server.post(path, messages=CHAT, stream=True, temperature="x")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "temperature"
