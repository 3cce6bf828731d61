"""What every protocol's answers must do, whole and in streams; what is its own stands elsewhere."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest

from helpers.failing import fail_after
from helpers.protocols import PROTOCOLS, Answer, Protocol, events_in, of
from helpers.scripted_serving import serving_script
from helpers.serving import ANSWER, CALL, THINK, Serving, Start
from ngramspec.errors import BackendError

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"name": "now", "parameters": {"type": "object"}}
TWO_CALLS = CALL.format("get_weather", '{"city": "Oslo"}') + CALL.format("now", "{}")
PLAIN = {"speculative.enabled": False}


CALLING = [one.path for one in PROTOCOLS if one.has_tools]
FORCING = [path for path in CALLING if path != "/api/chat"]  # Ollama's has no such field


def ask(client: httpx.Client, protocol: Protocol, *arguments: Any, **settings: Any) -> Answer:
    reply = client.post(protocol.path, json=protocol.body(*arguments, **settings))
    assert reply.status_code == 200, reply.text
    return protocol.read(reply.json())


def events(client: httpx.Client, protocol: Protocol, *arguments: Any, **settings: Any) -> list[Any]:
    body = {**protocol.body(*arguments, **settings), "stream": True}
    reply = client.post(protocol.path, json=body)
    assert reply.status_code == 200, reply.text
    kind = "application/x-ndjson" if "/api/" in protocol.path else "text/event-stream"
    assert reply.headers["content-type"].startswith(kind)
    return events_in(reply.text)


@of()
def test_all_give_the_same_answer_at_the_same_cost(server: Serving, protocol: Protocol) -> None:
    first = ask(server.client, protocol, cache_prompt=False)
    assert (first.text, first.reasoning, first.end) == (ANSWER, "", protocol.ends[0])
    assert not first.calls
    usage = server.chat(extra={"cache_prompt": False}).usage
    assert (first.prompt_tokens, first.tokens) == (usage.prompt_tokens, usage.completion_tokens)
    again = ask(server.client, protocol)
    if first.cached_tokens is not None:
        assert (first.cached_tokens, again.cached_tokens) == (0, again.prompt_tokens - 1)
    assert again.prompt_tokens == first.prompt_tokens


@of()
def test_the_answer_ends_at_its_limit(server: Serving, protocol: Protocol) -> None:
    answer = ask(server.client, protocol, tokens=5)
    assert (answer.tokens, answer.end) == (5, protocol.ends[1])


@of()
@pytest.mark.parametrize("stop", [["return"], ["nothing", "width"], ["width *"]], ids=str)
def test_stop_texts_end_the_answer_and_are_cut_off(
    server: Serving, protocol: Protocol, stop: list[str]
) -> None:
    answer = ask(server.client, protocol, stop=stop)
    assert answer.text == ANSWER.split(stop[-1])[0]
    assert answer.end == {"/completion": "word", "/v1/messages": "stop_sequence"}.get(
        protocol.path, protocol.ends[0]
    )
    assert protocol.join(events(server.client, protocol, stop=stop)).text == answer.text


@of()
@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (None, {}),
        (None, {"tokens": 5}),
        (None, {"stop": ["width *"]}),
        (None, {"speculative.n_max": 2}),
        (THINK, {"tokens": 150}),
        ("Repeat this text:\n\nnaïve café — ☃ naïve café — ☃", {"tokens": 40}),
    ],
)
def test_a_stream_is_the_whole_answer_in_pieces(
    server: Serving, protocol: Protocol, text: str | None, settings: dict[str, Any]
) -> None:
    texts = [text] if text else []
    whole = ask(server.client, protocol, *texts, **settings)
    streamed = events(server.client, protocol, *texts, **settings)
    joined = protocol.join(streamed)
    assert {**vars(joined), "cached_tokens": 0} == {**vars(whole), "cached_tokens": 0}
    if "speculative.n_max" in settings:  # a long draft would bring it in one piece
        assert sum(bool(protocol.piece(event)) for event in streamed) > 3


@of()
def test_plain_decoding_gives_one_event_per_token(server: Serving, protocol: Protocol) -> None:
    streamed = events(server.client, protocol, tokens=9, **PLAIN)
    assert sum(bool(protocol.piece(event)) for event in streamed) == 9


@of()
def test_spans_and_timings_come_when_asked_for(server: Serving, protocol: Protocol) -> None:
    asked = {"timings_per_token": True, "speculative.spans": True}
    streamed = events(server.client, protocol, **asked)
    reports = [event["speculative"] for event in streamed if "speculative" in event]
    spans = [tuple(span) for one in reports for span in one["spans"]]
    assert "".join(text for text, _ in spans) == ANSWER
    assert any(accepted for _, accepted in spans)
    timings = [event["timings"] for event in streamed if "timings" in event]
    accepted = (timings or streamed)[-1]["draft_n_accepted"]
    assert sum(one["accepted"] for one in reports) == accepted > 0
    counts = [one["predicted_n"] for one in timings]
    assert counts == sorted(counts)
    if "/api/" not in protocol.path:  # where figures come at the end only
        assert len(counts) > 1
        assert counts[-1] == protocol.join(streamed).tokens
    for event in events(server.client, protocol)[:-3]:
        assert "timings" not in event
        assert "speculative" not in event


PROGRESS = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses",
            "/v1/messages")  # fmt: skip


@of(*PROGRESS)
def test_progress_comes_from_the_cache_to_the_whole_prompt(
    server: Serving, protocol: Protocol
) -> None:
    long = "x = 1\n" * 100
    for cached in (False, True):
        echo = {"echo": True} if protocol.path == "/v1/completions" else {}
        asked = {"return_progress": True, "cache_prompt": cached, **echo}
        streamed = events(server.client, protocol, long, 2, **asked)
        places = [place for place, event in enumerate(streamed) if "prompt_progress" in event]
        assert places == list(range(places[0], places[-1] + 1))
        progress = [streamed[place]["prompt_progress"] for place in places]
        assert len(progress) >= 2
        assert progress[0]["processed"] == progress[0]["cache"]
        assert (progress[0]["cache"] > 0) == cached
        assert progress[-1]["processed"] == progress[-1]["total"] > 200
        for before, after in itertools.pairwise(progress):
            assert before["processed"] < after["processed"]
            assert before["time_ms"] <= after["time_ms"]
            assert (before["total"], before["cache"]) == (after["total"], after["cache"])
        plain = events(server.client, protocol, long, 2, return_progress=False, **echo)
        assert protocol.join(streamed).text == protocol.join(plain).text
        assert not any("prompt_progress" in event for event in plain)
        assert not any("prompt_progress" in event for event in events(server.client, protocol))
        types = {streamed[place].get("type") for place in places}
        own = {"/v1/responses": "response.in_progress", "/v1/messages": "ping"}
        assert types == {own.get(protocol.path)}


THOUGHTS = {
    "/v1/chat/completions": "reasoning_content",
    "/v1/responses": "reasoning_text.delta",
    "/v1/messages": "thinking_delta",
    "/api/chat": "thinking",
}


@of(*THOUGHTS)
def test_reasoning_stands_apart_and_comes_first(server: Serving, protocol: Protocol) -> None:
    settings = {"think": True} if "/api/" in protocol.path else {}
    text = server.complete(
        prompt=f"<|im_start|>user\n{THINK}<|im_end|>\n<|im_start|>assistant\n", max_tokens=150
    )
    thought, answer = text.choices[0].text.removeprefix("<think>").split("</think>")
    whole = ask(server.client, protocol, THINK, 150, **settings)
    assert (whole.reasoning, whole.text) == (thought.strip(), answer.strip())
    # A long draft would bring each part in one piece.
    streamed = events(server.client, protocol, THINK, 150, **settings, **{"speculative.n_max": 2})
    joined = protocol.join(streamed)
    assert (joined.reasoning, joined.text) == (whole.reasoning, whole.text)
    begins = [bool(protocol.piece(event)) for event in streamed].index(True)
    mark = THOUGHTS[protocol.path]
    thoughts = [place for place, event in enumerate(streamed) if mark in json.dumps(event)]
    assert 1 < len(thoughts) <= thoughts[-1] + 1 <= begins


@of(*FORCING)
def test_a_forced_call_follows_its_schema(server: Serving, protocol: Protocol) -> None:
    asked = protocol.tools(WEATHER, forced=True)
    whole = ask(server.client, protocol, tokens=200, **asked)
    ((name, arguments),) = whole.calls
    assert (whole.text, name, whole.end) == ("", "get_weather", protocol.ends[2])
    assert arguments["city"] in ("Oslo", "Rome")
    joined = protocol.join(events(server.client, protocol, tokens=200, **asked))
    assert (joined.text, joined.calls, joined.end) == ("", whole.calls, whole.end)


@of(*CALLING)
def test_calls_of_the_model_are_told_apart_from_its_texts(protocol: Protocol) -> None:
    asked = protocol.tools(WEATHER, CLOCK)
    with serving_script(f"It is {TWO_CALLS} done") as client:
        whole = ask(client, protocol, tokens=500, **asked)
        joined = protocol.join(events(client, protocol, tokens=500, **asked))
    assert whole.calls == [("get_weather", {"city": "Oslo"}), ("now", {})]
    assert whole.text.split() == ["It", "is", "done"]
    assert whole.end == protocol.ends[2]
    assert (joined.calls, joined.text, joined.end) == (whole.calls, whole.text, whole.end)


@of()
def test_a_failure_in_a_stream_is_its_last_event(
    server: Serving, monkeypatch: pytest.MonkeyPatch, protocol: Protocol
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 6, BackendError("the device is gone"))
        streamed = events(server.client, protocol, tokens=40, **PLAIN)
    error = {"message": "the device is gone", "type": "server_error"}
    assert protocol.error(streamed[-1]) == error["message"]
    if protocol.path == "/completion":
        assert streamed[-1] == {"error": {"code": 500, **error}}
    elif protocol.path == "/v1/messages":
        assert streamed[-1] == {"type": "error", "error": {**error, "type": "api_error"}}
    assert any(protocol.piece(event) for event in streamed if "error" not in event)
    assert ask(server.client, protocol).end == protocol.ends[0]


@of()
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_its_status(
    server: Serving, monkeypatch: pytest.MonkeyPatch, protocol: Protocol, stream: bool
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 0, BackendError("the device is gone"))
        body = {**protocol.body(tokens=4), "stream": stream}
        reply = server.client.post(protocol.path, json=body)
    assert (reply.status_code, protocol.error(reply.json())) == (500, "the device is gone")
    if "/api/" not in protocol.path:
        kind = "api_error" if protocol.path == "/v1/messages" else "server_error"
        assert reply.json()["error"]["type"] == kind
    assert ask(server.client, protocol, tokens=4).tokens == 4


@of()
def test_a_prompt_that_is_too_long_is_refused(server: Serving, protocol: Protocol) -> None:
    reply = server.client.post(protocol.path, json=protocol.body("x " * 4000))
    assert reply.status_code == 400
    assert "2048" in protocol.error(reply.json())


SIGNS = {
    "/v1/chat/completions": ": ping",
    "/v1/responses": "event: response.in_progress",
    "/v1/messages": "event: ping",
}


@of(*SIGNS)
def test_a_long_wait_shows_signs_of_life(start: Start, protocol: Protocol) -> None:
    server = start(slots=1, sse_ping_interval=0.1)
    busy = {**protocol.body(tokens=1900), "stream": True, "ignore_eos": True}
    sign = SIGNS[protocol.path]
    with server.client.stream("POST", protocol.path, json=busy) as first:
        lines = first.iter_lines()
        while "```" not in next(lines):
            pass
        body = {**protocol.body(tokens=1), "stream": True}
        with server.client.stream("POST", protocol.path, json=body) as second:
            assert second.status_code == 200
            seen = []
            for line in second.iter_lines():
                seen.append(line)
                if seen.count(sign) == 2:  # the first one of the Responses API is no sign of life
                    first.close()  # its slot becomes free
    assert seen.count(sign) >= 2
    assert seen[0] == ("event: response.created" if protocol.path == "/v1/responses" else sign)
    assert seen.count("event: response.created") <= 1
    answer = protocol.join(events_in("\n".join([*seen, ""])))
    assert (answer.tokens, answer.end) == (1, protocol.ends[1])
    assert ask(server.client, protocol, tokens=1).tokens == 1
