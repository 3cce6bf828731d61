"""Embeddings over HTTP: OpenAI's client, Ollama's, llama-server's own routes, their errors."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import ollama
import openai
import pytest

from helpers.serving import PATIENCE, Serving, serving, wait_until
from ngramspec.arrays import Vectors
from ngramspec.errors import BackendError, CapacityError, QuotaError
from ngramspec.llamacpp.embeddings import Embedder
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.server.embeddings import queue as queues
from ngramspec.server.embeddings.queue import EmbeddingQueue
from ngramspec.server.errors import ApiError

SETTINGS = ContextSettings(context_size=2048, n_ubatch=128, threads=1)
TEXT = "I believe the meaning of life is"
ROUTES = ("/v1/embeddings", "/embeddings", "/embedding", "/api/embed", "/api/embeddings")


@pytest.fixture(scope="module")
def embedder(model: LlamaModel) -> Iterator[Embedder]:
    with Embedder(model, SETTINGS, "last") as embedder:
        yield embedder


@pytest.fixture(scope="module")
def embedding(model: LlamaModel, embedder: Embedder) -> Iterator[Serving]:
    with serving(model, slots=1, served={"embedder": embedder}) as server:
        yield server


@pytest.fixture(scope="module")
def unit_vector(model: LlamaModel, embedder: Embedder) -> Callable[[str], Vectors]:
    """Return a function that returns a text's vector of length 1."""

    def unit_vector(text: str) -> Vectors:
        vector = embedder.embed([model.tokenize(text)])[0][0]
        return vector / np.linalg.norm(vector)

    return unit_vector


def close(one: Sequence[float], other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-4))


def test_openais_client_gets_vectors(
    embedding: Serving, unit_vector: Any, model: LlamaModel
) -> None:
    texts = [TEXT, "Write a joke", "x"]
    packed = embedding.openai.embeddings.create(model="any", input=texts)  # asks for base64
    plain = embedding.openai.embeddings.create(model="any", input=texts, encoding_format="float")
    for answer in (packed, plain):
        assert [one.index for one in answer.data] == [0, 1, 2]
        for one, text in zip(answer.data, texts, strict=True):
            assert close(one.embedding, unit_vector(text))
    tokens = sum(model.tokenize(text).size for text in texts)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == tokens
    assert packed.model == "any"
    assert packed.object == "list"
    assert packed.data[0].object == "embedding"


def test_base64_holds_the_same_floats(embedding: Serving) -> None:
    whole = embedding.post("/v1/embeddings", input="x").json()
    packed = embedding.post("/v1/embeddings", input="x", encoding_format="base64").json()["data"][0]
    assert packed["encoding_format"] == "base64"
    floats = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert close(floats, whole["data"][0]["embedding"])
    assert whole["model"] == "tiny"


@pytest.mark.parametrize(
    ("inputs", "count"),
    [
        ("string", 1),
        ([12, 34, 56], 1),
        ([12, 34, "string", 56, 78], 1),
        (["string1", "string2"], 2),
        (["string1", [12, 34, 56]], 2),
        ([[12, 34, 56], [12, "string", 34, 56]], 2),
        ({"prompt_string": "string"}, 1),
        ({"content": [{"type": "text", "text": "string"}]}, 1),
        (["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}], 3),
    ],
)
def test_llama_servers_shapes_of_input(embedding: Serving, inputs: Any, count: int) -> None:
    for path in ROUTES[:3]:
        reply = embedding.post(path, input=inputs)
        assert reply.status_code == 200, reply.text
        data = reply.json()["data"] if path.startswith("/v1") else reply.json()
        assert [one["index"] for one in data] == list(range(count))


def test_parts_are_one_text(embedding: Serving) -> None:
    parts = {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}
    data = embedding.post("/v1/embeddings", input=["hello world", parts]).json()["data"]
    assert close(data[0]["embedding"], data[1]["embedding"])


def test_llama_servers_own_route_has_a_list(embedding: Serving, unit_vector: Any) -> None:
    for path in ("/embedding", "/embeddings"):
        for body in ({"content": TEXT}, {"input": TEXT}):
            (one,) = embedding.post(path, **body).json()
            assert one["index"] == 0
            assert close(one["embedding"][0], unit_vector(TEXT))
    assert isinstance(embedding.post("/v1/embeddings", content=TEXT).json(), list)


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3])
def test_the_length_of_vectors(embedding: Serving, embedder: Embedder, norm: int) -> None:
    raw = embedder.embed([embedding.served.model.tokenize(TEXT)])[0][0].astype(np.float64)
    lengths = {-1: 1.0, 0: np.abs(raw).max() / 32760}
    length = lengths.get(norm) or (np.abs(raw) ** norm).sum() ** (1 / max(norm, 1))
    (one,) = embedding.post("/embedding", content=TEXT, embd_normalize=norm).json()
    np.testing.assert_allclose(one["embedding"][0], raw / length, rtol=1e-3, atol=1e-4 / length)


