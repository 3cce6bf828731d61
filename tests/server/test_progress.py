"""return_progress: how much of a prompt is read, told while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from helpers.protocols import events_in
from helpers.serving import CODE, Serving, serving
from ngramspec.engine import Chunk, Engine, Request
from ngramspec.llamacpp.model import LlamaModel

LONG = CODE * 20
BODY: dict[str, Any] = {"prompt": LONG, "n_predict": 5}


@pytest.fixture(scope="module")
def server(model: LlamaModel) -> Iterator[Serving]:
    with serving(model, slots=2, params=None) as server:
        yield server


def test_an_answer_that_is_not_streamed_has_none(server: Serving) -> None:
    answer = server.post("/completion", **BODY, return_progress=True).json()
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
    answer = server.post("/completion", **BODY, return_progress=value)
    assert answer.status_code == 400


def test_timings_follow_the_prompt_and_the_answer(server: Serving) -> None:
    fields = {"return_progress": True, "timings_per_token": True, "cache_prompt": False}
    fields["speculative"] = False
    body = {**BODY, **fields, "n_predict": 20, "ignore_eos": True, "stream": True}
    streamed = events_in(server.post("/completion", **body).text)
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
