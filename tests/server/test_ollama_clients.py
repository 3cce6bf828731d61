"""Requests in the shapes in which Ollama's clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.serving import CHAT, Serving

SYSTEM = [{"role": "system", "content": "Be brief."}, *CHAT]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "area", "parameters": {"type": "object", "properties": {}}},
}
CALLED = [
    *CHAT,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "area", "arguments": {}}}],
    },
]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Open WebUI, a chat": (
        "chat",
        {
            "messages": SYSTEM,
            "options": {
                "temperature": 0.8, "num_ctx": 2048, "num_predict": 2, "stop": ["x"],
                "num_keep": 24, "num_batch": 512, "num_thread": 2, "num_gpu": 1, "use_mmap": True,
                "use_mlock": False, "repeat_last_n": 64, "tfs_z": 1, "top_k": 40, "top_p": 0.9,
                "min_p": 0, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5,
                "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1.1, "seed": 0,
            },
            "keep_alive": "5m",
            "metadata": {"chat_id": "x"},
            "session_id": "s",
            "background_tasks": {"title_generation": True},
        },
    ),
    "Open WebUI, after a tool": (
        "chat",
        {
            "messages": [*CALLED, {"role": "tool", "content": "3", "tool_call_id": "call_1"}],
            "tools": [TOOL],
            "keep_alive": "-1",
        },
    ),
    "LangChain": (
        "chat",
        {
            "messages": CHAT,
            "tools": [],
            "format": None,
            "think": None,
            "options": {"num_ctx": 4096, "num_predict": 2, "seed": 3, "stop": None},
            "keep_alive": None,
        },
    ),
    "aider over litellm": (
        "chat",
        {"messages": SYSTEM, "options": {"num_ctx": 8192.0, "num_predict": 2, "temperature": 0}},
    ),
    "Zed": (
        "chat",
        {
            "messages": [{**CHAT[0], "images": None}],
            "keep_alive": -1,
            "options": {"num_ctx": 16384, "num_predict": 2, "stop": [], "top_p": None},
            "tools": [],
            "think": False,
        },
    ),
    "Zed, after a tool": (
        "chat",
        {"messages": [*CALLED, {"role": "tool", "content": "3", "tool_name": "area"}]},
    ),
    "continue, a chat": (
        "chat",
        {"messages": CHAT, "options": {"num_predict": 2, "num_ctx": 8192}, "keep_alive": 1800},
    ),
    "continue, a completion": (
        "generate",
        {
            "prompt": "def f(",
            "suffix": "",
            "raw": True,
            "options": {
                "num_predict": 2, "stop": ["\n\n"], "num_ctx": 4096, "temperature": 0.01,
                "mirostat": None, "num_thread": None, "use_mmap": None, "min_p": None,
            },
            "keep_alive": 1800,
        },
    ),
    "Ollama's own command line": (
        "generate",
        {
            "prompt": "x", "suffix": None, "system": None, "template": None, "context": None,
            "raw": None, "format": None, "keep_alive": None, "images": None, "truncate": None,
            "shift": True, "logprobs": False, "top_logprobs": 0, "options": {"num_predict": 2},
        },
    ),
    "ollama-python": (
        "generate",
        {
            "prompt": "x", "suffix": "", "system": "", "template": "", "raw": False, "images": [],
            "options": {"num_predict": 2, "low_vram": True, "numa": True, "main_gpu": 0},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize("name", SHAPES)
def test_requests_of_clients_are_answered(server: Serving, name: str, stream: bool | None) -> None:
    route, body = SHAPES[name]
    options = {"num_predict": 2, **(body.get("options") or {})}
    answer = server.post(
        f"/api/{route}", **{**body, "model": "tiny:latest", "stream": stream, "options": options}
    )
    assert answer.status_code == 200, answer.text
    last = json.loads(answer.text.splitlines()[-1])
    assert (last["done"], last["model"]) == (True, "tiny:latest")
    assert last["done_reason"] in ("length", "stop")
    assert last["eval_count"] <= 2
    assert ("message" in last) == (route == "chat")


@pytest.mark.parametrize("keep", [0, "0", "0s"])
def test_a_request_to_unload_is_answered_and_unloads_nothing(server: Serving, keep: Any) -> None:
    body = {"model": "tiny:latest", "prompt": "", "keep_alive": keep, "stream": False}
    assert server.post("/api/generate", **body).json()["done_reason"] == "unload"
    assert server.client.get("/api/ps").json()["models"]
    assert server.chat(max_tokens=1).usage.completion_tokens == 1


def test_what_editors_ask_for_before_they_chat(server: Serving) -> None:
    """VS Code's and Zed's order: version, models, what each can do and how long its context is."""
    version = server.client.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    (listed,) = server.client.get("/api/tags").json()["models"]
    shown = server.post("/api/show", model=listed["model"], verbose=False).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 2048
    assert shown["capabilities"] == listed["capabilities"] == ["completion"]
    assert shown["details"] == listed["details"]
    (loaded,) = server.client.get("/api/ps").json()["models"]
    assert loaded["context_length"] == 2048
    reply = server.post("/v1/chat/completions", model=listed["model"], messages=CHAT, max_tokens=1)
    assert reply.json()["usage"]["completion_tokens"] == 1
