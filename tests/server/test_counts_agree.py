"""Timings, metrics, page, log and statistics count the same drafts, however a text ends."""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from helpers.serving import Serving, Start
from ngramspec.engine.policy import make_policy

PROMPT = "def area(width, height):\n    return width * height\n\ndef one("
BODY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "cache_prompt": False}
ENDINGS: dict[str, dict[str, Any]] = {
    "length": {"n_predict": 31, "ignore_eos": True},
    "one token": {"n_predict": 1},
    "a stop word in a draft": {"n_predict": 64, "ignore_eos": True, "stop": ["ght"]},
    "a stop word early in a draft": {"n_predict": 40, "ignore_eos": True, "stop": ["(wi"]},
    "short drafts are not sent": {"n_predict": 64, "ignore_eos": True, "speculative.n_min": 6},
    "the end": {"n_predict": 200, "prompt": "print('a')\nprint('a')\nprint('a"},
    "grammar": {"n_predict": 64, "grammar": 'root ::= ("width, height" | "\\n") root?'},
    "time": {"n_predict": 200, "ignore_eos": True, "t_max_predict_ms": 30},
    "a full slot": {"n_predict": -1, "ignore_eos": True},
}
PAIRS = (("ngram-simple", "auto"), ("ngram-mod,ngram-cache", "fixed"), ("suffix", "gate"),
         ("suffix,recycle", "auto"))  # fmt: skip


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine's clock go on a bit with each look at it: no pass takes longer than another.

    So drafts pay on any machine, however busy, and a time that is up is up after as many passes.
    """
    ticks = itertools.count(time.perf_counter(), 1e-3)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    for name in ("stepper", "emission", "generation"):
        monkeypatch.setattr(f"ngramspec.engine.{name}.time", clock)


def metric(text: str, name: str) -> float:
    """Return a counter's sum over all labels."""
    counter = {family.name: family for family in families(text)}[name]
    return sum(sample.value for sample in counter.samples if sample.name.endswith("_total"))


def assert_agree(server: Serving, drafted: int, accepted: int) -> None:
    stats, sources = server.engine.stats(), server.engine.source_stats().values()
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (drafted, accepted)
    assert sum(one.num_draft_tokens for one in sources) == drafted
    assert sum(one.num_accepted_tokens for one in sources) == accepted
    for one in sources:
        assert sum(one.accepted_per_position) == one.num_accepted_tokens
        assert f"#acc tokens = {one.num_accepted_tokens:5d}," in one.line()
    live = server.client.get("/v1/ngramspec/live").json()
    assert (live["draft_tokens"], live["accepted_tokens"]) == (drafted, accepted)
    assert sum(one["draft_tokens"] for one in live["sources"]) == drafted
    assert sum(one["accepted_tokens"] for one in live["sources"]) == accepted
    text = server.client.get("/metrics").text
    assert metric(text, "ngramspec:source_draft_tokens") == drafted
    assert metric(text, "ngramspec:source_accepted_tokens") == accepted
    assert metric(text, "vllm:spec_decode_num_draft_tokens") == drafted
    assert metric(text, "vllm:spec_decode_num_accepted_tokens") == accepted


@pytest.mark.parametrize(("drafter", "policy"), PAIRS)
def test_after_every_ending(
    even: None, start: Start, caplog: pytest.LogCaptureFixture, drafter: str, policy: str
) -> None:
    caplog.set_level(logging.INFO, "ngramspec")
    server = start(
        drafter=drafter, policy=make_policy(policy, 16), metrics=True, slots=2, context_size=320
    )
    drafted = accepted = 0
    for name, fields in ENDINGS.items():
        answer = server.post("/completion", **{**BODY, **fields})
        assert answer.status_code == 200, (name, answer.text)
        timings = answer.json()["timings"]
        drafted += timings.get("draft_n", 0)
        accepted += timings.get("draft_n_accepted", 0)
        server.wait_idle()
        assert_agree(server, drafted, accepted)
    assert accepted > 100
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        bodies = [{**BODY, "n_predict": 24, "prompt": PROMPT[start:]} for start in range(4)]
        for answer in pool.map(lambda body: server.post("/completion", **body), bodies):
            drafted += answer.json()["timings"].get("draft_n", 0)
            accepted += answer.json()["timings"].get("draft_n_accepted", 0)
    server.wait_idle()
    assert_agree(server, drafted, accepted)
    logged = [re.findall(r"drafted (\d+), accepted (\d+)", line) for line in caplog.messages]
    pairs = [pair for line in logged for pair in line]
    assert sum(int(one) for one, _ in pairs) == drafted
    assert sum(int(one) for _, one in pairs) == accepted


def test_after_a_client_has_left(start: Start) -> None:
    server = start(drafter="suffix", policy=make_policy("fixed", 16), metrics=True)
    body = {**BODY, "n_predict": 2000, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number > 100:
                break
    server.wait_idle()
    stats = server.engine.stats()
    assert stats.num_accepted_tokens > 0
    assert_agree(server, stats.num_draft_tokens, stats.num_accepted_tokens)