def test_dimensions_keep_the_first_numbers(embedding: Serving, unit_vector: Any) -> None:
    answer = embedding.openai.embeddings.create(model="any", input=TEXT, dimensions=16)
    first = unit_vector(TEXT)[:16]
    assert close(answer.data[0].embedding, first / np.linalg.norm(first))


def test_the_pooling_none_gives_a_vector_per_token(model: LlamaModel) -> None:
    with (
        Embedder(model, SETTINGS, "none") as each,
        serving(model, slots=1, served={"embedder": each}) as server,
    ):
        (one,) = server.post("/embeddings", input="hello hello hello").json()
        ids = model.tokenize("hello hello hello")
        raw = each.embed([ids])[0]
        assert close(one["embedding"], raw)
        refused = server.post("/v1/embeddings", input="x")
        assert refused.status_code == 400
        assert "--pooling mean or last" in refused.json()["error"]["message"]
        last = server.post("/api/embeddings", model="tiny", prompt="hello hello hello").json()
        assert close(last["embedding"], raw[-1])
        most = embedding_limit(each)
        rows = server.post("/embeddings", input=["x " * 50] * (most // 100 + 1))
        assert rows.status_code == 400
        assert "vectors, the most is" in rows.json()["error"]["message"]


def embedding_limit(embedder: Embedder) -> int:
    from ngramspec.server.embeddings.texts import MAX_FLOATS

    return MAX_FLOATS // embedder.size


@pytest.fixture(scope="module")
def client(embedding: Serving) -> Iterator[ollama.Client]:
    with ollama.Client(embedding.url) as client:
        yield client


def test_ollamas_client_gets_vectors(
    client: ollama.Client, unit_vector: Any, embedder: Embedder, model: LlamaModel
) -> None:
    answer = client.embed("tiny", [TEXT, "x"])
    assert close(answer.embeddings[0], unit_vector(TEXT))
    assert close(answer.embeddings[1], unit_vector("x"))
    assert answer.model == "tiny"
    assert answer.prompt_eval_count == model.tokenize(TEXT).size + model.tokenize("x").size
    assert answer.total_duration > 0
    assert len(client.embed("tiny", TEXT).embeddings) == 1
    assert client.embed("tiny", "").embeddings == []
    assert len(client.embed("tiny", "x", dimensions=8).embeddings[0]) == 8
    raw = embedder.embed([model.tokenize(TEXT)])[0][0]
    assert close(client.embeddings("tiny", TEXT).embedding, raw)
    assert client.embeddings("tiny", "").embedding == []


def test_ollama_cuts_long_texts_unless_asked_not_to(
    client: ollama.Client, embedder: Embedder, model: LlamaModel
) -> None:
    long = "word " * 500
    ids = model.tokenize(long)[: embedder.most_tokens]
    vector = embedder.embed([ids])[0][0]
    answer = client.embed("tiny", long)
    assert close(answer.embeddings[0], vector / np.linalg.norm(vector))
    assert answer.prompt_eval_count == embedder.most_tokens
    with pytest.raises(ollama.ResponseError, match="exceeds the context length") as caught:
        client.embed("tiny", long, truncate=False)
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.embed("other", "x")
    assert caught.value.status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": {"content": "string"}}, "input"),
        ({"input": {"content": [{"type": "unknown"}]}}, "input"),
        ({"input": {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}}, "input"),
        ({"input": {"prompt_string": "x", "multimodal_data": ["x"]}}, "input"),
        ({"input": {}}, "input"),
        ({"input": 5}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 10**6}, "dimensions"),
        ({"input": "x", "embd_normalize": -2}, "embd_normalize"),
    ],
)
def test_bad_bodies_are_refused(embedding: Serving, body: Any, param: str) -> None:
    reply = embedding.post("/v1/embeddings", **body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_a_text_that_is_too_long_is_refused(embedding: Serving) -> None:
    with pytest.raises(openai.BadRequestError, match="too large to process") as caught:
        embedding.openai.embeddings.create(model="any", input="This is a test " * 512)
    assert caught.value.code == "context_length_exceeded"
    assert "128: --ubatch-size, or what a slot holds if that is less" in caught.value.message
    error = embedding.post("/v1/embeddings", input="word, " * 500_000).json()["error"]
    assert "at least" in error["message"]  # which is known without tokenizing it
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "inputs", [[1, *["x"] * 2049], [{"prompt_string": [1, *["x"] * 1025]}] * 2], ids=["list", "two"]
)
def test_texts_among_ids_are_counted_before_they_are_tokenized(
    embedding: Serving, inputs: Any
) -> None:
    reply = embedding.post("/v1/embeddings", input=inputs)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert "at most 2048 texts" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_without_the_option_the_routes_say_how_to_turn_it_on(server: Serving, path: str) -> None:
    reply = server.post(path, input="x", prompt="x", model="tiny")
    assert reply.status_code == 400
    error = reply.json()["error"]
    text = error if path.startswith("/api/") else error["message"]
    assert "start it with --embeddings" in text


