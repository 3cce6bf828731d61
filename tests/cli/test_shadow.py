"""A server that judges drafts and sends none: metrics, /props, `check --server`, and its trace."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("llama_cpp", reason="the models are llama.cpp's")
pytest.importorskip("openai")

import openai

from helpers.cli import assert_one_error, succeed
from helpers.command import Process
from helpers.serving import Serving, serving
from ngramspec.engine import AutoPolicy
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model

CODE = "def area(width, height):\n    return width * height\n"
SHADOW = {"speculative": {"shadow": True}}


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model()) as model:
        yield model


def ask(server: Serving, **extra: Any) -> list[Any]:
    """Return what OpenAI's client is answered."""
    questions = [
        f"Repeat this code:\n\n```python\n{CODE.replace('area', name)}```"
        for name in ("area", "size", "load")
    ]
    asked = ([{"role": "user", "content": question}] for question in questions)
    return [server.chat(messages=chat, max_tokens=60, extra=extra) for chat in asked]


def text_of(answers: list[Any]) -> list[str]:
    return [answer.choices[0].message.content for answer in answers]


@pytest.mark.parametrize("drafter", ["suffix", "ngram-mod,suffix"])
def test_a_model_would_have_accepted_what_it_accepts_when_drafts_are_sent(
    model: LlamaModel, invoke: Any, drafter: str
) -> None:
    texts, counts = [], []
    for shadow in (False, True):
        policy = AutoPolicy(16, fixed=8, shadow=shadow)
        settings: Any = {"policy": policy, "drafter": drafter, "slots": 1, "metrics": True}
        with serving(model, **settings) as server:
            answers = ask(server)
            texts.append(text_of(answers))
            stats = server.engine.stats()
            if not shadow:
                passes = stats.num_slot_steps - len(answers)
                counts.append((passes, stats.num_draft_tokens, stats.num_accepted_tokens))
                continue
            assert stats.num_draft_tokens == 0
            speculative = server.client.get("/props").json()["speculative"]
            metrics = server.client.get("/metrics").text
            shown = json.loads(invoke("check", "--server", server.url, "--json").stdout)
            table = invoke("check", "--server", f"{server.url}/").stdout
    figures = {one["drafters"]: one for one in speculative["shadow"]}
    assert shown["shadow"] == speculative["shadow"]
    assert figures.keys() == {drafter, *drafter.split(",")}
    one = figures[drafter]
    counts.append((one["passes"], one["draft_tokens"], one["accepted_tokens"]))
    assert texts[0] == texts[1]
    assert counts[0] == counts[1]
    assert one["mean_accepted_length"] > 2
    assert speculative["policy"] == "shadow"
    label = f'{{drafters="{drafter}"}}'
    assert f"ngramspec:shadow_accepted_tokens_total{label} {one['accepted_tokens']}.0" in metrics
    assert f"ngramspec:shadow_speedup{label} " in metrics
    assert "llamacpp:spec_decode_num_draft_tokens_total 0.0" in metrics
    assert 'ngramspec:source_draft_tokens_total{source="suffix"} 0.0' in metrics
    assert f"{one['accepted_tokens']}/{one['draft_tokens']}" in table


def test_a_request_can_ask_for_it(model: LlamaModel, invoke: Any) -> None:
    with serving(model, drafter="suffix", api_keys=("one",)) as server:
        before = invoke("check", "--server", server.url, "--api-key", "one").stdout
        texts = text_of(ask(server))
        drafted = server.engine.stats().num_draft_tokens
        assert text_of(ask(server, **SHADOW)) == texts
        assert server.engine.stats().num_draft_tokens == drafted > 0
        (shadow,) = server.engine.shadows()
        assert shadow.num_accepted_tokens > 0
        with pytest.raises(openai.BadRequestError, match=r"speculative\.shadow must be of type bo"):
            ask(server, speculative={"shadow": 1})
        refused = invoke("check", "--server", server.url, "--api-key", "two")
    assert "has judged no drafts" in before
    assert_one_error(refused, "/props: HTTP Error 401", 1)


def test_what_is_no_server_is_one_error(invoke: Any) -> None:
    assert_one_error(invoke("check", "--server", "http://127.0.0.1:9"), "/props: [Errno", 1)
    assert_one_error(invoke("check", "--server", "localhost"), "must be a URL", 2)


def test_requests_are_recorded_to_one_file(invoke: Any, tmp_path: Path) -> None:
    files = ("--record", str(tmp_path / "a"), "--spec-trace", str(tmp_path / "b"))
    assert_one_error(invoke("serve", "--port", "0", *files), "leave out --record", 2)


def test_a_trace_is_replayed_to_the_figures_of_its_server(invoke: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with Process("--policy", "shadow", "--spec-trace", str(trace), "--temp", "0") as server:
        url = server.url()
        body = {"prompt": f"{CODE}\n{CODE}\ndef area(", "n_predict": 48, "temperature": 0}
        for _ in range(3):
            httpx.post(f"{url}/completion", json=body, timeout=60, verify=False).raise_for_status()
        speculative = httpx.get(f"{url}/props", timeout=60, verify=False).json()["speculative"]
        assert server.end() == 0
    (figures,) = speculative["shadow"]
    assert f"shadow suffix: {figures['speedup']:.2f} times as fast as without" in server.text
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    result = succeed("bench", "replay", str(trace), "--json")
    (replayed,) = json.loads(result.stdout)["decided"]["shadow suffix"]["sets"].values()
    assert replayed["mean_accepted_length"] == figures["mean_accepted_length"] > 1
    assert replayed["steps"] == figures["passes"]
    assert "shadow suffix" in invoke("bench", "replay", str(trace)).stdout
