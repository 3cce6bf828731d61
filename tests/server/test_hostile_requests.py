"""The worst requests that are known, beside a client that behaves well: only they fail."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from helpers.serving import CHAT, Serving, Start, wait_until
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server.bridge import bridge as bridges
from ngramspec.server.bridge.intake import Intake
from ngramspec.server.llama_server import plan as llama_plan
from ngramspec.server.llama_server import routes as llama_routes
from ngramspec.server.llama_server.events import NativeEvents
from ngramspec.server.llama_server.plan import NativeBody
from ngramspec.server.llama_server.routes import TokenizeBody
from ngramspec.server.ollama import routes as ollama_routes
from ngramspec.server.request.bodies import parse

COMPLETION, CHATS, GENERATE = "/v1/completions", "/v1/chat/completions", "/api/generate"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SECONDS = 20  # nothing here may take long; the slowest case takes a second alone


def levels(count: int, body: Callable[[int], Any]) -> dict[str, Any]:
    """Return a schema in which each of so many definitions is made of the next one."""
    definitions = {f"d{i}": body(i + 1) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "object"}}}


def ref(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/d{number}"}


def nested(depth: int) -> Any:
    nest: Any = {}
    for _ in range(depth):
        nest = {"a": nest}
    return nest


def deep_chat(depth: int) -> list[Any]:
    """Return a chat with a call whose arguments are nested."""
    text = '{"a":' * depth + "1" + "}" * depth
    call = {"type": "function", "function": {"name": "f", "arguments": text}}
    return [*CHAT, {"role": "assistant", "content": "x", "tool_calls": [call]}, *CHAT]


def results(count: int) -> list[Any]:
    """Return a message with so many results of tools, each of which is a message of a chat."""
    one = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
    return [{"role": "user", "content": [one] * count}]


def searches(depth: int) -> list[Any]:
    """Return a message with results of searches in one another."""
    block: Any = {"type": "text", "text": "x"}
    for _ in range(depth):
        block = {"type": "search_result", "content": [block]}
    return [{"role": "user", "content": [block]}]


LARGE = (1 << 63) - 1
DIGITS = 10**310
MANY_PROPERTIES = {f"p{i}": {"type": "string", "maxLength": i % 99} for i in range(2000)}
# name: path, body, status, field that the error names
REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "n_max": (COMPLETION, {"speculative.n_max": LARGE}, 400, "speculative.n_max"),
    "n_max of 310 digits": (COMPLETION, {"speculative.n_max": DIGITS}, 400, "speculative.n_max"),
    "size of drafts": (COMPLETION, {"speculative.ngram_mod.n_max": LARGE}, 400,
                       "speculative.ngram_mod"),
    "list as size": (COMPLETION, {"speculative.ngram_mod.n_max": [[]]}, 400,
                     "speculative.ngram_mod"),
    "calls that are no list": (CHATS, {"messages": [{**CHAT[0], "tool_calls": 5}, *CHAT]}, 400,
                               "messages[0].tool_calls"),
    "role that is no text": (CHATS, {"messages": [{"role": {}, "content": "x"}]}, 400,
                             "messages[0]"),
    "tokens": (COMPLETION, {"max_tokens": DIGITS}, 400, "max_tokens"),
    "seed": (COMPLETION, {"seed": DIGITS}, 400, "seed"),
    "top_k": (COMPLETION, {"top_k": DIGITS}, 400, "top_k"),
    "temperature": (COMPLETION, {"temperature": DIGITS}, 400, "temperature"),
    "slot": (COMPLETION, {"id_slot": LARGE}, 400, "id_slot"),
    "choices": (COMPLETION, {"n": LARGE}, 400, "n"),
    "logprobs": (COMPLETION, {"logprobs": LARGE}, 400, "logprobs"),
    "logprobs of many choices": (COMPLETION, {"logprobs": 1000, "n": 32, "max_tokens": 2000}, 400,
                                 "logprobs"),
    "top logprobs": (CHATS, {"n_probs": 1000, "n": 32, "max_tokens": 2000}, 400, "n_probs"),
    "penalties": (COMPLETION, {"repeat_last_n": DIGITS}, 400, "repeat_last_n"),
    "no digit": (COMPLETION, {"logit_bias": {"²": DIGITS}}, 400, "logit_bias"),
    "huge bias": (COMPLETION, {"logit_bias": [[1, DIGITS]]}, 400, ""),
    "many biases": (COMPLETION, {"logit_bias": [[1, 1.0]] * 20_000}, 400, "logit_bias"),
    "many prompts": (COMPLETION, {"prompt": ["x"] * 300_000}, 400, "prompt"),
    "many prompts, native": ("/completion", {"prompt": ["x"] * 300_000, "n": 2}, 400, "prompt"),
    "many stop texts": (COMPLETION, {"stop": [f"s{i}" for i in range(100_000)]}, 400, "stop"),
    "long stop text": (COMPLETION, {"stop": "s" * 1_000_000}, 400, "stop"),
    "stop text of half a character": (COMPLETION, {"stop": ["\ud800"]}, 400, "stop"),
    "many breakers": (COMPLETION, {"dry_sequence_breakers": ["x"] * 10_000}, 400,
                      "dry_sequence_breakers"),
    "schema that doubles": (COMPLETION, {"json_schema": levels(40, lambda i: {
        "allOf": [ref(i), ref(i)]})}, 400, "json_schema"),
    "schema that doubles in branches": (COMPLETION, {"json_schema": levels(60, lambda i: {
        "anyOf": [{"allOf": [ref(i), {"properties": {"a": {}}}]}] * 2})}, 400, "json_schema"),
    "schema with a long name": (COMPLETION, {"json_schema": {"properties": {"k" * 1_000_000: {
        "properties": MANY_PROPERTIES}}}}, 400, "json_schema"),
    "schema that repeats properties": (CHATS, {"response_format": {"type": "json_schema",
        "json_schema": {"schema": {"properties": MANY_PROPERTIES, "oneOf": [
            {"required": [name]} for name in MANY_PROPERTIES]}}}}, 400, "response_format"),
    "schema that is deep": (COMPLETION, {"json_schema": {"const": nested(300), "allOf": [
        nested(300)] * 3, "$ref": "#/a/a"}}, 400, "json_schema"),
    "schema of ollama": (GENERATE, {"format": levels(50, lambda i: {
        "allOf": [ref(i), ref(i)]})}, 400, ""),
    "large enum": (COMPLETION, {"json_schema": {"enum": list(range(200_000))}}, 400, "json_schema"),
    "tools": (CHATS, {"tools": [{"function": {"name": "f", "parameters": {}}}] * 5000}, 400,
              "tools"),
    "schema of a tool": (CHATS, {"tools": [{"function": {"name": f"f{i}", "parameters": {
        "$ref": "#/a", "a": {"allOf": [ref(i)]}}}} for i in range(2)], "tool_choice": "required"},
        400, "tools.f0"),
    "pattern": (COMPLETION, {"json_schema": {"pattern": "(" * 450 + ")" * 450}}, 400,
                "json_schema"),
    "patterns that repeat what repeats": (COMPLETION, {"json_schema": {"properties": {
        f"p{i}": {"pattern": "((((a{1,9}){1,9}){1,9}){1,9}){1,9}" + str(i), "maxLength": 900}
        for i in range(2000)}}}, 400, "json_schema"),
    "patterns with lengths": (COMPLETION, {"json_schema": {"properties": {
        f"p{i}": {"pattern": "a[ab]{12}", "minLength": 20 + i} for i in range(2000)}}}, 400,
        "json_schema"),
    "multiples": (COMPLETION, {"json_schema": {"properties": {
        f"p{i}": {"type": "integer", "multipleOf": 1990 + i} for i in range(2000)}}}, 400,
        "json_schema"),
    "multiples of thousands of digits": (COMPLETION, {"json_schema": {
        "type": "integer", "allOf": [{"multipleOf": 10**4200 + i} for i in range(200)]}}, 400,
        "json_schema"),
    "long name beside patterns of names": (COMPLETION, {"json_schema": {
        "properties": {"x" * 2_000_000: {}}, "patternProperties": {
            f"a{i}": {} for i in range(40)}}}, 400, "json_schema"),
    "patterns of names": (COMPLETION, {"json_schema": {
        "properties": MANY_PROPERTIES, "patternProperties": {
            f"(a|b|p)*{i}": {"type": "null"} for i in range(100)}}}, 400, "json_schema"),
    "patterns of names that differ": (COMPLETION, {"json_schema": {"patternProperties": {
        f"^k{i}[a-z]*x$": {"type": "null"} for i in range(400)}}}, 400, "json_schema"),
    "schemas in a grammar": (COMPLETION, {"grammar": "%llguidance {}\nstart: " + " | ".join(
        f'%json {{"type": "integer", "multipleOf": {9001 + i}}}' for i in range(40))}, 400,
        "grammar"),
    "alternatives that exclude one another": (CHATS, {"response_format": {
        "type": "json_schema", "json_schema": {"strict": True, "schema": {"oneOf": [
            {"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(2000)]}}}}, 400,
        "response_format"),
    "grammar that begins in many ways": (COMPLETION, {"grammar": "".join(
        f'r{i} ::= r{i + 1} | r{i + 1} "x"\n' for i in range(40)) + 'r40 ::= "a"\nroot ::= r0'},
        400, "grammar"),
    "large grammar": (COMPLETION, {"grammar": 'root ::= "a"' + " " * (1 << 20)}, 400, "grammar"),
    "template that repeats": (GENERATE, {"template":
        "{{range $i := 900000}}0123456789012345678901234567890123456789{{end}}"}, 400, ""),
    "long template": (GENERATE, {"template": "{{.Prompt}}" * 50_000}, 400, ""),
    "variables of a template": (CHATS, {"chat_template_kwargs": {"tools": []}}, 400,
                                "chat_template_kwargs"),
    "template of a request": (CHATS, {"chat_template_kwargs": {"template": "x"}}, 400,
                              "chat_template_kwargs"),
    "messages that are none": (CHATS, {"messages": [1] * 300_000}, 400, "messages"),
    "nested arguments": (CHATS, {"messages": deep_chat(20_000)}, 400, ""),
    "pieces": ("/tokenize", {"content": "a b " * 400_000, "with_pieces": True}, 400, ""),
    "ids that are none": ("/detokenize", {"tokens": ["x"] * 300_000}, 400, ""),
    "items that are none": (RESPONSES, {"input": [1] * 300_000}, 400, "input"),
    "many items": (RESPONSES, {"input": [{"role": "user", "content": "x"}] * 70_000}, 400, "input"),
    "items of more messages": (RESPONSES, {"instructions": "x", "input": [
        {"type": "function_call_output", "call_id": "c", "output": "x"}] * (1 << 16)}, 400,
        "input"),
    "one answer of many items": (RESPONSES, {"input": [*CHAT, *[
        {"role": "assistant", "content": "x" * 40}] * 60_000]}, 400, "input"),
    "nested arguments of an item": (RESPONSES, {"input": [
        {"type": "function_call", "call_id": "c", "name": "f",
         "arguments": '{"a":' * 20_000 + "1" + "}" * 20_000}]}, 400, ""),
    "tools of a namespace": (RESPONSES, {"tools": [{"type": "namespace", "name": "n", "tools": [
        {"type": "function", "name": "f"}] * 5000}]}, 400, "tools"),
    "schema of a text": (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": levels(
        40, lambda i: {"allOf": [ref(i), ref(i)]})}}}, 400, "text.format"),
    "many results": (MESSAGES, {"messages": results(100_000)}, 400, "messages"),
    "results in results": (MESSAGES, {"messages": searches(400)}, 400, "messages[0].content[0]"),
    "long results": (MESSAGES, {"messages": results(60_000)}, 400, ""),
    "long header": (MESSAGES, {"system": "x-anthropic-billing-header:" + " a=b" * 1_000_000}, 400,
                    "prompt is too long"),
    "header of spaces": (MESSAGES, {"system": "x-anthropic-billing-header:" + " " * 4_000_000 + "x",
                                    "stop_sequences": ["s"] * 500}, 400, "stop_sequences"),
    "schema of a message": (MESSAGES, {"output_config": {"format": {
        "type": "json_schema", "schema": levels(40, lambda i: {"allOf": [ref(i), ref(i)]})}}}, 400,
        "output_config.format"),
    "tools of messages": (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}] * 5000}, 400,
                          "tools"),
    "name of half a character": ("/v1/nothing/\ud800".replace("\ud800", "%ED%A0%80"), {}, 404, ""),
    "model of half a character": ("/api/chat", {"model": "\ud800"}, 404, ""),
}  # fmt: skip


@contextmanager
def well_behaved(server: Serving) -> Iterator[list[float]]:
    """Let a client ask for a chat again and again in the block; check every answer.

    Yields the seconds that its answers took.
    """
    body = {"model": "tiny", "messages": CHAT, "temperature": 0, "max_tokens": 24}
    expected = server.post(CHATS, **body).json()["choices"][0]
    taken: list[float] = []
    wrong: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=120, verify=False) as client:
            while not (stop.is_set() and taken):
                started = time.monotonic()
                reply = client.post(CHATS, json=body)
                taken.append(time.monotonic() - started)
                if reply.status_code != 200 or reply.json()["choices"][0] != expected:
                    wrong.append(reply.text)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive()
    assert not wrong
    assert taken


def sent(server: Serving, path: str, body: dict[str, Any]) -> httpx.Response:
    """Send a body whose texts may be no valid Unicode."""
    defaults: dict[str, Any] = {"model": "tiny", "prompt": "x", "messages": CHAT, "max_tokens": 2}
    if path == RESPONSES:
        defaults = {"input": "x", "max_output_tokens": 2}
    if path.startswith("/api/"):
        defaults = {"model": "tiny", "prompt": "x"}
    data = json.dumps({**defaults, **body})  # all of it is ASCII
    return server.client.post(path, content=data)


@pytest.mark.parametrize("name", REFUSED)
def test_what_asks_for_too_much_is_refused_by_its_field(server: Serving, name: str) -> None:
    path, body, status, field = REFUSED[name]
    errors = dict(server.engine.stats().finished)
    with well_behaved(server):
        started = time.monotonic()
        reply = sent(server, path, body)
        seconds = time.monotonic() - started
    assert reply.status_code == status, reply.text[:300]
    error = reply.json()["error"]
    if field:
        message = error["message"] if isinstance(error, dict) else error
        assert field in message or error.get("param") == field, error
        if path.startswith("/v1/") and path != MESSAGES:
            assert error["param"] == field
    assert seconds < SECONDS
    assert server.engine.stats().finished.get("error") == errors.get("error")


AMBIGUOUS: dict[str, dict[str, Any]] = {
    "grammar": {"grammar": "root ::= [a-z ]* " + "[a-z ]? " * 20 + '"0"'},
    "pattern": {"json_schema": {"pattern": "^" + "d?\\s?" * 17 + "dé_]"}},
    "nothing, often": {
        "json_schema": {"enum": ["x"], "pattern": "(((){4000000000}){0,4000000000})"}
    },
    "alternatives": {"grammar": "root ::= " + " | ".join(f'"{i}"' for i in range(20_000))},
    "right recursion": {"grammar": 'root ::= [a-z ] root "x" | [a-z ]'},
    # The likeliest text of this one gets too long before it ends.
    "doubles": {
        "grammar": 'root ::= [a-z] root x | [a-z] root y | "0"\nx ::= "c"\ny ::= "c"',
        "temperature": 0,
    },
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_many_ways_to_read_a_text_take_no_more_time(server: Serving, name: str) -> None:
    """llama.cpp's own grammar sampler needs minutes for one token of the first two."""
    with well_behaved(server):
        started = time.monotonic()
        reply = sent(server, "/completion", {"n_predict": 30, "temperature": 2, **AMBIGUOUS[name]})
        seconds = time.monotonic() - started
    if name == "doubles":  # more stacks with every character: given up, and only this request ends
        assert "too ambiguous" in reply.text
    else:
        assert reply.status_code == 200, reply.text[:300]
    assert seconds < SECONDS