def test_generating_goes_on_beside_embeddings(embedding: Serving) -> None:
    text = embedding.complete(max_tokens=40).choices[0].text
    texts = [f"{TEXT} {i}" for i in range(40)]
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(embedding.openai.embeddings.create(model="a", input=texts))
    )
    asking.start()
    assert embedding.complete(max_tokens=40).choices[0].text == text
    asking.join(PATIENCE)
    assert len(answers[0].data) == 40


class SlowEmbedder:
    """Waits until it may go on, and counts its calls."""

    pooling, size, most_tokens, most_texts = "last", 4, 100, 2

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.seen: list[list[int]] = []

    def embed(self, texts: Sequence[Any]) -> list[Vectors]:
        assert self.go_on.wait(PATIENCE)
        if any(text[0] == 13 for text in texts):
            raise BackendError("llama.cpp cannot compute embeddings")
        self.seen.append([int(text[0]) for text in texts])
        return [np.full((1, 4), text[0], np.float32) for text in texts]


def texts(*numbers: int) -> list[Any]:
    return [np.array([number], np.int32) for number in numbers]


async def waiting(queue: EmbeddingQueue, number: int) -> None:
    """Return when so many requests are in the queue."""
    while queue.num_waiting < number:
        await asyncio.sleep(0.001)


async def stays() -> Any:
    await asyncio.sleep(PATIENCE)


async def leaves() -> Any:
    return {"type": "http.disconnect"}


def test_requests_take_turns_and_a_failure_ends_only_its_own() -> None:
    async def ask() -> None:
        slow = SlowEmbedder()
        queue = EmbeddingQueue(slow)
        calls = [
            queue.run(texts(*numbers), stays) for numbers in ([1, 2, 3, 4, 5], [6], [13], [7, 8])
        ]
        asked = [asyncio.ensure_future(call) for call in calls]
        await waiting(queue, 4)
        slow.go_on.set()
        first, second, third, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(third, BackendError)
        for vectors, numbers in ((first, [1, 2, 3, 4, 5]), (second, [6]), (last, [7, 8])):
            assert [one[0, 0] for one in vectors] == numbers
        assert slow.seen == [[1, 2], [6], [7, 8], [3, 4], [5]]
        assert queue.num_waiting == 0
        queue.close()

    asyncio.run(ask())


def test_nothing_more_is_computed_for_a_client_that_has_left() -> None:
    async def ask() -> None:
        slow = SlowEmbedder()
        queue = EmbeddingQueue(slow)
        with pytest.raises(ApiError) as caught:
            await queue.run(texts(1, 2, 3, 4), leaves)
        assert caught.value.status == 499
        assert queue.num_waiting == 0
        slow.go_on.set()
        assert len(await queue.run(texts(9), stays)) == 1
        assert [4] not in [seen[-1:] for seen in slow.seen]
        queue.close()

    asyncio.run(ask())


