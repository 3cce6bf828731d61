"""LoRA adapters over HTTP: listed, applied to all requests or to one, as llama-server does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.lora_files import write_lora
from helpers.serving import serving
from ngramspec import LLM
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model

PROMPTS = (
    *("a = None", "b = True", "d = {", "g = x", "j = ''", "1 2 3 4 5 "),
    *("import ", "from ", "class ", "while ", "assert ", "def area(width, height):\n"),
)
SCALES = (0.0, 1.0, 0.5)  # of the first adapter
TOKENS = 4


@dataclass
class Expected:
    """A prompt, what the library says to it, by scale of the first adapter, and how clearly.

    lead: How much likelier each token is than any other, at the least, as a difference of
        logarithms. Passes of other sizes round otherwise, which may only change what is nearly
        as likely.
    """

    prompt: str
    answers: dict[float, str] = field(default_factory=dict)
    lead: float = math.inf


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("lora")
    return [write_lora(folder / "a.gguf", 1, task="rhyme"), write_lora(folder / "b.gguf", 2)]


@pytest.fixture(scope="module")
def expected(files: list[Path]) -> Expected:
    """The clearest texts that are different with each scale."""
    candidates = []
    with LLM(embedded_model(), None, slots=1, threads=1, adapters=files) as llm:
        for prompt in PROMPTS:
            candidates.append(Expected(prompt))
            for scale in SCALES:
                adapters = ((0, scale),) if scale else ()
                answer = llm.generate(
                    prompt, max_tokens=TOKENS, temperature=0, adapters=adapters, logprobs=2
                )
                leads = [one.top[0][1] - one.top[1][1] for one in answer.logprobs or ()]
                candidates[-1].answers[scale] = answer.text
                candidates[-1].lead = min(candidates[-1].lead, *leads)
    different = (one for one in candidates if len(set(one.answers.values())) == len(SCALES))
    best = max(different, key=lambda one: one.lead)
    assert best.lead > 0.2
    return best


@pytest.fixture(scope="module")
def client(files: list[Path]) -> Iterator[httpx.Client]:
    line = ["-m", str(embedded_model()), "-c", "2048", "-np", "4", "-t", "1"]
    line += ("--lora", str(files[0]), "--lora-scaled", f"{files[1]}:0.25")
    with Process(*line, "--lora-init-without-apply") as server:
        with httpx.Client(base_url=server.url(), timeout=60) as client:
            yield client
        assert server.end() == 0


def say(client: httpx.Client, prompt: str, **body: Any) -> str:
    fields = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, **body}
    answer = client.post("/completion", json=fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["content"])


def scales(client: httpx.Client) -> list[float]:
    return [one["scale"] for one in client.get("/lora-adapters").json()]


def test_adapters_are_listed_and_applied_to_all(
    client: httpx.Client, files: list[Path], expected: Expected
) -> None:
    assert client.get("/lora-adapters").json() == [
        {"id": 0, "path": str(files[0]), "scale": 0.0, "task_name": "rhyme", "prompt_prefix": ""},
        {"id": 1, "path": str(files[1]), "scale": 0.0, "task_name": "", "prompt_prefix": ""},
    ]
    for scale, text in expected.answers.items():
        answer = client.post("/lora-adapters", json=[{"id": 0, "scale": scale}])
        assert answer.json() == {"success": True}
        assert scales(client) == [scale, 0.0]
        assert say(client, expected.prompt) == text
    assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    assert scales(client) == [0.0, 0.0]


def test_requests_of_all_kinds_run_side_by_side(client: httpx.Client, expected: Expected) -> None:
    asked = [scale for scale in SCALES for _ in range(4)]
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(
            threads.map(
                lambda scale: say(client, expected.prompt, lora=[{"id": 0, "scale": scale}]), asked
            )
        )
    assert answers == [expected.answers[scale] for scale in asked]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 32, "temperature": 0}
    texts = [
        client.post("/v1/chat/completions", json={**body, "lora": lora}).json()["choices"]
        for lora in ([{"id": 0, "scale": 1}], [], [{"id": 1, "scale": 1}])
    ]
    assert len({one[0]["message"]["content"] for one in texts}) == 3
    settings = client.post(
        "/completion", json={"prompt": "x", "n_predict": 1, "lora": [{"id": 1, "scale": 2}]}
    ).json()["generation_settings"]
    assert settings["lora"] == [{"id": 1, "scale": 2.0}]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("x", "must be a list of objects with id and scale"),
        ({"id": 0}, "must be a list of objects with id and scale"),
        ([3], "must be a list of objects with id and scale"),
        ([{"id": 0}] * 1025, "must be a list of objects with id and scale"),
        ([{"id": 7, "scale": 1}], "there is no adapter 7; 2 are loaded"),
        ([{"scale": 1}], "there is no adapter -1; 2 are loaded"),
        ([{"id": "0", "scale": 1}], "there is no adapter '0'; 2 are loaded"),
        ([{"id": 0, "scale": "1"}], "the scale of an adapter must be a number, got '1'"),
        ([{"id": 0, "scale": 1e9}], "the scale of an adapter must be a number"),
        ([{"id": 0, "scale": True}], "the scale of an adapter must be a number, got True"),
    ],
)
def test_what_is_no_choice_of_adapters_is_refused(
    client: httpx.Client, choice: Any, message: str
) -> None:
    for path, body in (
        ("/lora-adapters", choice),
        ("/completion", {"prompt": "x", "lora": choice}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    assert scales(client) == [0.0, 0.0]


def test_a_key_does_not_change_what_others_get(model: LlamaModel) -> None:
    with serving(model, slots=1, api_keys=("a", "b")) as server:
        answer = server.post("/lora-adapters")
        assert answer.status_code in (400, 501)
        assert "send `lora` with requests" in answer.json()["error"]["message"]
    with serving(model, slots=1) as server:
        assert server.client.get("/lora-adapters").json() == []
        assert server.client.post("/lora-adapters", content="{").status_code == 400
