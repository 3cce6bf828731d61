"""Recorded requests: every API, what is in a record, keys, bounds, and what requests cannot do."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("gguf")

from helpers.gguf_models import with_fim_tokens
from helpers.serving import Serving, Start, serving, wait_until
from ngramspec.engine import Generation, Request
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.formats import recognise
from ngramspec.lab.recordings.record import Head
from ngramspec.lab.recordings.traces import Recording
from ngramspec.lab.recordings.writer import LEAST_BYTES, RecordFile
from ngramspec.server.recorder import Recorder
from ngramspec.text.tokenizers import fingerprint_of

SAID = [{"role": "user", "content": "Repeat this code:\n\n```python\nx = 1\ny = x + 2\n```"}]
AGAIN = "Repeat the code."
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": SAID, "max_tokens": 8}),
    "chat stream": ("/v1/chat/completions", {"messages": SAID, "max_tokens": 8, "stream": True}),
    "completions": ("/v1/completions", {"prompt": "x = 1\n", "max_tokens": 8}),
    "responses": ("/v1/responses", {"input": "x = 1\n", "max_output_tokens": 8}),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 8}),
    "completion": ("/completion", {"prompt": "x = 1\n", "n_predict": 8}),
    "completion stream": ("/completion", {"prompt": "x = 1\n", "n_predict": 8, "stream": True}),
    "infill": ("/infill", {"input_prefix": "def f(", "input_suffix": "f()", "n_predict": 8}),
    "ollama chat": ("/api/chat", {"messages": SAID, "options": {"num_predict": 8}}),
    "ollama generate": ("/api/generate", {"prompt": "x = 1\n", "options": {"num_predict": 8}}),
}
Record = Start


class Held:
    """A file whose writes wait until they may go on, or fail."""

    def __init__(self, file: RecordFile) -> None:
        self.path, self.close = file.path, file.close
        self.open = threading.Event()
        self.error: Exception | None = None
        self._file = file

    @property
    def num_bytes(self) -> int:
        return self._file.num_bytes

    def append(self, *arguments: Any) -> None:
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        self._file.append(*arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_fim_tokens(tmp_path_factory.mktemp("fim") / "fim.gguf")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


@pytest.fixture
def record(model: Path, path: Path) -> Iterator[Record]:
    """Return a function that starts a server that records into `path`."""
    with contextlib.ExitStack() as stack:

        def start(
            max_bytes: int | None = None,
            held: bool = False,
            bounds: dict[str, int] | None = None,
            **settings: Any,
        ) -> Serving:
            fingerprint = fingerprint_of(model)
            head = Head(
                model="tiny",
                tokenizer=str(fingerprint),
                vocab_size=fingerprint.vocab_size,
                drafter="suffix",
                started=0.0,
                apart="api_keys" in settings,
            )
            file: Any = RecordFile(path, head, max_bytes)
            recorder = Recorder(Held(file) if held else file, "suffix", **bounds or {})
            stack.callback(recorder.close)
            options = {"drafter": "suffix", "exact": False, **settings}
            return stack.enter_context(serving(model, served={"recorder": recorder}, **options))

        yield start


def stats(server: Serving) -> Any:
    assert server.served.recorder is not None
    return server.served.recorder.stats()


def written(server: Serving, count: int) -> list[RecordedRequest]:
    """Wait until so many requests are written, and return what the file holds."""
    wait_until(lambda: stats(server).written >= count)
    assert server.served.recorder is not None
    return list(Recording(recognise(server.served.recorder._file.path)))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_every_api_is_recorded(record: Record, path: Path) -> None:
    server = record(metrics=True)
    for number, (name, (where, body)) in enumerate(REQUESTS.items(), start=1):
        answer = server.post(where, model="tiny", temperature=0, **body)
        assert answer.status_code == 200, (name, answer.text)
        one = written(server, number)[-1]
        assert len(one.prompt) > 3, name
        assert len(one.output) == 8, name
    requests = written(server, len(REQUESTS))
    assert len(requests) == len(REQUESTS)
    prompt_ids = server.served.model.tokenize_prompt(server.served.model.render_chat(SAID)).tolist()
    assert requests[0].prompt.tolist() == requests[1].prompt.tolist() == prompt_ids
    tokens = server.post("/completion", prompt="x = 1\n", n_predict=8, temperature=0,
                         return_tokens=True).json()["tokens"]  # fmt: skip
    assert written(server, len(REQUESTS) + 1)[-1].output.tolist() == tokens
    for one in records(path):
        assert one["finish"] == "length"
        assert one["time"] > 1e9
        assert one["passes"] >= 1
        assert one["drafted"] >= one["accepted"] >= 0
        assert min(one["queue_ms"], one["prompt_ms"], one["decode_ms"]) >= 0
    lines = server.client.get("/metrics").text.splitlines()
    assert f"ngramspec:recorded_requests_total {len(REQUESTS) + 1}.0" in lines
    assert 'ngramspec:record_dropped_requests_total{reason="queue"} 0.0' in lines
    assert "ngramspec:record_failing 0.0" in lines


def test_what_generates_nothing_is_not_recorded(record: Record, path: Path) -> None:
    server = record()
    server.post("/tokenize", content="a")
    server.post("/completion", prompt="a", n_predict=0)
    assert server.post("/completion", prompt=5.5).status_code == 400
    server.complete(prompt="x = 1\n", max_tokens=4)
    assert len(written(server, 1)) == 1
    assert stats(server).waiting == 0


def test_no_recorder_means_no_file_and_no_metrics(model: Path) -> None:
    with serving(model, metrics=True) as server:
        server.complete(prompt="x = 1\n", max_tokens=4)
        assert "record" not in server.client.get("/metrics").text.replace("recorded", "")


def test_a_chat_is_one_session_and_choices_share_their_prompt(record: Record, path: Path) -> None:
    server = record()
    messages = [*SAID]
    for _ in range(3):
        answer = server.chat(messages=messages, max_tokens=40).choices[0].message.content
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": AGAIN}]
    server.complete(prompt="some text that is long enough to be kept " * 3, n=2, max_tokens=4)
    requests = written(server, 5)
    entries = records(path)
    assert [(one["session"], one["turn"]) for one in entries[:3]] == [(0, 0), (0, 1), (0, 2)]
    assert len(entries[1]["prompt_ids"]) < len(requests[1].prompt) / 2
    assert entries[4]["prompt_ids"] == []
    assert requests[3].prompt.tolist() == requests[4].prompt.tolist()


def test_settings_of_a_request_are_told(record: Record, path: Path) -> None:
    server = record()
    added = {"ngram_simple": {"size_n": 3}}
    for fields in ({}, {"enabled": False}, {"types": "ngram-mod,suffix"}, added):
        server.complete(max_tokens=4, extra={"speculative": fields})
    written(server, 4)
    drafters = [one.get("drafter") for one in records(path)]
    assert drafters == [None, "none", "ngram-mod,suffix", "ngram-simple,suffix"]


def test_an_answer_that_nobody_waits_for_is_recorded_as_far_as_it_came(
    record: Record, path: Path
) -> None:
    server = record()
    body = {"prompt": "x = 1\n", "n_predict": 1500, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", "/completion", json=body) as answer:
        next(answer.iter_lines())
    written(server, 1)
    (one,) = records(path)
    assert one["finish"] == "cancelled"
    assert 0 < len(one["output_ids"]) < 1500


def test_keys_are_kept_apart_and_not_written(record: Record, path: Path) -> None:
    keys = ("the-key-of-alice", "the-key-of-bob")
    server = record(api_keys=keys)
    for key in (*keys, *keys):
        head = {"authorization": f"Bearer {key}"}
        body = {"prompt": "one two three four five six seven eight nine ten", "n_predict": 8}
        assert server.client.post("/completion", json=body, headers=head).status_code == 200
    requests = written(server, 4)
    assert requests[0].key == requests[2].key != requests[1].key == requests[3].key
    assert all(one.apart for one in requests)
    entries = records(path)
    assert "kept" not in entries[1]  # nothing of the other key's text
    assert entries[2]["kept"][0] == 0
    assert entries[3]["kept"][0] == 1
    text = path.read_text()
    assert not any(key in text for key in keys)
    assert "authorization" not in text.lower()


def test_what_the_queue_cannot_hold_is_dropped_and_requests_do_not_wait(record: Record) -> None:
    server = record(held=True, bounds={"most_waiting": 2})
    assert server.served.recorder is not None
    file: Any = server.served.recorder._file
    for _ in range(5):
        server.complete(prompt="x = 1\n", max_tokens=4)
    assert stats(server).dropped == {"queue": 3, "long": 0, "error": 0}
    assert stats(server).waiting == 2
    file.open.set()
    wait_until(lambda: stats(server).written == 2)
    server.complete(prompt="x = 1\n", max_tokens=4)
    wait_until(lambda: stats(server).written == 3)


def test_large_prompts_fill_the_queue_by_their_tokens(record: Record) -> None:
    server = record(held=True, bounds={"most_tokens": 100})
    assert server.served.recorder is not None
    file: Any = server.served.recorder._file
    for _ in range(3):
        server.complete(prompt="word " * 200, max_tokens=4)  # alone it is taken in any case
    assert stats(server).dropped["queue"] == 2
    file.open.set()
    wait_until(lambda: stats(server).written == 1)


def test_a_disk_that_fails_costs_records_only(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    server = record(held=True)
    assert server.served.recorder is not None
    file: Any = server.served.recorder._file
    file.open.set()
    file.error = OSError(28, "No space left on device")
    for _ in range(3):
        assert server.complete(prompt="x = 1\n", max_tokens=4).usage.completion_tokens == 4
    wait_until(lambda: stats(server).dropped["error"] == 3)
    assert stats(server).failing
    file.error = None
    server.complete(prompt="x = 1\n", max_tokens=4)
    wait_until(lambda: stats(server).written == 1)
    assert not stats(server).failing
    messages = [one.message for one in caplog.records if "recorded to" in one.message]
    assert [("not recorded" in one, "again" in one) for one in messages] == [
        (True, False), (False, True)
    ]  # fmt: skip


def test_prompts_that_fit_no_file_and_broken_texts(record: Record, path: Path) -> None:
    server = record(max_bytes=LEAST_BYTES)
    assert server.served.recorder is not None
    file: Any = server.served.recorder._file
    file._max_bytes = 4096  # so that a prompt of a second is too long
    server.complete(prompt="a b c " * 300, max_tokens=2)
    wait_until(lambda: stats(server).dropped["long"] == 1)
    body = b'{"prompt": "a\\ud800 b\\u0000c\\n{\\"session\\": 0}", "n_predict": 4}'
    server.client.post("/completion", content=body).raise_for_status()
    body = b'{"prompt": "x\xff\xfey", "n_predict": 4}'
    answered = server.client.post("/completion", content=body).status_code == 200
    requests = written(server, 1 + answered)
    assert len(requests) == 1 + answered == len(records(path))
    assert path.stat().st_size < 4096


def test_the_file_is_whole_after_the_end(record: Record, path: Path) -> None:
    server = record()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(20):
            client.post("/completion", json={"prompt": f"{number} is", "n_predict": 2})
    recorder = server.served.recorder
    assert recorder is not None
    wait_until(lambda: stats(server).written + stats(server).waiting == 20)
    assert recorder.close()
    assert len(list(Recording(recognise(path)))) == 20


def test_a_file_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    head = Head(model="", tokenizer="", vocab_size=1, drafter="", started=0.0, apart=False)
    file: Any = Held(RecordFile(tmp_path / "r.jsonl", head))
    recorder = Recorder(file, "")
    generation = Generation(Request(prompt_ids=np.array([1], dtype=np.int32)), seed=0)
    generation.transcript.feed([0, 0])
    recorder.offer(generation)
    assert not recorder.close(timeout=0.05)
    file.error = OSError("gone")
    file.open.set()
    recorder._thread.join(20)
    assert not recorder._thread.is_alive()
