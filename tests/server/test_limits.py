"""Limits: what is too large, too long or too much is refused in good time."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from helpers.protocols import PROTOCOLS
from helpers.serving import CHAT, Serving, Start, wait_until
from ngramspec.llamacpp.model import LlamaModel

LONG: dict[str, Any] = {"prompt": "def area(", "ignore_eos": True, "temperature": 1.0}


def occupy(server: Serving, count: int) -> list[threading.Thread]:
    """Keep `count` requests running and waiting; return the threads that wait for them."""

    def ask() -> None:
        server.post("/completion", **LONG, t_max_predict_ms=60_000)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.busy_slots() + server.engine.queue_length == count)
    return threads


def release(server: Serving, threads: list[threading.Thread]) -> None:
    server.bridge.cancel_all()
    for thread in threads:
        thread.join(20)


def test_a_body_that_is_too_large_is_refused(start: Start) -> None:
    server = start(slots=1, max_body_bytes=2000)
    body = json.dumps({"content": "x" * 3000}).encode()
    declared = httpx.post(f"{server.url}/tokenize", content=body)
    undeclared = httpx.post(f"{server.url}/tokenize", content=iter([body[:1500], body[1500:]]))
    for reply in (declared, undeclared):
        assert reply.status_code == 413
        assert "2000 bytes" in reply.json()["error"]["message"]
    assert server.post("/tokenize", content="x" * 1500).status_code == 200


def test_a_compressed_body_is_refused(server: Serving) -> None:
    headers = {"content-encoding": "gzip"}
    reply = server.client.post("/tokenize", content=gzip.compress(b"{}"), headers=headers)
    assert reply.status_code == 415
    assert "the body is compressed (gzip)" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'{"prompt": "x"', b"\xff\xfe", b"[" * 100_000, b"9" * 9999),
        *(b'{"input": "x", "metadata": {"a": %b}}' % n for n in (b"NaN", b"-Infinity", b"1e999")),
    ],
    ids=[
        *("empty", "half", "list", "null", "open", "not text", "deep", "number"),
        *("nan", "infinity", "too large"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(server: Serving, body: bytes) -> None:
    for path in ("/completion", "/v1/chat/completions", "/v1/responses"):
        reply = server.client.post(path, content=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_does_not_come_is_not_waited_for(start: Start) -> None:
    server = start(slots=1, read_timeout=0.2)

    def slowly() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.6)
        yield b"}"

    reply = httpx.post(f"{server.url}/v1/completions", content=slowly())
    assert reply.status_code == 408
    assert "0.2 seconds" in reply.json()["error"]["message"]


def test_the_content_type_does_not_matter(server: Serving) -> None:
    body = json.dumps({"content": "x"})
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert server.client.post("/tokenize", content=body, headers=headers).status_code == 200


def test_a_prompt_beyond_the_context_has_openais_code(server: Serving) -> None:
    text = "word " * 5000
    with pytest.raises(openai.BadRequestError) as caught:
        server.chat(messages=[{"role": "user", "content": text}])
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 2048" in caught.value.message
    assert caught.value.body["type"] == "exceed_context_size_error"  # as llama-server has it
    assert caught.value.body["n_ctx"] == 2048
    assert caught.value.body["n_prompt_tokens"] > 2048
    reply = server.post("/completion", prompt=text)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 2048
    assert error["n_prompt_tokens"] > 2048


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of the texts that were tokenized so far."""
    lengths: list[int] = []
    plain = LlamaModel.tokenize

    def tokenize(model: LlamaModel, text: str, **settings: Any) -> Any:
        lengths.append(len(text))
        return plain(model, text, **settings)

    monkeypatch.setattr(LlamaModel, "tokenize", tokenize)
    return lengths


FAR_TOO_LONG = "word, " * 500_000
LONG_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{one.path: (one.path, one.body(FAR_TOO_LONG)) for one in PROTOCOLS},
    "one of several texts": ("/completion", {"prompt": ["x", FAR_TOO_LONG]}),
    "a text among ids": ("/completion", {"prompt": [1, FAR_TOO_LONG]}),
    "an object": ("/completion", {"prompt": {"prompt_string": FAR_TOO_LONG}}),
    "ollama's, raw": ("/api/generate", {"model": "tiny", "prompt": FAR_TOO_LONG, "raw": True}),
    "ollama's, after a context": (
        "/api/generate",
        {"model": "tiny", "prompt": FAR_TOO_LONG, "context": [1]},
    ),
}