def test_the_worst_requests_at_once_leave_others_their_answers(start: Start) -> None:
    server = start(slots=2)
    with well_behaved(server) as taken:
        threads = [
            threading.Thread(target=sent, args=(server, path, body))
            for path, body, _, _ in REFUSED.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        seen = len(taken)
        wait_until(lambda: len(taken) > seen + 1)
    assert "error" not in server.engine.stats().finished
    assert server.client.get("/health").json() == {"status": "ok"}


def test_what_is_large_but_allowed_is_answered(server: Serving) -> None:
    values = [f"value number {i * 7919 % 10007}" for i in range(3000)]
    with well_behaved(server):
        reply = sent(server, COMPLETION, {"json_schema": {"enum": values}, "max_tokens": 60})
        assert reply.status_code == 200, reply.text
        assert json.loads(reply.json()["choices"][0]["text"]) in values
        for body in (
            {"stop": [f"stop text number {i}" for i in range(128)]},
            {"logit_bias": [[i % 300, -1.0] for i in range(16_000)]},
            {"seed": (1 << 64) - 1},
            {"max_tokens": LARGE, "stop": list("abcdefghijklmnopqrstuvwxyz ")},
            {"logprobs": 50, "n": 4, "max_tokens": 8},
            {"prompt": ["x"] * 32},
        ):
            reply = sent(server, COMPLETION, body)
            assert reply.status_code == 200, reply.text
        thought = {"type": "reasoning", "summary": [{"text": "x" * 300}]}
        started = time.monotonic()
        reply = sent(server, RESPONSES, {"input": [thought] * 60_000})  # the template drops it
        assert reply.status_code == 200, reply.text
        assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("path", [COMPLETION, CHATS])
@pytest.mark.parametrize("stream", [False, True])
def test_many_dry_values_at_once_are_all_answered(server: Serving, path: str, stream: bool) -> None:
    statuses: list[int] = []

    def ask(number: int) -> None:
        for i in range(6):
            body = {"dry_multiplier": 1.0 + (number // 2 * 6 + i) % 11, "stream": stream}
            statuses.append(sent(server, path, body).status_code)

    with well_behaved(server):
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert statuses == [200] * 36


def test_a_request_that_cannot_be_started_ends_alone(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes up in the engine's thread belongs to the request that it comes up for."""
    truncate = LlamaTarget.truncate
    failing = threading.Event()

    def broken(self: LlamaTarget, sequence: int, length: int) -> bool:
        if sequence == 3 and failing.is_set():
            raise OverflowError("a number that nobody thought of")
        return truncate(self, sequence, length)

    monkeypatch.setattr(LlamaTarget, "truncate", broken)
    for _ in range(2):
        sent(server, COMPLETION, {"id_slot": 3, "max_tokens": 4, "cache_prompt": False})
    with well_behaved(server):
        failing.set()
        reply = sent(server, COMPLETION, {"id_slot": 3, "prompt": "y", "cache_prompt": False})
        failing.clear()
        again = sent(server, COMPLETION, {"id_slot": 3, "prompt": "y", "cache_prompt": False})
    assert (reply.status_code, again.status_code) == (500, 200)
    assert "nobody" not in reply.text


# -- preparing ---------------------------------------------------------------------------------


@contextmanager
def slow_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int]]]:
    """Let the preparing of completions wait; yield what lets it go, and what has begun."""
    go, begun = threading.Event(), list[int]()

    def slow_parse(raw: bytes, model: type[Any]) -> Any:
        if model in (TokenizeBody, NativeBody):
            begun.append(len(raw) if model is TokenizeBody else 1)
            assert go.wait(30)
        return parse(raw, model)

    monkeypatch.setattr(llama_routes, "parse", slow_parse)
    monkeypatch.setattr(llama_plan, "parse", slow_parse)
    try:
        yield go, begun
    finally:
        go.set()


@contextmanager
def tokenizing(server: Serving, begun: list[int], count: int) -> Iterator[list[int]]:
    """Ask so often that four requests are prepared and the others wait; yield the statuses."""
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(server.post("/tokenize", content="a").status_code)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(begun) == 4)  # all threads of the server are busy
    wait_until(lambda: len(server.bridge.intake._jobs) == count)
    yield statuses
    for thread in threads:
        thread.join(30)


