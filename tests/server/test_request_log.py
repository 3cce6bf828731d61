"""One id for a request: in its answer, in the header x-request-id, and in a line of the log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helpers.failing import decode_slowly, fail_after
from helpers.protocols import Protocol, of
from helpers.serving import CHAT, REPEAT, Serving, Start, wait_until
from ngramspec.errors import BackendError
from ngramspec.server.http.guard import ApiKeys
from ngramspec.server.openai import chat_events

LINE = re.compile(
    r"request (\S+): ([^,]+), (\d+) ms and (\d+) ms in the queue, prompt (\d+) tokens "
    r"\((\d+) cached, ([\d.]+)/s\), emitted (\d+) \(([\d.]+)/s\), drafted (\d+), accepted (\d+)"
    r"(?:, drafts (?:saved|lost) [\d.]+ s)?(.*)"
)
NUMBERS = (
    *("ms", "waited", "prompt", "cached", "prompt_rate", "emitted", "rate", "drafted", "accepted"),
)


# Path -> body, and how an answer's id begins; None: it has none.
class Lines:
    """The lines about finished requests."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def texts(self) -> list[str]:
        name = "ngramspec.server.bridge.answer"
        return [one.getMessage() for one in self._caplog.records if one.name == name]

    def read(self) -> dict[str, tuple[str, dict[str, float], str]]:
        """Return reason, numbers and what is behind them, by id."""
        by_id = {}
        for text in self.texts():
            match = LINE.fullmatch(text)
            assert match is not None, text
            request_id, reason, *numbers, rest = match.groups()
            assert request_id not in by_id
            by_id[request_id] = (
                reason,
                dict(zip(NUMBERS, map(float, numbers), strict=True)),
                rest,
            )
        return by_id


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.INFO, "ngramspec"):
        yield Lines(caplog)


def ids_in(value: Any) -> Iterator[str]:
    """Yield the ids of answers in an event: its own, a message's or a response's."""
    for one in (value, value.get("message"), value.get("response")):
        if isinstance(one, dict) and isinstance(one.get("id"), str):
            yield one["id"]


@of()
def test_an_answer_can_be_found_in_the_log(
    server: Serving, lines: Lines, protocol: Protocol
) -> None:
    reply = server.post(protocol.path, **protocol.body(tokens=8))
    assert reply.status_code == 200, reply.text
    request_id = reply.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", request_id)
    if protocol.id_prefix is not None:
        assert reply.json()["id"] == protocol.id_prefix + request_id
    ((logged_id, (reason, numbers, rest)),) = lines.read().items()
    assert (logged_id, rest) == (request_id, "")
    assert reason in ("stop", "length")
    assert 0 < numbers["emitted"] <= 8 < numbers["prompt"]
    assert 0 <= numbers["cached"] < numbers["prompt"]


@of()
def test_a_stream_can_be_found_in_the_log(
    server: Serving, lines: Lines, protocol: Protocol
) -> None:
    prefix, body = protocol.id_prefix, protocol.body(tokens=8)
    with server.client.stream("POST", protocol.path, json={**body, "stream": True}) as stream:
        request_id = stream.headers["x-request-id"]
        payloads = [line.removeprefix("data: ") for line in stream.iter_lines() if '"' in line]
    ids = {one for line in payloads for one in ids_in(json.loads(line))}
    assert ids == (set() if prefix is None else {prefix + request_id})
    assert list(lines.read()) == [request_id]


def test_the_figures_are_those_of_the_answer(server: Serving, lines: Lines) -> None:
    for _ in range(2):
        reply = server.post("/v1/chat/completions", messages=CHAT, max_tokens=60, temperature=0)
    timings, (_, numbers, _) = reply.json()["timings"], list(lines.read().values())[-1]
    assert numbers["cached"] == timings["cache_n"] > 0
    assert numbers["prompt"] == timings["cache_n"] + timings["prompt_n"]
    assert numbers["prompt_rate"] == pytest.approx(timings["prompt_per_second"], rel=2e-3)
    assert numbers["emitted"] == timings["predicted_n"]
    assert numbers["rate"] == pytest.approx(timings["predicted_per_second"], rel=2e-3)
    assert numbers["drafted"] == timings["draft_n"] > 0
    assert numbers["accepted"] == timings["draft_n_accepted"]


