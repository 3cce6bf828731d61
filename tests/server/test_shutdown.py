"""The end of a server: running requests finish, new ones are refused, late ones are told."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from helpers.serving import CHAT, Start, wait_until

LONG: dict[str, Any] = {"ignore_eos": True, "temperature": 1.2, "speculative.enabled": False}


def test_running_streams_are_finished_first(start: Start) -> None:
    server = start(slots=1)
    stream = server.chat(max_tokens=300, stream=True, extra=LONG)
    first = next(iter(stream))
    server.http.should_exit = True
    events = [first, *stream]
    assert events[-1].choices[0].finish_reason == "length"
    assert events[-1].model_extra["timings"]["predicted_n"] == 300


def test_waiting_requests_are_finished_too(start: Start) -> None:
    server = start(slots=1)
    counts: list[int] = []

    def ask() -> None:
        answer = server.post("/completion", prompt="x", n_predict=200, **LONG)
        counts.append(answer.json()["tokens_predicted"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.busy_slots() + server.engine.queue_length == 3)
    server.http.should_exit = True
    for thread in threads:
        thread.join(30)
    assert counts == [200, 200, 200]


def test_an_answer_that_takes_work_at_its_end_is_finished_too(start: Start) -> None:
    server = start(slots=1)
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(server.post("/completion", prompt="x", n_predict=200, n_probs=1, **LONG))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: server.busy_slots() == 1)
    server.http.should_exit = True
    thread.join(30)
    assert replies[0].status_code == 200, replies[0].text
    assert len(replies[0].json()["completion_probabilities"]) == 200


def test_what_outlives_the_drain_is_told_so(start: Start) -> None:
    server = start(slots=1, drain_timeout=0.3)
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(server.post("/completion", prompt="x", **LONG))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: server.busy_slots() == 1)
    body = {"messages": CHAT, "stream": True, **LONG}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        server.http.should_exit = True
        lines = [line for line in stream.iter_lines() if line]
    thread.join(30)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["message"] == "the server is closing"
    assert "the server is closing" in lines[-2]
    assert lines[-1] == "data: [DONE]"


def test_new_requests_are_refused_while_it_closes(start: Start) -> None:
    server = start(slots=1)
    server.bridge.intake.close()
    reply = server.post("/completion", prompt="x", n_predict=1)
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert reply.json()["error"]["type"] == "unavailable_error"