def test_other_routes_do_not_wait_for_what_is_prepared(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_plans(monkeypatch) as (go, begun), tokenizing(server, begun, 12):
        for path in ("/health", "/v1/models", "/api/tags", "/metrics", "/slots"):
            assert server.client.get(path).status_code in (200, 404, 501)
        assert server.post("/api/show", model="tiny").status_code == 200
        go.set()
    assert len(begun) == 12


def test_too_many_that_are_prepared_are_sent_away(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "Intake", lambda **_: Intake(most=5))
    server = start(retry_after=7)
    with slow_plans(monkeypatch) as (go, begun), tokenizing(server, begun, 5) as statuses:
        refused = server.post("/completion", prompt="x", n_predict=1)
        go.set()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
    assert "prepared" in refused.json()["error"]["message"]
    assert statuses == [200] * 5
    assert server.post("/completion", prompt="x", n_predict=1).status_code == 200


def test_large_bodies_that_are_prepared_are_bounded_together(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "Intake", lambda **_: Intake(max_bytes=3000))
    server = start()
    with slow_plans(monkeypatch) as (go, begun):
        first = threading.Thread(target=server.post, args=("/tokenize",),
                                 kwargs={"content": "a" * 5000})  # fmt: skip
        first.start()
        wait_until(lambda: len(begun) == 1)
        assert server.post("/tokenize", content="a" * 100).status_code == 503
        go.set()
        first.join(30)
    assert server.post("/tokenize", content="a" * 5000).status_code == 200


@pytest.mark.parametrize("n", [1, 3])
def test_nothing_is_submitted_for_a_client_that_left_while_its_request_was_prepared(
    start: Start, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    server = start()
    with slow_plans(monkeypatch) as (go, begun):
        client = httpx.Client(base_url=server.url, timeout=0.3)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/completion", json={"prompt": "x", "n_predict": 50, "n": n})
        client.close()
        assert begun == [1]
        wait_until(lambda: not server.bridge._answers)
        time.sleep(0.1)  # the connection's end comes some moments after the client's
        go.set()
        wait_until(lambda: not server.bridge.intake._jobs)
    assert server.engine.stats().num_requests == 0
    assert server.post("/completion", prompt="x", n_predict=1).status_code == 200


def test_those_who_left_before_their_turn_are_never_looked_at(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with slow_plans(monkeypatch) as (go, begun), tokenizing(server, begun, 4):
        with httpx.Client(base_url=server.url, timeout=0.3) as client:
            for _ in range(3):
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/completion", json={"prompt": "x", "n_predict": 50})
        wait_until(lambda: len(server.bridge.intake._jobs) == 4)
        go.set()
    assert len(begun) == 4
    assert server.engine.stats().num_requests == 0


def test_choices_submitted_before_a_refused_one_are_cancelled(start: Start) -> None:
    server = start(slots=1, max_queue=1)
    body = {"prompt": "def area(", "n": 3, "n_predict": 2000, "ignore_eos": True}
    assert server.post("/completion", **body).status_code == 503
    server.wait_idle()
    finished = server.engine.stats().finished
    assert (set(finished), server.engine.queue_length) == ({"cancelled"}, 0)
    assert finished["cancelled"] == server.engine.stats().num_requests >= 1


def test_an_answer_whose_events_cannot_be_made_does_not_run_on(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("no events")

    monkeypatch.setattr(NativeEvents, "__init__", failing)
    body = {"prompt": "def area(", "n_predict": 2000, "ignore_eos": True, "stream": True}
    assert server.post("/completion", **body).status_code == 500
    wait_until(lambda: not server.bridge._answers)
    server.wait_idle()
    assert server.engine.stats().finished["cancelled"] >= 1
    wait_until(lambda: server.bridge.traffic.cancelled["error"] == 1)  # it was not the client
    assert server.bridge.traffic.cancelled["client"] == 0


def test_shutting_down_does_not_wait_for_what_has_not_begun(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1)
    with slow_plans(monkeypatch) as (go, begun), tokenizing(server, begun, 9) as statuses:
        server.bridge.intake.close()
        wait_until(lambda: statuses.count(503) == 5)
        go.set()
    assert sorted(statuses) == [200] * 4 + [503] * 5
    assert server.post("/completion", prompt="x").status_code == 503
    assert len(begun) == 4


def test_names_of_half_characters_are_told_and_written(server: Serving) -> None:
    """Lone surrogates, which JSON can say and UTF-8 cannot."""
    tool = {"type": "function", "function": {"name": "\ud800", "parameters": {"type": "x"}}}
    reply = sent(server, CHATS, {"tools": [tool], "tool_choice": "required"})
    assert reply.status_code == 400
    reply = sent(server, "/apply-template", {"messages": [{"role": "user", "content": "a\ud800"}]})
    assert (reply.status_code, "a?" in reply.json()["prompt"]) == (200, True)
    reply = sent(server, COMPLETION, {"prompt": "a\ud800", "echo": True, "stream": True})
    assert reply.status_code == 200
    assert "a?" in reply.text


def test_a_path_with_a_newline_stays_on_its_line_of_the_log(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(ollama_routes, "not_supported", failing)
    with caplog.at_level("ERROR"):
        assert server.client.post("/api/blobs/a%0Ab%1b%C3%A9", content=b"{}").status_code == 500
        failed = [record.getMessage() for record in caplog.records if "failed" in record.msg]
    (line,) = failed
    assert re.fullmatch(r"request [0-9a-f]{32}: POST '/api/blobs/a\\nb\\x1bé' failed", line)