def test_a_failure_that_nobody_thought_of_is_logged(
    embedding: Serving,
    embedder: Embedder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(texts: Sequence[Any]) -> list[Vectors]:
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr(embedder, "embed", failing)
    with caplog.at_level("ERROR"):
        reply = embedding.post("/v1/embeddings", input="x")
    assert (reply.status_code, "nobody" in reply.text) == (500, False)
    assert "RuntimeError: nobody thought of it" in caplog.text


def test_the_queue_is_bounded_and_ends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        monkeypatch.setattr(queues, "MOST_WAITING", 2)
        slow = SlowEmbedder()
        queue = EmbeddingQueue(slow)
        asked = [asyncio.ensure_future(queue.run(texts(1, 2, 3), stays)) for _ in range(2)]
        await waiting(queue, 2)
        with pytest.raises(CapacityError, match="wait already"):
            await queue.run(texts(4), stays)
        closing = asyncio.ensure_future(asyncio.to_thread(queue.close))
        await asyncio.sleep(0.05)
        slow.go_on.set()
        await closing
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(one) for one in results] == ["the server is closing"] * 2
        assert await queue.run([], stays) == []

    asyncio.run(ask())


def test_tenants_take_turns_and_none_has_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        monkeypatch.setattr(queues, "MOST_WAITING", 4)
        slow = SlowEmbedder()
        queue = EmbeddingQueue(slow)
        calls = [queue.run(texts(n, n + 1, n + 2), stays, "a") for n in (20, 30, 40)]
        asked = [asyncio.ensure_future(call) for call in calls]
        await waiting(queue, 3)
        with pytest.raises(QuotaError, match="with this key"):
            await queue.run(texts(50), stays, "a")
        asked.append(asyncio.ensure_future(queue.run(texts(1, 2, 3), stays, "b")))
        await waiting(queue, 4)
        slow.go_on.set()
        await asyncio.gather(*asked)
        # The first turn may have begun before the other tenant came, or not.
        assert [1, 2] in slow.seen[1:3]
        turns = [seen[0] < 10 for seen in slow.seen]
        assert turns.index(True, turns.index(True) + 1) <= 4
        assert sorted(slow.seen) == [[1, 2], [3], [20, 21], [22], [30, 31], [32], [40, 41], [42]]
        queue.close()

    asyncio.run(ask())


def test_a_full_queue_gets_503(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_WAITING", 1)
    slow = SlowEmbedder()
    with serving(model, slots=1, served={"embedder": slow}) as server:
        queue: EmbeddingQueue = server.http.config.app.state.embeddings
        asking = threading.Thread(target=lambda: server.post("/v1/embeddings", input="x"))
        asking.start()
        wait_until(lambda: queue.num_waiting == 1)
        reply = server.post("/v1/embeddings", input="x")
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        slow.go_on.set()
        asking.join(PATIENCE)


def test_a_client_that_leaves_is_forgotten(model: LlamaModel) -> None:
    slow = SlowEmbedder()
    with serving(model, slots=1, served={"embedder": slow}) as server:
        queue: EmbeddingQueue = server.http.config.app.state.embeddings
        sock = server.connect()
        body = b'{"input": ["a", "b", "c", "d", "e"]}'
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body)
        wait_until(lambda: queue.num_waiting == 1)
        sock.close()
        wait_until(lambda: queue.num_waiting == 0)
        slow.go_on.set()
        assert server.post("/v1/embeddings", input="x").status_code == 200
        assert sum(map(len, slow.seen)) <= 3


def test_the_command_makes_vectors(spawn: Callable[..., Any]) -> None:
    process = spawn("--embeddings", "--pooling", "mean", "-ub", "64", "--embd-normalize", "-1")
    with openai.OpenAI(base_url=f"{process.url()}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="any", input=TEXT, encoding_format="float")
        assert abs(np.linalg.norm(answer.data[0].embedding) - 1) > 1e-3
        with pytest.raises(openai.BadRequestError, match="the most is 64"):
            client.embeddings.create(model="any", input="word " * 200)
        assert client.completions.create(model="any", prompt="x", max_tokens=2).choices[0].text
