"""return_progress: how much of a prompt is read, told while it is read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from helpers.serving import CODE, Serving, serving
from ngramspec.engine import Chunk, Engine, Request
from ngramspec.llamacpp.model import LlamaModel

LONG = CODE * 20
CHAT = [{"role": "user", "content": LONG}]
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": LONG, "n_predict": 5},
    "/v1/completions": {"prompt": LONG, "max_tokens": 5, "echo": True},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 5},
}


@pytest.fixture(scope="module")
def server(model: LlamaModel) -> Iterator[Serving]:
    with serving(model, slots=2, params=None) as server:
        yield server


def events(server: Serving, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    fields = {**BODIES[path], **body, "stream": True}
    with server.client.stream("POST", path, json=fields) as answer:
        assert answer.status_code == 200
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def text_of(streamed: list[dict[str, Any]]) -> str:
    text = ""
    for event in streamed:
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        text += event.get("content") or ""
    return text


@pytest.mark.parametrize("path", BODIES)
def test_progress_comes_from_the_cache_to_the_whole_prompt(server: Serving, path: str) -> None:
    for seed in range(2):
        streamed = events(server, path, return_progress=True, cache_prompt=seed > 0)
        progress = [event["prompt_progress"] for event in streamed if "prompt_progress" in event]
        assert len(progress) >= 2
        assert progress[0]["processed"] == progress[0]["cache"]
        assert (progress[0]["cache"] > 0) == (seed > 0)
        assert progress[-1]["processed"] == progress[-1]["total"]
        for before, after in itertools.pairwise(progress):
            assert before["processed"] < after["processed"]
            assert before["time_ms"] <= after["time_ms"]
            assert (before["total"], before["cache"]) == (after["total"], after["cache"])
        assert ["prompt_progress" in event for event in streamed[: len(progress)]] == [True] * len(
            progress
        )
        assert text_of(streamed) == text_of(events(server, path))


@pytest.mark.parametrize("path", BODIES)
def test_without_the_field_there_is_none(server: Serving, path: str) -> None:
    for body in ({}, {"return_progress": False}):
        assert not any("prompt_progress" in event for event in events(server, path, **body))


def test_an_answer_that_is_not_streamed_has_none(server: Serving) -> None:
    answer = server.post("/completion", **BODIES["/completion"], return_progress=True).json()
    assert "prompt_progress" not in answer


def test_every_batch_of_a_prompt_is_told() -> None:
    engine = Engine(FakeTarget(max_batch=10), None)
    chunks: list[Chunk] = []
    engine.submit(
        Request(prompt_ids=int32(list(range(1, 36))), max_tokens=3, progress=True), chunks.append
    )
    while engine.step():
        pass
    reports = [chunk.progress for chunk in chunks if chunk.progress is not None]
    assert [(one.total, one.cached, one.processed) for one in reports] == [
        (35, 0, count) for count in (0, 10, 20, 30, 35)
    ]
    assert all(not chunk.text and not chunk.token_ids for chunk in chunks if chunk.progress)
    assert sum(len(chunk.token_ids) for chunk in chunks) == 3


@pytest.mark.parametrize("value", ["yes", 1, []])
def test_other_values_are_refused(server: Serving, value: Any) -> None:
    answer = server.post("/completion", **BODIES["/completion"], return_progress=value)
    assert answer.status_code == 400


def test_timings_follow_the_prompt_and_the_answer(server: Serving) -> None:
    fields = {"return_progress": True, "timings_per_token": True, "cache_prompt": False}
    fields["speculative"] = False
    streamed = events(server, "/completion", n_predict=20, ignore_eos=True, **fields)
    read = [event["timings"] for event in streamed if "prompt_progress" in event]
    assert (read[0]["prompt_n"], read[0]["prompt_ms"], read[0]["predicted_n"]) == (0, 0, 0)
    assert [timings["prompt_n"] for timings in read] == [
        event["prompt_progress"]["processed"] for event in streamed if "prompt_progress" in event
    ]
    assert read[-1]["prompt_ms"] > 0
    written = [event["timings"] for event in streamed[len(read) :] if "timings" in event]
    later = [timings for timings in written if timings["predicted_n"] > 1]
    assert len(later) > 1
    assert all(timings["predicted_per_second"] > 0 for timings in later)
    assert [t["predicted_ms"] for t in later] == sorted(t["predicted_ms"] for t in later)
