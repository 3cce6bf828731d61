"""Context shift over HTTP: fields, figures and refusals as llama-server has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.serving import CODE, Serving, Start, serving
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server import ServerSettings
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.ollama.plan import plan_generate

CONTEXT = 64
LONG: dict[str, Any] = {"prompt": CODE, "ignore_eos": True, "n_predict": 3 * CONTEXT}


@pytest.fixture(scope="module")
def shifting(model: LlamaModel) -> Iterator[Serving]:
    with serving(model, slots=2, context_size=CONTEXT, context_shift=True, metrics=True) as server:
        yield server


def test_an_answer_goes_on_past_the_context(shifting: Serving) -> None:
    answer = shifting.post("/completion", **LONG).json()
    prompt = answer["tokens_evaluated"]
    assert (answer["tokens_predicted"], answer["stop_type"]) == (3 * CONTEXT, "limit")
    assert answer["truncated"] is True
    assert answer["timings"]["predicted_n"] == 3 * CONTEXT
    assert answer["tokens_cached"] < CONTEXT < answer["tokens_predicted"] + prompt
    shifts = shifting.engine.stats().num_context_shifts
    assert shifts > 0
    metrics = shifting.client.get("/metrics").text
    assert f"ngramspec:context_shifts_total {shifts}" in metrics
    assert f"llamacpp:n_tokens_max {CONTEXT}.0" in metrics


def test_a_message_past_the_context_ended_for_its_number_of_tokens(shifting: Serving) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2 * CONTEXT}
    message = shifting.post("/v1/messages", **body, ignore_eos=True).json()
    assert message["usage"]["output_tokens"] == 2 * CONTEXT
    assert message["stop_reason"] == "max_tokens"


def test_the_context_is_filled_once_where_that_is_asked_for(shifting: Serving) -> None:
    full = {**LONG, "n_predict": -2}
    for more in ({}, {"n_probs": 1}, {"n_keep": 5}):
        answer = shifting.post("/completion", **full, **more, t_max_predict_ms=9000).json()
        assert answer["tokens_predicted"] + answer["tokens_evaluated"] == CONTEXT
        assert answer["stop_type"] == "limit"
    options = {"num_predict": -2, "temperature": 1.5}
    body = {"model": "tiny", "raw": True, "prompt": CODE, "stream": False, "options": options}
    plan = plan_generate(Incoming(json.dumps(body).encode(), shifting.served, ServerSettings()))
    [asked] = plan.requests
    assert asked.max_tokens + asked.prompt_ids.size == CONTEXT


def test_drafts_change_nothing(shifting: Serving) -> None:
    """The server of these tests runs in an exact setting."""
    for more in (
        {},
        {"n_keep": 9},
        {"n_keep": -1, "n_discard": 11},
        {"temperature": 0.9, "seed": 4},
    ):
        texts = [
            shifting.post("/completion", **LONG, **more, speculative=drafts).json()["content"]
            for drafts in (False, True)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("fields", "bounded"),
    [
        ({}, (0, 0)),
        ({"n_keep": 5, "n_discard": 3}, (5, 3)),
        ({"n_keep": -1}, (-1, 0)),
        ({"n_keep": -7, "n_discard": -7}, (-1, 0)),
        ({"n_keep": 1 << 40, "n_discard": 1 << 40}, ((1 << 31) - 2, (1 << 31) - 1)),
        ({"n_keep": 5.0}, (5, 0)),
    ],
)
def test_fields_are_brought_into_their_bounds(
    shifting: Serving, fields: dict[str, Any], bounded: tuple[int, int]
) -> None:
    answer = shifting.post("/completion", **{**LONG, "n_predict": 2 * CONTEXT}, **fields).json()
    assert answer["tokens_predicted"] == 2 * CONTEXT
    settings = answer["generation_settings"]
    assert (settings["n_keep"], settings["n_discard"]) == bounded


@pytest.mark.parametrize("field", ["n_keep", "n_discard"])
@pytest.mark.parametrize("value", ["1", 1.5, True, []])
def test_other_values_are_refused(shifting: Serving, field: str, value: Any) -> None:
    answer = shifting.post("/completion", **LONG, **{field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field} is wrong")


def test_a_prompt_that_does_not_fit_is_refused_anyway(shifting: Serving) -> None:
    answer = shifting.post("/completion", prompt=[5] * CONTEXT)
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


def test_openai_clients_get_long_answers_too(shifting: Serving) -> None:
    answer = shifting.complete(prompt=CODE, max_tokens=3 * CONTEXT, extra={"ignore_eos": True})
    assert answer.usage.completion_tokens == 3 * CONTEXT
    assert answer.choices[0].finish_reason == "length"


def test_log_probabilities_stay_bounded(shifting: Serving) -> None:
    answer = shifting.post("/completion", **{**LONG, "n_predict": 1 << 20}, n_probs=1000)
    assert answer.status_code == 400
    assert "n_probs must be less" in answer.json()["error"]["message"]


def test_without_the_option_a_full_context_ends_the_answer(start: Start) -> None:
    server = start(context_size=CONTEXT)
    answer = server.post("/completion", **LONG).json()
    assert answer["tokens_predicted"] + answer["tokens_evaluated"] == CONTEXT
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")


def test_the_command_takes_llama_servers_options(spawn: Callable[..., Process]) -> None:
    server = spawn(
        *("-c", str(CONTEXT), "-np", "1", "--context-shift", "--keep", "7", "--temp", "0"),
        *("-n", "-2"),
    )
    body = {**LONG, "n_predict": 2 * CONTEXT}
    answer = httpx.post(f"{server.url()}/completion", json=body, timeout=60).json()
    assert (answer["tokens_predicted"], answer["truncated"]) == (2 * CONTEXT, True)
    assert answer["generation_settings"]["n_keep"] == 7
    del body["n_predict"]
    answer = httpx.post(f"{server.url()}/completion", json=body, timeout=60).json()
    assert answer["tokens_predicted"] + answer["tokens_evaluated"] == CONTEXT


def test_a_recurrent_model_ends_the_start_with_the_reason(
    spawn: Callable[..., Process], tmp_path: Path
) -> None:
    from helpers.gguf_models import build

    server = spawn("-m", build("mamba", tmp_path), "-c", "512", "-np", "1", "--context-shift")
    assert server.wait() == 1
    assert "cannot shift: it is recurrent" in server.text
