"""A server whose slots share a cache that is too small for their requests: all are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.serving import CODE

ANSWER = 180
LINES = ("share 512 tokens of context", "lets each slot hold 512", "waits with", "goes on in slot")


@pytest.fixture(scope="module", params=["", "--context-shift", "--spec-type none"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """Run `ngramspec serve` in its usual layout, with 512 cells for its four slots."""
    folder = tmp_path_factory.mktemp("full")
    options = ["-c", "512", "-t", "1", "--metrics", "--slots", "--slot-save-path", str(folder)]
    with Process(*options, *request.param.split()) as running:
        yield running
        assert running.end() == 0


def completion(client: httpx.Client, number: int) -> int:
    prompt = f"# client {number}\n{CODE}" * 3
    body = {"prompt": prompt, "n_predict": ANSWER, "ignore_eos": True, "stream": number % 2 == 0}
    answer = client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        return int(answer.json()["tokens_predicted"])
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data")]
    assert not any("error" in event for event in events)
    assert "".join(event["content"] for event in events)
    return int(events[-1]["tokens_predicted"])


def chat(client: httpx.Client, number: int) -> int:
    body = {"messages": [{"role": "user", "content": f"{number} {CODE}"}], "max_tokens": ANSWER}
    answer = client.post("/v1/chat/completions", json={**body, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def generate(client: httpx.Client, number: int) -> int:
    options = {"num_predict": ANSWER, "temperature": 0}
    name = client.get("/v1/models").json()["data"][0]["id"]
    body = {"model": name, "prompt": f"{number}", "raw": True, "stream": False, "options": options}
    answer = client.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["done"] is True
    return 0


def leave(client: httpx.Client, number: int) -> int:
    body = {"prompt": CODE, "n_predict": ANSWER, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/completion", json=body) as answer:
        for _ in zip(range(5), answer.iter_lines(), strict=False):
            pass
    return 0


def save(client: httpx.Client, number: int) -> int:
    for action in ("save", "restore"):
        url = f"/slots/{number % 4}?action={action}"
        assert client.post(url, json={"filename": f"slot{number % 4}"}).status_code == 200
    return 0


def choices(client: httpx.Client, number: int) -> int:
    body = {"prompt": CODE, "n": 4, "max_tokens": ANSWER, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert [one["finish_reason"] for one in answer.json()["choices"]] == ["length"] * 4
    return int(answer.json()["usage"]["completion_tokens"])


def test_all_clients_are_answered_whatever_others_do(server: Process) -> None:
    work: list[tuple[Callable[[httpx.Client, int], int], int]] = [
        *((completion, ANSWER), (completion, ANSWER), (chat, ANSWER), (choices, 4 * ANSWER)),
        *((leave, 0), (generate, 0), (completion, ANSWER), (save, 0)),
    ]
    states, ended = set[tuple[str, bool]](), threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=server.url(), timeout=60) as client:
            while not ended.wait(0.02):
                for slot in client.get("/slots").json():
                    states.add((slot["state"], bool(slot["waits_for"])))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with httpx.Client(base_url=server.url(), timeout=120) as client, ThreadPoolExecutor(8) as pool:
        try:
            jobs = [pool.submit(call, client, number) for number, (call, _) in enumerate(work)]
            assert [job.result() for job in jobs] == [tokens for _, tokens in work]
        finally:
            ended.set()
            watcher.join()
        metrics = client.get("/metrics").text
    assert ("preempted", True) in states
    assert ("idle", True) in states
    counts: dict[str, Any] = {
        line.partition("{")[0].partition(" ")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if not line.startswith("#")
    }
    assert counts["vllm:num_preemptions_total"] > 0
    moved = ("ngramspec:reread_tokens_total", "ngramspec:restored_tokens_total")
    assert sum(counts[name] for name in moved) > 0
    for line in LINES:
        assert line in server.text


def test_what_can_never_fit_is_refused_with_a_size_that_does(server: Process) -> None:
    answer = httpx.post(f"{server.url()}/v1/completions", json={"prompt": CODE * 100}, timeout=60)
    assert answer.status_code == 400
    assert "maximum context length is 512 tokens" in answer.json()["error"]["message"]