@pytest.mark.parametrize("name", LONG_BODIES)
def test_what_is_far_too_long_is_refused_before_it_is_tokenized(
    server: Serving, name: str, tokenized: list[int]
) -> None:
    path, body = LONG_BODIES[name]
    reply = server.post(path, **body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert ("at least" in message) == (path != "/v1/messages")  # it has its own words
    assert max(tokenized, default=0) < 10**6
    if path == "/v1/chat/completions":
        assert error["n_prompt_tokens"] > 2048
        assert error["n_ctx"] == 2048


def test_a_prediction_longer_than_the_context_is_not_tokenized(
    server: Serving, tokenized: list[int]
) -> None:
    prediction = {"type": "content", "content": FAR_TOO_LONG}
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": CHAT}),
    ):
        reply = server.post(path, **body, prediction=prediction, max_tokens=1)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prediction")
    assert max(tokenized) < 10**6


def test_texts_among_ids_are_counted_before_they_are_tokenized(
    server: Serving, tokenized: list[int]
) -> None:
    for path, name in (("/completion", "prompt"), ("/tokenize", "content")):
        reply = server.post(path, **{name: [1, *["a"] * 2049]})
        assert reply.status_code == 400
        assert f"{name} must hold at most 2048 texts among" in reply.json()["error"]["message"]
    assert tokenized == []
    assert server.post("/tokenize", content=[1, *["a"] * 2048]).status_code == 200
    assert len(tokenized) == 2048


def test_the_longest_prompt_can_be_bounded(start: Start) -> None:
    server = start(slots=1, max_prompt_tokens=10)
    assert server.post("/completion", prompt="a b c", n_predict=1).status_code == 200
    reply = server.post("/completion", prompt="a b c " * 20, n_predict=1)
    assert reply.status_code == 400
    assert reply.json()["error"]["n_ctx"] == 10


def test_a_full_queue_says_when_to_try_again(start: Start) -> None:
    server = start(slots=1, max_queue=1, retry_after=7)
    threads = occupy(server, 2)
    try:
        with pytest.raises(openai.InternalServerError) as caught:
            server.chat(max_tokens=1)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.code == "server_overloaded"
        reply = server.post("/completion", prompt="x", stream=True)
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "unavailable_error"
    finally:
        release(server, threads)
    server.wait_idle()
    assert server.chat(max_tokens=1).usage.completion_tokens == 1


def test_several_choices_are_all_refused_when_one_finds_no_place(start: Start) -> None:
    server = start(slots=1, max_queue=1)
    with pytest.raises(openai.InternalServerError):
        server.chat(n=8, max_tokens=100, extra={"ignore_eos": True})
    server.wait_idle()
    assert server.engine.queue_length == 0


def test_who_waits_too_long_is_told_so(start: Start) -> None:
    server = start(slots=1, queue_timeout=0.2)
    threads = occupy(server, 1)
    try:
        reply = server.post("/completion", prompt="x", n_predict=1)
        assert reply.status_code == 503
        assert "no slot was free" in reply.json()["error"]["message"]
        assert reply.headers["retry-after"]
    finally:
        release(server, threads)


def test_a_request_that_runs_too_long_is_ended(start: Start) -> None:
    server = start(slots=1, request_timeout=0.2)
    began = time.monotonic()
    answer = server.post("/completion", **LONG).json()
    assert answer["stop_type"] == "limit"
    assert 0 < answer["tokens_predicted"] < 2000
    assert time.monotonic() - began < 10


def test_silent_streams_get_pings(start: Start) -> None:
    server = start(slots=1, sse_ping_interval=0.1)
    threads = occupy(server, 1)
    try:
        body = {"messages": CHAT, "max_tokens": 1, "stream": True}
        seen = []
        with server.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200  # the header is sent although nothing was made yet
            for line in reply.iter_lines():
                seen.append(line)
                if line == ": ping":
                    release(server, [])
                if line.startswith("data: "):
                    break
        assert ": ping" in seen
        assert "error" in seen[-1]
    finally:
        release(server, threads)