def test_choices_share_the_beginning_of_their_ids(server: Serving, lines: Lines) -> None:
    reply = server.post("/v1/chat/completions", messages=CHAT, max_tokens=4, n=3)
    first = reply.headers["x-request-id"]
    assert reply.json()["id"] == f"chatcmpl-{first}"
    assert set(lines.read()) == {first, f"{first}-1", f"{first}-2"}
    again = server.post("/v1/chat/completions", messages=CHAT, max_tokens=4, n=3)
    assert again.headers["x-request-id"] != first
    assert len(lines.read()) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_the_id_of_a_proxy_is_repeated(server: Serving, lines: Lines, stream: bool) -> None:
    trace = "trace-7f.3:a_B"
    body = {"messages": CHAT, "max_tokens": 4, "stream": stream}
    for _ in range(2):
        reply = server.client.post(
            "/v1/chat/completions", json=body, headers={"x-request-id": trace}
        )
        assert reply.headers["x-request-id"] == trace
        assert f"chatcmpl-{trace}" not in reply.text  # answers have ids of their own
    logged = lines.read()
    assert len(logged) == 2
    assert {rest for _, _, rest in logged.values()} == {f", x-request-id {trace}"}
    assert all(request_id in reply.text for request_id in list(logged)[1:])
    refused = server.client.get("/nowhere", headers={"x-request-id": trace})
    assert refused.headers["x-request-id"] == trace


@pytest.mark.parametrize("trace", ["", "two words", "x" * 65, "a\tb", "ü", '"', "a;b", "%0A"])
def test_other_ids_are_not_looked_at(server: Serving, lines: Lines, trace: str) -> None:
    head = {"x-request-id": trace.encode()}
    body = {"prompt": "x", "n_predict": 2}
    reply = server.client.post("/completion", json=body, headers=head)
    ((request_id, (_, _, rest)),) = lines.read().items()
    assert (reply.headers["x-request-id"], rest) == (request_id, "")
    refused = server.client.get("/nowhere", headers=head)
    assert refused.status_code == 404
    assert "x-request-id" not in refused.headers  # the log has no line about it


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_can_be_found_in_the_log(
    server: Serving,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 0, BackendError("near 'Repeat this code'"))
        reply = server.post("/completion", prompt=REPEAT, n_predict=4, stream=stream)
    assert reply.status_code == 500
    ((request_id, (reason, _, _)),) = lines.read().items()
    assert reply.headers["x-request-id"] == request_id
    assert reason == "error (BackendError)"
    caplog.clear()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(chat_events, "whole_json", broken)
        reply = server.post("/v1/chat/completions", messages=CHAT, max_tokens=2)
    assert reply.status_code == 500
    (bug,) = [one.getMessage() for one in caplog.records if one.exc_info]
    assert bug == f"request {reply.headers['x-request-id']}: POST '/v1/chat/completions' failed"
    assert reply.headers["x-request-id"] in lines.read()


def test_cancelled_requests_say_why(
    server: Serving, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_slowly(monkeypatch)
    body = {"prompt": "x", "ignore_eos": True, "temperature": 1.2, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as stream:
        next(stream.iter_lines())
        request_id = stream.headers["x-request-id"]
    wait_until(lambda: len(lines.texts()) == 1)
    assert lines.read()[request_id][0] == "cancelled (client)"


def test_keys_are_named_by_their_digest(start: Start, lines: Lines) -> None:
    keys = ("secret-one", "secret-two")
    server = start(slots=1, api_keys=keys)
    for key in keys:
        head = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
        body = {"prompt": "x", "n_predict": 2}
        assert httpx.post(f"{server.url}/completion", json=body, headers=head).status_code == 200
    rests = [rest for _, _, rest in lines.read().values()]
    assert rests == [f", key {ApiKeys(keys).find(key)}, x-request-id mine" for key in keys]
    assert "secret" not in "".join(lines.texts())


def test_no_word_of_prompt_and_answer_is_logged(
    server: Serving, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": "Sesame, open now", "n_predict": 16, "user": "Ali", "stop": ["Baba"]}
    answer = server.post("/completion", **body, grammar='root ::= "zebra crossing"')
    assert answer.json()["content"] == "zebra crossing"
    assert len(lines.texts()) == 1
    words = ["Sesame", "open", "Ali", "Baba", "zebra", "crossing"]
    assert [word for word in words if word in caplog.text] == []


def test_above_information_nothing_is_logged(server: Serving, lines: Lines) -> None:
    logger = logging.getLogger("ngramspec")
    logger.setLevel(logging.WARNING)
    assert server.post("/completion", prompt="x", n_predict=2).status_code == 200
    assert lines.texts() == []
