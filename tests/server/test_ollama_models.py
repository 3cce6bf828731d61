"""What Ollama's routes tell about the model, its names, and requests that they refuse."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from helpers.serving import Serving, serving
from ngramspec._version import __version__
from ngramspec.models import embedded_model
from ngramspec.models.ollama.modelfile import parse_modelfile
from ngramspec.models.ollama.recipe import Recipe
from ngramspec.server.ollama.info import human_number

NAMES = (
    "tiny", "tiny:latest", "Tiny", "library/tiny", "registry.ollama.ai/library/tiny:latest",
    "tiny-code-q8_0", "tiny-code-q8_0.gguf", "other:7b",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[ollama.Client]:
    with ollama.Client(server.url) as client:
        yield client


def test_the_served_model_is_listed(server: Serving, client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == "tiny:latest"
    assert listed.size == server.served.model.path.stat().st_size
    assert len(listed.digest) == 64
    assert listed.modified_at.year > 2020
    assert listed.details.format == "gguf"
    assert listed.details.family == "llama"
    assert listed.details.families == ["llama"]
    assert listed.details.parameter_size == "7.25M"
    assert listed.details.quantization_level == "Q8_0"
    raw = server.client.get("/api/tags").json()["models"][0]
    assert raw["capabilities"] == ["completion"]
    assert raw["details"]["context_length"] == 2048
    assert raw["details"]["embedding_length"] == 256


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_model_is_told_as_it_was_read_whatever_becomes_of_its_file(
    tmp_path: Path, what: str
) -> None:
    file = tmp_path / "mine.gguf"
    shutil.copyfile(embedded_model(), file)
    size, written = file.stat().st_size, file.stat().st_mtime

    def answers() -> list[Any]:
        asked = (
            client.get("/api/tags"),
            client.get("/api/ps"),
            client.post("/api/show", json=tiny),
        )
        assert [one.status_code for one in asked] == [200] * 3
        return [one.json() for one in asked]

    with serving(file, slots=1, exact=False) as server:
        client, tiny = server.client, {"model": "tiny"}
        before = answers()
        file.unlink()
        if what == "replaced":
            file.write_bytes(b"another")
        assert answers() == before
    (listed,) = before[0]["models"]
    assert listed["size"] == size
    moment = datetime.fromisoformat(listed["modified_at"].replace("Z", "+00:00"))
    assert moment.timestamp() == pytest.approx(written)


def test_the_served_model_is_loaded_for_good(client: ollama.Client) -> None:
    (loaded,) = client.ps().models
    assert loaded.name == loaded.model == "tiny:latest"
    assert loaded.context_length == 2048
    assert loaded.size_vram == 0
    assert loaded.expires_at.year > 2100
    assert loaded.digest == client.list().models[0].digest


def test_show_tells_all_about_it(server: Serving, client: ollama.Client) -> None:
    shown = client.show("tiny")
    assert shown.capabilities == ["completion"]
    assert shown.details.family == "llama"
    assert shown.template == server.served.model.chat_template
    assert shown.parameters is None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["general.parameter_count"] == server.served.model.num_params
    assert shown.modelinfo["llama.context_length"] == 2048
    assert shown.modelinfo["llama.rope.freq_base"] == 1e10
    assert shown.modelinfo["tokenizer.ggml.add_bos_token"] is False
    assert shown.modelinfo["tokenizer.ggml.model"] == "gpt2"
    written = parse_modelfile(shown.modelfile)
    assert written.base == str(server.served.model.path)
    assert written.drafts == ("ngram-mod,ngram-cache",)
    raw = server.post("/api/show", model="tiny").json()["speculative"]
    assert [one["name"] for one in raw["drafters"]] == ["ngram-mod", "ngram-cache"]
    assert raw["active"] is True


def test_tools_are_told_of_where_the_template_reads_them(start) -> None:
    texts = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tools = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    for template, expected in {
        f"There are no tools. {texts}": ["completion"],
        tools + texts: ["completion", "tools"],
    }.items():
        server = start(slots=1, served={"template": template})
        assert server.post("/api/show", model="tiny").json()["capabilities"] == expected
        assert server.client.get("/api/tags").json()["models"][0]["capabilities"] == expected


def test_what_ollama_was_told_of_a_model_is_shown(start) -> None:
    recipe = Recipe(capabilities=("completion", "vision", "thinking", "tools"))
    server = start(slots=1, served={"recipe": recipe})
    expected = ["completion", "tools", "thinking"]  # there are no images here
    assert server.post("/api/show", model="tiny").json()["capabilities"] == expected
    assert server.client.get("/api/tags").json()["models"][0]["capabilities"] == expected


def test_the_older_field_of_show_is_taken(server: Serving) -> None:
    assert server.post("/api/show", name="tiny").json()["details"]["format"] == "gguf"


def test_the_version_is_one_that_clients_accept(server: Serving) -> None:
    version = server.client.get("/api/version").json()
    assert tuple(map(int, version["version"].split("."))) >= (0, 13, 4)  # Codex
    assert version["ngramspec"] == __version__


@pytest.mark.parametrize("path", ["/", "/api/tags", "/api/version"])
def test_head_requests_find_a_server(server: Serving, path: str) -> None:
    answer = server.client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""


def test_the_model_answers_to_all_of_its_names(start) -> None:
    server = start(slots=1, served={"aliases": ("other:7b", "with space")})
    for name in (*NAMES, "with space"):
        answer = server.post("/api/generate", model=name, stream=False).json()
        assert (answer["model"], answer["done_reason"]) == (name, "load")
    for name in ("other", "tiny:8b", "else/tiny", "tin", "with  space"):
        assert server.post("/api/show", model=name).status_code == 404


@pytest.mark.parametrize("call", ["chat", "generate", "show"])
def test_other_models_are_not_found(client: ollama.Client, call: str) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'llama9' not found") as caught:
        getattr(client, call)("llama9")
    assert caught.value.status_code == 404


def test_what_a_server_of_one_model_cannot_do_is_told(client: ollama.Client) -> None:
    calls = [
        lambda: client.pull("llama3"),
        lambda: list(client.pull("llama3", stream=True)),
        lambda: client.push("llama3"),
        lambda: client.create("mine", from_="llama3"),
        lambda: client.copy("a", "b"),
        lambda: client.delete("tiny"),
    ]
    for call in calls:
        with pytest.raises(ollama.ResponseError, match="does not manage models") as caught:
            call()
        assert caught.value.status_code == 501
    for embed in (lambda: client.embed("tiny", "x"), lambda: client.embeddings("tiny", "x")):
        with pytest.raises(ollama.ResponseError, match="does not support embeddings"):
            embed()


def test_a_pull_of_the_served_model_succeeds(server: Serving, client: ollama.Client) -> None:
    assert client.pull("tiny").status == "success"
    assert [part.status for part in client.pull("tiny:latest", stream=True)] == [
        "pulling manifest", "success",
    ]  # fmt: skip
    assert server.post("/api/pull", name="tiny", stream=False).json() == {"status": "success"}
    assert server.post("/api/pull").status_code == 400
    assert "serves tiny:latest" in server.post("/api/pull", model="llama3").json()["error"]


def error_of(answer: httpx.Response, status: int) -> str:
    """Return what an answer says in Ollama's shape."""
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    return str(answer.json()["error"])


