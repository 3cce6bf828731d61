"""What the server tells of itself, and how it tells of what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.failing import decode_slowly
from helpers.serving import CHAT, Serving, Start
from ngramspec.drafting.names import DRAFTER_NAMES
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.model import LlamaModel


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_is_ok(server: Serving, path: str) -> None:
    assert server.client.get(path).json() == {"status": "ok"}


def test_health_can_be_asked_without_a_body(server: Serving) -> None:
    reply = server.client.head("/health")
    assert reply.status_code == 200
    assert reply.content == b""


def test_models_list_the_model(server: Serving) -> None:
    (listed,) = server.openai.models.list()
    assert listed.id == "tiny"
    assert listed.object == "model"
    meta = listed.model_extra["meta"]
    assert meta["n_vocab"] == server.served.model.vocab_size
    assert meta["n_ctx"] == 2048
    assert meta["n_params"] > 5_000_000
    assert server.openai.models.retrieve("tiny").id == "tiny"
    assert server.client.get("/models").json() == server.client.get("/v1/models").json()


def test_another_model_is_not_found(server: Serving) -> None:
    reply = server.client.get("/v1/models/gpt-5")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_aliases_are_ids_too(start: Start) -> None:
    server = start(slots=1, served={"aliases": ("small", "vendor/other")})
    for name in ("tiny", "small", "vendor/other"):
        model = server.openai.models.retrieve(name)
        assert model.id == "tiny"
        assert model.model_extra["aliases"] == ["tiny", "small", "vendor/other"]


def test_props_describe_the_server(server: Serving) -> None:
    props = server.client.get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["default_generation_settings"]["params"]["temperature"] == 0
    assert props["chat_template"].startswith("{%")
    assert props["model_path"].endswith(".gguf")
    assert props["model_ftype"] == "Q8_0"
    assert props["eos_token"] == "<|im_end|>"


def test_props_tell_what_drafts(server: Serving, start: Start) -> None:
    speculation = server.client.get("/props").json()["speculative"]
    assert speculation.pop("slot_bytes") > 0
    assert speculation == {
        "active": True,
        "drafters": [{"name": "ngram-mod", "bytes": 1 << 24}, {"name": "ngram-cache", "bytes": 0}],
        "shadow": [],
        "draft_model": None,
        "policy": "gate",
        "n_max": 62,
        "branches": 1,
        "branch_bytes": 0,
        "types": list(DRAFTER_NAMES),
        "rollback": "cache",
        "state_bytes": 0,
        "notes": ["a batch holds 63 tokens"],  # that are exact
    }
    off = start(slots=1, drafter=None, served={"draft_notes": ("it was left out",)})
    speculation = off.client.get("/props").json()["speculative"]
    assert (speculation["active"], speculation["drafters"]) == (False, [])
    assert speculation["types"] == list(DRAFTER_NAMES)  # a request may still name them
    assert speculation["notes"] == ["it was left out", "no drafter and no draft model is named"]


def test_a_request_may_name_the_draft_model(
    server: Serving, start: Start, model: LlamaModel
) -> None:
    with_small = start(
        slots=1, exact=False, draft_model=DraftModelSettings(path=model.path, name="qwen2:0.5b")
    )
    small = with_small.client.get("/props").json()["speculative"]["draft_model"]
    assert (small["name"], small["path"]) == ("qwen2:0.5b", str(model.path))
    assert small["bytes"] > model.size_bytes + (1 << 20)  # the context counts
    assert small["vocabulary"] == "same"
    paths = {
        "/v1/chat/completions": {"messages": CHAT, "max_tokens": 1},
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/completion": {"prompt": "x", "n_predict": 1},
        "/api/generate": {"model": "tiny", "prompt": "x", "options": {"num_predict": 1}},
    }
    for path, body in paths.items():
        for name in ("qwen2:0.5b", "QWEN2:0.5B", model.path.name, model.path.stem, "", None):
            assert with_small.post(path, **body, draft_model=name).status_code == 200, (path, name)
        for name in ("qwen2:1.5b", 7):
            refused = with_small.post(path, **body, draft_model=name)
            assert refused.status_code == 400
            assert (
                f"draft_model {name!r} is not loaded: this server has 'qwen2:0.5b'" in refused.text
            )
        assert "this server has no draft model" in server.post(path, **body, draft_model="x").text


def test_props_tell_of_a_draft_model_that_drafts_through_text(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from helpers.other_vocabularies import permuted

    settings = DraftModelSettings(path=permuted(tmp_path / "other.gguf"), name="other")
    server = start(slots=2, exact=False, draft_model=settings, metrics=True)
    speculation = server.client.get("/props").json()["speculative"]
    assert speculation["draft_model"]["vocabulary"] == "another"
    assert speculation["notes"] == []
    answer = server.post("/completion", prompt="def f(", n_predict=30, temperature=0).json()
    plain = start(slots=1, exact=False, drafter=None)
    body = {"prompt": "def f(", "n_predict": 30, "temperature": 0}
    assert answer["content"] == plain.post("/completion", **body).json()["content"]
    assert 'source="draft-simple"' in server.client.get("/metrics").text


def test_props_change_only_when_that_is_allowed(server: Serving, start: Start) -> None:
    assert server.post("/props").status_code == 501
    assert start(slots=1, props=True).post("/props").json() == {"success": True}


def test_slots_tell_what_they_do(server: Serving) -> None:
    answer = server.chat(max_tokens=4)
    slots = server.client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert {(slot["is_processing"], slot["id_task"]) for slot in slots} == {(False, -1)}
    assert answer.id.removeprefix("chatcmpl-") in {slot["request_id"] for slot in slots}
    assert any(slot["n_tokens"] for slot in slots)
    assert server.client.get("/slots?fail_on_no_slot=1").status_code == 200
    assert server.client.post("/slots/0?action=save").status_code == 501


def test_tasks_of_slots_are_numbers_as_in_llama_server(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(slots=1)
    decode_slowly(monkeypatch, 0.05)
    seen: list[int] = []
    for _ in range(3):
        body = {"prompt": "x", "ignore_eos": True, "stream": True, "speculative": False}
        with server.client.stream("POST", "/completion", json=body) as stream:
            lines = stream.iter_lines()  # an iterator that goes away ends the connection
            next(lines)
            (slot,) = server.client.get("/slots").json()
            seen.append(slot["id_task"])
            assert slot["request_id"] == stream.headers["x-request-id"]
        server.wait_idle()
    assert seen == [0, 1, 2]


def test_slots_are_there_only_when_they_are_exposed(start: Start) -> None:
    reply = start(slots=1, expose_slots=None).client.get("/slots")
    assert reply.status_code == 501
    assert "--slots" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("POST", "/health", 405),
        ("GET", "/completion", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("GET", "/openapi.json", 404),
        ("POST", "/v1/embeddings", 400),
        ("POST", "/embedding", 400),
        ("GET", "/docs", 404),
    ],
)
def test_unknown_paths_and_methods_are_told_in_json(
    server: Serving, method: str, path: str, status: int
) -> None:
    reply = server.client.request(method, path)
    assert reply.status_code == status
    error: dict[str, Any] = reply.json()["error"]
    assert error["message"]
    if path.startswith("/v1/"):
        assert set(error) == {"message", "type", "param", "code"}
    else:
        assert error["code"] == status
    if status == 405:
        assert reply.headers["allow"]


def test_a_bug_is_logged_once_and_not_shown(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(slots=1)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(type(server.engine), "slots", broken)
    reply = server.client.get("/slots")
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"
    assert "secret" not in reply.text
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 1
    assert "GET '/slots' failed" in records[0].message


def test_browsers_of_other_origins_may_ask_only_where_allowed(
    server: Serving, start: Start
) -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert (
        "access-control-allow-origin" not in server.client.get("/health", headers=headers).headers
    )
    open_one = start(slots=1, cors_origins=("https://a.example",), api_keys=("key",))
    preflight = httpx.options(f"{open_one.url}/v1/chat/completions", headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    refused = httpx.post(f"{open_one.url}/completion", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    other = {**headers, "origin": "https://b.example"}
    assert (
        "access-control-allow-origin"
        not in httpx.get(f"{open_one.url}/health", headers=other).headers
    )
    asked = httpx.options(f"{open_one.url}/v1/chat/completions", headers=other)
    assert asked.status_code == 200  # as in llama-server; the browser looks for the header
    assert "access-control-allow-origin" not in asked.headers
    assert preflight.headers["access-control-allow-credentials"] == "true"