def test_errors_of_all_kinds_have_ollamas_shape(start) -> None:
    server = start(slots=1, api_keys=("secret",), max_body_bytes=2000)
    client = server.client
    assert error_of(httpx.get(f"{server.url}/api/tags"), 401) == "Invalid API Key"
    assert error_of(client.get("/api/nothing"), 404) == "there is no /api/nothing"
    assert error_of(client.get("/api/chat"), 405) == "/api/chat does not take GET"
    assert "larger than 2000 bytes" in error_of(client.post("/api/chat", content=b"x" * 3000), 413)
    assert "is not JSON" in error_of(client.post("/api/chat", content=b"{"), 400)
    assert "must be a JSON object" in error_of(client.post("/api/generate", content=b"[]"), 400)
    server.bridge.intake.close()
    closing = client.post("/api/generate", json={"model": "tiny", "prompt": "x"})
    assert error_of(closing, 503) == "the server is closing"
    assert closing.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", ["/api/show", "/api/pull"])
def test_a_body_that_only_names_a_model_is_small(server: Serving, path: str) -> None:
    reply = server.post(path, model="tiny", more="x" * (1 << 16))
    assert error_of(reply, 413) == "the body is larger than 65536 bytes"


@pytest.mark.parametrize(
    ("count", "text"),
    [(8030261248, "8.0B"), (7 * 10**9, "7B"), (137000000, "137M"), (5475584, "5.48M"),
     (4500, "4K"), (12, "12")],
)  # fmt: skip
def test_parameters_are_counted_as_ollama_does(count: int, text: str) -> None:
    assert human_number(count) == text
